package document

import (
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// Word is the bare word of an enum's value: PROTOCOL_HTTP is HTTP. The zero value has none.
func Word(enum protoreflect.EnumDescriptor, number protoreflect.EnumNumber) string {
	v := enum.Values().ByNumber(number)
	if v == nil || number == 0 {
		return ""
	}
	return strings.TrimPrefix(string(v.Name()), prefix(enum))
}

// Words lists an enum's bare words in the schema's order.
func Words(enum protoreflect.EnumDescriptor) []string {
	var words []string
	for i := range enum.Values().Len() {
		if w := Word(enum, enum.Values().Get(i).Number()); w != "" {
			words = append(words, w)
		}
	}
	return words
}

// number finds a bare word's value, in any case.
func number(enum protoreflect.EnumDescriptor, word string) (protoreflect.EnumNumber, bool) {
	v := enum.Values().ByName(protoreflect.Name(prefix(enum) + strings.ToUpper(word)))
	if v == nil || v.Number() == 0 {
		return 0, false
	}
	return v.Number(), true
}

// prefix is what buf's rules put before every value of an enum, read off its zero value.
func prefix(enum protoreflect.EnumDescriptor) string {
	return strings.TrimSuffix(string(enum.Values().ByNumber(0).Name()), "UNSPECIFIED")
}
