package document

import (
	"reflect"
	"strings"
	"testing"
)

func TestContextsRoundTrip(t *testing.T) {
	want := &Contexts{Current: "prod", All: []Context{
		{Name: "prod", Endpoints: []string{"10.0.0.1:7443", "[::1]:7443"}, CA: "sha256:" + strings.Repeat("ab", 32), Token: "lbt_k3v9_secret"},
		{Name: "by-file", Endpoints: []string{"unix:/run/lbd/control.sock"}, CA: "/etc/lbd/ca.pem", TokenFile: "/run/secrets/a: b"},
		{Name: "007", Endpoints: []string{"edge-1:7443"}, Certificate: "/c.pem", Key: "/c.key"},
	}}
	for _, current := range []string{"prod", ""} {
		want.Current = current
		got, problems := ParseContexts(File{Name: "c", Data: want.YAML()})
		if len(problems) > 0 || !reflect.DeepEqual(got, want) {
			t.Errorf("%s\nis read as %+v, with %v", want.YAML(), got, problems)
		}
	}
	none := &Contexts{}
	if got, problems := ParseContexts(File{Name: "c", Data: none.YAML()}); len(problems) > 0 || len(got.All) > 0 {
		t.Errorf("%s\nis read as %+v, with %v", none.YAML(), got, problems)
	}
}

func TestContextsThatAreWrong(t *testing.T) {
	const secret = "lbt_k3v9_topsecret"
	for text, want := range map[string]string{
		"":                       "c:1:1: error: there are no contexts here",
		"- a\n":                  "c:1:1: error: the file must be a mapping of contexts",
		"contexts: {}\n":         "c:1:11: error: `contexts` must be a list",
		"contexts:\n\t- a\n":     "c:2:2: error: not YAML",
		"contexts: []\n---\na\n": "c:1:1: error: contexts are one YAML document, not several",
		"context: []\n":          "c:1:1: error: unknown field `context` (did you mean `contexts`?)",
		"current: a\ncontexts: [{ name: b, endpoints: [a:1] }]\n":                                             "c:1:10: error: `current` names `a`, which is not among the contexts",
		"contexts: [{ name: a }]\n":                                                                           "c:1:12: error: `endpoints` is missing: HOST:PORT",
		"contexts: [{ endpoints: [a:1] }]\n":                                                                  "c:1:12: error: `name` must be 1 to 63 letters",
		"contexts: [{ name: a, endpoints: [a:1] }, { name: a, endpoints: [a:1] }]\n":                          "c:1:43: error: context `a` is there twice",
		"contexts: [{ name: a, endpoints: [a:1], tokn: " + secret + " }]\n":                                   "c:1:41: error: unknown field `tokn` (did you mean `token`?)",
		"contexts: [{ name: a, endpoints: [a:1], token: [" + secret + "] }]\n":                                "c:1:48: error: `token` must be text",
		"contexts: [{ name: a, endpoints: [a:1], token: " + secret + ", token: " + secret + " }]\n":           "error: `token` is given twice",
		"contexts: [{ name: a, endpoints: [1] }]\n":                                                           "c:1:35: error: `endpoints` must be text",
		"contexts: [{ name: a, endpoints: [a:1], token: \"" + secret + "\n}]\n":                               "error: not YAML",
		"contexts: [{ name: \"a b\", endpoints: [a:1], token: " + secret + " }]\n":                            "c:1:12: error: `name` must be 1 to 63 letters, digits, `-`, `.` and `_`, not `a b`",
		"contexts: [{ name: " + strings.Repeat("a", 64) + ", endpoints: [a:1], token_file: " + secret + " }]": "c:1:12: error: `name` must be 1 to 63",
	} {
		_, problems := ParseContexts(File{Name: "c", Data: []byte(text)})
		if len(problems) == 0 || !strings.Contains(problems[0].String(), want) {
			t.Errorf("%q: %v, want %q", text, problems, want)
		}
		for _, p := range problems {
			if strings.Contains(p.String(), "topsecret") {
				t.Errorf("a problem shows the token: %v", p)
			}
		}
	}
}
