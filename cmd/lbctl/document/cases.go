package document

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	lbdv1 "lbd/proto/lbd/v1"
)

// Case is one request of a file of cases, and what is to become of it.
type Case struct {
	Name    string
	At      Position
	Request *lbdv1.TestRouteRequest
	// Of the request's fields, by the names that they have in the file.
	Places map[string]Position
	// In the order of the file; never empty.
	Expect []Expectation
}

// Expectation is one thing that a decision must say.
type Expectation struct {
	// A field of lbdv1.TestRouteResponse: listener, certificate (its name), route, action, status, location, reason,
	// backend_host, backend_path, pool, pools (names, joined by ", "), request_headers, response_headers; or not_route.
	Field string
	// Of header changes one: "set X-A: b", "add X-A: b", "remove X-A".
	Want string
	At   Position
}

// ParseCases reads a file of cases, strictly: a field that is not known, twice there or of another type is a problem at its
// line and column.
func ParseCases(f File) ([]Case, []Problem) {
	p := &caseParser{file: f}
	d := yaml.NewDecoder(bytes.NewReader(f.Data))
	var n yaml.Node
	switch err := d.Decode(&n); {
	case errors.Is(err, io.EOF) || err == nil && n.Content[0].ShortTag() == "!!null":
		p.problem(Position{f.Name, 1, 1}, noCases)
	case err != nil:
		p.problem(syntaxPosition(f, err), "%s", syntaxMessage(f, err))
	default:
		p.list(n.Content[0], "the file", p.parseCase)
		if err := d.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
			p.problem(Position{f.Name, 1, 1}, "cases are one YAML document, not several")
		} else if len(p.cases)+len(p.problems) == 0 {
			p.failed(n.Content[0], noCases)
		}
	}
	slices.SortStableFunc(p.problems, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Position.Line, b.Position.Line), cmp.Compare(a.Position.Column, b.Position.Column))
	})
	return p.cases, p.problems
}

const noCases = "there are no cases here: a file is a list of `{name, request, expect}`"

// caseParser walks the nodes of one file, and goes on after what is wrong.
type caseParser struct {
	file     File
	cases    []Case
	problems []Problem
}

func (p *caseParser) problem(at Position, format string, args ...any) {
	p.problems = append(p.problems, Problem{Position: at, Message: fmt.Sprintf(format, args...)})
}

func (p *caseParser) failed(n *yaml.Node, format string, args ...any) {
	p.problem(at(p.file, n), format, args...)
}

func (p *caseParser) parseCase(n *yaml.Node) {
	c := Case{At: at(p.file, n), Request: &lbdv1.TestRouteRequest{}, Places: map[string]Position{}}
	before := len(p.problems)
	p.mapping(n, "a case", map[string]func(*yaml.Node){
		"name": func(v *yaml.Node) { c.Name = p.text(v, "name") },
		"request": func(v *yaml.Node) {
			p.parseRequest(v, &c)
		},
		"expect": func(v *yaml.Node) { c.Expect = p.parseExpect(v) },
	})
	if len(p.problems) == before {
		for _, lack := range []struct {
			missing bool
			field   string
		}{{c.Name == "", "name"}, {c.Request.GetUrl() == "", "request.url"}, {len(c.Expect) == 0, "expect"}} {
			if lack.missing {
				p.failed(n, "`%s` is missing", lack.field)
			}
		}
	}
	if i := slices.IndexFunc(p.cases, func(o Case) bool { return o.Name == c.Name }); i >= 0 && c.Name != "" {
		p.failed(n, "case %s is there already, at %s", quote(c.Name), p.cases[i].At)
	}
	p.cases = append(p.cases, c)
}

func (p *caseParser) parseRequest(n *yaml.Node, c *Case) {
	r := c.Request
	text := func(name string, to *string, fault func(string) string) func(*yaml.Node) {
		return func(v *yaml.Node) {
			before := len(p.problems)
			*to = p.text(v, name)
			c.Places[name] = at(p.file, v)
			if len(p.problems) > before {
				return
			}
			if why := fault(*to); why != "" {
				p.failed(v, "`%s` %s", name, why)
			}
		}
	}
	anything := func(string) string { return "" }
	p.mapping(n, "`request`", map[string]func(*yaml.Node){
		"url":       text("url", &r.Url, URLFault),
		"method":    text("method", &r.Method, MethodFault),
		"sni":       text("sni", &r.Sni, anything),
		"client_ip": text("client_ip", &r.ClientAddress, ClientFault),
		"listener":  text("listener", &r.Listener, anything),
		"rsa_only":  func(v *yaml.Node) { r.RsaOnly = p.scalar(v, "rsa_only", "!!bool", "true or false") == "true" },
		"headers": func(v *yaml.Node) {
			p.texts(v, "headers", func(name, value string, _ *yaml.Node) {
				r.Headers = append(r.Headers, &lbdv1.HeaderField{Name: name, Value: value})
			})
		},
	})
}

