package lb

import (
	"slices"
	"strings"

	"lbd/lb/http1"
)

// tested are the parts of a head for which the routes of one host have tests that cost its length: regular expressions, and conditions
// on the query. Such a part may have testedBytesMax octets; what is longer is refused, and not just untested, for it would pass by a
// route that is there to stop it. Nil: there is none.
type tested struct {
	path, query bool
	names       []string // of fields, in lower case
	fields      []http1.Name
}

// newTested finds them in the matches of one route.
func newTested(matches []Match) *tested {
	t := &tested{}
	for i := range matches {
		m := &matches[i]
		t.path = t.path || m.Regex != nil
		t.query = t.query || len(m.Query) > 0
		for j := range m.Headers {
			if f := &m.Headers[j]; f.Kind == FieldRegex {
				t.addField(f.Name)
			}
		}
	}
	if !t.path && !t.query && t.fields == nil {
		return nil
	}
	return t
}

func (t *tested) addField(name string) {
	if name = strings.ToLower(name); !slices.Contains(t.names, name) {
		t.names, t.fields = append(t.names, name), append(t.fields, http1.NewName(name))
	}
}

// with returns both together. The first may be changed.
func (t *tested) with(more *tested) *tested {
	if more == nil {
		return t
	}
	if t == nil {
		t = &tested{}
	}
	t.path, t.query = t.path || more.path, t.query || more.query
	for _, name := range more.names {
		t.addField(name)
	}
	return t
}

// tooLong returns why a request is refused before anything is tested, or nil. Lines of one field count together.
func (t *tested) tooLong(req *http1.Request, trusted bool) *fault {
	switch {
	case t == nil:
		return nil
	case t.path && len(req.Path) > testedBytesMax:
		return faultLongPath
	case t.query && len(req.Query) > testedBytesMax:
		return faultLongQuery
	}
	for i := range t.fields {
		bytes := 0
		for at := req.Fields.Next(0, &t.fields[i], trusted); at >= 0; at = req.Fields.Next(at+1, &t.fields[i], trusted) {
			bytes += len(req.Fields.Value(at))
		}
		if bytes > testedBytesMax {
			return faultLongField
		}
	}
	return nil
}

// findRoute is the lookup of the served table. Only a long head can have a long part.
func (x *exchange) findRoute() *fault {
	table, listener, trusted := x.server.table.Load(), x.client.listener.name, x.client.trusted(x.form)
	if x.headBytes > testedBytesMax {
		if f := table.tooLong(listener, &x.req, trusted); f != nil {
			return f
		}
	}
	if x.route, x.prefix = table.lookup(listener, &x.req, trusted); x.route == nil {
		return faultNoRoute
	}
	return nil
}
