package lb

import (
	"bufio"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"lbd/lb/http1"
)

// TestRouteScript reads testdata/route.txt, whose head says how it is written.
func TestRouteScript(t *testing.T) {
	f, err := os.Open("testdata/route.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var routes []RouteConfig
	questions := 0
	for lines := bufio.NewScanner(f); lines.Scan(); {
		words := strings.Fields(lines.Text())
		if len(words) == 0 || words[0][0] == '#' {
			continue
		}
		switch words[0] {
		case "new":
			routes = nil
		case "route":
			routes = append(routes, parseRoute(t, words[1], words[2:]))
		case "ask":
			arrow := slices.Index(words, "->")
			want := strings.TrimPrefix(words[arrow+1], "-")
			q := parseQuestion(t, words[2:arrow])
			if got := ask(t, routes, words[1], q); got != want {
				t.Errorf("%s: got %q", lines.Text(), got)
			}
			if got := slowLookup(routes, words[1], &q, q.head(t)); got != want {
				t.Errorf("%s: the slow twin says %q", lines.Text(), got)
			}
			questions++
		default:
			t.Fatalf("what is %q?", lines.Text())
		}
	}
	if questions < 90 {
		t.Errorf("%d questions only", questions)
	}
}

func parseRoute(t *testing.T, name string, words []string) RouteConfig {
	r := RouteConfig{Name: name, Respond: &Respond{Status: 200}}
	last := func() *Match { // conditions besides the path belong to the match before them
		if len(r.Matches) == 0 {
			r.Matches = append(r.Matches, Match{})
		}
		return &r.Matches[len(r.Matches)-1]
	}
	for _, word := range words {
		key, value, _ := strings.Cut(word, "=")
		switch key {
		case "listener":
			r.Listeners = append(r.Listeners, value)
		case "host":
			r.Hosts = append(r.Hosts, value)
		case "priority":
			r.Priority, _ = strconv.Atoi(value)
		case "any":
			r.Matches = append(r.Matches, Match{})
		case "exact":
			r.Matches = append(r.Matches, Match{Exact: value})
		case "prefix":
			r.Matches = append(r.Matches, Match{Prefix: value})
		case "regex":
			r.Matches = append(r.Matches, Match{Regex: anchored(value)})
		case "method":
			last().Methods = append(last().Methods, value)
		case "header":
			last().Headers = append(last().Headers, parseFieldMatch(value))
		case "query":
			last().Query = append(last().Query, parseFieldMatch(value))
		default:
			t.Fatalf("what is %q?", word)
		}
	}
	if r.Listeners == nil {
		r.Listeners = []string{"l"}
	}
	return r
}

func anchored(text string) *regexp.Regexp { return regexp.MustCompile("^(?:" + text + ")$") }

// parseFieldMatch takes NAME, !NAME, NAME:exact:TEXT, NAME:prefix:TEXT and NAME:regex:TEXT.
func parseFieldMatch(text string) FieldMatch {
	name, invert := strings.CutPrefix(text, "!")
	m := FieldMatch{Name: name, Invert: invert}
	if parts := strings.SplitN(name, ":", 3); len(parts) == 3 {
		m.Name, m.Text = parts[0], parts[2]
		switch parts[1] {
		case "exact":
			m.Kind = FieldExact
		case "prefix":
			m.Kind = FieldPrefix
		case "regex":
			m.Kind, m.Regex, m.Text = FieldRegex, anchored(m.Text), ""
		}
	}
	return m
}

// question is a request's head and who asks.
type question struct {
	method, host, target string
	fields               []Header
	trusted              bool
}

// parseQuestion takes HOST TARGET and then METHOD, name:value or "trusted". HOST - is none.
func parseQuestion(t *testing.T, words []string) question {
	q := question{method: "GET", host: strings.TrimPrefix(words[0], "-"), target: words[1]}
	for _, word := range words[2:] {
		name, value, isField := strings.Cut(word, ":")
		switch {
		case isField:
			q.fields = append(q.fields, Header{Name: name, Value: value})
		case word == "trusted":
			q.trusted = true
		case word == strings.ToUpper(word):
			q.method = word
		default:
			t.Fatalf("what is %q?", word)
		}
	}
	return q
}

func (q *question) head(t interface{ Fatal(...any) }) *http1.Request {
	p := Probe{Method: q.method, Host: q.host, Target: q.target, Headers: q.fields}
	req, f := p.request()
	if f != nil {
		t.Fatal(f.detail)
	}
	return req
}

// asked is a plain question's head, not parsed: the host need not be one that a parser takes.
func asked(host, path string) *http1.Request {
	return &http1.Request{Method: []byte("GET"), Host: []byte(host), Path: []byte(path)}
}

// ask asks the table, and its explanation, which must say the same.
func ask(t interface{ Fatal(...any) }, routes []RouteConfig, listener string, q question) string {
	table, err := NewTable(routes, nil)
	if err != nil {
		t.Fatal(err)
	}
	name, req := "", q.head(t)
	r, prefix := table.lookup(listener, req, q.trusted)
	if r != nil {
		name = r.name
		if prefix != noPrefix && !slices.ContainsFunc(r.matches, func(m Match) bool {
			return m.Prefix != "" && trimSlash(m.Prefix) == string(req.Path[:prefix])
		}) {
			t.Fatal("no such prefix", prefix)
		}
	}
	for _, c := range table.contenders(listener, req, q.trusted) {
		if c.failed == "" {
			if c.route.name != name {
				t.Fatal("explained as ", c.route.name, ", found ", name)
			}
			return name
		}
	}
	if name != "" {
		t.Fatal("not explained: ", name)
	}
	return ""
}

func TestLookupIsItsSlowTwin(t *testing.T) {
	hosts := rapid.SampledFrom([]string{"a.test", "b.a.test", "*.test", "*.a.test", "c.test"})
	paths := rapid.SampledFrom([]string{"/", "/a", "/a/", "/a/b", "/ab", "/a/b/c"})
	regexes := rapid.SampledFrom([]string{"/a.*", "/[ab]+/b", "/.*", "/"})
	fields := rapid.SampledFrom([]FieldMatch{
		parseFieldMatch("x-a"), parseFieldMatch("!x-a"), parseFieldMatch("x-a:exact:1"), parseFieldMatch("x-a:prefix:1"),
		parseFieldMatch("x-a:regex:[12]+"), parseFieldMatch("x-forwarded-proto:exact:https"),
	})
	parameters := rapid.SampledFrom([]FieldMatch{
		parseFieldMatch("q"), parseFieldMatch("!q"), parseFieldMatch("q:exact:a b"), parseFieldMatch("q:prefix:a"), parseFieldMatch("q:regex:a.b"),
	})
	rapid.Check(t, func(t *rapid.T) {
		var routes []RouteConfig
		for i := range rapid.IntRange(0, 8).Draw(t, "routes") {
			r := RouteConfig{Name: fmt.Sprint("r", i), Respond: &Respond{Status: 200}}
			r.Listeners = rapid.SliceOfN(rapid.SampledFrom([]string{"l", "m"}), 1, 2).Draw(t, "listeners")
			r.Hosts = rapid.SliceOfN(hosts, 0, 2).Draw(t, "hosts")
			r.Priority = rapid.SampledFrom([]int{0, 0, 0, 5, -3}).Draw(t, "priority")
			for range rapid.IntRange(0, 2).Draw(t, "matches") {
				m := Match{}
				switch rapid.IntRange(0, 3).Draw(t, "kind") {
				case 0:
					m.Exact = paths.Draw(t, "exact")
				case 1:
					m.Prefix = paths.Draw(t, "prefix")
				case 2:
					m.Regex = anchored(regexes.Draw(t, "regex"))
				}
				if rapid.Bool().Draw(t, "conditions") {
					m.Methods = rapid.SliceOfN(rapid.SampledFrom([]string{"GET", "POST"}), 0, 1).Draw(t, "methods")
					m.Headers = rapid.SliceOfN(fields, 0, 2).Draw(t, "headers")
					m.Query = rapid.SliceOfN(parameters, 0, 2).Draw(t, "query")
				}
				r.Matches = append(r.Matches, m)
			}
			routes = append(routes, r)
		}
		q := question{
			method:  rapid.SampledFrom([]string{"GET", "POST", "PUT"}).Draw(t, "method"),
			host:    rapid.SampledFrom([]string{"", "a.test", "b.a.test", "x.a.test", "c.test", "test", "x.y.test"}).Draw(t, "host"),
			target:  rapid.SampledFrom([]string{"/", "/a", "/a/", "/a/b", "/a/bc", "/a/b/c/d", "/ab", "/abc"}).Draw(t, "path"),
			trusted: rapid.Bool().Draw(t, "trusted"),
		}
		q.target += rapid.SampledFrom([]string{"", "?", "?q", "?q=a+b", "?q=a%20b", "?q=%61", "?p=1&q=x&%71=a%20b", "?q=%zz"}).Draw(t, "query")
		q.fields = rapid.SliceOfN(rapid.SampledFrom([]Header{
			{"X-A", "1"}, {"x-a", "12"}, {"X_A", "1"}, {"X-Forwarded-Proto", "https"}, {"Connection", "x-a"},
		}), 0, 3).Draw(t, "fields")
		fast, slow := ask(t, routes, "l", q), slowLookup(routes, "l", &q, q.head(t))
		if fast != slow {
			t.Fatalf("fast %q, slow %q", fast, slow)
		}
	})
}

// FuzzQuery compares the comparison of encoded parameters with the obvious one.
func FuzzQuery(f *testing.F) {
	f.Add("a=b&c=%64+e", "c", "d e")
	f.Add("a=%zz&&=&a", "a", "%zz")
	f.Fuzz(func(t *testing.T, query, name, text string) {
		if name == "" { // a condition has a name
			return
		}
		for _, m := range []FieldMatch{{Name: name}, {Name: name, Kind: FieldExact, Text: text}, {Name: name, Kind: FieldPrefix, Text: text}} {
			test := queryTest{name: name, valueTest: newValueTest(&m)}
			if fast, slow := test.holds([]byte(query)), slowQuery(&m, query); fast != slow {
				t.Errorf("%+v in %q: fast %v, slow %v", m, query, fast, slow)
			}
		}
	})
}

func TestNewTableRefuses(t *testing.T) {
	_, err := NewTable([]RouteConfig{
		{Name: "nothing", Listeners: []string{"l"}},
		{Name: "both", Listeners: []string{"l"}, Forward: &Forward{Pools: []WeightedPool{{Pool: "p", Weight: 1}}}, Respond: &Respond{Status: 200}},
		{Name: "lost", Listeners: []string{"l"}, Forward: &Forward{Pools: []WeightedPool{{Pool: "gone", Weight: 1}}}},
		{Name: "good", Listeners: []string{"l"}, Respond: &Respond{Status: 200}},
	}, nil)
	for _, want := range []string{`route "nothing": needs`, `route "both": needs`, `route "lost": no pool "gone"`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v misses %s", err, want)
		}
	}
	if err != nil && strings.Contains(err.Error(), "good") {
		t.Errorf("error %v names the good one", err)
	}
}

