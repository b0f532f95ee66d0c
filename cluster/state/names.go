package state

import (
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

var (
	nameForm  = regexp.MustCompile(`^[a-z0-9]([a-z0-9._-]*[a-z0-9])?$`)
	ownerForm = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`)
	labelForm = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._/-]*[A-Za-z0-9])?$`)
	// One label of a host name: RFC 952 and RFC 1123, section 2.1, with the underscore that real names have.
	hostLabelForm = regexp.MustCompile(`^[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?$`)
	numericForm   = regexp.MustCompile(`^([0-9]+|0x[0-9a-f]*)$`)
)

func (c *checker) checkName(path, name string) {
	switch {
	case name == "":
		c.errorf(path, "is required")
	case len(name) > nameBytesMax:
		c.errorf(path, "has %d bytes: at most %d", len(name), nameBytesMax)
	case !nameForm.MatchString(name):
		c.errorf(path, "`%s` is no name: use lower-case letters, digits, `-`, `.` and `_`, with a letter or digit at both ends", name)
	}
}

func (c *checker) checkOwner(owner string) {
	if owner == "" {
		c.errorf("owner", "is required: whose resources these are")
	} else if fault := ownerFault(owner); fault != "" {
		c.errorf("owner", "%s", fault)
	}
}

func ownerFault(owner string) string {
	switch {
	case len(owner) > nameBytesMax:
		return fmt.Sprintf("has %d bytes: at most %d", len(owner), nameBytesMax)
	case !ownerForm.MatchString(owner):
		return "`" + owner + "` is no owner: use lower-case letters, digits and `-`, with a letter or digit at both ends"
	}
	return ""
}

func (c *checker) checkLabels(labels map[string]string) {
	if len(labels) > labelsMax {
		c.errorf("labels", "are %d: at most %d", len(labels), labelsMax)
	}
	for _, key := range sortedKeys(labels) {
		if len(key) > nameBytesMax || !labelForm.MatchString(key) {
			c.errorf(mapPath("labels", key), "is no label: use letters, digits, `-`, `.`, `_` and `/`, at most %d bytes", nameBytesMax)
		} else if len(labels[key]) > labelBytesMax {
			c.errorf(mapPath("labels", key), "has %d bytes: at most %d", len(labels[key]), labelBytesMax)
		}
	}
}

// hostFault says what is wrong with a lower-case host name without wildcard; empty: nothing. A name whose last label is
// a number is refused: some resolvers take it for an IPv4 address.
func hostFault(host string) string {
	name := strings.TrimSuffix(host, ".")
	switch {
	case name == "":
		return "is no host name"
	case len(name) > hostBytesMax:
		return "is too long for a host name: at most " + strconv.Itoa(hostBytesMax) + " bytes"
	case strings.ContainsAny(name, " \t\r\n"):
		return "is no host name: it has a space in it"
	case !isASCII(name):
		return "is no host name: write it in its ASCII form (xn--…)"
	}
	labels := strings.Split(name, ".")
	for _, label := range labels {
		if !hostLabelForm.MatchString(label) {
			return "is no host name: labels of letters, digits and `-`, joined by `.`"
		}
	}
	if numericForm.MatchString(labels[len(labels)-1]) {
		return "is neither an IP address nor a host name"
	}
	return ""
}

// serverFault is hostFault for a host that may be an IP address and is written as such in messages, without the dot at
// the end.
func serverFault(host string) string {
	if _, isIP := splitIP(host); isIP {
		return ""
	}
	if strings.HasSuffix(host, ".") {
		return "ends with a dot: leave it out"
	}
	return hostFault(host)
}

// authorityFault is serverFault for the value of a Host field: with or without a port (RFC 9110, section 7.2).
func authorityFault(authority string) string {
	host := authority
	if h, port, err := net.SplitHostPort(authority); err == nil {
		if fault := portFault(port); fault != "" {
			return fault
		}
		host = h
	} else if inner, ok := strings.CutPrefix(authority, "["); ok {
		host = strings.TrimSuffix(inner, "]")
	}
	return serverFault(strings.ToLower(host))
}

