package state

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	lbdv1 "lbd/proto/lbd/v1"
)

// Values as a document would say them, each on one line.

// scalarMessage is the text of a message that a document writes as one value.
func scalarMessage(m protoreflect.Message) (string, bool) {
	switch m := m.Interface().(type) {
	case *durationpb.Duration:
		return durationText(m.AsDuration()), true
	case *lbdv1.Timeout:
		if m.GetDisabled() {
			return "disabled", true
		}
		return durationText(m.GetDuration().AsDuration()), true
	case *lbdv1.Content:
		return contentText(m), true
	}
	return "", false
}

// durationText is the shortest form: 1h30m, not 1h30m0s.
func durationText(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// contentText never holds the content.
func contentText(c *lbdv1.Content) string {
	switch source := c.GetSource().(type) {
	case *lbdv1.Content_File:
		return "file " + source.File
	case *lbdv1.Content_Env:
		return "env " + source.Env
	case *lbdv1.Content_Sha256:
		return source.Sha256
	case *lbdv1.Content_Inline:
		sum := sha256.Sum256([]byte(source.Inline))
		return "sha256:" + hex.EncodeToString(sum[:])
	}
	return ""
}

// messageText is a message in YAML's flow style; empty for none.
func messageText(m protoreflect.Message) string {
	if m == nil {
		return ""
	}
	if text, ok := scalarMessage(m); ok {
		return text
	}
	var fields []string
	all := m.Descriptor().Fields()
	for i := range all.Len() {
		if fd := all.Get(i); m.Has(fd) {
			fields = append(fields, string(fd.Name())+": "+flowText(fd, m.Get(fd)))
		}
	}
	return "{" + strings.Join(fields, ", ") + "}"
}

func flowText(fd protoreflect.FieldDescriptor, v protoreflect.Value) string {
	switch {
	case fd.IsMap():
		var entries []string
		for k, element := range mapOf(v) {
			entries = append(entries, quoted(k)+": "+flowElement(fd.MapValue(), element))
		}
		slices.Sort(entries)
		return "{" + strings.Join(entries, ", ") + "}"
	case fd.IsList():
		var elements []string
		for _, element := range listOf(v) {
			elements = append(elements, flowElement(fd, element))
		}
		return "[" + strings.Join(elements, ", ") + "]"
	}
	return flowElement(fd, v)
}

func flowElement(fd protoreflect.FieldDescriptor, v protoreflect.Value) string {
	if fd.Kind() == protoreflect.StringKind {
		return quoted(v.String())
	}
	return elementText(fd, v)
}

// quoted is a text that flow style can hold: as it is, or in quotes.
func quoted(text string) string {
	if strings.ContainsAny(text, ",{}[]#\"'\n\t\\ ") {
		return strconv.Quote(text)
	}
	return plain(text)
}

// anotherType matches what YAML, by its old rules or its new ones, takes for a truth, nothing, a number or a date.
var anotherType = regexp.MustCompile(`^(?i:|~|null|true|false|yes|no|on|off|y|n|<<|=|[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9_]*)?)(e[-+]?[0-9]+)?|` +
	`[-+]?0[xob][0-9a-f_]+|[-+]?[0-9]+(:[0-9]+)+(\.[0-9]*)?|[-+]?\.inf|\.nan|[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}(t|\s|$).*)$`)

// plain is a text as it is where a document can hold it so on a line of its own, else in quotes.
func plain(text string) string {
	switch {
	case anotherType.MatchString(text),
		strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }),
		strings.ContainsAny(text[:1], "!&*|>@`%\"'#,[]{}"),
		strings.Contains("-?:", text[:1]) && (len(text) == 1 || text[1] == ' '),
		text[0] == ' ', strings.HasSuffix(text, " "), strings.HasSuffix(text, ":"),
		strings.Contains(text, ": "), strings.Contains(text, " #"):
		return strconv.Quote(text)
	}
	return text
}

// elementText is one value as a document can hold it; a text that is there and empty is two quotes.
func elementText(fd protoreflect.FieldDescriptor, v protoreflect.Value) string {
	switch {
	case !v.IsValid():
		return ""
	case fd.Message() != nil:
		return messageText(v.Message())
	case fd.Kind() == protoreflect.EnumKind:
		return enumText(fd.Enum(), v.Enum())
	case fd.Kind() == protoreflect.StringKind:
		return plain(v.String())
	}
	return v.String()
}

// enumText is the bare word: PROTOCOL_HTTP is HTTP.
func enumText(enum protoreflect.EnumDescriptor, n protoreflect.EnumNumber) string {
	value := enum.Values().ByNumber(n)
	if value == nil {
		return strconv.Itoa(int(n))
	}
	prefix := strings.TrimSuffix(string(enum.Values().ByNumber(0).Name()), "UNSPECIFIED")
	return strings.TrimPrefix(string(value.Name()), prefix)
}

// clipValue shortens what nobody reads on a line, as the body of an error page. Two long values that differ stay different.
func clipValue(text string) string {
	if len(text) <= diffValueBytesMax {
		return text
	}
	sum := sha256.Sum256([]byte(text))
	return strings.ToValidUTF8(text[:diffValueBytesMax], "") + "… (sha256:" + hex.EncodeToString(sum[:4]) + ")"
}
