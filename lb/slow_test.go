package lb

import (
	"slices"
	"strings"
)

// slowLookup is Table.lookup as the rules say it: take every route that matches, sort, and the first wins.
func slowLookup(routes []RouteConfig, listener, host, path string) string {
	type candidate struct {
		name                string
		host, exact, length int // greater wins
	}
	var all []candidate
	for _, r := range routes {
		if !slices.Contains(r.Listeners, listener) {
			continue
		}
		hosts := r.Hosts
		if len(hosts) == 0 {
			hosts = []string{""}
		}
		matches := r.Matches
		if len(matches) == 0 {
			matches = []Match{{}}
		}
		for _, h := range hosts {
			for _, m := range matches {
				hostRank := slowHost(h, host)
				if hostRank < 0 {
					continue
				}
				switch {
				case m.Exact != "" && m.Exact == path:
					all = append(all, candidate{r.Name, hostRank, 1, 0})
				case m.Exact == "" && slowPrefix(m.Prefix, path):
					all = append(all, candidate{r.Name, hostRank, 0, len(strings.TrimSuffix(m.Prefix, "/"))})
				}
			}
		}
	}
	if len(all) == 0 {
		return ""
	}
	slices.SortStableFunc(all, func(a, b candidate) int {
		if a.host != b.host {
			return b.host - a.host
		}
		if a.exact != b.exact {
			return b.exact - a.exact
		}
		return b.length - a.length
	})
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

// slowPrefix compares whole segments.
func slowPrefix(prefix, path string) bool {
	prefix = strings.TrimSuffix(prefix, "/")
	return prefix == "" || path == prefix || strings.HasPrefix(path, prefix+"/")
}