// patternFault is hostFault for a name that may begin with "*." for one label.
func patternFault(host string) string {
	rest, wild := strings.CutPrefix(host, "*.")
	switch {
	case !wild && strings.Contains(host, "*"):
		return "has a `*` that is not the first of several labels: write `*.example.com`"
	case strings.HasSuffix(host, "."):
		return "ends with a dot: leave it out"
	case wild && !strings.Contains(rest, "."):
		return "is too wide: a wildcard needs two labels after it, as in `*.example.com`"
	}
	return hostFault(rest)
}

func isASCII(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r > 0x7e || r < 0x21 })
}

// isLocalName tells the names that mean this machine without a look-up (RFC 6761, section 6.3).
func isLocalName(host string) bool {
	host = strings.TrimSuffix(host, ".")
	return host == "localhost" || strings.HasSuffix(host, ".localhost") ||
		slices.Contains([]string{"localhost.localdomain", "ip6-localhost", "ip6-loopback"}, host)
}

// splitIP is an address' host as an IP, without zone and without IPv4 in IPv6.
func splitIP(host string) (netip.Addr, bool) {
	ip, err := netip.ParseAddr(host)
	return ip.Unmap().WithZone(""), err == nil
}

// zoneFault is what is wrong with the zone of an address; empty: nothing. Only addresses of a link need one (RFC 4007 section 6):
// anywhere else it makes one address look like several.
func zoneFault(host string) string {
	ip, err := netip.ParseAddr(host)
	if err != nil || ip.Zone() == "" || ip.IsLinkLocalUnicast() && !ip.Is4In6() {
		return ""
	}
	return "has the zone `" + ip.Zone() + "`, which only link-local addresses (fe80::/10) have: leave it out"
}

func portFault(port string) string {
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 || strconv.FormatUint(n, 10) != port {
		return "has no port of 1 to 65535"
	}
	return ""
}

func sortedKeys(m map[string]string) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

func mapPath(field, key string) string { return field + "[" + strconv.Quote(key) + "]" }

func itemPath(field string, i int) string { return field + "[" + strconv.Itoa(i) + "]" }

// words joins words for reading: `a`, `b` or `c`.
func words(all []string) string {
	if len(all) == 1 {
		return "`" + all[0] + "`"
	}
	last := len(all) - 1
	return "`" + strings.Join(all[:last], "`, `") + "` or `" + all[last] + "`"
}

// Nearest is the candidate that a misspelt word most likely meant, if any is near: at most half of its letters wrong, and
// at most three. Of equally near ones the first wins.
func Nearest(word string, candidates []string) (string, bool) {
	if len(word) > nameBytesMax {
		return "", false
	}
	best, found := "", false
	limit := min(3, max(1, len(word)/2))
	for _, candidate := range candidates {
		if d := len(candidate) - len(word); d > limit || -d > limit || candidate == word {
			continue
		}
		if d := distance(word, candidate, limit); d <= limit {
			best, found, limit = candidate, true, d-1
		}
	}
	return best, found
}

func didYouMean(word string, candidates []string) string {
	if near, ok := Nearest(word, candidates); ok {
		return " (did you mean `" + near + "`)"
	}
	return ""
}

// distance counts the letters to insert, drop, replace or swap with their neighbour to make b of a, upper and lower
// case being the same; any number above limit when there are more than that.
func distance(a, b string, limit int) int {
	a, b = strings.ToLower(a), strings.ToLower(b)
	before, above, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range above {
		above[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		least := i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(above[j]+1, row[j-1]+1, above[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
			least = min(least, row[j])
		}
		if least > limit {
			return limit + 1
		}
		before, above, row = above, row, before
	}
	return above[len(b)]
}
