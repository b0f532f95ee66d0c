package document

import (
	"fmt"
	"slices"
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
	if strings.Count(s, "{") > 1 {
		return nil, fmt.Errorf("jsonpath %s: it is one path, as {.pool.name}: -o json has everything", quote(s))
	}
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
		return step{field: name[:end]}, name[end:], end > 0 && !strings.ContainsAny(name[:end], "{}*?@, ")
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

// Select finds the values at a path; none where an element is not there, or a field has no value. It fails on a path that
// no such value has: a field that is not known, or one of a list or of text.
func (v *Value) Select(p Path) ([]*Value, error) {
	found := []*Value{v}
	for _, st := range p {
		var next []*Value
		for _, f := range found {
			values, err := f.step(st)
			if err != nil {
				return nil, err
			}
			next = append(next, values...)
		}
		found = next
	}
	return found, nil
}

func (v *Value) step(st step) ([]*Value, error) {
	switch {
	case st.all && !v.scalar():
		return v.elements, nil
	case st.all:
		return nil, fmt.Errorf("`[*]` stands where there is one value, %s", quote(v.text))
	case st.field != "":
		return v.fieldStep(st.field)
	case v.kind != list:
		return nil, fmt.Errorf("`[%d]` stands where there is no list", st.index)
	}
	i := st.index
	if i < 0 {
		i += len(v.elements)
	}
	if i >= 0 && i < len(v.elements) {
		return []*Value{v.elements[i]}, nil
	}
	return nil, nil
}

func (v *Value) fieldStep(name string) ([]*Value, error) {
	if f := v.field(name); f != nil {
		return []*Value{f}, nil
	}
	known := slices.Clone(v.keys)
	if v.about != nil {
		known = append(known, names(v.about.Fields())...)
	}
	slices.Sort(known)
	known = slices.Compact(known)
	near := nearest(name, known)
	switch {
	case v.kind == list:
		return nil, fmt.Errorf("%s is looked for in a list: write `[*].%s` for that of all, or `[0].%s`", quote(name), name, name)
	case v.scalar():
		return nil, fmt.Errorf("%s is looked for in one value, %s", quote(name), quote(v.text))
	case v.open || slices.Contains(known, name):
		return nil, nil
	case near != "":
		return nil, fmt.Errorf("there is no field %s (did you mean `%s`?)", quote(name), near)
	}
	return nil, fmt.Errorf("there is no field %s%s", quote(name), among("; fields here are", known))
}

// String is a scalar's bare text, and JSON for everything else.
func (v *Value) String() string {
	if v.scalar() {
		return v.text
	}
	return string(v.JSON())
}
