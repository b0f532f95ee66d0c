package state_test

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"lbd/cluster/state"
	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

// request is one of the few that the routes of the test below are asked with.
type request struct{ host, path, method, header string }

func requests() []request {
	var all []request
	for _, host := range []string{"a.example.com", "b.example.com"} {
		for _, path := range []string{"/", "/a", "/a/b", "/ab", "/c/d"} {
			for _, method := range []string{"GET", "PUT", "POST"} {
				for _, header := range []string{"", "1", "12", "2"} {
					all = append(all, request{host, path, method, header})
				}
			}
		}
	}
	return all
}

// rival is a route's match as the slow twin sorts it.
type rival struct {
	route string
	age   int
	r     *lbdv1.Route
	match *lbdv1.RouteMatch
	index int
}

func (v rival) holds(q request) bool {
	switch match := v.match.GetPath().GetMatch().(type) {
	case *lbdv1.PathMatch_Exact:
		if q.path != match.Exact {
			return false
		}
	case *lbdv1.PathMatch_Prefix:
		if match.Prefix != "/" && q.path != match.Prefix && !strings.HasPrefix(q.path, match.Prefix+"/") {
			return false
		}
	case *lbdv1.PathMatch_Regex:
		if !regexp.MustCompile(`\A(?:` + match.Regex + `)\z`).MatchString(q.path) {
			return false
		}
	}
	if m := v.match.GetMethods(); len(m) > 0 && !slices.Contains(m, q.method) {
		return false
	}
	for _, f := range v.match.GetHeaders() {
		good := q.header != ""
		switch match := f.GetMatch().(type) {
		case *lbdv1.FieldMatch_Exact:
			good = q.header == match.Exact
		case *lbdv1.FieldMatch_Prefix:
			good = q.header != "" && strings.HasPrefix(q.header, match.Prefix)
		}
		if good == f.GetInvert() {
			return false
		}
	}
	return true
}

func (v rival) order() (kind, length, conditions int) {
	switch match := v.match.GetPath().GetMatch().(type) {
	case *lbdv1.PathMatch_Exact:
		kind = 3
	case *lbdv1.PathMatch_Prefix:
		kind, length = 2, len(match.Prefix)
	case *lbdv1.PathMatch_Regex:
		kind = 1
	}
	return kind, length, min(1, len(v.match.GetMethods())) + len(v.match.GetHeaders())
}

// winner asks all routes by the rule, one after another.
func winner(all []rival, q request) (rival, bool) {
	for _, host := range []string{q.host, ""} {
		var level []rival
		for _, v := range all {
			if host == "" && len(v.r.GetHosts()) == 0 || host != "" && slices.Contains(v.r.GetHosts(), host) {
				level = append(level, v)
			}
		}
		slices.SortFunc(level, func(a, b rival) int {
			ka, la, ca := a.order()
			kb, lb, cb := b.order()
			return cmp.Or(cmp.Compare(b.r.GetPriority(), a.r.GetPriority()), cmp.Compare(kb, ka), cmp.Compare(lb, la), cmp.Compare(cb, ca),
				cmp.Compare(a.age, b.age), cmp.Compare(a.route, b.route))
		})
		if i := slices.IndexFunc(level, func(v rival) bool { return v.holds(q) }); i >= 0 {
			return level[i], true
		}
	}
	return rival{}, false
}

