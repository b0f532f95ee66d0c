package state

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

// Kind is a kind of resource, by the word that documents and the API use: "listeners", "pools", …
type Kind string

// The kinds, in the order of a document.
const (
	Listeners       Kind = "listeners"
	Certificates    Kind = "certificates"
	Pools           Kind = "pools"
	Routes          Kind = "routes"
	Policies        Kind = "policies"
	AddressLists    Kind = "address_lists"
	TrustBundles    Kind = "trust_bundles"
	Owners          Kind = "owners"
	ClusterSettings Kind = "cluster_settings"
)

// kindInfo is all that the rest of the program knows of a kind. The plural is the field's name in a Document; messages are
// reached through the names of fields.
type kindInfo struct {
	kind     Kind
	singular string
	// check adds what is wrong with one resource and with what it refers to.
	check func(*checker, proto.Message)
	// index names the derived keys under which a resource is found again.
	index func(*raftv1.StoredResource) []string
	// normalize brings a specification into the one form in which it is stored.
	normalize func(proto.Message)
}

// kinds is filled when the package starts because the functions in it look kinds up themselves.
var kinds []kindInfo

func init() {
	kinds = []kindInfo{
		{Listeners, "listener", on(checkListener), indexOn(indexListener), normalizeOn(normalizeListener)},
		{Certificates, "certificate", on(checkCertificate), indexCertificate, normalizeOn(normalizeCertificate)},
		{Pools, "pool", on(checkPool), indexOn(indexPool), normalizeOn(normalizePool)},
		{Routes, "route", on(checkRoute), indexOn(indexRoute), normalizeOn(normalizeRoute)},
		{Policies, "policy", on(checkPolicy), indexOn(indexPolicy), normalizeOn(normalizePolicy)},
		{AddressLists, "address_list", on(checkAddressList), nil, normalizeOn(normalizeAddressList)},
		{TrustBundles, "trust_bundle", on(checkTrustBundle), nil, normalizeOn(normalizeTrustBundle)},
		{Owners, "owner", on(checkBounds), nil, normalizeOn(normalizeBounds)},
		{ClusterSettings, "cluster_settings", on(checkSettings), nil, nil},
	}
}

// field is the kind's name in a Resource: the singular, but for owners, whose word says there who owns the resource.
func (info *kindInfo) field() protoreflect.Name {
	if info.kind == Owners {
		return "owner_bounds"
	}
	return protoreflect.Name(info.singular)
}

func on[T proto.Message](f func(*checker, T)) func(*checker, proto.Message) {
	return func(c *checker, m proto.Message) { f(c, m.(T)) }
}

func indexOn[T proto.Message](f func(string, T) []string) func(*raftv1.StoredResource) []string {
	return func(r *raftv1.StoredResource) []string {
		key, _ := KeyOf(r.GetResource())
		return f(key.Name, Spec(r.GetResource()).(T))
	}
}

func normalizeOn[T proto.Message](f func(T)) func(proto.Message) {
	return func(m proto.Message) { f(m.(T)) }
}

func (k Kind) info() *kindInfo {
	for i := range kinds {
		if kinds[i].kind == k {
			return &kinds[i]
		}
	}
	return nil
}

// Kinds are all kinds, in the order of a document.
func Kinds() []Kind {
	all := make([]Kind, len(kinds))
	for i, info := range kinds {
		all[i] = info.kind
	}
	return all
}

// ParseKind finds the kind that a word names: the plural of documents or the singular ("pools", "pool").
func ParseKind(word string) (Kind, bool) {
	for _, info := range kinds {
		if word == string(info.kind) || word == info.singular {
			return info.kind, true
		}
	}
	return "", false
}

// Singular is the word for one resource of the kind: "listener", "pool"; empty for an unknown kind.
func (k Kind) Singular() string {
	if info := k.info(); info != nil {
		return info.singular
	}
	return ""
}

// Describe is the message that says what a resource of the kind may say; nil for an unknown kind.
func (k Kind) Describe() protoreflect.MessageDescriptor {
	info := k.info()
	if info == nil {
		return nil
	}
	return (&lbdv1.Resource{}).ProtoReflect().Descriptor().Fields().ByName(info.field()).Message()
}

// Single tells a kind of which the cluster has one resource, without name and owner.
func (k Kind) Single() bool { return k == ClusterSettings }

// Key names a resource. Name is empty for cluster_settings alone.
type Key struct {
	Kind Kind
	Name string
}

// String is "kind/name", or the kind alone where it has one resource.
func (k Key) String() string {
	if k.Kind.Single() {
		return string(k.Kind)
	}
	return string(k.Kind) + "/" + k.Name
}

