package lb

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"lbd/lb/http1"
)

// contender is one match of one route, as the rules see it for one request: how it ranks, and whether it holds. It is the slow form
// of what paths and place do, in words.
type contender struct {
	route *route
	match *Match // nil: the route has none
	host  string // that leads to the route; empty: any

	level      hostLevel
	path       pathRank
	length     int // of a prefix
	conditions int
	age        int

	failed string // the first condition that does not hold; empty: it would take the request
}

type hostLevel uint8

const (
	otherHost hostLevel = iota
	anyHost
	wildcardHost
	exactHost
)

type pathRank uint8

const (
	anyPath pathRank = iota
	regexPath
	prefixPath
	exactPath
)

// contenders are a listener's routes, each with the match of it that is asked first among those that hold, or else among all; in
// the order in which they are asked. Those for other hosts come last.
func (t *Table) contenders(listener string, req *http1.Request, trusted bool) []contender {
	var all []contender
	for age := range t.routes {
		r := &t.routes[age]
		if r.listener != listener {
			continue
		}
		var best *contender
		for i := range max(1, len(r.matches)) {
			c := newContender(r, i, age, req, trusted)
			if best == nil || (c.failed == "") != (best.failed == "") && c.failed == "" || (c.failed == "") == (best.failed == "") && c.compare(best) < 0 {
				best = &c
			}
		}
		all = append(all, *best)
	}
	slices.SortStableFunc(all, func(a, b contender) int { return a.compare(&b) })
	return all
}

func newContender(r *route, match, age int, req *http1.Request, trusted bool) contender {
	c := contender{route: r, age: age}
	c.level, c.host = r.levelFor(string(req.Host))
	if len(r.matches) > 0 {
		c.match = &r.matches[match]
		c.path, c.length = c.match.rank()
		c.conditions = min(1, len(c.match.Methods)) + len(c.match.Headers) + len(c.match.Query)
	}
	switch {
	case c.level == otherHost:
		c.failed = "host: want " + orList(r.hosts)
	case c.match != nil:
		c.failed = c.match.failure(req, trusted)
	}
	return c
}

// levelFor is the best of the plan's hosts for a request's.
func (p *plan) levelFor(host string) (hostLevel, string) {
	if len(p.hosts) == 0 {
		return anyHost, ""
	}
	level, best := otherHost, ""
	for _, h := range p.hosts {
		switch {
		case h == host:
			return exactHost, h
		case isWildcard(h):
			if label, suffix, ok := strings.Cut(host, "."); ok && label != "" && suffix == h[2:] {
				level, best = wildcardHost, h
			}
		}
	}
	return level, best
}

func (m *Match) rank() (pathRank, int) {
	switch {
	case m.Exact != "":
		return exactPath, 0
	case m.Prefix != "":
		return prefixPath, len(trimSlash(m.Prefix))
	case m.Regex != nil:
		return regexPath, 0
	}
	return anyPath, 0
}

// compare orders contenders as they are asked.
func (c *contender) compare(d *contender) int {
	return cmp.Or(cmp.Compare(d.level, c.level), cmp.Compare(d.route.priority, c.route.priority), cmp.Compare(d.path, c.path),
		cmp.Compare(d.length, c.length), cmp.Compare(d.conditions, c.conditions), cmp.Compare(c.age, d.age))
}

// failure names the first condition that a request does not fulfil.
func (m *Match) failure(req *http1.Request, trusted bool) string {
	path := string(req.Path)
	prefix := trimSlash(m.Prefix)
	switch {
	case m.Exact != "" && path != m.Exact,
		m.Exact == "" && prefix != "" && path != prefix && !strings.HasPrefix(path, prefix+"/"),
		m.Exact == "" && m.Prefix == "" && m.Regex != nil && !m.Regex.MatchString(path):
		return "path: want " + m.pathWords()
	case len(m.Methods) > 0 && !slices.Contains(m.Methods, string(req.Method)):
		return "method: want " + orList(m.Methods)
	}
	conditions := newConditions([]Match{*m})
	if conditions == nil {
		return ""
	}
	condition := conditions[0]
	for i := range condition.fields {
		if !condition.fields[i].holds(req, trusted) {
			return "header " + m.Headers[i].words()
		}
	}
	for i := range condition.query {
		if !condition.query[i].holds(req.Query) {
			return "query " + m.Query[i].words()
		}
	}
	return ""
}

func (m *Match) pathWords() string {
	switch {
	case m == nil:
		return "any path"
	case m.Exact != "":
		return "exact " + m.Exact
	case m.Prefix != "":
		return "prefix " + m.Prefix
	case m.Regex != nil:
		return "regex " + regexWords(m.Regex)
	}
	return "any path"
}

// words say what is wanted: "x-beta: want exact yes".
func (f *FieldMatch) words() string {
	want := ""
	switch f.Kind {
	case FieldExact:
		want = "exact " + strconv.Quote(f.Text)
	case FieldPrefix:
		want = "prefix " + strconv.Quote(f.Text)
	case FieldRegex:
		want = "regex " + regexWords(f.Regex)
	default:
		if f.Invert {
			return f.Name + ": want it absent"
		}
		return f.Name + ": want it present"
	}
	if f.Invert {
		want = "not " + want
	}
	return f.Name + ": want " + want
}

// regexWords is the expression without the anchors that it was given.
func regexWords(r *regexp.Regexp) string {
	text := r.String()
	for _, anchors := range [...][2]string{{"^(?:", ")$"}, {`\A(?:`, `)\z`}} {
		if rest, ok := strings.CutPrefix(text, anchors[0]); ok {
			if rest, ok = strings.CutSuffix(rest, anchors[1]); ok {
				return rest
			}
		}
	}
	return text
}

func orList(words []string) string {
	const most = 3
	if len(words) > most {
		return strings.Join(words[:most], ", ") + fmt.Sprintf(" or one of %d more", len(words)-most)
	}
	if n := len(words) - 1; n > 0 {
		return strings.Join(words[:n], ", ") + " or " + words[n]
	}
	return strings.Join(words, "")
}

// why says what made a contender win.
func (c *contender) why() string {
	host := "any host"
	if c.host != "" {
		host = "host " + c.host
	}
	path := c.match.pathWords()
	if path != "any path" {
		path = "path " + path
	}
	words := []string{host, path}
	if c.match != nil {
		if len(c.match.Methods) > 0 {
			words = append(words, "method "+orList(c.match.Methods))
		}
		for i := range c.match.Headers {
			words = append(words, "header "+c.match.Headers[i].Name)
		}
		for i := range c.match.Query {
			words = append(words, "query "+c.match.Query[i].Name)
		}
	}
	if c.route.priority != 0 {
		words = append(words, "priority "+strconv.Itoa(c.route.priority))
	}
	return strings.Join(words, ", ")
}

// behind says why c, which would take the request, comes behind the winner.
func (c *contender) behind(winner *contender) string {
	switch {
	case c.level != winner.level:
		host := "any host"
		if c.host != "" {
			host = c.host
		}
		return fmt.Sprintf("would match, but host %s comes before %s", winner.host, host)
	case c.route.priority != winner.route.priority:
		return fmt.Sprintf("would match, but priority %d comes before %d", winner.route.priority, c.route.priority)
	case c.path != winner.path, c.length != winner.length:
		return fmt.Sprintf("would match, but path %s comes before %s", winner.match.pathWords(), c.match.pathWords())
	case c.conditions != winner.conditions:
		return fmt.Sprintf("would match, but has fewer conditions: %d, not %d", c.conditions, winner.conditions)
	}
	return "would match, but is younger"
}