func genRoute(t *rapid.T, name string) *lbdv1.Route {
	r := &lbdv1.Route{
		Name: name, Listeners: []string{"http"}, Priority: rapid.Int32Range(0, 1).Draw(t, "priority"),
		Hosts:  rapid.SampledFrom([][]string{nil, {"a.example.com"}, {"a.example.com", "b.example.com"}}).Draw(t, "hosts"),
		Action: &lbdv1.Route_Respond{Respond: &lbdv1.Respond{Status: 200}},
	}
	for range rapid.IntRange(0, 2).Draw(t, "matches") {
		m := new(lbdv1.RouteMatch)
		switch rapid.IntRange(0, 3).Draw(t, "path") {
		case 0:
			m.Path = &lbdv1.PathMatch{Match: &lbdv1.PathMatch_Exact{Exact: rapid.SampledFrom([]string{"/", "/a", "/a/b"}).Draw(t, "exact")}}
		case 1:
			m.Path = &lbdv1.PathMatch{Match: &lbdv1.PathMatch_Prefix{Prefix: rapid.SampledFrom([]string{"/", "/a", "/a/b"}).Draw(t, "prefix")}}
		case 2:
			m.Path = &lbdv1.PathMatch{Match: &lbdv1.PathMatch_Regex{Regex: rapid.SampledFrom([]string{"/a.*", "/.*"}).Draw(t, "regex")}}
		}
		m.Methods = rapid.SampledFrom([][]string{nil, nil, {"GET"}, {"PUT", "GET"}}).Draw(t, "methods")
		for _, i := range rapid.SampledFrom([][]int{nil, nil, {0}, {1}, {2}, {3}, {0, 3}}).Draw(t, "headers") {
			m.Headers = append(m.Headers, []*lbdv1.FieldMatch{
				{Name: "x-a"}, {Name: "x-a", Match: &lbdv1.FieldMatch_Exact{Exact: "12"}},
				{Name: "x-a", Match: &lbdv1.FieldMatch_Prefix{Prefix: "1"}}, {Name: "x-a", Match: &lbdv1.FieldMatch_Exact{Exact: "2"}, Invert: true},
			}[i])
		}
		r.Matches = append(r.Matches, m)
	}
	return r
}

// TestWhatNeverWinsNeverWins asks a few routes with all requests that they can tell apart: what is said never to win wins
// none. Some routes are there before the others come.
func TestWhatNeverWinsNeverWins(t *testing.T) {
	warned := 0
	rapid.Check(t, func(t *rapid.T) {
		var rivals []rival
		s := state.New("c")
		listener, _ := state.Wrap("web", &lbdv1.Listener{Name: "http", Addresses: []string{":80"}, Protocol: lbdv1.Protocol_PROTOCOL_HTTP})
		names := rapid.Permutation([]string{"a", "b", "c", "d", "e", "f"}).Draw(t, "names")
		var warnings []*lbdv1.Violation
		for age := range 2 {
			change := &raftv1.ChangeCommand{Owner: "web", Upserts: []*raftv1.StoredResource{{Resource: listener}}}
			for _, name := range names[age*3 : age*3+3] {
				r := genRoute(t, name)
				wrapped, _ := state.Wrap("web", r)
				change.Upserts = append(change.Upserts, &raftv1.StoredResource{Resource: wrapped})
				matches := r.GetMatches()
				if len(matches) == 0 {
					matches = []*lbdv1.RouteMatch{nil}
				}
				for i, m := range matches {
					rivals = append(rivals, rival{name, age, r, m, i})
				}
			}
			next, res := s.Apply(command(change))
			if res.Err != nil {
				return // two matches of a route are the same
			}
			s, warnings = next, res.Warnings
		}
		wins := map[string]int{}
		for _, q := range requests() {
			if v, ok := winner(rivals, q); ok {
				wins[v.route]++
				wins[fmt.Sprintf("%s.%d", v.route, v.index)]++
			}
		}
		for _, w := range warnings {
			loser := loserOf(w)
			if warned++; loser != "" && wins[loser] > 0 {
				t.Fatalf("%s: %s\nbut it wins %d requests", w.GetField(), w.GetDescription(), wins[loser])
			}
		}
	})
	if warned == 0 {
		t.Error("no route was warned of: the test has shown nothing")
	}
}

var (
	fieldForm = regexp.MustCompile(`^routes\["(.)"\](?:\.matches\[(\d)\])?$`)
	keepsForm = regexp.MustCompile("^keeps route `(.)` from ever winning|^cannot be told apart from route `(.)`, which can never win")
)

// loserOf is the route, or the route and its match, that a warning says never wins; empty if it says so of neither.
func loserOf(w *lbdv1.Violation) string {
	if m := keepsForm.FindStringSubmatch(w.GetDescription()); m != nil {
		return m[1] + m[2]
	}
	m := fieldForm.FindStringSubmatch(w.GetField())
	if m == nil || !strings.HasPrefix(w.GetDescription(), "can never win") {
		return ""
	}
	return strings.TrimSuffix(m[1]+"."+m[2], ".")
}
