package state_test

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"pgregory.net/rapid"

	"lbd/cluster/state"
	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

// everything uses each field and each choice of every kind, in spellings that are not the stored ones.
const everything = `
listener name:"https" labels:{key:"a" value:"b"} addresses:"[2001:DB8:0::1]:443" protocol:PROTOCOL_HTTPS tls:{min_version:TLS_VERSION_TLS12 max_version:TLS_VERSION_TLS13 default_certificate:"web" certificates:"web" certificates:"team=shop" cipher_suites:"tls_ecdhe_rsa_with_aes_128_gcm_sha256" groups:"x25519"} timeouts:{handshake:{seconds:5} request_head:{seconds:5} keep_alive_idle:{seconds:5} write_stall:{seconds:5}} limits:{connections:10 requests_per_connection:10 connection_age:{duration:{seconds:60}} head_bytes:8192 fields:64} trusted_proxies:"::ffff:10.0.0.1" forwarded:true allow_underscores:true health_path:"/ready" allowed_owners:"api" defer_accept:true response_headers:{set:{key:"Strict-Transport-Security" value:"max-age=31536000"} remove:"Server"}
listener name:"strict" addresses:":444" protocol:PROTOCOL_HTTPS tls:{strict_sni:true} limits:{connection_age:{disabled:true}}
certificate name:"web" labels:{key:"team" value:"shop"} self_signed:{hosts:"WWW.example.com" hosts:"2001:DB8::0" key_type:KEY_TYPE_RSA_2048}
certificate name:"pem" managed_externally:true pem:{chain:{inline:"chain"} key:{sha256:"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}}
pool name:"http" labels:{key:"a" value:"b"} balance:BALANCE_MAGLEV backends:{address:"App.Example.com:80" weight:0 backup:true} backends:{address:"[2001:DB8::2]:80"} hash_on:{header:"X-User"} health_check:{http:{path:"/up" host:"App.Internal" expect_status:"2XX" method:"POST" headers:{key:"X-A" value:"1"} expect_body:"ok"} interval:{seconds:5} timeout:{seconds:1} rise:1 fall:1 port:81 down_interval:{seconds:1} start:HEALTH_START_DOWN tls_override:{server_name:"App.Internal" trust_bundle:"ca" client_certificate:"web"}} connect_timeout:{seconds:1} ejection:{consecutive_errors:1 base_time:{seconds:1} max_percent:1} tls:{server_name:"App.Internal" trust_bundle:"ca" client_certificate:"web"} connections:{max_per_backend:1 idle_per_backend:0 idle_timeout:{seconds:1} requests:1 age:{seconds:1}} queue:{length:1 timeout:{seconds:1}} session_persistence:{cookie:"lb" idle_timeout:{seconds:1} absolute_timeout:{seconds:1} same_site:SAME_SITE_NONE} slow_start:{seconds:1} drain_timeout:{seconds:1} fail_open:{below_percent:1}
pool name:"tcp" discovery:{host:"App.Internal" port:80} balance:BALANCE_MAGLEV hash_on:{cookie:"id"} health_check:{tcp:{}}
pool name:"tls" discovery:{srv:"_HTTP._tcp.App.Internal"} balance:BALANCE_MAGLEV hash_on:{client_address:{}} tls:{} health_check:{tls:{}}
route name:"forward" labels:{key:"a" value:"b"} listeners:"https" hosts:"*.Example.com" matches:{path:{prefix:"/a/"} methods:"GET" headers:{name:"X-A" exact:"1"} headers:{name:"X-B" prefix:"1"} headers:{name:"X-C" regex:"1"} headers:{name:"X-D" present:false} query:{name:"Q" exact:"1" invert:true}} forward:{pools:{pool:"http" weight:5} pools:{pool:"tcp"} timeouts:{first_byte:{duration:{seconds:1}} body_idle:{disabled:true} request:{disabled:true} tunnel:{disabled:true}} retry:{attempts:0 on:RETRY_CAUSE_FIRST_BYTE_TIMEOUT non_idempotent:true per_try_timeout:{seconds:1} budget_percent:1} split_persistence:{cookie:"split" idle_timeout:{seconds:1}} rewrite:{host:"App.Internal" prefix:"/b/"}} policies:"size" policies:"who" policies:"much" allow_encoded_slash:true priority:1 request_headers:{set:{key:"X-A" value:"1"} add:{key:"X-B" value:"1"} remove:"X-C"} response_headers:{remove:"Server"} error_pages:{status:"5XX" content_type:"text/plain" body:"{status}"} maintenance:{retry_after:{seconds:1} bypass:"10.0.0.1" body:"back at six" content_type:"text/plain"}
route name:"respond" listeners:"https" matches:{path:{exact:"/"}} matches:{path:{regex:"/x"}} respond:{status:200 body:"x" headers:{key:"X-A" value:"1"}}
route name:"redirect" listeners:"https" hosts:"a.example.com" redirect:{scheme:"HTTP" host:"Shop.example.com" port:8080 path:"/" code:308}
policy name:"size" labels:{key:"a" value:"b"} body_size:{max_bytes:1}
policy name:"who" addresses:{allow:"10.0.0.1" deny:"10.0.0.0/8" allow_lists:"office" deny_lists:"office" deny_except:"10.1.2.3"}
policy name:"much" concurrency:{max_requests:1}
address_list name:"office" labels:{key:"a" value:"b"} addresses:"2001:DB8::/32"
trust_bundle name:"ca" labels:{key:"a" value:"b"} ca:{inline:"CA"}
owner_bounds name:"api" labels:{key:"a" value:"b"} allowed_hosts:"*.Example.com" allowed_hosts:"*" allowed_backend_cidrs:"10.0.0.1" allowed_backend_cidrs:"2001:DB8::/32" allowed_listener_addresses:"[2001:DB8::1]:443" allowed_listener_addresses:":80"
cluster_settings allow_loopback_backends:true allow_link_local_backends:false local_admin:true state_bytes:33554432 drain:{grace:{seconds:5} deadline:{seconds:30}} ticket_keys:{interval:{seconds:3600} accept_for:{seconds:7200} max_key_age:{seconds:86400}} backup:{schedule:"6h" directory:"/var/backups/lbd" keep:3 recipients:"age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p"}`