// URLFault says what is wrong with the URL of a request that is asked about; empty: nothing.
func URLFault(text string) string {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return "must be http://HOST[:PORT]/PATH or https://…, not " + quote(text)
	}
	return ""
}

// MethodFault says what is wrong with a method; empty: nothing (RFC 9110, section 9.1).
func MethodFault(text string) string {
	if !methodForm.MatchString(text) {
		return "must be a method such as GET, not " + quote(text)
	}
	return ""
}

var methodForm = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")

// ClientFault says what is wrong with a client's address; empty: nothing.
func ClientFault(text string) string {
	if _, err := netip.ParseAddr(text); err != nil {
		return "must be an IP address, not " + quote(text)
	}
	return ""
}

// actions are what may become of a request.
var actions = []string{"forward", "redirect", "respond", "maintenance", "denied", "refused"}

// expectedTexts are the fields of `expect` that hold one word or line.
var expectedTexts = []string{
	"listener", "certificate", "route", "not_route", "location", "reason", "backend_host", "backend_path", "pool",
}

func (p *caseParser) parseExpect(n *yaml.Node) []Expectation {
	var all []Expectation
	expect := func(n *yaml.Node, field, want string) { all = append(all, Expectation{field, want, at(p.file, n)}) }
	fields := map[string]func(*yaml.Node){
		"status": func(v *yaml.Node) { expect(v, "status", p.scalar(v, "status", "!!int", "a whole number")) },
		"pools": func(v *yaml.Node) {
			var names []string
			p.list(v, "`pools`", func(e *yaml.Node) { names = append(names, p.text(e, "pools")) })
			slices.Sort(names)
			expect(v, "pools", strings.Join(names, ", "))
		},
	}
	for _, name := range expectedTexts {
		fields[name] = func(v *yaml.Node) { expect(v, name, p.text(v, name)) }
	}
	fields["action"] = func(v *yaml.Node) {
		word := p.text(v, "action")
		if word != "" && !slices.Contains(actions, word) {
			p.failed(v, "`action` must be one of %s, not %s", strings.Join(actions, ", "), quote(word))
		}
		expect(v, "action", word)
	}
	for _, name := range []string{"request_headers", "response_headers"} {
		fields[name] = func(v *yaml.Node) {
			p.parseHeaderChanges(v, name, func(n *yaml.Node, want string) { expect(n, name, want) })
		}
	}
	p.mapping(n, "`expect`", fields)
	return all
}

// parseHeaderChanges reads what a route's own request_headers look like.
func (p *caseParser) parseHeaderChanges(n *yaml.Node, name string, expect func(n *yaml.Node, want string)) {
	fields := map[string]func(*yaml.Node){
		"remove": func(v *yaml.Node) {
			p.list(v, "`remove`", func(e *yaml.Node) { expect(e, "remove "+p.text(e, "remove")) })
		},
	}
	for _, action := range []string{"set", "add"} {
		fields[action] = func(v *yaml.Node) {
			p.texts(v, action, func(field, value string, n *yaml.Node) { expect(n, action+" "+field+": "+value) })
		}
	}
	p.mapping(n, "`"+name+"`", fields)
}

// mapping calls a function for each field that is there, in the order of the file.
func (p *caseParser) mapping(n *yaml.Node, what string, fields map[string]func(*yaml.Node)) {
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
func (p *caseParser) list(n *yaml.Node, what string, element func(*yaml.Node)) {
	if n.Kind != yaml.SequenceNode {
		p.failed(n, "%s must be a list", what)
		return
	}
	for _, e := range n.Content {
		element(e)
	}
}

// texts calls a function for each pair of a mapping of text to text.
func (p *caseParser) texts(n *yaml.Node, field string, pair func(key, value string, n *yaml.Node)) {
	if n.Kind != yaml.MappingNode {
		p.failed(n, "`%s` must be a mapping of names to text", field)
		return
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		pair(key.Value, p.text(n.Content[i+1], key.Value), key)
	}
}

func (p *caseParser) text(n *yaml.Node, field string) string {
	return p.scalar(n, field, "!!str", "text: put it in quotes")
}

// scalar reads one value of a type; an alias is followed.
func (p *caseParser) scalar(n *yaml.Node, field, tag, wants string) string {
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
