package document

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"unicode"
)

// JSON writes the value on one line, without a line break at its end.
func (v *Value) JSON() []byte {
	var b bytes.Buffer
	v.json(&b)
	return b.Bytes()
}

// IndentedJSON writes the value for people, with a line break at its end.
func (v *Value) IndentedJSON() []byte {
	var b bytes.Buffer
	if err := json.Indent(&b, v.JSON(), "", "  "); err != nil {
		panic("document: our own JSON is not JSON: " + err.Error())
	}
	b.WriteByte('\n')
	return b.Bytes()
}

func (v *Value) json(b *bytes.Buffer) {
	switch v.kind {
	case text:
		b.WriteString(doubleQuoted(v.text))
	case literal:
		b.WriteString(v.text)
	case list:
		b.WriteByte('[')
		for i, e := range v.elements {
			if i > 0 {
				b.WriteByte(',')
			}
			e.json(b)
		}
		b.WriteByte(']')
	case mapping:
		b.WriteByte('{')
		for i, e := range v.elements {
			if i > 0 {
				b.WriteByte(',')
			}
			b.WriteString(doubleQuoted(v.keys[i]))
			b.WriteByte(':')
			e.json(b)
		}
		b.WriteByte('}')
	}
}

// doubleQuoted writes text in the quotes that JSON and YAML share. What is not printable is escaped, as far as both agree
// on how.
func doubleQuoted(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteString(`\` + string(r))
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case unicode.IsPrint(r) || r > 0xffff:
			b.WriteRune(r)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	b.WriteByte('"')
	return b.String()
}
