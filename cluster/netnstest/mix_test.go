//go:build linux

package netnstest_test

import (
	"flag"
	"math/rand/v2"
	"testing"
	"time"
)

var (
	seedFlag = flag.Uint64("seed", 0, "of the random mixes; 0: another each time")
	mixFor   = flag.Duration("mix", time.Minute, "how long the random mixes take")
)

// roundFor is how long faults come and go before the net is healed and all is looked at.
const roundFor = 12 * time.Second

// TestRandomMix lets faults of all kinds come and go, several at a time.
func TestRandomMix(t *testing.T) {
	t.Parallel()
	seed := *seedFlag
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("-seed %d", seed)
	c := newCluster(t, *nodesFlag, 0)
	m := &mix{c: c, t: t, random: rand.New(rand.NewPCG(seed, 0))}
	for begin := time.Now(); time.Since(begin) < *mixFor && !t.Failed(); {
		m.round()
	}
	c.finish(t)
}

// mix is a sequence of faults.
type mix struct {
	c      *cluster
	t      *testing.T
	random *rand.Rand
	undo   []func() // what a heal of the net does not
}

// round is some faults, and the end of all of them.
func (m *mix) round() {
	m.t.Helper()
	for begin := time.Now(); time.Since(begin) < roundFor; {
		m.fault()
		time.Sleep(m.upTo(2500 * time.Millisecond)) // the fault itself
		if m.random.IntN(3) == 0 {
			m.heal()
		}
	}
	m.heal()
	m.c.settle(m.t)
}

func (m *mix) heal() {
	m.t.Helper()
	m.t.Logf("%s heal", time.Now().Format("15:04:05.000"))
	m.c.Heal()
	for _, undo := range m.undo {
		undo()
	}
	m.undo = nil
}

func (m *mix) upTo(d time.Duration) time.Duration { return time.Duration(m.random.Int64N(int64(d))) }

// fault makes one more.
func (m *mix) fault() {
	m.t.Helper()
	hosts := m.c.members()
	m.random.Shuffle(len(hosts), func(i, j int) { hosts[i], hosts[j] = hosts[j], hosts[i] })
	n, other := m.c.node(hosts[0]), hosts[1]
	what := ""
	switch m.random.IntN(11) {
	case 0, 1:
		what = "kill"
		m.kill(n)
	case 2:
		what = "freeze"
		if n.excuse == nil {
			m.undo = append(m.undo, n.freeze())
		}
	case 3:
		what = "isolate"
		m.c.Isolate(n.host)
	case 4:
		what = "part from the other nodes"
		m.c.Partition(hosts[:1], hosts[1:])
	case 5:
		what = "part from one"
		m.c.Partition(hosts[:1], []int{other})
	case 6:
		what = "one way to one"
		m.c.OneWay(n.host, other)
	case 7:
		what = "loss between all nodes"
		m.c.LossBetween(hosts, hosts, float64(1+m.random.IntN(30)))
	case 8:
		what = "delay"
		m.c.Delay(n.host, m.upTo(200*time.Millisecond), m.upTo(40*time.Millisecond))
	case 9:
		what = "slow link"
		m.c.Rate(n.host, 2000+m.random.IntN(20_000))
	case 10:
		what = "pulled cable"
		m.c.Link(n.host, false)
		time.Sleep(m.upTo(time.Second)) // the fault itself
		m.c.Link(n.host, true)
	}
	m.t.Logf("%s n%d: %s (n%d)", time.Now().Format("15:04:05.000"), n.host, what, other)
}

// kill kills a node, which is started again when the net is healed, or at once.
func (m *mix) kill(n *node) {
	m.t.Helper()
	if n.excuse != nil {
		return // it is dead, or frozen
	}
	n.kill()
	start := func() {
		if err := n.startOrError("run"); err != nil {
			m.t.Fatal(err)
		}
	}
	if m.random.IntN(2) == 0 {
		m.undo = append(m.undo, start)
		return
	}
	start()
}
