package document

import (
	"fmt"
	"strconv"
	"strings"
)

// Path is a parsed jsonpath: fields (`.name` or `['name']`), elements (`[0]`, `[-1]`) and all of them (`[*]`).
type Path []step

// step is one part of a path. A step that is neither a field nor all is an index.
type step struct {
	field string
	index int
	all   bool
}

// ParsePath reads a path such as {.pool.backends[*].address}; the braces and the first dot may be left out.
func ParsePath(s string) (Path, error) {
	rest := s
	if inner, ok := strings.CutPrefix(rest, "{"); ok {
		if rest, ok = strings.CutSuffix(inner, "}"); !ok {
			return nil, fmt.Errorf("jsonpath %s: `}` is missing at the end", quote(s))
		}
	}
	rest = strings.TrimPrefix(rest, "$")
	if rest == "." {
		rest = ""
	}
	if rest != "" && rest[0] != '.' && rest[0] != '[' {
		rest = "." + rest
	}
	var p Path
	for rest != "" {
		st, after, ok := parseStep(rest)
		if !ok {
			return nil, fmt.Errorf("jsonpath %s: cannot read %s (a field is .name, an element [0], all [*])", quote(s), quote(rest))
		}
		p, rest = append(p, st), after
	}
	return p, nil
}

func parseStep(s string) (st step, rest string, ok bool) {
	if name, isField := strings.CutPrefix(s, "."); isField {
		end := strings.IndexAny(name, ".[")
		if end < 0 {
			end = len(name)
		}
		return step{field: name[:end]}, name[end:], end > 0
	}
	inner, rest, ok := strings.Cut(strings.TrimPrefix(s, "["), "]")
	if !ok {
		return step{}, "", false
	}
	if inner == "*" {
		return step{all: true}, rest, true
	}
	if len(inner) > 2 && (inner[0] == '\'' || inner[0] == '"') && inner[len(inner)-1] == inner[0] {
		return step{field: inner[1 : len(inner)-1]}, rest, true
	}
	i, err := strconv.Atoi(inner)
	return step{index: i}, rest, err == nil
}

// Select finds the values at a path; none where a field or element is not there.
func (v *Value) Select(p Path) []*Value {
	found := []*Value{v}
	for _, st := range p {
		var next []*Value
		for _, f := range found {
			next = append(next, f.step(st)...)
		}
		found = next
	}
	return found
}

func (v *Value) step(st step) []*Value {
	switch {
	case st.all:
		return v.elements
	case st.field != "":
		if f := v.field(st.field); f != nil {
			return []*Value{f}
		}
	case v.kind == list:
		i := st.index
		if i < 0 {
			i += len(v.elements)
		}
		if i >= 0 && i < len(v.elements) {
			return []*Value{v.elements[i]}
		}
	}
	return nil
}

// String is a scalar's bare text, and JSON for everything else.
func (v *Value) String() string {
	if v.scalar() {
		return v.text
	}
	return string(v.JSON())
}
