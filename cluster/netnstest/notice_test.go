//go:build linux

package netnstest_test

import (
	"os"
	"slices"
	"testing"
	"time"

	"lbd/cluster/netnstest"
	lbdv1 "lbd/proto/lbd/v1"
)

// What the other tests rely on: the load notices a node that is killed, and holds it against nobody who is out of reach; the writer
// goes on by itself, and what is lost, repeated or different is noticed.
func TestLoadNotices(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "lbd-n-")
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{Net: netnstest.New(t, 1), t: t, dir: dir, nodes: map[int]*node{}}
	t.Cleanup(func() { os.RemoveAll(dir) })
	n := c.add(1)
	n.start(t, "run")
	c.applyFront(n)
	c.load = startLoad(t, c.Net)
	c.load.on(1)
	c.writer = startWriter(c)
	answers := func(what string) {
		t.Helper()
		c.load.take()
		eventually(t, what, func() (bool, string) { return c.load.answered(1) > 10, "" })
	}
	answers("it is answered")
	if tally := c.load.take()[1]; len(tally.failed) != 0 || tally.excused != 0 {
		t.Errorf("without a fault: %v", tally)
	}

	c.Isolate(1)
	eventually(t, "requests wait", func() (bool, string) {
		c.load.mu.Lock()
		defer c.load.mu.Unlock()
		return c.load.nodes[1].late > 0, ""
	})
	c.Heal()
	answers("it is answered after isolation")
	if tally := c.load.take()[1]; len(tally.failed) != 0 {
		t.Errorf("isolated: %v", tally)
	}

	n.kill()
	n.start(t, "run")
	c.writer.resumed(t, time.Now())
	answers("it is answered after a kill")
	if tally := c.load.take()[1]; len(tally.failed) != 0 {
		t.Errorf("killed, and excused: %v", tally)
	}
	c.writer.stop()
	c.writer.check(t)
	held := map[int][]*lbdv1.Revision{1: n.revisions(t)}
	lost := append(slices.Clone(c.writer.acks), ack{revision: 1 << 40, message: "count-0=1000"})
	twice := map[int][]*lbdv1.Revision{1: append(slices.Clone(held[1]), &lbdv1.Revision{Number: 1 << 40, Message: c.writer.acks[0].message})}
	changed := slices.Clone(held[1])
	changed[0] = &lbdv1.Revision{Number: changed[0].GetNumber(), Message: changed[0].GetMessage()}
	other := map[int][]*lbdv1.Revision{1: held[1], 2: changed}
	if a, b, c := compare(lost, held), compare(c.writer.acks, twice), compare(c.writer.acks, other); len(a) != 1 || len(b) != 1 || len(c) != 1 {
		t.Errorf("a lost write: %q, one that happened twice: %q, another content: %q", a, b, c)
	}

	n.proc.Kill()
	eventually(t, "failures are counted", func() (bool, string) {
		c.load.mu.Lock()
		defer c.load.mu.Unlock()
		return c.load.nodes[1].failed["refused"] > 0, ""
	})
}
