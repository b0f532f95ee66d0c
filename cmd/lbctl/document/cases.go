package document

import (
	"net/netip"
	"net/url"
	"regexp"
	"slices"
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
	p := &caseParser{strictReader: strictReader{file: f}}
	p.whole("cases are", noCases, func(n *yaml.Node) {
		p.list(n, "the file", p.parseCase)
		if len(p.cases)+len(p.problems) == 0 {
			p.failed(n, noCases)
		}
	})
	return p.cases, p.problems
}

const noCases = "there are no cases here: a file is a list of `{name, request, expect}`"

// caseParser walks the nodes of one file.
type caseParser struct {
	strictReader
	cases []Case
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
