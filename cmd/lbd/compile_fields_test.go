package main

import (
	"log/slog"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	"lbd/lb"
	lbdv1 "lbd/proto/lbd/v1"
)

// unread are the fields that no data plane has to know, each with who reads it or why it changes nothing.
var unread = map[string]string{
	"Listener.labels":             "for operators",
	"Listener.allowed_owners":     "cluster/state",
	"Pool.labels":                 "for operators",
	"Pool.hash_on.client_address": "is the default",
	"Pool.health_check.tls":       "a check that is none of the others, on a pool with tls",
	"Route.labels":                "for operators",
	"Policy.labels":               "for operators",
	"Policy.name":                 "is the key; it is in rules of addresses and concurrency",
	"AddressList.name":            "is the key",
	"AddressList.labels":          "for operators",
}

// samples are values for texts that are more than a name.
var samples = map[string]string{
	"Listener.tls.cipher_suites": "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
	"Listener.tls.groups":        "P521",
	"Listener.trusted_proxies":   "10.0.0.0/8",
	"Route.maintenance.bypass":   "10.0.0.0/8",
	"Policy.addresses.allow":     "10.0.0.0/8",
	"Policy.addresses.deny":      "10.0.0.0/8",
	"AddressList.addresses":      "10.0.0.0/8",

	"Policy.addresses.deny_except": "10.0.0.0/8",
}

// TestEveryFieldIsCompiled: a field of a document that can be set and does nothing is a lie. For each field of each kind two
// resources that differ in it alone must come out different.
func TestEveryFieldIsCompiled(t *testing.T) {
	for _, kind := range []struct {
		spec    proto.Message // to begin with
		compile func(*testing.T, proto.Message) any
	}{
		{&lbdv1.Listener{}, func(t *testing.T, m proto.Message) any { return compiledListener(t, stored(t, 1, m), "") }},
		{&lbdv1.Pool{
			Backends: []*lbdv1.Backend{{Address: "10.0.0.1:80"}}, Tls: &lbdv1.BackendTls{ServerName: "b.test"},
		}, compiledPoolForm},
		{&lbdv1.Route{}, func(t *testing.T, m proto.Message) any { return compiledRoute(t, stored(t, 1, m)) }},
		{&lbdv1.Policy{}, func(t *testing.T, m proto.Message) any {
			p := compilePolicy(stored(t, 1, m), routePolicy{})
			if p.addresses != nil {
				p.rule, p.addresses = compileAddresses("p", p.addresses, nil), nil
			}
			return p
		}},
		{&lbdv1.AddressList{}, func(_ *testing.T, m proto.Message) any { return networks(m.(*lbdv1.AddressList).GetAddresses()) }},
	} {
		name := string(kind.spec.ProtoReflect().Descriptor().Name())
		fields := fieldsOf(kind.spec.ProtoReflect().Descriptor())
		if len(fields) == 0 {
			t.Errorf("%s has no fields", name)
		}
		for _, path := range fields {
			text := name + "." + path.String()
			without, with := proto.Clone(kind.spec), proto.Clone(kind.spec)
			path.set(without.ProtoReflect(), protoreflect.Value{})
			path.set(with.ProtoReflect(), sampleOf(text, path))
			same := reflect.DeepEqual(kind.compile(t, without), kind.compile(t, with))
			switch why, listed := unread[text]; {
			case same && !listed:
				t.Errorf("%s changes nothing in what is served", text)
			case !same && listed:
				t.Errorf("%s does change what is served, but is listed as %q", text, why)
			}
		}
	}
}

// compiledPoolForm is all that is made of a pool: what lb gets, what is asked, and what DNS is asked for. TLS settings are told
// apart by their key.
func compiledPoolForm(t *testing.T, m proto.Message) any {
	r := newResolverWith((&names{}).lookup, slog.New(slog.DiscardHandler))
	defer r.close()
	p := compilePool(stored(t, 1, m))
	c := newCompiled()
	p.backends = c.members(p, r, nil)
	c.pools["p"] = p
	served := c.serveConfig(p)
	served.TLS.Config = nil
	checks := c.checks()
	for key, check := range checks {
		if check.TLS != nil {
			check.TLS.Config = nil
		}
		checks[key] = check
	}
	return []any{served, checks, c.questions()}
}

// fieldPath leads from a message to one field, of it or of a message in it.
type fieldPath []protoreflect.FieldDescriptor

func (p fieldPath) String() string {
	var names []string
	for _, f := range p {
		names = append(names, string(f.Name()))
	}
	return strings.Join(names, ".")
}

// fieldsOf are the paths to all fields that hold a value.
func fieldsOf(m protoreflect.MessageDescriptor) []fieldPath {
	var all []fieldPath
	for i := range m.Fields().Len() {
		f := m.Fields().Get(i)
		if leaf(f) {
			all = append(all, fieldPath{f})
			continue
		}
		for _, below := range fieldsOf(f.Message()) {
			all = append(all, slices.Concat(fieldPath{f}, below))
		}
	}
	return all
}

