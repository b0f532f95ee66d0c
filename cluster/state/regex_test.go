package state_test

import (
	"testing"

	"lbd/cluster/state"
)

func TestRegexMatchesTheWhole(t *testing.T) {
	for _, c := range []struct {
		regex, text string
		want        bool
	}{
		{"/a|/b", "/a", true},
		{"/a|/b", "/b", true},
		{"/a|/b", "/ab", false},
		{"/a|/b", "x/b", false},
		{"(?i)/a", "/A", true},
		{"(?m)/a$", "/a\n/b", false},
		{"^/a$", "/a", true},
		{"/a.*", "/a\nb", false},
		{"/(?P<id>[0-9]{1,8})", "/12345678", true},
	} {
		re, err := state.CompileRegex(c.regex)
		if err != nil {
			t.Errorf("%s: %v", c.regex, err)
		} else if re.MatchString(c.text) != c.want {
			t.Errorf("%s matches %q: %v, want %v", c.regex, c.text, !c.want, c.want)
		}
	}
	for _, text := range []string{"", "a)(b", "[", "a**", "(abcdefgh){999}", "\n"} {
		if re, err := state.CompileRegex(text); err == nil {
			t.Errorf("%q compiled to %v", text, re)
		}
	}
}
