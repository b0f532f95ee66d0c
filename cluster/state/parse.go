package state

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Parse reads what a build of lbd wrote into a log, a snapshot or the durable state. What it does not know in it, a field as
// well as a value of an enum, is an ErrFormat: a newer build meant something by it, and to go on without it would be to
// mean something else. What is no message at all is ErrDamaged.
func Parse(b []byte, m proto.Message) error {
	if err := proto.Unmarshal(b, m); err != nil {
		return fmt.Errorf("%w: %v", ErrDamaged, err)
	}
	if what := Unknown(m); what != "" {
		return fmt.Errorf("%w: %s: a newer lbd wrote it", ErrFormat, what)
	}
	return nil
}

// Unknown names a field, or a value of an enum, that this build does not know, anywhere within a message; empty: there is none.
func Unknown(m proto.Message) string { return unknowns{values: true}.in(m.ProtoReflect()) }

// UnknownField is Unknown for fields alone: what a caller sends is asked for its values where it is validated.
func UnknownField(m proto.Message) string { return unknowns{}.in(m.ProtoReflect()) }

// unknowns is a search.
type unknowns struct{ values bool }

func (u unknowns) in(m protoreflect.Message) (what string) {
	if raw := m.GetUnknown(); len(raw) > 0 && !isOfNext(m) {
		number, _, _ := protowire.ConsumeTag(raw)
		return fmt.Sprintf("field %d of %s", number, m.Descriptor().FullName())
	}
	m.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		what = u.at(field, value)
		return what == ""
	})
	return what
}

// at looks into a field that is set.
func (u unknowns) at(field protoreflect.FieldDescriptor, value protoreflect.Value) (what string) {
	inside := field
	if field.IsMap() {
		inside = field.MapValue()
	}
	if inside.Message() == nil && inside.Enum() == nil {
		return ""
	}
	switch {
	case field.IsMap():
		value.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool {
			what = u.value(inside, v)
			return what == ""
		})
	case field.IsList():
		for i := 0; i < value.List().Len() && what == ""; i++ {
			what = u.value(inside, value.List().Get(i))
		}
	default:
		what = u.value(inside, value)
	}
	return what
}

func (u unknowns) value(field protoreflect.FieldDescriptor, value protoreflect.Value) string {
	if field.Message() != nil {
		return u.in(value.Message())
	}
	if u.values && field.Enum().Values().ByNumber(value.Enum()) == nil {
		return fmt.Sprintf("value %d of %s", value.Enum(), field.FullName())
	}
	return ""
}
