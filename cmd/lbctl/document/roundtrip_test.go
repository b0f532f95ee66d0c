package document

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"pgregory.net/rapid"

	"lbd/cluster/state"
	lbdv1 "lbd/proto/lbd/v1"
)

// What is written is read as the same again, as YAML and as JSON, whatever text is in it.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		doc := &lbdv1.Document{}
		fill(t, doc.ProtoReflect())
		doc.ApiVersion, doc.Owner = state.APIVersion, "owner"
		for name, text := range map[string][]byte{"f.yaml": Of(doc).YAML(), "f.json": Of(doc).JSON(), "g.json": Of(doc).IndentedJSON()} {
			s := Parse([]File{{Name: name, Data: text}})
			if problems := s.Report(nil); len(problems) > 0 {
				t.Fatalf("%s\nis written as\n%s\nwhich has problems: %v", doc, text, problems)
			}
			if !proto.Equal(s.Document, doc) {
				t.Fatalf("%s\nis written as\n%s\nand read as\n%s", doc, text, s.Document)
			}
		}
	})
}

// fill sets fields of a message at random to what a document can say.
func fill(t *rapid.T, m protoreflect.Message) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		fd := fields.Get(i)
		if alternative(m, fd) != nil || !rapid.Bool().Draw(t, "has") {
			continue
		}
		switch {
		case isDuration(fd), isTimeout(fd):
			m.Set(fd, protoreflect.ValueOfMessage(length(t, isTimeout(fd)).ProtoReflect()))
		case fd.IsMap():
			for range rapid.IntRange(1, 3).Draw(t, "size") {
				m.Mutable(fd).Map().Set(protoreflect.ValueOfString(word().Draw(t, "key")).MapKey(), value(t, fd.MapValue()))
			}
		case fd.IsList():
			list := m.Mutable(fd).List()
			for n := range rapid.IntRange(1, 3).Draw(t, "size") {
				if fd.Message() == nil {
					list.Append(value(t, fd))
					continue
				}
				e := list.NewElement()
				fill(t, e.Message())
				if name := fd.Message().Fields().ByName("name"); name != nil {
					e.Message().Set(name, protoreflect.ValueOfString(fmt.Sprint(n, word().Draw(t, "name"))))
				}
				list.Append(e)
			}
		case fd.Message() != nil:
			sub := m.NewField(fd)
			fill(t, sub.Message())
			if c, ok := sub.Message().Interface().(*lbdv1.Content); ok && c.Source == nil {
				c.Source = &lbdv1.Content_Inline{Inline: word().Draw(t, "inline")}
			}
			m.Set(fd, sub)
		default:
			m.Set(fd, value(t, fd))
		}
	}
}

// length is a length of time, and sometimes none where that may be.
func length(t *rapid.T, may bool) proto.Message {
	d := durationpb.New(time.Duration(rapid.Int64Range(0, 1<<62).Draw(t, "duration")))
	switch {
	case !may:
		return d
	case rapid.Bool().Draw(t, "disabled"):
		return &lbdv1.Timeout{Limit: &lbdv1.Timeout_Disabled{Disabled: true}}
	}
	return &lbdv1.Timeout{Limit: &lbdv1.Timeout_Duration{Duration: d}}
}

func value(t *rapid.T, fd protoreflect.FieldDescriptor) protoreflect.Value {
	switch fd.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(rapid.Bool().Draw(t, "bool"))
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(protoreflect.EnumNumber(rapid.IntRange(1, fd.Enum().Values().Len()-1).Draw(t, "enum")))
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(rapid.Int32Range(1, 1<<31-1).Draw(t, "int"))
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(rapid.Int64Range(1, 1<<63-1).Draw(t, "long"))
	default:
		return protoreflect.ValueOfString(word().Draw(t, "text"))
	}
}

// word is text of every kind that YAML has its own ideas about.
func word() *rapid.Generator[string] {
	return rapid.OneOf(
		rapid.String(),
		rapid.StringMatching(`[a-z:. #'"\\{}\[\],&*!|>%@-]{0,12}`),
		rapid.StringMatching(`([ \ta-c]{0,4}\n?){0,5}`),
		rapid.SampledFrom([]string{
			"", "~", "null", "true", "Yes", "off", "n", "1", "1.10", "1e3", "0x1f", "0o17", "1_000", "-1", "+1", ".5", ".inf", ".nan", "=", "<<",
			"2026-01-02", "2026-01-02T03:04:05Z", "12:30:45", "---", "...", "- a", "? a", "a: b", "a #b", " a", "a ", "\n", "a\n\nb\n\n", "\ta",
			"a\r\nb", "\u0085", "\u2028", "\ufeff", "\ufffe", "\x00", "\x7f", "\u00a0", "\U0001f600", "\U000e0001", "%YAML", "!!str", "&a", "*a",
		}),
	)
}

// FuzzParse: nothing that is read makes it panic, every problem has its place, and what is right is read the same after
// it was written.
func FuzzParse(f *testing.F) {
	for _, pattern := range []string{"testdata/*.txtar", "../../../examples/*.yaml"} {
		paths, err := filepath.Glob(pattern)
		if err != nil || len(paths) == 0 {
			f.Fatalf("%s: no seeds: %v", pattern, err)
		}
		for _, p := range paths {
			text, err := os.ReadFile(p)
			if err != nil {
				f.Fatal(err)
			}
			// The first file of an archive, without its comment.
			if _, after, ok := bytes.Cut(text, []byte(" --\n")); ok {
				text, _, _ = bytes.Cut(after, []byte("\n-- "))
			}
			f.Add(text)
		}
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		s := Parse([]File{{Name: "f", Data: text}})
		problems := s.Report(state.Validate(nil, changeOf(s.Document)))
		for _, p := range problems {
			if p.Position.Line < 1 || p.Position.Column < 1 || p.Message == "" {
				t.Fatalf("a problem without place or message: %+v", p)
			}
		}
		if len(s.Report(nil)) > 0 {
			return
		}
		again := Parse([]File{{Name: "f", Data: Of(s.Document).YAML()}})
		if problems := again.Report(nil); len(problems) > 0 {
			t.Fatalf("what was read is written wrong: %v\n%s", problems, Of(s.Document).YAML())
		}
		if !proto.Equal(s.Document, again.Document) {
			t.Fatalf("read\n%s\nand read again\n%s", s.Document, again.Document)
		}
	})
}