func allResources(t *testing.T) []*lbdv1.Resource {
	var all []*lbdv1.Resource
	text := strings.ReplaceAll(everything, `inline:"CA"`, fmt.Sprintf("inline:%q", "# ours\n"+testCA(t)))
	for _, line := range strings.Split(strings.TrimSpace(text), "\n") {
		kind, fields, _ := strings.Cut(line, " ")
		r := new(lbdv1.Resource)
		if err := prototext.Unmarshal([]byte(kind+":{"+fields+"}"), r); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		all = append(all, r)
	}
	return all
}

func changeOf(resources []*lbdv1.Resource) *raftv1.ChangeCommand {
	change := &raftv1.ChangeCommand{Owner: "web"}
	for _, r := range resources {
		change.Upserts = append(change.Upserts, &raftv1.StoredResource{Resource: proto.CloneOf(r)})
	}
	return seal(change, "")
}

// TestEverythingIsUsed holds the list above to the schema: a field that is new to it is new to the tests that use it.
func TestEverythingIsUsed(t *testing.T) {
	used := map[protoreflect.FullName]bool{}
	for _, r := range allResources(t) {
		noteFields(state.Spec(r).ProtoReflect(), used)
	}
	elsewhere := map[protoreflect.FullName]bool{ // read by lbctl, and never stored
		"lbd.v1.Content.file": true, "lbd.v1.Content.env": true,
	}
	seen := map[protoreflect.FullName]bool{}
	for _, kind := range state.Kinds() {
		walkFields(kind.Describe(), seen, func(name protoreflect.FullName) {
			if !used[name] && !elsewhere[name] {
				t.Errorf("%s is used by no test", name)
			}
		})
	}
}

func noteFields(m protoreflect.Message, used map[protoreflect.FullName]bool) {
	m.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		used[field.FullName()] = true
		switch {
		case field.IsMap() || field.Message() == nil:
		case field.IsList():
			for i := range value.List().Len() {
				noteFields(value.List().Get(i).Message(), used)
			}
		default:
			noteFields(value.Message(), used)
		}
		return true
	})
}

func walkFields(d protoreflect.MessageDescriptor, seen map[protoreflect.FullName]bool, visit func(protoreflect.FullName)) {
	if seen[d.FullName()] || !strings.HasPrefix(string(d.FullName()), "lbd.") {
		return
	}
	seen[d.FullName()] = true
	for i := range d.Fields().Len() {
		field := d.Fields().Get(i)
		visit(field.FullName())
		if !field.IsMap() && field.Message() != nil {
			walkFields(field.Message(), seen, visit)
		}
	}
}