// manyHosts is a table of n routes, each for a host and a wildcard.
func manyHosts(tb testing.TB, n int) *Table {
	routes := make([]RouteConfig, n)
	for i := range routes {
		routes[i] = RouteConfig{
			Name: fmt.Sprint("r", i), Listeners: []string{"l"}, Hosts: []string{fmt.Sprintf("h%06d.example.com", i), fmt.Sprintf("*.w%06d.example.com", i)},
			Matches: []Match{{Prefix: "/"}, {Prefix: "/api/v1"}}, Respond: &Respond{Status: 200},
		}
	}
	table, err := NewTable(routes, nil)
	if err != nil {
		tb.Fatal(err)
	}
	return table
}

func TestLookupDoesNotAllocate(t *testing.T) {
	table := manyHosts(t, 1000)
	here, nowhere := asked("h000077.example.com", "/api/v1/things/77"), asked("/api", "/api")
	n := testing.AllocsPerRun(100, func() {
		if r, prefix := table.lookup("l", here, false); r == nil || r.name != "r77" || prefix != len("/api/v1") {
			t.Fatal("wrong route")
		}
		if r, _ := table.lookup("l", nowhere, false); r != nil {
			t.Fatal("wrong route")
		}
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// conditional is a table of one host whose routes ask for everything that there is, and a request that the last of them takes.
func conditional(tb testing.TB, regexes bool) (*Table, *http1.Request) {
	var routes []RouteConfig
	for i := range 8 {
		r := RouteConfig{Name: fmt.Sprint("r", i), Listeners: []string{"l"}, Hosts: []string{"*.example.com"}, Priority: i % 2, Respond: &Respond{Status: 200}}
		r.Matches = []Match{{
			Regex: anchored("/api/v[0-9]+/.*"), Methods: []string{"POST", "GET"},
			Headers: []FieldMatch{parseFieldMatch("x-tenant:regex:t[0-9]+"), parseFieldMatch("!x-none")},
			Query:   []FieldMatch{parseFieldMatch(fmt.Sprint("q:exact:a ", i)), parseFieldMatch("r:regex:[a-z]+")},
		}}
		if !regexes {
			m := &r.Matches[0]
			m.Prefix, m.Regex = "/api", nil
			m.Headers[0], m.Query[1] = parseFieldMatch("x-tenant:prefix:t"), parseFieldMatch("r:exact:abc")
		}
		routes = append(routes, r)
	}
	table, err := NewTable(routes, nil)
	if err != nil {
		tb.Fatal(err)
	}
	q := question{method: "GET", host: "a.example.com", target: "/api/v1/x?p=1&q=a+6&r=abc", fields: []Header{{"Accept", "*/*"}, {"X-Tenant", "t17"}}}
	return table, q.head(tb)
}

// TestConditionsDoNotAllocate leaves regexes to the benchmark: what they work with is in a sync.Pool, which the race detector empties.
func TestConditionsDoNotAllocate(t *testing.T) {
	table, req := conditional(t, false)
	n := testing.AllocsPerRun(100, func() {
		if r, _ := table.lookup("l", req, false); r == nil || r.name != "r6" {
			t.Fatal("wrong route")
		}
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkLookupConditions(b *testing.B) {
	table, req := conditional(b, true)
	b.ReportAllocs()
	for b.Loop() {
		if r, _ := table.lookup("l", req, false); r == nil {
			b.Fatal("no route")
		}
	}
}

// BenchmarkLookup asks for hosts at random, as clients do: among many of them, what a lookup reads is seldom in the processor's caches.
// "again" asks for the same host each time: the steps of a lookup without the misses. A host's name is written just before, as a
// request's own octets have just come and are in the caches.
func BenchmarkLookup(b *testing.B) {
	for _, n := range []int{10, 1000, 100_000} {
		table := manyHosts(b, n)
		for _, kind := range []struct{ name, host string }{{"again", "h000007.example.com"}, {"exact", "h%06d.example.com"}, {"wildcard", "a.w%06d.example.com"}, {"miss", "h%06d.example.org"}} {
			b.Run(fmt.Sprint(kind.name, "/", n), func(b *testing.B) {
				hosts := newRandomHosts(kind.host, n)
				req := asked("", "/api/v1/things/77")
				b.ReportAllocs()
				for b.Loop() {
					req.Host = hosts.next()
					if r, _ := table.lookup("l", req, false); (r == nil) != (kind.name == "miss") {
						b.Fatal("wrong route")
					}
				}
			})
		}
	}
}

// randomHosts are hosts with six digits somewhere, any of n.
type randomHosts struct {
	state, n uint64
	text     []byte
	digits   []byte // of text; nil: always the same host
}

func newRandomHosts(format string, n int) *randomHosts {
	r := &randomHosts{state: 1, n: uint64(n), text: []byte(strings.ReplaceAll(format, "%06d", "000000"))}
	if at := strings.Index(format, "%06d"); at >= 0 {
		r.digits = r.text[at : at+6]
	}
	return r
}

func (r *randomHosts) next() []byte {
	r.state = r.state*6364136223846793005 + 1442695040888963407
	at := r.state >> 33 * r.n >> 31
	for i := len(r.digits) - 1; i >= 0; i-- {
		r.digits[i] = '0' + byte(at%10)
		at /= 10
	}
	return r.text
}

func BenchmarkNewTable100000(b *testing.B) {
	for b.Loop() {
		manyHosts(b, 100_000)
	}
}
