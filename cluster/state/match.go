package state

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"unicode"

	lbdv1 "lbd/proto/lbd/v1"
)

func (c *checker) checkMatches(matches []*lbdv1.RouteMatch) {
	c.checkMost("matches", len(matches), matchesMax)
	seen := make(map[string]int)
	for i, m := range matches {
		path := itemPath("matches", i)
		good := c.checkPath(path+".path", m)
		c.checkMethods(path+".methods", m.GetMethods())
		c.checkFieldMatches(path+".headers", m.GetHeaders(), checkHeaderName)
		c.checkFieldMatches(path+".query", m.GetQuery(), checkParameterName)
		of := pathOf(m)
		id := join(of.kind, of.text, conditionsOf(m).id)
		if first, twice := seen[id]; twice && good {
			c.errorf(path, "is the same as matches[%d]", first)
		} else if good {
			seen[id] = i
		}
	}
}

// checkPath tells whether the path condition says anything.
func (c *checker) checkPath(path string, m *lbdv1.RouteMatch) bool {
	switch match := m.GetPath().GetMatch().(type) {
	case *lbdv1.PathMatch_Exact:
		c.checkTarget(path+".exact", match.Exact)
	case *lbdv1.PathMatch_Prefix:
		c.checkTarget(path+".prefix", match.Prefix)
	case *lbdv1.PathMatch_Regex:
		c.checkPathRegex(path+".regex", match.Regex)
	default:
		if m.GetPath() != nil {
			c.errorf(path, "needs one of `exact`, `prefix` and `regex`")
			return false
		}
		if len(m.GetMethods())+len(m.GetHeaders())+len(m.GetQuery()) == 0 {
			c.errorf(path, "is required, as the match has no other condition: leave `matches` out to match any request")
			return false
		}
	}
	return true
}

// checkMethods refuses what no route is asked for: CONNECT and TRACE are answered 405 before.
func (c *checker) checkMethods(path string, methods []string) {
	c.checkMost(path, len(methods), conditionsMax)
	c.checkDistinct(path, methods)
	for i, method := range methods {
		at := itemPath(path, i)
		switch upper := strings.ToUpper(method); {
		case !isToken(method):
			c.errorf(at, "`%s` is no method", method)
		case upper == "CONNECT" || upper == "TRACE":
			c.errorf(at, "%s is always refused (405): leave it out", upper)
		case method != upper:
			c.errorf(at, "`%s` is no method: they are in upper case (did you mean `%s`)", method, upper)
		}
	}
}

func checkHeaderName(name string) string {
	if !isToken(name) {
		return "`" + name + "` is no header name"
	}
	return ""
}

func checkParameterName(name string) string {
	if len(name) > headerBytesMax {
		return "is too long for a query parameter"
	}
	return ""
}

// checkFieldMatches checks conditions on headers or on query parameters.
func (c *checker) checkFieldMatches(path string, all []*lbdv1.FieldMatch, nameFault func(string) string) {
	c.checkMost(path, len(all), conditionsMax)
	list := path[strings.LastIndexByte(path, '.')+1:]
	seen := make(map[string]int)
	for i, f := range all {
		at := itemPath(path, i)
		if f.GetName() == "" {
			c.errorf(at+".name", "is required")
		} else if fault := nameFault(f.GetName()); fault != "" {
			c.errorf(at+".name", "%s", fault)
		}
		c.checkFieldValue(at, f)
		if first, ok := seen[fieldID(f, f.GetInvert())]; ok {
			c.errorf(at, "is the same as %s", itemPath(list, first))
		} else if first, ok := seen[fieldID(f, !f.GetInvert())]; ok {
			c.warnf(at, "never holds together with %s: the match matches nothing", itemPath(list, first))
		}
		seen[fieldID(f, f.GetInvert())] = i
	}
}

func (c *checker) checkFieldValue(path string, f *lbdv1.FieldMatch) {
	limit := func(field, text string) {
		if len(text) > headerBytesMax {
			c.errorf(path+field, "has %d bytes: at most %d", len(text), headerBytesMax)
		}
	}
	switch match := f.GetMatch().(type) {
	case *lbdv1.FieldMatch_Exact:
		limit(".exact", match.Exact)
	case *lbdv1.FieldMatch_Prefix:
		limit(".prefix", match.Prefix)
		if match.Prefix == "" {
			c.errorf(path+".prefix", "is empty: write `present: true`")
		}
	case *lbdv1.FieldMatch_Regex:
		if _, err := parseRegex(match.Regex); err != nil {
			c.errorf(path+".regex", "%s", err)
		}
	}
}

