package lb

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// TestPoolExplain: every member with its reason, and who would be picked and why.
func TestPoolExplain(t *testing.T) {
	n := &node{t: t, Server: idleServer(t, Options{})}
	backends := someBackends(7)
	backends[0].Address = netip.AddrPort{}
	backends[1].State = InMaintenance
	backends[2].State, backends[2].DrainSince = Drain, time.Now()
	backends[3].Weight = 0
	backends[4].Backup = true
	p := n.servePool(PoolConfig{Name: "p", Backends: backends, Persistence: &SessionPersistence{Cookie: "stay"}})
	n.setEligible("f", false)
	client := netip.MustParseAddr("192.0.2.1")
	e := p.Explain(nil, client)
	var why []string
	for _, b := range e.Backends {
		why = append(why, fmt.Sprintf("%s %v %s %d", b.Name, b.Takes, b.Why, b.Weight))
	}
	want := "a false no address 1; b false maintenance 1; c false drains 1; d false weight 0 0; e false backup 1; f false down 1; g true  1"
	if got := strings.Join(why, "; "); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if e.Backend != "g" || e.Reason != "its turn" {
		t.Errorf("picked %q: %s", e.Backend, e.Reason)
	}
	for backend, want := range map[string]string{
		"c": "c: bound to it by the cookie stay", // drains
		"f": "g: the backend of its cookie stay is gone or takes no requests; its turn",
	} {
		cookie := Header{"cookie", fmt.Sprintf("stay=%016x", sessionMark("p", backend))}
		if e := p.Explain([]Header{cookie}, client); e.Backend+": "+e.Reason != want {
			t.Errorf("%s: %s", e.Backend, e.Reason)
		}
	}
	if e := p.Explain([]Header{{"Cookie", "stay=x"}}, client); e.Backend+": "+e.Reason != "g: its cookie stay names no backend; its turn" {
		t.Errorf("%s: %s", e.Backend, e.Reason)
	}
	n.setEligible("g", false)
	if e := p.Explain(nil, client); e.Backend != "e" {
		t.Errorf("picked %q of the backups", e.Backend)
	}
	n.setEligible("e", false)
	if e := p.Explain(nil, client); e.Backend != "" || e.Reason != "no backend is eligible" {
		t.Errorf("picked %q: %s", e.Backend, e.Reason)
	}
}

// TestPoolExplainTakesNoTurn: asking changes nothing, and tells what the next request gets.
func TestPoolExplainTakesNoTurn(t *testing.T) {
	n := &node{t: t, Server: idleServer(t, Options{})}
	p := n.servePool(PoolConfig{Name: "p", Backends: someBackends(5)})
	for range 10 {
		told := p.Explain(nil, netip.Addr{}).Backend
		p.Explain(nil, netip.Addr{})
		for b, count := range n.spread(p, 1, false) {
			if b.name != told || count != 1 {
				t.Errorf("told %s, got %s", told, b.name)
			}
		}
	}
}
