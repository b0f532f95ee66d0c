package document

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"

	"go.yaml.in/yaml/v3"
)

// strictReader walks the nodes of one file of lbctl's own, and goes on after what is wrong: a field that is not known, twice there
// or of another type is a problem at its line and column.
type strictReader struct {
	file     File
	problems []Problem
}

// whole reads the file's one YAML document; empty is the problem of one that has none. The problems are in its order afterwards.
func (p *strictReader) whole(subject, empty string, read func(*yaml.Node)) {
	d := yaml.NewDecoder(bytes.NewReader(p.file.Data))
	var n yaml.Node
	switch err := d.Decode(&n); {
	case errors.Is(err, io.EOF) || err == nil && n.Content[0].ShortTag() == "!!null":
		p.problem(Position{p.file.Name, 1, 1}, "%s", empty)
	case err != nil:
		p.problem(syntaxPosition(p.file, err), "%s", syntaxMessage(p.file, err))
	default:
		if err := d.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
			p.problem(Position{p.file.Name, 1, 1}, "%s one YAML document, not several", subject)
		}
		read(n.Content[0])
	}
	slices.SortStableFunc(p.problems, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Position.Line, b.Position.Line), cmp.Compare(a.Position.Column, b.Position.Column))
	})
}

func (p *strictReader) problem(at Position, format string, args ...any) {
	p.problems = append(p.problems, Problem{Position: at, Message: fmt.Sprintf(format, args...)})
}

func (p *strictReader) failed(n *yaml.Node, format string, args ...any) {
	p.problem(at(p.file, n), format, args...)
}

// mapping calls a function for each field that is there, in the order of the file.
func (p *strictReader) mapping(n *yaml.Node, what string, fields map[string]func(*yaml.Node)) {
	names := slices.Sorted(maps.Keys(fields))
	if n.Kind != yaml.MappingNode {
		p.failed(n, "%s must be a mapping%s", what, among(" of", names))
		return
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		read := fields[key.Value]
		switch near := nearest(key.Value, names); {
		case read == nil && near != "":
			p.failed(key, "unknown field %s (did you mean `%s`?)", quote(key.Value), near)
		case read == nil:
			p.failed(key, "unknown field %s%s", quote(key.Value), among("; fields here are", names))
		case seen[key.Value]:
			p.failed(key, "%s is given twice", quote(key.Value))
		default:
			read(value)
		}
		seen[key.Value] = true
	}
}

// list calls a function for each element.
func (p *strictReader) list(n *yaml.Node, what string, element func(*yaml.Node)) {
	if n.Kind != yaml.SequenceNode {
		p.failed(n, "%s must be a list", what)
		return
	}
	for _, e := range n.Content {
		element(e)
	}
}

// texts calls a function for each pair of a mapping of text to text.
func (p *strictReader) texts(n *yaml.Node, field string, pair func(key, value string, n *yaml.Node)) {
	if n.Kind != yaml.MappingNode {
		p.failed(n, "`%s` must be a mapping of names to text", field)
		return
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		pair(key.Value, p.text(n.Content[i+1], key.Value), key)
	}
}

func (p *strictReader) text(n *yaml.Node, field string) string {
	return p.scalar(n, field, "!!str", "text: put it in quotes")
}

// scalar reads one value of a type; an alias is followed.
func (p *strictReader) scalar(n *yaml.Node, field, tag, wants string) string {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if n.Kind != yaml.ScalarNode || n.ShortTag() != tag {
		p.failed(n, "`%s` must be %s", field, wants)
		return ""
	}
	if tag == "!!int" {
		if _, err := strconv.ParseInt(n.Value, 10, 32); err != nil {
			p.failed(n, "`%s` must be %s", field, wants)
		}
	}
	return n.Value
}
