package http1

import "testing"

// TestNext: what a decision about a request may rest on, from a stranger and from a proxy of ours.
func TestNext(t *testing.T) {
	head := "GET / HTTP/1.1\r\nHost: a\r\nX-A: 1\r\nx-a: 2\r\nX_A: 3\r\nX-Forwarded-For: 4\r\nX_Forwarded_For: 5\r\nClient-Cert: 6\r\n" +
		"Connection: x-hop, upgrade\r\nX-Hop: 7\r\nUpgrade: websocket\r\nX-Request-Id: 8\r\nProxy: 9\r\n\r\n"
	var r Request
	if _, err := r.Parse([]byte(head), &DefaultLimits); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string][2]string{
		"X-A": {"12", "12"}, "x_a": {"3", "3"}, "x-forwarded-for": {"", "4"}, "X_FORWARDED_FOR": {"", ""}, "client-cert": {"", ""},
		"x-hop": {"", ""}, "upgrade": {"websocket", "websocket"}, "x-request-id": {"", "8"}, "proxy": {"", ""}, "none": {"", ""},
	} {
		for i, trusted := range []bool{false, true} {
			n, got := NewName(name), ""
			for at := r.Fields.Next(0, &n, trusted); at >= 0; at = r.Fields.Next(at+1, &n, trusted) {
				got += string(r.Fields.Value(at))
			}
			if got != want[i] {
				t.Errorf("%s, trusted %v: %q, want %q", name, trusted, got, want[i])
			}
		}
	}
}

// TestRulesEdit: the rules on lines of ours.
func TestRulesEdit(t *testing.T) {
	rules, err := CompileRules(map[string]string{"B": "set"}, map[string]string{"C": "added"}, []string{"a"})
	if err != nil {
		t.Fatal(err)
	}
	const line = "HTTP/1.1 200 OK\r\n"
	for fields, want := range map[string]string{
		"":                            "B: set\r\nC: added\r\n",
		"A: 1\r\n":                    "B: set\r\nC: added\r\n",
		"A: 1\r\nC: 2\r\nb: a: 3\r\n": "C: 2\r\nB: set\r\nC: added\r\n",
		"AB: 1\r\na:2\r\nD: \r\n":     "AB: 1\r\nD: \r\nB: set\r\nC: added\r\n",
	} {
		if got := string(rules.Edit([]byte(line+fields), len(line))); got != line+want {
			t.Errorf("%q: %q", fields, got)
		}
	}
	var none *Rules
	if got := string(none.Edit([]byte(line), len(line))); got != line {
		t.Errorf("no rules: %q", got)
	}
}

// TestRulesThen: two together do what one after the other does, to lines of ours and to an answer's.
func TestRulesThen(t *testing.T) {
	rules := func(set, add map[string]string, remove ...string) *Rules {
		r, err := CompileRules(set, add, remove)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	all := map[string]*Rules{
		"none": nil,
		"set":  rules(map[string]string{"A": "1", "Via": "ours"}, nil),
		"add":  rules(nil, map[string]string{"a": "2", "B_C": "3"}),
		"drop": rules(nil, nil, "A", "b-c", "date"),
		"mix":  rules(map[string]string{"Date": "now"}, map[string]string{"Via": "more", "A": "4"}, "d"),
	}
	const line = "HTTP/1.1 200 OK\r\n"
	var answer Response
	const head = line + "A: 0\r\nD: 9\r\nB-C: 8\r\nVia: 1.1 x\r\nContent-Length: 0\r\n\r\n"
	answer.Reset()
	if _, err := answer.Parse([]byte(head), &DefaultLimits, &Request{}); err != nil {
		t.Fatal(err)
	}
	for first, r := range all {
		for second, next := range all {
			both := r.Then(next)
			for _, fields := range []string{"", "A: 0\r\nD: 9\r\n", "B-C: 8\r\nVia: x\r\nDate: then\r\na: 7\r\n"} {
				want := next.Edit(r.Edit([]byte(line+fields), len(line)), len(line))
				if got := both.Edit([]byte(line+fields), len(line)); string(got) != string(want) {
					t.Errorf("%s, then %s, of %q: %q, want %q", first, second, fields, got, want)
				}
			}
			edit := ResponseEdit{Framing: Length, Minor: 1, Rules: both}
			kept := edit
			kept.Rules = nil
			whole, plain := string(answer.Append(nil, &edit)), string(answer.Append(nil, &kept))
			if (r == nil && next == nil) != (whole == plain) {
				t.Errorf("%s, then %s: %q", first, second, whole)
			}
			for _, name := range []string{"date", "via"} {
				id := lookupName([]byte(name), hashName(name))
				if both.writes(id) != (r.writes(id) || next.writes(id)) {
					t.Errorf("%s, then %s: writes %s: %v", first, second, name, both.writes(id))
				}
			}
		}
	}
}
