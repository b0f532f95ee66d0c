package lb

import (
	"bytes"
	"regexp"
	"slices"
	"strings"

	"lbd/lb/http1"
)

// condition is what a match demands besides the path; nil demands nothing. Shared by all hosts of its route.
type condition struct {
	methods []string
	fields  []fieldTest
	query   []queryTest
}

// newConditions compiles a route's matches, in their order; nil if none of them has a condition.
func newConditions(matches []Match) []*condition {
	var all []*condition
	for i := range matches {
		m := &matches[i]
		if len(m.Methods)+len(m.Headers)+len(m.Query) == 0 {
			continue
		}
		c := &condition{methods: m.Methods}
		for j := range m.Headers {
			f := &m.Headers[j]
			c.fields = append(c.fields, fieldTest{name: http1.NewName(f.Name), host: strings.EqualFold(f.Name, "host"), valueTest: newValueTest(f)})
		}
		for j := range m.Query {
			f := &m.Query[j]
			c.query = append(c.query, queryTest{name: f.Name, valueTest: newValueTest(f)})
		}
		if all == nil {
			all = make([]*condition, len(matches))
		}
		all[i] = c
	}
	return all
}

// count is how special a match is: methods are one condition, each field and each parameter is one.
func (c *condition) count() int {
	if c == nil {
		return 0
	}
	return min(len(c.methods), 1) + len(c.fields) + len(c.query)
}

// holds reports whether all of it is true of a request. Without regular expressions for encoded values it allocates nothing.
func (c *condition) holds(req *http1.Request, trusted bool) bool {
	if len(c.methods) > 0 && !c.hasMethod(req.Method) {
		return false
	}
	for i := range c.fields {
		if !c.fields[i].holds(req, trusted) {
			return false
		}
	}
	for i := range c.query {
		if !c.query[i].holds(req.Query) {
			return false
		}
	}
	return true
}

func (c *condition) hasMethod(method []byte) bool {
	return slices.ContainsFunc(c.methods, func(m string) bool { return m == string(method) })
}

// valueTest is a condition on one value.
type valueTest struct {
	kind   FieldMatchKind
	text   string
	regex  *regexp.Regexp
	invert bool
}

func newValueTest(f *FieldMatch) valueTest {
	return valueTest{kind: f.Kind, text: f.Text, regex: f.Regex, invert: f.Invert}
}

// fieldTest is a condition on a request field.
type fieldTest struct {
	name http1.Name
	host bool // an absolute target replaces the field
	valueTest
}

func (t *fieldTest) holds(req *http1.Request, trusted bool) bool {
	if t.host {
		return (req.HasHost && t.fits(req.Authority)) != t.invert
	}
	found := false
	for i := req.Fields.Next(0, &t.name, trusted); i >= 0 && !found; i = req.Fields.Next(i+1, &t.name, trusted) {
		found = t.fits(req.Fields.Value(i))
	}
	return found != t.invert
}

func (t *valueTest) fits(value []byte) bool {
	switch t.kind {
	case FieldExact:
		return string(value) == t.text
	case FieldPrefix:
		return len(value) >= len(t.text) && string(value[:len(t.text)]) == t.text
	case FieldRegex:
		return t.regex.Match(value)
	}
	return true
}

// queryTest is a condition on a parameter of the query, decoded as a form's.
type queryTest struct {
	name string
	valueTest
}

func (t *queryTest) holds(query []byte) bool {
	found := false
	for len(query) > 0 && !found {
		pair := query
		if end := bytes.IndexByte(query, '&'); end >= 0 {
			pair, query = query[:end], query[end+1:]
		} else {
			query = nil
		}
		name, value := pair, []byte(nil)
		if end := bytes.IndexByte(pair, '='); end >= 0 {
			name, value = pair[:end], pair[end+1:]
		}
		rest, ok := cutEncoded(name, t.name)
		found = ok && len(rest) == 0 && t.fitsEncoded(value)
	}
	return found != t.invert
}

func (t *valueTest) fitsEncoded(value []byte) bool {
	switch t.kind {
	case FieldExact:
		rest, ok := cutEncoded(value, t.text)
		return ok && len(rest) == 0
	case FieldPrefix:
		_, ok := cutEncoded(value, t.text)
		return ok
	case FieldRegex:
		if bytes.IndexByte(value, '%') >= 0 || bytes.IndexByte(value, '+') >= 0 {
			value = decodeForm(value)
		}
		return t.regex.Match(value)
	}
	return true
}

// cutEncoded cuts text, which is plain, off an encoded value.
func cutEncoded(value []byte, text string) (rest []byte, ok bool) {
	for i := range len(text) {
		if len(value) == 0 {
			return nil, false
		}
		c, n := decodeOctet(value)
		if c != text[i] {
			return nil, false
		}
		value = value[n:]
	}
	return value, true
}

func decodeForm(value []byte) []byte {
	out := make([]byte, 0, len(value))
	for len(value) > 0 {
		c, n := decodeOctet(value)
		out, value = append(out, c), value[n:]
	}
	return out
}

// decodeOctet decodes the first octet of what a form has encoded. A broken escape stands for itself.
func decodeOctet(value []byte) (c byte, n int) {
	switch {
	case value[0] == '+':
		return ' ', 1
	case value[0] == '%' && len(value) >= 3:
		hi, lo := hexDigit(value[1]), hexDigit(value[2])
		if hi < 16 && lo < 16 {
			return hi<<4 | lo, 3
		}
	}
	return value[0], 1
}

// hexDigit is 16 for what is none.
func hexDigit(c byte) byte {
	switch {
	case c-'0' < 10:
		return c - '0'
	case (c|0x20)-'a' < 6:
		return (c | 0x20) - 'a' + 10
	}
	return 16
}
