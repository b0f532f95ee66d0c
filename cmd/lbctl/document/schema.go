package document

import (
	"regexp"
	"strconv"
	"strings"
	"sync"

	"google.golang.org/protobuf/reflect/protoreflect"

	lbdv1 "lbd/proto/lbd/v1"
)

// Comment is what the schema says of a message, a field, an enum or one of its words, on one line; empty if it says nothing.
func Comment(d protoreflect.Descriptor) string {
	return comments()[commentKey(d)]
}

// commentKey names a descriptor as the source does, by the blocks that it stands in.
func commentKey(d protoreflect.Descriptor) string {
	if d, ok := d.(protoreflect.EnumValueDescriptor); ok {
		return commentKey(d.Parent()) + "." + string(d.Name()) // its full name leaves the enum out
	}
	return strings.TrimPrefix(string(d.FullName()), string(d.ParentFile().Package())+".")
}

var (
	sourceBlock = regexp.MustCompile(`^(message|enum|oneof) (\w+) \{(\})?$`)
	sourceField = regexp.MustCompile(`^(?:[\w.<>, ]+ )?(\w+) = \d+;$`)
)

// comments reads the schema's source, which buf keeps in one form: a comment stands in lines before what it is about.
var comments = sync.OnceValue(func() map[string]string {
	all := map[string]string{}
	var blocks, comment []string
	for line := range strings.Lines(lbdv1.ResourceSource) {
		line = strings.TrimSpace(line)
		if text, ok := strings.CutPrefix(line, "//"); ok {
			comment = append(comment, strings.TrimSpace(text))
			continue
		}
		text := strings.Join(comment, " ")
		comment = nil
		if m := sourceBlock.FindStringSubmatch(line); m != nil {
			name := m[2]
			if m[1] == "oneof" {
				name = "" // fields in it belong to the message
			} else {
				all[joinBlocks(append(blocks, name))] = text
			}
			if m[3] == "" {
				blocks = append(blocks, name)
			}
		} else if m := sourceField.FindStringSubmatch(line); m != nil {
			all[joinBlocks(append(blocks, m[1]))] = text
		} else if line == "}" && len(blocks) > 0 {
			blocks = blocks[:len(blocks)-1]
		}
	}
	return all
})

func joinBlocks(blocks []string) string {
	var names []string
	for _, b := range blocks {
		if b != "" {
			names = append(names, b)
		}
	}
	return strings.Join(names, ".")
}

// defaultForm finds a default in a comment: "Default 10s.", "1 to 100; default 5.", "Default: the backend's port."
var defaultForm = regexp.MustCompile(`(?:\bDefault|; default):? ("[^"]*"|.+?)(?:; |: |\. |\.$|$)`)

// Default is a field's default as its comment says it; empty if it has none.
func Default(fd protoreflect.FieldDescriptor) string {
	if m := defaultForm.FindStringSubmatch(Comment(fd)); m != nil {
		return m[1]
	}
	return ""
}

// Required tells whether a field's comment demands it.
func Required(fd protoreflect.FieldDescriptor) bool {
	text := Comment(fd)
	return strings.Contains(text, "Required.") || strings.Contains(text, "Required;")
}

// TypeOf says what a field takes, in the words of a document.
func TypeOf(fd protoreflect.FieldDescriptor) string {
	one := wants(fd)
	switch {
	case fd.IsMap():
		return "mapping of text to text"
	case isDuration(fd):
		one = "length of time"
	case isTimeout(fd):
		one = "length of time, or disabled"
	case fd.Message() != nil:
		one = "mapping"
	case fd.Kind() == protoreflect.EnumKind:
		one = "one of " + strings.Join(Words(fd.Enum()), ", ")
	case fd.Kind() == protoreflect.Int32Kind, fd.Kind() == protoreflect.Int64Kind:
		one = "whole number"
	}
	if fd.IsList() {
		return "list of " + one
	}
	return one
}

// Fields are the fields that a document may have inside one; none for scalars, lengths of time and maps.
func Fields(fd protoreflect.FieldDescriptor) []protoreflect.FieldDescriptor {
	if fd.IsMap() || fd.Message() == nil || isDuration(fd) || isTimeout(fd) {
		return nil
	}
	return FieldsOf(fd.Message())
}

// FieldsOf are a message's fields in the schema's order.
func FieldsOf(md protoreflect.MessageDescriptor) []protoreflect.FieldDescriptor {
	all := make([]protoreflect.FieldDescriptor, md.Fields().Len())
	for i := range all {
		all[i] = md.Fields().Get(i)
	}
	return all
}

// Alternatives are the fields of which a message takes only one, this one among them; none if it stands alone.
func Alternatives(fd protoreflect.FieldDescriptor) []string {
	if o := fd.ContainingOneof(); o != nil && !o.IsSynthetic() {
		return names(o.Fields())
	}
	return nil
}

// A DefaultValue is what holds for a field that a document leaves out.
type DefaultValue struct {
	Path, Text string
}

// Defaults lists what holds for the fields that a message leaves out, at any depth, in the schema's order.
func Defaults(m protoreflect.Message) []DefaultValue {
	return defaults(nil, m, "")
}

func defaults(all []DefaultValue, m protoreflect.Message, path string) []DefaultValue {
	for _, fd := range FieldsOf(m.Descriptor()) {
		at := child(path, string(fd.Name()))
		text := Default(fd)
		switch {
		case !m.Has(fd) && len(Alternatives(fd)) > 0:
		case !m.Has(fd) && text != "":
			all = append(all, DefaultValue{at, text})
		case fd.IsList() && fd.Message() != nil:
			for i := range m.Get(fd).List().Len() {
				all = defaults(all, m.Get(fd).List().Get(i).Message(), element(at, m.Get(fd).List(), i))
			}
		case len(Fields(fd)) > 0 && (m.Has(fd) || isGroup(m, fd)):
			all = defaults(all, m.Get(fd).Message(), at)
		}
	}
	return all
}

// isGroup tells a mapping that only holds fields together: what is in it holds without it, too. Of others the schema says
// what it means that they are absent.
func isGroup(m protoreflect.Message, fd protoreflect.FieldDescriptor) bool {
	if l, ok := m.Interface().(*lbdv1.Listener); ok && fd.Name() == "tls" {
		return l.GetProtocol() == lbdv1.Protocol_PROTOCOL_HTTPS
	}
	return Comment(fd) == ""
}

// element is the path of a list's element: by what identifies it, or else by its place.
func element(path string, list protoreflect.List, i int) string {
	m := list.Get(i).Message()
	for _, field := range []protoreflect.Name{"name", "address", "pool"} {
		if fd := m.Descriptor().Fields().ByName(field); fd != nil && m.Has(fd) {
			return path + "[" + strconv.Quote(m.Get(fd).String()) + "]"
		}
	}
	return path + "[" + strconv.Itoa(i) + "]"
}