// normalizeMatch brings conditions into one form: header names in lower case, `present` written out and never false.
func normalizeMatch(m *lbdv1.RouteMatch) {
	if prefix, ok := m.GetPath().GetMatch().(*lbdv1.PathMatch_Prefix); ok {
		prefix.Prefix = normalPrefix(prefix.Prefix)
	}
	for _, f := range m.GetHeaders() {
		if f != nil {
			f.Name = strings.ToLower(f.GetName())
		}
	}
	for _, f := range slices.Concat(m.GetHeaders(), m.GetQuery()) {
		present, ok := f.GetMatch().(*lbdv1.FieldMatch_Present)
		switch {
		case f == nil:
		case f.GetMatch() == nil:
			f.Match = &lbdv1.FieldMatch_Present{Present: true}
		case ok && !present.Present:
			present.Present, f.Invert = true, !f.GetInvert()
		}
	}
}

// pathRule is a match's condition on the path: "exact", "prefix", "regex" or, without one, "any".
type pathRule struct{ kind, text string }

func pathOf(m *lbdv1.RouteMatch) pathRule {
	switch match := m.GetPath().GetMatch().(type) {
	case *lbdv1.PathMatch_Exact:
		return pathRule{"exact", match.Exact}
	case *lbdv1.PathMatch_Prefix:
		return pathRule{"prefix", match.Prefix}
	case *lbdv1.PathMatch_Regex:
		return pathRule{"regex", match.Regex}
	default:
		return pathRule{kind: "any"}
	}
}

func (p pathRule) String() string {
	if p.kind == "any" {
		return "any path"
	}
	return fmt.Sprintf("path %s `%s`", p.kind, p.text)
}

// conditions are those of a match beside its path.
type conditions struct {
	// n is what the match counts for when the one with more conditions is asked first.
	n int
	// id is the same for the same conditions in any order, empty for none; fewer conditions sort first.
	id string
}

func conditionsOf(m *lbdv1.RouteMatch) conditions {
	var all []string
	if methods := m.GetMethods(); len(methods) > 0 {
		all = append(all, "methods "+strings.Join(slices.Sorted(slices.Values(methods)), " "))
	}
	for _, f := range m.GetHeaders() {
		all = append(all, "header "+fieldID(f, f.GetInvert()))
	}
	for _, f := range m.GetQuery() {
		all = append(all, "query "+fieldID(f, f.GetInvert()))
	}
	if len(all) == 0 {
		return conditions{}
	}
	slices.Sort(all)
	sum := sha256.Sum256([]byte(strings.Join(all, sep)))
	return conditions{len(all), fmt.Sprintf("%02d", len(all)) + hex.EncodeToString(sum[:8])}
}

// fieldID says a condition so that two that differ say something else.
func fieldID(f *lbdv1.FieldMatch, invert bool) string {
	kind, text := "present", ""
	switch match := f.GetMatch().(type) {
	case *lbdv1.FieldMatch_Exact:
		kind, text = "exact", match.Exact
	case *lbdv1.FieldMatch_Prefix:
		kind, text = "prefix", match.Prefix
	case *lbdv1.FieldMatch_Regex:
		kind, text = "regex", match.Regex
	}
	return fmt.Sprintf("%q %s %q %t", f.GetName(), kind, text, invert)
}

// covers tells whether all requests of one match fulfil the conditions of another, the path left aside. It is sure only
// of a yes.
func covers(wide, narrow *lbdv1.RouteMatch) bool {
	if allowed := wide.GetMethods(); len(allowed) > 0 {
		asked := narrow.GetMethods()
		if len(asked) == 0 || slices.ContainsFunc(asked, func(m string) bool { return !slices.Contains(allowed, m) }) {
			return false
		}
	}
	return coversFields(wide.GetHeaders(), narrow.GetHeaders()) && coversFields(wide.GetQuery(), narrow.GetQuery())
}

func coversFields(wide, narrow []*lbdv1.FieldMatch) bool {
	for _, w := range wide {
		if !slices.ContainsFunc(narrow, func(n *lbdv1.FieldMatch) bool { return implies(n, w) }) {
			return false
		}
	}
	return true
}

// implies tells whether what fulfils one condition fulfils the other.
func implies(n, w *lbdv1.FieldMatch) bool {
	if n.GetName() != w.GetName() {
		return false
	}
	if n.GetInvert() || w.GetInvert() {
		return fieldID(n, n.GetInvert()) == fieldID(w, w.GetInvert())
	}
	switch match := w.GetMatch().(type) {
	case *lbdv1.FieldMatch_Prefix:
		text := n.GetExact()
		if _, ok := n.GetMatch().(*lbdv1.FieldMatch_Prefix); ok {
			text = n.GetPrefix()
		}
		return strings.HasPrefix(text, match.Prefix)
	case *lbdv1.FieldMatch_Exact, *lbdv1.FieldMatch_Regex:
		return fieldID(n, false) == fieldID(w, false)
	default:
		return true
	}
}

func isPrintable(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) })
}
