package lb

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"lbd/lb/lbtest"
)

// named answers with its own name.
func named(t *testing.T, name string) *lbtest.Backend { return lbtest.New(t, lbtest.OK(name)) }

func getWith(cookie string) string {
	return "GET / HTTP/1.1\r\nHost: a.test\r\nCookie: other=1; " + cookie + "\r\n\r\n"
}

// visit asks once with a cookie, "name=value" or empty, and returns who answered and the cookie to send next time.
func (c *client) visit(cookie string) (backend, next string, set *http.Cookie) {
	c.t.Helper()
	if cookie == "" {
		c.say(get("/"))
	} else {
		c.say(getWith(cookie))
	}
	resp, body := c.answer("GET")
	if resp.StatusCode != 200 {
		c.t.Fatalf("status %d", resp.StatusCode)
	}
	switch cookies := resp.Cookies(); len(cookies) {
	case 0:
		return body, cookie, nil
	case 1:
		return body, cookies[0].Name + "=" + cookies[0].Value, cookies[0]
	default:
		c.t.Fatalf("%d cookies", len(cookies))
	}
	return
}

func sticky(backends []BackendConfig) PoolConfig {
	return PoolConfig{Backends: backends, Persistence: &SessionPersistence{Cookie: "stay"}}
}

func configs(backends ...*lbtest.Backend) []BackendConfig {
	var all []BackendConfig
	for _, b := range backends {
		all = append(all, BackendConfig{Key: b.Addr().String(), Name: b.Addr().String(), Address: b.Addr(), Weight: 1})
	}
	return all
}

// TestSession: a client stays where it is, and its cookie, a hash, is not set again.
func TestSession(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		backends := configs(named(t, "a"), named(t, "b"), named(t, "c"))
		n := start(t, setup{kind: kind, pool: sticky(backends)})
		c := n.dial()
		for range 3 {
			first, cookie, set := c.visit("")
			if set == nil || !set.HttpOnly || set.Path != "/" || set.SameSite != http.SameSiteLaxMode || set.Secure || set.MaxAge != 0 {
				t.Fatalf("cookie %+v", set)
			}
			if len(set.Value) != markDigits || !slices.ContainsFunc(backends, func(b BackendConfig) bool {
				return set.Value == fmt.Sprintf("%016x", sessionMark("p", b.Name))
			}) {
				t.Errorf("%q is no backend's mark", set.Value)
			}
			for range 5 {
				if again, _, set := c.visit(cookie); again != first || set != nil {
					t.Fatalf("went from %s to %s, cookie %v", first, again, set)
				}
			}
		}
	})
}

// TestSessionElsewhere is case A43: where the backend is gone, down, or fails, the client gets another one and its cookie.
func TestSessionElsewhere(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		servers := map[string]*lbtest.Backend{"a": named(t, "a"), "b": named(t, "b")}
		backends := configs(servers["a"], servers["b"])
		n := start(t, setup{kind: kind, pool: sticky(backends)})
		c := n.dial()
		first, cookie, _ := c.visit("")
		key := servers[first].Addr().String()
		moves := func(what string) {
			t.Helper()
			next, newCookie, set := c.visit(cookie)
			if next == first || set == nil {
				t.Errorf("%s: at %s, cookie %v", what, next, set)
			}
			if again, _, set := c.visit(newCookie); again != next || set != nil {
				t.Errorf("%s: not bound to the new one", what)
			}
		}
		n.setEligible(key, false)
		moves("down")
		n.setEligible(key, true)
		if back, _, set := c.visit(cookie); back != first || set != nil {
			t.Errorf("the old cookie leads to %s", back)
		}
		servers[first].Close()
		moves("fails") // a retry
		left := slices.DeleteFunc(slices.Clone(backends), func(b BackendConfig) bool { return b.Key == key })
		n.serve(setup{pool: sticky(left)})
		moves("removed")
		cookie = "stay=nonsense"
		moves("nonsense")
	})
}