func leaf(f protoreflect.FieldDescriptor) bool {
	return f.Message() == nil || f.IsMap() || f.Message().FullName() == "google.protobuf.Duration" || f.Message().Fields().Len() == 0
}

// set makes the messages on the way, and gives the field a value if there is one.
func (p fieldPath) set(m protoreflect.Message, v protoreflect.Value) {
	for _, f := range p[:len(p)-1] {
		if f.IsList() {
			m = m.Mutable(f).List().AppendMutable().Message()
		} else {
			m = m.Mutable(f).Message()
		}
	}
	f := p[len(p)-1]
	switch {
	case !v.IsValid():
	case f.IsList():
		m.Mutable(f).List().Append(v)
	case f.IsMap():
		m.Mutable(f).Map().Set(protoreflect.ValueOfString("X-Sample").MapKey(), v)
	default:
		m.Set(f, v)
	}
}

// sampleOf is a value that differs from every default.
func sampleOf(text string, p fieldPath) protoreflect.Value {
	f := p[len(p)-1]
	if f.IsMap() {
		return protoreflect.ValueOfString("sample")
	}
	switch f.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(f.Name() != "present") // true is what stands for nothing said
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(7)
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(7)
	case protoreflect.EnumKind:
		values := f.Enum().Values()
		return protoreflect.ValueOfEnum(values.Get(values.Len() - 1).Number())
	case protoreflect.MessageKind:
		if f.Message().FullName() == "google.protobuf.Duration" {
			return protoreflect.ValueOfMessage(durationpb.New(7 * time.Second).ProtoReflect())
		}
		return protoreflect.ValueOfMessage(emptyOf(f))
	}
	if sample, ok := samples[text]; ok {
		return protoreflect.ValueOfString(sample)
	}
	return protoreflect.ValueOfString("sample")
}

func TestCompileAddressLists(t *testing.T) {
	lists := map[string][]netip.Prefix{
		"office": {netip.MustParsePrefix("192.0.2.0/24")}, "bad": {netip.MustParsePrefix("198.51.100.7/32")},
	}
	rule := compileAddresses("p", &lbdv1.Addresses{Allow: []string{"10.0.0.0/8"}, AllowLists: []string{"office"}, DenyLists: []string{"bad"}}, lists)
	if !slices.Equal(rule.Allow, []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}) || !rule.Closed ||
		!sameLists(rule.AllowLists, lb.AddressList{Name: "office", Networks: lists["office"]}) ||
		!sameLists(rule.DenyLists, lb.AddressList{Name: "bad", Networks: lists["bad"]}) {
		t.Errorf("rule of %v, %v, %v, closed %v", rule.Allow, rule.AllowLists, rule.DenyLists, rule.Closed)
	}
	if open := compileAddresses("p", &lbdv1.Addresses{DenyLists: []string{"bad"}}, lists); open.Closed {
		t.Error("a list of who is denied closes the door for all others")
	}
	// A list that is empty allows nobody: to take its last line away must not open the door.
	if empty := compileAddresses("p", &lbdv1.Addresses{AllowLists: []string{"gone"}}, lists); !empty.Closed || !sameLists(empty.AllowLists, lb.AddressList{Name: "gone"}) {
		t.Errorf("closed %v, lists %v", empty.Closed, empty.AllowLists)
	}

	c := newCompiled()
	c.policies["p"] = compilePolicy(stored(t, 1, &lbdv1.Policy{Name: "p", Rule: &lbdv1.Policy_Addresses{Addresses: &lbdv1.Addresses{AllowLists: []string{"office"}}}}), routePolicy{})
	c.addressLists = lists
	c.compileRules(nil)
	if r := c.policies["p"].rule; !sameLists(r.AllowLists, lb.AddressList{Name: "office", Networks: lists["office"]}) {
		t.Errorf("lists %v", r.AllowLists)
	}
}

func sameLists(got []lb.AddressList, want ...lb.AddressList) bool {
	return slices.EqualFunc(got, want, func(a, b lb.AddressList) bool { return a.Name == b.Name && slices.Equal(a.Networks, b.Networks) })
}

func TestEnumsHaveCounterparts(t *testing.T) {
	for number, word := range lbdv1.SameSite_name {
		if sameSites[lbdv1.SameSite(number)] == "" {
			t.Errorf("%s has no counterpart", word)
		}
	}
	for number, word := range lbdv1.Balance_name {
		if number > int32(lbdv1.Balance_BALANCE_ROUND_ROBIN) && balances[lbdv1.Balance(number)] == 0 {
			t.Errorf("%s has no counterpart", word)
		}
	}
}

// emptyOf is a message without fields, whose presence says it all.
func emptyOf(f protoreflect.FieldDescriptor) protoreflect.Message {
	switch f.Message().Name() {
	case "TlsCheck":
		return (&lbdv1.TlsCheck{}).ProtoReflect()
	case "ClientAddress":
		return (&lbdv1.ClientAddress{}).ProtoReflect()
	}
	return (&lbdv1.TcpCheck{}).ProtoReflect()
}
