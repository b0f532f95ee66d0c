package state

import (
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	lbdv1 "lbd/proto/lbd/v1"
)

// Diff is what differs between two forms of one resource, field by field in the order of the schema; either may be nil: it
// does not exist. What the cluster says of a resource (revision, etag, time) does not count.
//
// List elements that have a name, an address or a pool of their own are compared with those of the same one and named by
// it, backends["10.0.0.1:80"].weight; all others by their place. Content (a key, a chain) is shown by its fingerprint.
func Diff(before, after *lbdv1.Resource) []*lbdv1.FieldChange {
	var d differ
	if before != nil && after != nil {
		d.leaf("owner", before.GetOwner(), after.GetOwner())
	}
	d.messages("", reflected(Spec(before)), reflected(Spec(after)))
	return d.changes
}

// reflected is nil for no message.
func reflected(m proto.Message) protoreflect.Message {
	if m == nil {
		return nil
	}
	return m.ProtoReflect()
}

type differ struct {
	changes []*lbdv1.FieldChange
}

func (d *differ) leaf(path, before, after string) {
	if before != after {
		d.changes = append(d.changes, &lbdv1.FieldChange{Path: path, Before: clipValue(before), After: clipValue(after)})
	}
}

// messages compares two messages of one type, of which one may be nil. One that says nothing by its fields says it by
// being there.
func (d *differ) messages(path string, before, after protoreflect.Message) {
	some := before
	if some == nil {
		some = after
	}
	if some == nil {
		return
	}
	_, scalar := scalarMessage(some)
	if scalar || (before == nil || after == nil) && isEmpty(some) {
		d.leaf(path, messageText(before), messageText(after))
		return
	}
	fields := some.Descriptor().Fields()
	for i := range fields.Len() {
		if fd := fields.Get(i); path != "" || fd.Name() != "name" { // both have the resource's
			d.field(joinPath(path, string(fd.Name())), fd, before, after)
		}
	}
}

func (d *differ) field(path string, fd protoreflect.FieldDescriptor, before, after protoreflect.Message) {
	was, is := valueOf(before, fd), valueOf(after, fd)
	switch {
	case !was.IsValid() && !is.IsValid():
	case fd.IsMap():
		d.maps(path, fd, was, is)
	case fd.IsList() && fd.Message() != nil:
		d.elements(path, fd, listOf(was), listOf(is))
	case fd.IsList():
		d.scalars(path, fd, listOf(was), listOf(is))
	case fd.Message() != nil:
		d.messages(path, messageOf(was), messageOf(is))
	default:
		d.leaf(path, elementText(fd, was), elementText(fd, is))
	}
}

func (d *differ) maps(path string, fd protoreflect.FieldDescriptor, before, after protoreflect.Value) {
	was, is := mapOf(before), mapOf(after)
	var keys []string
	for k := range was {
		keys = append(keys, k)
	}
	for k := range is {
		if _, both := was[k]; !both {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	for _, k := range keys {
		d.leaf(mapPath(path, k), elementText(fd.MapValue(), was[k]), elementText(fd.MapValue(), is[k]))
	}
}

// scalars compares lists by place, but for what is alike at their ends: one element more or less is one change.
func (d *differ) scalars(path string, fd protoreflect.FieldDescriptor, before, after []protoreflect.Value) {
	front := 0
	for front < min(len(before), len(after)) && before[front].Equal(after[front]) {
		front++
	}
	b, a := len(before), len(after)
	for b > front && a > front && before[b-1].Equal(after[a-1]) {
		b, a = b-1, a-1
	}
	for i := front; i < max(b, a); i++ {
		var was, is protoreflect.Value
		if i < b {
			was = before[i]
		}
		if i < a {
			is = after[i]
		}
		d.leaf(itemPath(path, i), elementText(fd, was), elementText(fd, is))
	}
}

// elements compares lists of messages: by what identifies an element, or else by place. A move alone is told at the list.
func (d *differ) elements(path string, fd protoreflect.FieldDescriptor, before, after []protoreflect.Value) {
	was, byKey := identified(fd, before)
	is, byKeyToo := identified(fd, after)
	if !byKey || !byKeyToo {
		for i := range max(len(before), len(after)) {
			var b, a protoreflect.Message
			if i < len(before) {
				b = before[i].Message()
			}
			if i < len(after) {
				a = after[i].Message()
			}
			d.element(itemPath(path, i), b, a)
		}
		return
	}
	var kept, keptNow []string
	for _, k := range was.keys {
		if is.messages[k] != nil {
			kept = append(kept, k)
		}
		d.element(mapPath(path, k), was.messages[k], is.messages[k])
	}
	for _, k := range is.keys {
		if was.messages[k] != nil {
			keptNow = append(keptNow, k)
			continue
		}
		d.element(mapPath(path, k), nil, is.messages[k])
	}
	if !slices.Equal(kept, keptNow) {
		d.leaf(path, strings.Join(kept, ", "), strings.Join(keptNow, ", "))
	}
}

// element tells of one that came or went as a whole, in one change.
func (d *differ) element(path string, before, after protoreflect.Message) {
	if before == nil || after == nil {
		d.leaf(path, messageText(before), messageText(after))
		return
	}
	d.messages(path, before, after)
}

// keyed are list elements by what identifies them, in the list's order.
type keyed struct {
	keys     []string
	messages map[string]protoreflect.Message
}

// identified is not ok for elements without an identity of their own, or with the same one twice.
func identified(fd protoreflect.FieldDescriptor, list []protoreflect.Value) (keyed, bool) {
	k := keyed{messages: make(map[string]protoreflect.Message)}
	var id protoreflect.FieldDescriptor
	for _, name := range []protoreflect.Name{"name", "address", "pool"} {
		if id == nil {
			id = fd.Message().Fields().ByName(name)
		}
	}
	if id == nil || id.Kind() != protoreflect.StringKind {
		return k, false
	}
	for _, v := range list {
		key := v.Message().Get(id).String()
		if k.messages[key] != nil {
			return k, false
		}
		k.keys = append(k.keys, key)
		k.messages[key] = v.Message()
	}
	return k, true
}

// valueOf is a field's value; not valid where it is not there.
func valueOf(m protoreflect.Message, fd protoreflect.FieldDescriptor) protoreflect.Value {
	if m == nil || !m.Has(fd) {
		return protoreflect.Value{}
	}
	return m.Get(fd)
}

func listOf(v protoreflect.Value) []protoreflect.Value {
	if !v.IsValid() {
		return nil
	}
	all := make([]protoreflect.Value, v.List().Len())
	for i := range all {
		all[i] = v.List().Get(i)
	}
	return all
}

func mapOf(v protoreflect.Value) map[string]protoreflect.Value {
	all := make(map[string]protoreflect.Value)
	if v.IsValid() {
		v.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
			all[k.String()] = v
			return true
		})
	}
	return all
}

func messageOf(v protoreflect.Value) protoreflect.Message {
	if !v.IsValid() {
		return nil
	}
	return v.Message()
}

func isEmpty(m protoreflect.Message) bool {
	empty := true
	m.Range(func(protoreflect.FieldDescriptor, protoreflect.Value) bool {
		empty = false
		return false
	})
	return empty
}

func joinPath(path, field string) string {
	if path == "" {
		return field
	}
	return path + "." + field
}
