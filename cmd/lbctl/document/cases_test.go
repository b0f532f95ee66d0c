package document

import (
	"strings"
	"testing"
)

// What is wrong with a file of cases is told in one pass, each at its place.
func TestCases(t *testing.T) {
	const text = `- name: a
  request: { url: "http://a/", metod: GET, headers: { X: 1 }, colour: red, rsa_only: perhaps }
  expect: { status: "200", status: 200, pools: one, request_headers: { sett: { X: a } } }
- name: a
  request: []
- expect: { route: 1.5 }
- { name: b, request: { url: "http://b/" } }
- { name: c, request: { sni: c }, expect: { route: r } }
- { name: d, request: { url: &d "http://d/", sni: *d }, expect: { status: 99999999999 } }
- { name: e, request: { url: e.test, method: "", client_ip: here }, expect: { action: forwarded } }
- one
`
	_, problems := ParseCases(File{Name: "c", Data: []byte(text)})
	var got []string
	for _, p := range problems {
		got = append(got, strings.TrimPrefix(p.String(), "c:"))
	}
	want := []string{
		"2:32: error: unknown field `metod` (did you mean `method`?)",
		"2:58: error: `X` must be text: put it in quotes",
		"2:63: error: unknown field `colour`; fields here are client_ip, headers, listener, method, rsa_only, sni, url",
		"2:86: error: `rsa_only` must be true or false",
		"3:21: error: `status` must be a whole number",
		"3:28: error: `status` is given twice",
		"3:48: error: `pools` must be a list",
		"3:72: error: unknown field `sett` (did you mean `set`?)",
		"4:3: error: case `a` is there already, at c:1:3",
		"5:12: error: `request` must be a mapping of client_ip, headers, listener, method, rsa_only, sni, url",
		"6:20: error: `route` must be text: put it in quotes",
		"7:3: error: `expect` is missing",
		"8:3: error: `request.url` is missing",
		"9:75: error: `status` must be a whole number",
		"10:30: error: `url` must be http://HOST[:PORT]/PATH or https://…, not `e.test`",
		"10:46: error: `method` must be a method such as GET, not ``",
		"10:61: error: `client_ip` must be an IP address, not `here`",
		"10:87: error: `action` must be one of forward, redirect, respond, maintenance, denied, refused, not `forwarded`",
		"11:3: error: a case must be a mapping of expect, name, request",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("problems\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestCasesFiles(t *testing.T) {
	for text, want := range map[string]string{
		"":                 "c:1:1: error: there are no cases here",
		"# nothing\n":      "c:1:1: error: there are no cases here",
		"[]\n":             "c:1:1: error: there are no cases here",
		"a: b\n":           "c:1:1: error: the file must be a list",
		"- [\n":            "error: not YAML",
		"[]\n---\n[]\n":    "c:1:1: error: cases are one YAML document",
		"- name: *nobody*": "error: not YAML",
	} {
		if _, problems := ParseCases(File{Name: "c", Data: []byte(text)}); len(problems) != 1 || !strings.Contains(problems[0].String(), want) {
			t.Errorf("%q: problems %v, want %s", text, problems, want)
		}
	}
	cases, problems := ParseCases(File{Name: "c", Data: []byte(`[{ name: a, request: { url: "http://a/" }, expect: { pools: [b, a] } }]`)})
	if len(problems) != 0 || len(cases) != 1 || cases[0].Expect[0].Want != "a, b" || cases[0].At.String() != "c:1:2" {
		t.Errorf("cases %v, problems %v", cases, problems)
	}
}