// TestSessionWeightAndDrain: weight 0 and a drain keep those who are there, and take nobody new; a drain that is over keeps nobody.
func TestSessionWeightAndDrain(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		clock := &clock{}
		backends := configs(named(t, "a"), named(t, "b"))
		n := start(t, setup{kind: kind, pool: sticky(backends), clock: clock})
		c := n.dial()
		cookie := ""
		for at := ""; at != "a"; {
			at, cookie, _ = c.visit("")
		}
		stays := func(want bool) {
			t.Helper()
			if at, _, set := c.visit(cookie); (at == "a") != want || (set == nil) != want {
				t.Errorf("bound client at %s, cookie %v", at, set)
			}
			for range 4 {
				if at, _, _ := c.visit(""); at != "b" {
					t.Errorf("new client at %s", at)
				}
			}
		}
		backends[0].Weight = 0
		n.serve(setup{pool: sticky(backends)})
		stays(true)
		backends[0].Weight, backends[0].State, backends[0].DrainSince = 1, Drain, clock.now()
		n.serve(setup{pool: sticky(backends)})
		stays(true)
		clock.pass(n, drainTimeout+time.Second)
		stays(false)
		backends[0].State = Ready
		n.serve(setup{pool: sticky(backends)})
		if at, _, set := c.visit(cookie); at != "a" || set != nil {
			t.Errorf("after the drain at %s, cookie %v", at, set)
		}
	})
}

// TestSessionTimes: ends by idle and absolute time, and is written anew at most once in a tenth of the idle time.
func TestSessionTimes(t *testing.T) {
	sp := &SessionPersistence{Cookie: "stay", IdleTimeout: 100 * time.Second, AbsoluteTimeout: 1000 * time.Second, SameSite: "Lax"}
	at := func(now int64, value string) (mark uint64, set string) {
		var s session
		ok := false
		if value != "" {
			if s, ok = parseSession([]byte(value)); !ok {
				t.Fatalf("cannot read %q", value)
			}
		}
		if sp.over(s, now) {
			s = session{}
		}
		x := &exchange{pool: &Pool{persistence: sp}, member: &member{mark: 7}, client: &clientConn{}, session: s}
		x.rec.Time = time.Unix(now, 0)
		x.bindSession()
		return s.mark, strings.TrimPrefix(string(x.cookies), "Set-Cookie: stay=")
	}
	value := func(set string) string { v, _, _ := strings.Cut(set, ";"); return v }
	age := func(set string) string {
		_, a, _ := strings.Cut(set, "Max-Age=")
		return strings.TrimSpace(a)
	}
	const day = 1_700_000_000
	_, first := at(day, "")
	if v := value(first); v != "0000000000000007.6553f100.6553f100" || age(first) != "100" {
		t.Fatalf("a new session: %q", first)
	}
	if mark, set := at(day+9, value(first)); mark != 7 || set != "" {
		t.Errorf("after 9 s: mark %d, set %q", mark, set)
	}
	if mark, set := at(day+10, value(first)); mark != 7 || value(set) != "0000000000000007.6553f100.6553f10a" {
		t.Errorf("after 10 s: mark %d, set %q", mark, set)
	}
	if mark, set := at(day+100, value(first)); mark != 0 || value(set) != "0000000000000007.6553f164.6553f164" {
		t.Errorf("after the idle time: mark %d, set %q", mark, set)
	}
	if mark, set := at(day-30, value(first)); mark != 7 || set != "" {
		t.Errorf("by another node's clock: mark %d, set %q", mark, set)
	}
	if mark, set := at(day+5, "0000000000000007"); mark != 7 || value(set) != "0000000000000007.6553f105.6553f105" {
		t.Errorf("from before there were times: mark %d, set %q", mark, set)
	}
	old := "0000000000000007.6553f100.6553f4e7" // 999 s old, just seen
	if mark, set := at(day+999, old); mark != 7 || set != "" {
		t.Errorf("just before the absolute time: mark %d, set %q", mark, set)
	}
	if mark, set := at(day+1000, old); mark != 0 || age(set) != "100" {
		t.Errorf("after the absolute time: mark %d, set %q", mark, set)
	}
	if _, set := at(day+960, "0000000000000007.6553f100.6553f4a0"); age(set) != "40" {
		t.Errorf("near its end the cookie says %q", set)
	}
	for _, bad := range []string{"", "7", "000000000000000g", "0000000000000007.", "0000000000000007.6553f100", "0000000000000007.6553f100.6553f1000", "0000000000000007-6553f100-6553f100"} {
		if _, ok := parseSession([]byte(bad)); ok {
			t.Errorf("reads %q", bad)
		}
	}
}

