//go:build linux

package netnstest

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Partition lets no frame pass between any host of a and any of b, either way. Root may be in one of them; whoever is in neither
// reaches all.
func (n *Net) Partition(a, b []int) {
	n.t.Helper()
	n.change(func() {
		for _, x := range a {
			for _, y := range b {
				n.lossy[way{x, y}], n.lossy[way{y, x}] = 100, 100
			}
		}
	})
}

// Isolate lets no frame pass between a host and anybody, Root included.
func (n *Net) Isolate(host int) {
	n.t.Helper()
	n.Partition([]int{host}, n.others(host))
}

// OneWay loses the frames that go from one host to another; those that come back pass.
func (n *Net) OneWay(from, to int) {
	n.t.Helper()
	n.change(func() { n.lossy[way{from, to}] = 100 })
}

// Loss loses that part of the frames to and from a host, at random, each way, to and from everybody.
func (n *Net) Loss(host int, percent float64) {
	n.t.Helper()
	n.LossBetween([]int{host}, n.others(host), percent)
}

// LossBetween loses that part of the frames between any host of a and any of b, each way.
func (n *Net) LossBetween(a, b []int, percent float64) {
	n.t.Helper()
	n.change(func() {
		for _, x := range a {
			for _, y := range b {
				if x != y {
					n.lossy[way{x, y}], n.lossy[way{y, x}] = percent, percent
				}
			}
		}
	})
}

// Delay holds up each frame to and from a host, give or take jitter, in order.
func (n *Net) Delay(host int, delay, jitter time.Duration) {
	n.t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	w := n.wires[host]
	if w == nil {
		var err error
		w, err = layWire(n, host)
		n.must(err)
		n.wires[host] = w
	}
	w.delay.Store(int64(delay))
	w.jitter.Store(int64(jitter))
}

// Rate bounds what a host receives, in kbit/s.
func (n *Net) Rate(host, kbit int) {
	n.t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.must(run("", "tc", "qdisc", "replace", "dev", n.port(host), "root", "tbf", "rate", fmt.Sprintf("%dkbit", kbit), "burst", "32k", "latency", "400ms"))
	n.slow[host] = true
}

// Link pulls a host's cable or plugs it in again.
func (n *Net) Link(host int, up bool) {
	n.t.Helper()
	n.change(func() {
		n.pulled[host] = !up
		word := "up"
		if !up {
			word = "down"
		}
		n.must(run("", "ip", "link", "set", n.port(host), word))
	})
}

// Heal undoes all faults.
func (n *Net) Heal() {
	n.t.Helper()
	n.change(func() {
		for _, w := range n.wires {
			n.must(w.remove())
		}
		for host := range n.slow {
			n.must(run("", "tc", "qdisc", "del", "dev", n.port(host), "root"))
		}
		for host, pulled := range n.pulled {
			if pulled {
				n.must(run("", "ip", "link", "set", n.port(host), "up"))
			}
		}
		clear(n.wires)
		clear(n.slow)
		clear(n.pulled)
		clear(n.lossy)
	})
}

// reachableLocked is whether a client on Root reaches the host now, as far as the net is concerned.
func (n *Net) reachableLocked(host int) bool {
	return !n.pulled[host] && n.lossy[way{Root, host}] < 100 && n.lossy[way{host, Root}] < 100
}

// change alters the faults and makes them so. A host that is out of reach afterwards counts as absent from before the change, one
// that is back until after it.
func (n *Net) change(alter func()) {
	n.t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	perhaps := map[int]*span{}
	for _, host := range n.Hosts() {
		if n.away[host] == nil {
			perhaps[host] = n.absence.begin(host)
		}
	}
	alter()
	n.must(run(n.rules(), "nft", "-f", "-"))
	for _, host := range n.Hosts() {
		switch reachable := n.reachableLocked(host); {
		case reachable && perhaps[host] != nil:
			n.absence.drop(host, perhaps[host])
		case reachable:
			n.absence.finish(n.away[host])
			delete(n.away, host)
		case perhaps[host] != nil:
			n.away[host] = perhaps[host]
		}
	}
}

func (n *Net) others(host int) []int {
	return slices.DeleteFunc(append(n.Hosts(), Root), func(h int) bool { return h == host })
}

func (n *Net) table() string { return fmt.Sprintf("lbd%d", n.id) }

// rules is the whole table, which takes the place of the one before in one step.
func (n *Net) rules() string {
	var b strings.Builder
	fmt.Fprintf(&b, "table bridge %[1]s\ndelete table bridge %[1]s\ntable bridge %[1]s {\n", n.table())
	for _, hook := range []string{"forward", "input", "output"} {
		fmt.Fprintf(&b, " chain %[1]s {\n  type filter hook %[1]s priority 0;\n", hook)
		for _, w := range slices.SortedFunc(maps.Keys(n.lossy), func(a, b way) int { return (a.from-b.from)*(HostsMax+1) + a.to - b.to }) {
			if rule, at := n.rule(w); at == hook && n.lossy[w] > 0 {
				fmt.Fprintf(&b, "  %s\n", rule)
			}
		}
		b.WriteString(" }\n")
	}
	b.WriteString("}\n")
	return b.String()
}

// rule drops frames that go one way, and says at which hook they come by.
func (n *Net) rule(w way) (rule, hook string) {
	from, to := "", ""
	if w.from != Root {
		from = "iifname " + n.ports(w.from)
	}
	if w.to != Root {
		to = "oifname " + n.ports(w.to)
	}
	hook = "forward"
	switch Root {
	case w.from:
		hook = "output"
	case w.to:
		hook = "input"
	}
	share := ""
	if p := n.lossy[w]; p < 100 {
		share = fmt.Sprintf("numgen random mod 10000 < %d", int(p*100))
	}
	return strings.Join(slices.DeleteFunc([]string{from, to, share, "drop"}, func(s string) bool { return s == "" }), " "), hook
}

// ports are the names under which a host's frames meet the bridge: its cable, or a wire's end.
func (n *Net) ports(host int) string {
	return fmt.Sprintf("{ %q, %q }", n.port(host), n.wireEnd(host))
}
