package lb

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// TestRouteScript reads testdata/route.txt. "route NAME [listener=L] [host=H]... [exact=P|prefix=P]..." adds a route,
// "ask L HOST PATH -> NAME" asks, "new" begins another table. HOST - is none.
func TestRouteScript(t *testing.T) {
	f, err := os.Open("testdata/route.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var routes []RouteConfig
	asked := 0
	for lines := bufio.NewScanner(f); lines.Scan(); {
		words := strings.Fields(lines.Text())
		if len(words) == 0 || words[0][0] == '#' {
			continue
		}
		switch words[0] {
		case "new":
			routes = nil
		case "route":
			routes = append(routes, parseRoute(t, words[1], words[2:]))
		case "ask":
			host := strings.TrimPrefix(words[2], "-")
			want := strings.TrimPrefix(words[5], "-")
			if got := ask(t, routes, words[1], host, words[3]); got != want {
				t.Errorf("%s: got %q", lines.Text(), got)
			}
			if got := slowLookup(routes, words[1], host, words[3]); got != want {
				t.Errorf("%s: the slow twin says %q", lines.Text(), got)
			}
			asked++
		default:
			t.Fatalf("what is %q?", lines.Text())
		}
	}
	if asked < 30 {
		t.Errorf("%d questions only", asked)
	}
}

func parseRoute(t *testing.T, name string, words []string) RouteConfig {
	r := RouteConfig{Name: name, Respond: &Respond{Status: 200}}
	for _, word := range words {
		key, value, _ := strings.Cut(word, "=")
		switch key {
		case "listener":
			r.Listeners = append(r.Listeners, value)
		case "host":
			r.Hosts = append(r.Hosts, value)
		case "exact":
			r.Matches = append(r.Matches, Match{Exact: value})
		case "prefix":
			r.Matches = append(r.Matches, Match{Prefix: value})
		default:
			t.Fatalf("what is %q?", word)
		}
	}
	if r.Listeners == nil {
		r.Listeners = []string{"l"}
	}
	return r
}

func ask(t interface{ Fatal(...any) }, routes []RouteConfig, listener, host, path string) string {
	table, err := NewTable(routes, nil)
	if err != nil {
		t.Fatal(err)
	}
	if r := table.lookup(listener, []byte(host), []byte(path)); r != nil {
		return r.name
	}
	return ""
}

func TestLookupIsItsSlowTwin(t *testing.T) {
	hosts := rapid.SampledFrom([]string{"a.test", "b.a.test", "*.test", "*.a.test", "c.test"})
	prefixes := rapid.SampledFrom([]string{"/", "/a", "/a/", "/a/b", "/ab", "/a/b/c"})
	rapid.Check(t, func(t *rapid.T) {
		var routes []RouteConfig
		for i := range rapid.IntRange(0, 6).Draw(t, "routes") {
			r := RouteConfig{Name: fmt.Sprint("r", i), Respond: &Respond{Status: 200}}
			r.Listeners = rapid.SliceOfN(rapid.SampledFrom([]string{"l", "m"}), 1, 2).Draw(t, "listeners")
			r.Hosts = rapid.SliceOfN(hosts, 0, 2).Draw(t, "hosts")
			for range rapid.IntRange(0, 2).Draw(t, "matches") {
				if rapid.Bool().Draw(t, "exact") {
					r.Matches = append(r.Matches, Match{Exact: prefixes.Draw(t, "path")})
				} else {
					r.Matches = append(r.Matches, Match{Prefix: prefixes.Draw(t, "path")})
				}
			}
			routes = append(routes, r)
		}
		host := rapid.SampledFrom([]string{"", "a.test", "b.a.test", "x.a.test", "c.test", "test", ".test", "x.y.test"}).Draw(t, "host")
		path := rapid.SampledFrom([]string{"/", "/a", "/a/", "/a/b", "/a/bc", "/a/b/c/d", "/ab", "/abc", "*"}).Draw(t, "path")
		fast, slow := ask(t, routes, "l", host, path), slowLookup(routes, "l", host, path)
		if fast != slow {
			t.Fatalf("fast %q, slow %q", fast, slow)
		}
	})
}

func TestNewTableRefuses(t *testing.T) {
	_, err := NewTable([]RouteConfig{
		{Name: "nothing", Listeners: []string{"l"}},
		{Name: "both", Listeners: []string{"l"}, Forward: &Forward{Pool: "p"}, Respond: &Respond{Status: 200}},
		{Name: "lost", Listeners: []string{"l"}, Forward: &Forward{Pool: "gone"}},
		{Name: "good", Listeners: []string{"l"}, Respond: &Respond{Status: 200}},
	}, nil)
	for _, want := range []string{`route "nothing": needs`, `route "both": needs`, `route "lost": no pool "gone"`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v misses %s", err, want)
		}
	}
	if err != nil && strings.Contains(err.Error(), "good") {
		t.Errorf("error %v names the good one", err)
	}
}

// manyHosts is a table of n hosts with a route each, some with paths.
func manyHosts(tb testing.TB, n int) *Table {
	routes := make([]RouteConfig, n)
	for i := range routes {
		routes[i] = RouteConfig{
			Name: fmt.Sprint("r", i), Listeners: []string{"l"}, Hosts: []string{fmt.Sprintf("h%d.example.com", i)},
			Matches: []Match{{Prefix: "/"}, {Prefix: "/api/v1"}}, Respond: &Respond{Status: 200},
		}
	}
	table, err := NewTable(routes, nil)
	if err != nil {
		tb.Fatal(err)
	}
	return table
}

func TestLookupDoesNotAllocate(t *testing.T) {
	table := manyHosts(t, 1000)
	host, path := []byte("h77.example.com"), []byte("/api/v1/things/77")
	n := testing.AllocsPerRun(100, func() {
		if r := table.lookup("l", host, path); r == nil || r.name != "r77" {
			t.Fatal("wrong route")
		}
		if table.lookup("l", path, path) != nil {
			t.Fatal("wrong route")
		}
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkLookup(b *testing.B) {
	for _, n := range []int{1, 1000, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			table := manyHosts(b, n)
			host, path := []byte(fmt.Sprintf("h%d.example.com", n/2)), []byte("/api/v1/things/77")
			b.ReportAllocs()
			for b.Loop() {
				if table.lookup("l", host, path) == nil {
					b.Fatal("no route")
				}
			}
		})
	}
}

func BenchmarkNewTable100000(b *testing.B) {
	for b.Loop() {
		manyHosts(b, 100_000)
	}
}