// TestSessionMark: nodes agree on a backend's mark for as long as it has its pool and name.
func TestSessionMark(t *testing.T) {
	if got := sessionMark("shop", "10.0.0.1:80"); got != 0x548a33edb150777b {
		t.Errorf("mark %#x: every client of an upgraded node would move", got)
	}
	if sessionMark("shop", "10.0.0.1:80") == sessionMark("shop2", "10.0.0.1:80") || sessionMark("ab", "c") == sessionMark("a", "bc") {
		t.Error("marks of different pools are one")
	}
}

func TestSetCookie(t *testing.T) {
	for _, c := range []struct {
		cookie setCookie
		want   string
	}{
		{setCookie{name: "a", sameSite: "Lax"}, "Set-Cookie: a=v; Path=/; HttpOnly; SameSite=Lax\r\n"},
		{setCookie{name: "a", sameSite: "Strict", secure: true, maxAge: 1500 * time.Millisecond}, "Set-Cookie: a=v; Path=/; HttpOnly; SameSite=Strict; Max-Age=2; Secure\r\n"},
		{setCookie{name: "a", sameSite: "None"}, "Set-Cookie: a=v; Path=/; HttpOnly; SameSite=None; Secure\r\n"},
	} {
		if got := string(c.cookie.append(nil, []byte("v"))); got != c.want {
			t.Errorf("got  %q\nwant %q", got, c.want)
		}
	}
}

func TestCookieIn(t *testing.T) {
	for field, want := range map[string]string{
		"a=1": "1", "b=2; a=1": "1", "b=2;a=1;a=3": "1", "a=": "", " a = 1 ;b": "1", "a=x=y": "x=y", `a="q"`: `"q"`,
		"b=a=1": "-", "aa=1": "-", "A=1": "-", "a": "-", "": "-", ";;;": "-",
	} {
		got, ok := cookieIn([]byte(field), "a")
		if !ok {
			got = []byte("-")
		}
		if string(got) != want {
			t.Errorf("%q: %q, want %q", field, got, want)
		}
	}
}

// TestSessionSecure: over TLS the cookie goes over TLS alone.
func TestSessionSecure(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		n := start(t, setup{kind: kind, tls: testTerminator(t), pool: sticky(configs(named(t, "a")))})
		if _, _, set := n.dialTLS(tls.VersionTLS13).visit(""); set == nil || !set.Secure {
			t.Errorf("cookie %+v", set)
		}
	})
}

// TestCookiesBehindProxy: where a proxy of ours has ended TLS for the client, its cookies go over TLS alone, too.
func TestCookiesBehindProxy(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		pool := sticky(configs(named(t, "a")))
		n := start(t, setup{
			kind: kind, pool: pool, listener: ListenerConfig{Trusted: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}},
			routes: onMain(RouteConfig{Forward: &Forward{Pools: []WeightedPool{{"p", 1}}, Persistence: &SplitPersistence{Cookie: "split"}}}),
		})
		c := n.dial()
		for _, scheme := range []string{"https", "http"} {
			c.say("GET / HTTP/1.1\r\nHost: a.test\r\nX-Forwarded-Proto: " + scheme + "\r\n\r\n")
			resp, _ := c.answer("GET")
			cookies := resp.Cookies()
			if len(cookies) != 2 || cookies[0].Secure != (scheme == "https") || cookies[1].Secure != (scheme == "https") {
				t.Errorf("%s: %v", scheme, cookies)
			}
		}
	})
}
