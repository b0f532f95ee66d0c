package document

import (
	"regexp"
	"strings"
	"unicode"

	"go.yaml.in/yaml/v3"
)

// How YAML is laid out: what fits on a line and is simple is written on one, as a person would.
const (
	lineColumnsMax    = 100
	flowFieldDepthMax = 3 // health_check: { http: { path: / }, interval: 2s }
	flowKindDepthMax  = 2 // - { name: http, addresses: [":80"], protocol: HTTP }
)

// YAML writes the value as a YAML document. What Parse reads of it is the value again.
func (v *Value) YAML() []byte {
	var w yamlWriter
	switch {
	case v.kind == mapping && len(v.keys) > 0:
		w.fields(v, 0)
	case v.kind == list && len(v.elements) > 0:
		w.items(v, 0)
	default:
		w.WriteString(flow(v) + "\n")
	}
	return []byte(w.String())
}

type yamlWriter struct {
	strings.Builder
}

// fields writes a map's fields, each on its own lines. The cursor is at the column indent of the first.
func (w *yamlWriter) fields(v *Value, indent int) {
	for i, key := range v.keys {
		if i > 0 {
			w.WriteString(strings.Repeat(" ", indent))
		}
		key = scalar(key)
		e := v.elements[i]
		short := flow(e)
		// The lists of kinds at the left margin are never on one line.
		kinds := indent == 0 && e.kind == list && len(e.elements) > 0 && e.elements[0].kind == mapping
		switch {
		case e.kind == text && isBlock(e.text):
			w.block(key+":", e.text, indent)
		case e.scalar() || len(e.elements) == 0,
			!kinds && e.depth() <= flowFieldDepthMax && indent+len(key)+2+len(short) <= lineColumnsMax && !strings.Contains(short, `\n`):
			w.WriteString(key + ": " + short + "\n")
		case e.kind == list:
			w.WriteString(key + ":\n" + strings.Repeat(" ", indent+2))
			w.items(e, indent+2)
		default:
			w.WriteString(key + ":\n" + strings.Repeat(" ", indent+2))
			w.fields(e, indent+2)
		}
	}
}

// items writes a list's elements, each on its own lines. The cursor is at the column indent of the first.
func (w *yamlWriter) items(v *Value, indent int) {
	for i, e := range v.elements {
		if i > 0 {
			w.WriteString(strings.Repeat(" ", indent))
		}
		short := flow(e)
		switch {
		case e.kind == text && isBlock(e.text):
			w.block("-", e.text, indent)
		case e.scalar() || len(e.elements) == 0,
			e.depth() <= flowKindDepthMax && indent+2+len(short) <= lineColumnsMax && !strings.Contains(short, `\n`):
			w.WriteString("- " + short + "\n")
		case e.kind == list:
			w.WriteString("- ")
			w.items(e, indent+2)
		default:
			w.WriteString("- ")
			w.fields(e, indent+2)
		}
	}
}

// block writes text of several lines as it is, as certificates are read by people too.
func (w *yamlWriter) block(lead, s string, indent int) {
	body, newline := strings.CutSuffix(s, "\n")
	style := " |\n"
	if !newline {
		style = " |-\n"
	}
	w.WriteString(lead + style)
	for l := range strings.SplitSeq(body, "\n") {
		if l != "" {
			l = strings.Repeat(" ", indent+2) + l
		}
		w.WriteString(l + "\n")
	}
}

// isBlock tells whether text can be written line by line without a change: printable lines, none of which starts the
// text with a space or ends in one, with at most one line break at the end.
func isBlock(s string) bool {
	body := strings.TrimSuffix(s, "\n")
	if !strings.Contains(s, "\n") || body == "" || strings.HasSuffix(body, "\n") || body[0] == ' ' || body[0] == '\n' {
		return false
	}
	for l := range strings.SplitSeq(body, "\n") {
		if strings.HasSuffix(l, " ") || strings.ContainsFunc(l, func(r rune) bool { return !unicode.IsPrint(r) }) {
			return false
		}
	}
	return true
}

// flow writes a value on one line.
func flow(v *Value) string {
	var parts []string
	for i, e := range v.elements {
		part := flow(e)
		if v.kind == mapping {
			part = scalar(v.keys[i]) + ": " + part
		}
		parts = append(parts, part)
	}
	switch {
	case v.kind == text:
		return scalar(v.text)
	case v.kind == literal:
		return v.text
	case v.kind == list:
		return "[" + strings.Join(parts, ", ") + "]"
	case len(parts) == 0:
		return "{}"
	default:
		return "{ " + strings.Join(parts, ", ") + " }"
	}
}

func (v *Value) scalar() bool {
	return v.kind == text || v.kind == literal
}

// depth counts the lists and maps inside each other.
func (v *Value) depth() int {
	if v.scalar() {
		return 0
	}
	deepest := 0
	for _, e := range v.elements {
		deepest = max(deepest, e.depth())
	}
	return 1 + deepest
}

var (
	plainWord = regexp.MustCompile(`^(\./|[A-Za-z0-9/])[A-Za-z0-9_./-]*$`)
	// What YAML 1.1 readers take for true or false.
	oldBoolean = regexp.MustCompile(`(?i)^(y|n|yes|no|on|off)$`)
)

// scalar writes text, in quotes where a reader could take it for something else.
func scalar(s string) string {
	if plainWord.MatchString(s) && !oldBoolean.MatchString(s) && (&yaml.Node{Kind: yaml.ScalarNode, Value: s}).ShortTag() == "!!str" {
		return s
	}
	return doubleQuoted(s)
}
