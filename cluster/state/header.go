package state

import (
	"strings"

	lbdv1 "lbd/proto/lbd/v1"
)

// framingFields would break the message or the connection around them: both are the codec's.
var framingFields = []string{
	"connection", "content-length", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade",
}

// What lbd itself says in a request and in an answer, besides: a route that changed it would make it a lie, or break what
// is built on it. Host is rewrite.host's.
var (
	requestFieldsOfOurs = append([]string{
		"expect", "forwarded", "host", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-port", "x-forwarded-proto", "x-request-id",
	}, framingFields...)
	checkFieldsOfOurs    = append([]string{"expect", "host"}, framingFields...)
	responseFieldsOfOurs = append([]string{"date", "via", "x-request-id"}, framingFields...)
)

func (c *checker) checkHeaderChanges(base string, h *lbdv1.HeaderChanges, ours []string) {
	if h == nil {
		return
	}
	if len(h.GetSet())+len(h.GetAdd())+len(h.GetRemove()) == 0 {
		c.errorf(base, "changes nothing: name headers in `set`, `add` or `remove`")
	}
	c.checkFields(base+".set", h.GetSet(), headersMax, ours)
	c.checkFields(base+".add", h.GetAdd(), headersMax, ours)
	c.checkMost(base+".remove", len(h.GetRemove()), headersMax)
	c.checkDistinct(base+".remove", h.GetRemove())
	for i, name := range h.GetRemove() {
		if fault := fieldNameFault(name, ours); fault != "" {
			c.errorf(itemPath(base+".remove", i), "`%s` %s", name, fault)
		}
	}
}

func normalizeHeaderChanges(h *lbdv1.HeaderChanges) {
	for i, name := range h.GetRemove() {
		h.Remove[i] = strings.ToLower(name)
	}
}

// checkFields checks header fields that are written as a map.
func (c *checker) checkFields(base string, fields map[string]string, limit int, ours []string) {
	c.checkMost(base, len(fields), limit)
	seen := make(map[string]string)
	for _, name := range sortedKeys(fields) {
		path, lower := mapPath(base, name), strings.ToLower(name)
		if fault := fieldNameFault(name, ours); fault != "" {
			c.errorf(path, "%s", fault)
		} else if other, twice := seen[lower]; twice {
			c.errorf(path, "is there as `%s` too", other)
		}
		seen[lower] = name
		switch value := fields[name]; {
		case len(name)+len(value) > headerBytesMax:
			c.errorf(path, "has %d bytes: at most %d", len(name)+len(value), headerBytesMax)
		default:
			if fault := fieldValueFault(value); fault != "" {
				c.errorf(path, "%s", fault)
			}
		}
	}
}

// fieldNameFault says why a header may not be named; empty: it may. '_' counts as '-', as it does for many a backend.
func fieldNameFault(name string, ours []string) string {
	if !isToken(name) {
		return "is no header name"
	}
	plain := strings.ReplaceAll(strings.ToLower(name), "_", "-")
	for _, other := range ours {
		switch {
		case other != plain:
		case plain == "host":
			return "has a field of its own, `host`: write that" // rewrite.host and http.host
		default:
			return "is set by lbd itself: leave it out"
		}
	}
	return ""
}

// isToken is RFC 9110, section 5.6.2.
func isToken(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
		return !letter && !strings.ContainsRune("!#$%&'*+-.^_`|~", r)
	})
}

// fieldValueFault says why a text is no header value (RFC 9110, section 5.5, without obs-text); empty: it is one.
func fieldValueFault(s string) string {
	switch {
	case strings.ContainsFunc(s, func(r rune) bool { return r != '\t' && r < ' ' || r == 0x7f }):
		return "has a control character in its value"
	case s != strings.Trim(s, " \t"):
		return "has a space or tab at the ends of its value"
	case strings.ContainsFunc(s, func(r rune) bool { return r > 0x7e }):
		return "has a character in its value that is not ASCII: headers hold letters without accents, digits and signs only"
	}
	return ""
}

// checkCookie checks the name of a cookie of ours (RFC 6265, section 4.1.1).
func (c *checker) checkCookie(path, name string) {
	switch {
	case name == "":
		c.errorf(path, "is required: the cookie's name")
	case !isToken(name):
		c.errorf(path, "`%s` is no cookie name: use letters, digits, `-` and `_`", name)
	case len(name) > cookieBytesMax:
		c.errorf(path, "has %d bytes: at most %d", len(name), cookieBytesMax)
	}
}