// Field is the key as field paths begin: pools["shop"].
func (k Key) Field() string {
	if k.Kind.Single() {
		return string(k.Kind)
	}
	return fmt.Sprintf("%s[%q]", k.Kind, k.Name)
}

// ParseKey reads "kind/name" with the plural or the singular.
func ParseKey(text string) (Key, error) {
	word, name, _ := strings.Cut(text, "/")
	kind, ok := ParseKind(word)
	if !ok {
		return Key{}, fmt.Errorf("read %q: no kind named `%s`%s", text, word, didYouMean(word, kindWords()))
	}
	if kind.Single() != (name == "") {
		return Key{}, fmt.Errorf("read %q: want kind/name, as in %s/shop", text, Pools)
	}
	return Key{kind, name}, nil
}

func kindWords() []string {
	var words []string
	for _, info := range kinds {
		words = append(words, string(info.kind))
	}
	return words
}

// Spec is what a resource says; nil when it says nothing.
func Spec(r *lbdv1.Resource) proto.Message {
	field := specField(r)
	if field == nil {
		return nil
	}
	return r.ProtoReflect().Get(field).Message().Interface()
}

func specField(r *lbdv1.Resource) protoreflect.FieldDescriptor {
	if r == nil {
		return nil
	}
	m := r.ProtoReflect()
	return m.WhichOneof(m.Descriptor().Oneofs().ByName("spec"))
}

// KeyOf names a resource. It refuses one without a specification; the name may be empty.
func KeyOf(r *lbdv1.Resource) (Key, bool) {
	field := specField(r)
	if field == nil {
		return Key{}, false
	}
	at := slices.IndexFunc(kinds, func(info kindInfo) bool { return info.field() == field.Name() })
	if at < 0 {
		return Key{}, false
	}
	kind := kinds[at].kind
	if kind.Single() {
		return Key{Kind: kind}, true
	}
	spec := r.ProtoReflect().Get(field).Message()
	return Key{kind, spec.Get(spec.Descriptor().Fields().ByName("name")).String()}, true
}

// Wrap makes a resource of a specification. It refuses a message that is no kind's.
func Wrap(owner string, spec proto.Message) (*lbdv1.Resource, bool) {
	r := &lbdv1.Resource{Owner: owner}
	m := r.ProtoReflect()
	for _, info := range kinds {
		field := m.Descriptor().Fields().ByName(info.field())
		if field.Message().FullName() != spec.ProtoReflect().Descriptor().FullName() {
			continue
		}
		if info.kind.Single() {
			r.Owner = ""
		}
		m.Set(field, protoreflect.ValueOfMessage(spec.ProtoReflect()))
		return r, true
	}
	return nil, false
}

// Resources are a document's resources in its order. The specifications are shared with the document.
func Resources(doc *lbdv1.Document) []*lbdv1.Resource {
	var all []*lbdv1.Resource
	m := doc.ProtoReflect()
	add := func(v protoreflect.Value) {
		r, _ := Wrap(doc.GetOwner(), v.Message().Interface())
		all = append(all, r)
	}
	for _, info := range kinds {
		field := m.Descriptor().Fields().ByName(protoreflect.Name(info.kind))
		if !m.Has(field) {
			continue
		}
		if !field.IsList() {
			add(m.Get(field))
			continue
		}
		for list, i := m.Get(field).List(), 0; i < list.Len(); i++ {
			add(list.Get(i))
		}
	}
	return all
}

// DocumentOf is the document with these resources, those of a kind in the given order. Specifications are shared.
func DocumentOf(owner string, resources []*lbdv1.Resource) *lbdv1.Document {
	doc := &lbdv1.Document{ApiVersion: APIVersion, Owner: owner}
	m := doc.ProtoReflect()
	for _, r := range resources {
		key, ok := KeyOf(r)
		if !ok {
			continue
		}
		field := m.Descriptor().Fields().ByName(protoreflect.Name(key.Kind))
		value := protoreflect.ValueOfMessage(Spec(r).ProtoReflect())
		if field.IsList() {
			m.Mutable(field).List().Append(value)
		} else {
			m.Set(field, value)
		}
	}
	return doc
}

// sortKeys orders keys as a document does: by kind, then by name.
func sortKeys(keys []Key) {
	rank := make(map[Kind]int, len(kinds))
	for i, info := range kinds {
		rank[info.kind] = i
	}
	slices.SortFunc(keys, func(a, b Key) int {
		if a.Kind != b.Kind {
			return rank[a.Kind] - rank[b.Kind]
		}
		return strings.Compare(a.Name, b.Name)
	})
}