// TestAnyOrderMakesOneState applies resources in random order, some with fields left out; what is exported then applies
// as no change, and the stored form is the only one.
func TestAnyOrderMakesOneState(t *testing.T) {
	all := allResources(t)
	if _, res := state.New("c").Apply(command(changeOf(all))); res.Err != nil {
		t.Fatalf("everything is refused: %s", showResult(res))
	}
	good := 0
	rapid.Check(t, func(t *rapid.T) {
		var some []*lbdv1.Resource
		for _, r := range all {
			r = proto.CloneOf(r)
			if rapid.IntRange(0, 9).Draw(t, "thin") == 0 {
				thin(t, state.Spec(r).ProtoReflect())
			}
			some = append(some, r)
		}
		one, res := state.New("c").Apply(command(changeOf(some)))
		other, again := state.New("c").Apply(command(changeOf(rapid.Permutation(some).Draw(t, "order"))))
		if (res.Err == nil) != (again.Err == nil) || hash(t, one) != hash(t, other) || one.Index() != other.Index() {
			t.Fatalf("the order matters:\n%s%s", showResult(res), showResult(again))
		}
		if res.Err == nil {
			good++
		}
		change := &raftv1.ChangeCommand{Owner: "web"}
		for _, kind := range state.Kinds() {
			for stored := range one.All(kind) {
				change.Upserts = append(change.Upserts, stored)
				if n := state.Normalize(stored.GetResource()); !proto.Equal(state.Spec(n), state.Spec(stored.GetResource())) {
					t.Fatalf("stored in another than the normal form: %v", stored.GetResource())
				}
			}
		}
		if _, res := one.Apply(command(change)); res.Err != nil || len(res.Changes) > 0 {
			t.Fatalf("what is stored applies as a change: %s", showResult(res))
		}
	})
	if good == 0 {
		t.Error("no change was good: the test has shown nothing")
	}
}

// thin leaves a field out here and there, but for the names.
func thin(t *rapid.T, m protoreflect.Message) {
	m.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		switch {
		case field.Name() == "name":
		case rapid.IntRange(0, 9).Draw(t, string(field.Name())) == 0:
			m.Clear(field)
		case field.IsMap() || field.Message() == nil:
		case field.IsList():
			for i := range value.List().Len() {
				thin(t, value.List().Get(i).Message())
			}
		default:
			thin(t, value.Message())
		}
		return true
	})
}

// TestAnyMessageIsJudged gives messages of any content to everything that reads them: nothing panics, and the normal
// form of a normal form is itself.
func TestAnyMessageIsJudged(t *testing.T) {
	base, res := state.New("c").Apply(command(changeOf(allResources(t))))
	if res.Err != nil {
		t.Fatal(res.Err)
	}
	rapid.Check(t, func(t *rapid.T) {
		change := &raftv1.ChangeCommand{Owner: "web"}
		for range rapid.IntRange(1, 4).Draw(t, "resources") {
			r := new(lbdv1.Resource)
			fill(t, r.ProtoReflect(), 0)
			change.Upserts = append(change.Upserts, &raftv1.StoredResource{Resource: r})
			once := state.Normalize(r)
			if twice := state.Normalize(once); !proto.Equal(once, twice) {
				t.Fatalf("normal form %v\nbecomes %v", once, twice)
			}
		}
		state.Validate(nil, change)
		state.Validate(base, change)
		if _, res := base.Apply(command(seal(change, ""))); res.Err != nil {
			if fault, ok := res.Err.(*state.PanicError); ok {
				t.Fatalf("%v\n%s", fault, fault.Stack)
			}
		}
	})
}

var oddTexts = []string{
	"", "web", "http", "https", "a b", "*.example.com", "A.Example.com.", "127.0.0.1:80", "[::1]:443", ":80", "::ffff:10.0.0.1/100", "10.0.0.1", "/", "//", "/a/",
	"/a/b//", "(a|", "/(ab{2,3})*", "[^/]+", "\x00", "get", "GET", "a=b", "2XX", "503", "Host", "X-A", "_http._tcp.a.example.com", "-----BEGIN CERTIFICATE-----\n",
	"sha256:", "x25519", "dev", "ä", strings.Repeat("(a", 400), strings.Repeat("/a", 3000),
}

// fill sets fields at random.
func fill(t *rapid.T, m protoreflect.Message, depth int) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		if depth > 0 && rapid.Bool().Draw(t, "skip") {
			continue
		}
		switch {
		case field.IsMap():
			for range rapid.IntRange(0, 2).Draw(t, "entries") {
				key := protoreflect.ValueOfString(rapid.SampledFrom(oddTexts).Draw(t, "key")).MapKey()
				m.Mutable(field).Map().Set(key, protoreflect.ValueOfString(rapid.SampledFrom(oddTexts).Draw(t, "value")))
			}
		case field.IsList():
			list := m.Mutable(field).List()
			for range rapid.IntRange(0, 3).Draw(t, "elements") {
				if field.Message() != nil {
					fill(t, list.AppendMutable().Message(), depth+1)
				} else {
					list.Append(scalar(t, field))
				}
			}
		case field.Message() != nil && depth < 8:
			fill(t, m.Mutable(field).Message(), depth+1)
		case field.Message() == nil:
			m.Set(field, scalar(t, field))
		}
	}
}

func scalar(t *rapid.T, field protoreflect.FieldDescriptor) protoreflect.Value {
	n := rapid.SampledFrom([]int64{0, 1, -1, 2, 80, 302, 65536, 1 << 30}).Draw(t, "number")
	switch field.Kind() {
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(rapid.SampledFrom(oddTexts).Draw(t, "text"))
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(n != 0)
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(protoreflect.EnumNumber(n))
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(n)
	default:
		return protoreflect.ValueOfInt32(int32(n))
	}
}
