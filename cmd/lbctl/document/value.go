package document

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	lbdv1 "lbd/proto/lbd/v1"
)

// Value is a message in the form that documents and answers share: the schema's names and order, bare enum words,
// durations like `5s`, times by RFC 3339.
type Value struct {
	kind kind
	// A scalar's text.
	text string
	// A map's keys, beside its elements.
	keys     []string
	elements []*Value
	// What else a map may hold: the other fields of a message, or (open) any key.
	about protoreflect.MessageDescriptor
	open  bool
}

type kind int

const (
	text    kind = iota
	literal      // a number, true or false
	list
	mapping
)

// Of is the value of a message with the fields that it has.
func Of(m proto.Message) *Value {
	return ofMessage(m.ProtoReflect(), false)
}

// OfAnswer is the value of a message with all fields that always mean something: a count of 0 is shown, so that a
// script finds it.
func OfAnswer(m proto.Message) *Value {
	return ofMessage(m.ProtoReflect(), true)
}

// ListOf is a list of values.
func ListOf(elements []*Value) *Value {
	return &Value{kind: list, elements: elements}
}

// Elements are the values of a list; a value that is none is its own only element.
func (v *Value) Elements() []*Value {
	if v.kind == list {
		return v.elements
	}
	return []*Value{v}
}

// MapOf is an empty map, for With.
func MapOf() *Value {
	return &Value{kind: mapping}
}

// With adds a field to a map.
func (v *Value) With(key string, field *Value) *Value {
	v.keys = append(v.keys, key)
	v.elements = append(v.elements, field)
	return v
}

// Text is a scalar of text.
func Text(s string) *Value {
	return &Value{kind: text, text: s}
}

// Number is a scalar of a whole number.
func Number(n int) *Value {
	return &Value{kind: literal, text: strconv.Itoa(n)}
}

// Truth is a scalar of true or false.
func Truth(b bool) *Value {
	return &Value{kind: literal, text: strconv.FormatBool(b)}
}

func (v *Value) field(key string) *Value {
	if i := slices.Index(v.keys, key); i >= 0 {
		return v.elements[i]
	}
	return nil
}

func ofMessage(m protoreflect.Message, answer bool) *Value {
	switch m := m.Interface().(type) {
	case *durationpb.Duration:
		return Text(Duration(m.AsDuration()))
	case *lbdv1.Timeout:
		if m.GetDisabled() {
			return Text(disabled)
		}
		return Text(Duration(m.GetDuration().AsDuration()))
	case *timestamppb.Timestamp:
		return Text(m.AsTime().Format(time.RFC3339Nano))
	}
	v := MapOf()
	v.about = m.Descriptor()
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		fd := fields.Get(i)
		if m.Has(fd) || answer && !fd.HasPresence() {
			v.With(string(fd.Name()), ofField(m.Get(fd), fd, answer))
		}
	}
	return v
}

func ofField(f protoreflect.Value, fd protoreflect.FieldDescriptor, answer bool) *Value {
	switch {
	case fd.IsMap():
		v := MapOf()
		v.open = true
		f.Map().Range(func(k protoreflect.MapKey, _ protoreflect.Value) bool {
			v.keys = append(v.keys, k.String())
			return true
		})
		slices.Sort(v.keys)
		for _, k := range v.keys {
			v.elements = append(v.elements, ofScalar(f.Map().Get(protoreflect.ValueOfString(k).MapKey()), fd.MapValue()))
		}
		return v
	case fd.IsList():
		v := &Value{kind: list}
		for i := range f.List().Len() {
			v.elements = append(v.elements, ofElement(f.List().Get(i), fd, answer))
		}
		return v
	default:
		return ofElement(f, fd, answer)
	}
}

func ofElement(f protoreflect.Value, fd protoreflect.FieldDescriptor, answer bool) *Value {
	if fd.Message() != nil {
		return ofMessage(f.Message(), answer)
	}
	return ofScalar(f, fd)
}

func ofScalar(f protoreflect.Value, fd protoreflect.FieldDescriptor) *Value {
	switch fd.Kind() {
	case protoreflect.StringKind:
		return Text(f.String())
	case protoreflect.EnumKind:
		return Text(Word(fd.Enum(), f.Enum()))
	default:
		return &Value{kind: literal, text: f.String()}
	}
}

// Duration writes a length of time in its shortest form: 1h30m, not 1h30m0s.
func Duration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
