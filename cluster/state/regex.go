package state

import (
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"

	lbdv1 "lbd/proto/lbd/v1"
)

// CompileRegex compiles a condition of a route: RE2, which has to match the whole text. It refuses what is longer than
// 1 KiB, what regexp refuses, and what its repetitions make too large to run on each request.
func CompileRegex(text string) (*regexp.Regexp, error) {
	if _, err := parseRegex(text); err != nil {
		return nil, err
	}
	return regexp.Compile(anchored(text))
}

func anchored(text string) string { return `\A(?:` + text + `)\z` }

func parseRegex(text string) (*syntax.Regexp, error) {
	switch {
	case text == "":
		return nil, errors.New("is empty")
	case len(text) > regexBytesMax:
		return nil, fmt.Errorf("has %d bytes: at most %d", len(text), regexBytesMax)
	case !isPrintable(text):
		return nil, errors.New(`has a control character: write it as in \x00`)
	}
	parsed, err := syntax.Parse(text, syntax.Perl)
	if err == nil {
		_, err = syntax.Parse(anchored(text), syntax.Perl) // two levels deeper
	}
	if err != nil {
		return nil, err
	}
	if regexSize(parsed) > regexSizeMax {
		return nil, fmt.Errorf("is too large: its repetitions stand for more than %d steps", regexSizeMax)
	}
	return parsed, nil
}

// regexSize is about the number of instructions that an expression becomes, at most a little above regexSizeMax.
func regexSize(re *syntax.Regexp) int {
	size := 1
	if re.Op == syntax.OpLiteral {
		size = len(re.Rune)
	}
	for _, sub := range re.Sub {
		size += regexSize(sub)
		if size > regexSizeMax {
			return regexSizeMax + 1
		}
	}
	if re.Op == syntax.OpRepeat {
		size *= max(re.Min+1, re.Max)
	}
	return min(size, regexSizeMax+1)
}

// checkRegexes warns of a host with so many expressions for paths that trying them is what its requests cost. It is said once
// of each host, at the first route that adds to them.
func (c *checker) checkRegexes(r *lbdv1.Route) {
	if !slices.ContainsFunc(r.GetMatches(), func(m *lbdv1.RouteMatch) bool { return pathOf(m).kind == "regex" }) {
		return
	}
	hosts := r.GetHosts()
	if len(hosts) == 0 {
		hosts = []string{""}
	}
	for _, listener := range r.GetListeners() {
		for _, host := range hosts {
			group := strings.TrimSuffix(matchIndex(listener, host, "regex", ""), sep)
			if c.crowded[group] {
				continue
			}
			left := regexesMany
			c.next.indexed(group, func(string) bool { left--; return left >= 0 })
			if left >= 0 {
				continue
			}
			if c.crowded == nil {
				c.crowded = make(map[string]bool)
			}
			c.crowded[group] = true
			where := "in routes without hosts"
			if host != "" {
				where = "for host `" + host + "`"
			}
			c.warnf("matches", "listener `%s` has more than %d regular expressions for paths %s: a request that no `exact` and no `prefix` takes "+
				"tries one after the other, which can cost more than all else; use `prefix`, or join those that lead to the same place by `|`",
				listener, regexesMany, where)
		}
	}
}

// mayBeginWith tells whether a text that the expression matches may begin with this rune. It is sure only of a no.
func mayBeginWith(re *syntax.Regexp, r rune) bool {
	switch re.Op {
	case syntax.OpNoMatch:
		return false
	case syntax.OpLiteral:
		return re.Rune[0] == r || re.Flags&syntax.FoldCase != 0
	case syntax.OpCharClass:
		for i := 0; i < len(re.Rune); i += 2 {
			if re.Rune[i] <= r && r <= re.Rune[i+1] {
				return true
			}
		}
		return false
	case syntax.OpCapture, syntax.OpPlus:
		return mayBeginWith(re.Sub[0], r)
	case syntax.OpRepeat:
		return re.Min == 0 || mayBeginWith(re.Sub[0], r)
	case syntax.OpAlternate:
		for _, sub := range re.Sub {
			if mayBeginWith(sub, r) {
				return true
			}
		}
		return false
	case syntax.OpConcat:
		for _, sub := range re.Sub {
			if sub.Op != syntax.OpBeginText && sub.Op != syntax.OpBeginLine && sub.Op != syntax.OpEmptyMatch {
				return mayBeginWith(sub, r)
			}
		}
	}
	return true
}

// checkPathRegex checks an expression for paths: one that no path can match is a mistake.
func (c *checker) checkPathRegex(path, text string) {
	parsed, err := parseRegex(text)
	switch {
	case err != nil:
		c.errorf(path, "%s", err)
	case !mayBeginWith(parsed, '/'):
		c.warnf(path, "matches no path: each begins with `/`, and the whole path has to match")
	}
}
