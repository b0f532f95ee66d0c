package lb

import (
	"net/url"
	"slices"
	"strings"

	"lbd/lb/http1"
)

// slowLookup is Table.lookup as the rules say it: take every match of every route that takes the request, sort, and the first wins. Host and
// path are the parser's, which has twins of its own.
func slowLookup(routes []RouteConfig, listener string, q *question, req *http1.Request) string {
	type candidate struct {
		name string
		rank []int // greater wins
	}
	path, query, authority := string(req.Path), string(req.Query), string(req.Authority)
	var all []candidate
	for _, r := range routes {
		if !slices.Contains(r.Listeners, listener) {
			continue
		}
		hosts, matches := r.Hosts, r.Matches
		if len(hosts) == 0 {
			hosts = []string{""}
		}
		if len(matches) == 0 {
			matches = []Match{{}}
		}
		for _, h := range hosts {
			for _, m := range matches {
				host, kind, length := slowHost(h, string(req.Host)), slowKind(&m, path), 0
				if host < 0 || kind < 0 || !slowConditions(&m, q, query, authority) {
					continue
				}
				if m.Exact == "" {
					length = len(strings.TrimSuffix(m.Prefix, "/"))
				}
				conditions := min(len(m.Methods), 1) + len(m.Headers) + len(m.Query)
				all = append(all, candidate{r.Name, []int{host, r.Priority, kind, length, conditions}})
			}
		}
	}
	if len(all) == 0 {
		return ""
	}
	slices.SortStableFunc(all, func(a, b candidate) int { return slices.Compare(b.rank, a.rank) })
	return all[0].name
}

// slowHost ranks a match of host: 2 exact, 1 wildcard, 0 any, -1 none.
func slowHost(pattern, host string) int {
	label, rest, dotted := strings.Cut(host, ".")
	switch {
	case pattern == "":
		return 0
	case pattern == host:
		return 2
	case strings.HasPrefix(pattern, "*.") && dotted && label != "" && pattern[2:] == rest:
		return 1
	}
	return -1
}

// slowKind ranks a match of the path: 3 exact, 2 prefix, 1 regex, 0 any, -1 none.
func slowKind(m *Match, path string) int {
	switch {
	case m.Exact != "" && m.Exact == path:
		return 3
	case m.Exact == "" && m.Prefix != "" && slowPrefix(m.Prefix, path):
		return 2
	case m.Exact == "" && m.Prefix == "" && m.Regex != nil && m.Regex.MatchString(path):
		return 1
	case m.Exact == "" && m.Prefix == "" && m.Regex == nil:
		return 0
	}
	return -1
}

// slowPrefix compares whole segments.
func slowPrefix(prefix, path string) bool {
	prefix = strings.TrimSuffix(prefix, "/")
	return prefix == "" || path == prefix || strings.HasPrefix(path, prefix+"/")
}

func slowConditions(m *Match, q *question, query, authority string) bool {
	if len(m.Methods) > 0 && !slices.Contains(m.Methods, q.method) {
		return false
	}
	for i := range m.Headers {
		if !slowField(&m.Headers[i], q, authority) {
			return false
		}
	}
	for i := range m.Query {
		if !slowQuery(&m.Query[i], query) {
			return false
		}
	}
	return true
}

func slowField(m *FieldMatch, q *question, authority string) bool {
	found := m.Name == "host" && slowFits(m, authority)
	for _, h := range q.fields {
		named := slices.ContainsFunc(q.fields, func(c Header) bool {
			return strings.EqualFold(c.Name, "connection") && strings.EqualFold(strings.ReplaceAll(c.Value, "_", "-"), strings.ReplaceAll(h.Name, "_", "-"))
		})
		name := strings.ToLower(h.Name)
		believed := name != "client-cert" && (q.trusted || !strings.HasPrefix(name, "x-forwarded-"))
		found = found || strings.EqualFold(h.Name, m.Name) && !named && believed && slowFits(m, h.Value)
	}
	return found != m.Invert
}

func slowQuery(m *FieldMatch, query string) bool {
	found := false
	for _, pair := range strings.Split(query, "&") {
		if pair == "" {
			continue
		}
		name, value, _ := strings.Cut(pair, "=")
		found = found || slowDecode(name) == m.Name && slowFits(m, slowDecode(value))
	}
	return found != m.Invert
}

// slowDecode decodes each escape by itself, so that one that is broken leaves the others alone.
func slowDecode(text string) string {
	out := ""
	for len(text) > 0 {
		n := 1
		if text[0] == '%' && len(text) >= 3 {
			n = 3
		}
		if plain, err := url.QueryUnescape(text[:n]); err == nil {
			out, text = out+plain, text[n:]
			continue
		}
		out, text = out+text[:1], text[1:]
	}
	return out
}

func slowFits(m *FieldMatch, value string) bool {
	switch m.Kind {
	case FieldExact:
		return value == m.Text
	case FieldPrefix:
		return strings.HasPrefix(value, m.Text)
	case FieldRegex:
		return m.Regex.MatchString(value)
	}
	return true
}
