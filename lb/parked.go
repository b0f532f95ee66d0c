package lb

import (
	"sync/atomic"

	"lbd/lb/loop"
)

// parkedList is the parked connections of one listener on one loop, which alone touches it: a ring through its root.
type parkedList struct {
	root  clientConn
	count atomic.Int64 // for closeParked on another loop
	_     [64]byte
}

func newParkedLists(loops int) []parkedList {
	lists := make([]parkedList, loops)
	for i := range lists {
		root := &lists[i].root
		root.next, root.prev = root, root
	}
	return lists
}

func (p *parkedList) add(cc *clientConn, loop int) {
	cc.loop = loop
	cc.prev, cc.next = p.root.prev, &p.root
	cc.prev.next, cc.next.prev = cc, cc
	p.count.Add(1)
}

// remove takes cc out; a second time does nothing.
func (p *parkedList) remove(cc *clientConn) {
	if cc.next == nil {
		return
	}
	cc.prev.next, cc.next.prev = cc.next, cc.prev
	cc.next, cc.prev = nil, nil
	p.count.Add(-1)
}

// pop takes out the one that has been parked longest; nil if there is none.
func (p *parkedList) pop() *clientConn {
	cc := p.root.next
	if cc == &p.root {
		return nil
	}
	p.remove(cc)
	return cc
}

// closeParked closes the parked connections of listeners that are leaving, on all loops. Those that a request reaches
// meanwhile answer it and close.
func (l *listener) closeParked(t *loop.Task) {
	for i := range l.parked {
		if i == t.Loop() {
			for cc := l.parked[i].pop(); cc != nil; cc = l.parked[i].pop() {
				if cc.c.Claim(t) {
					cc.close(t)
				}
			}
			continue
		}
		var taken *clientConn
		take := func(loop int) *loop.Conn {
			if taken = l.parked[loop].pop(); taken == nil {
				return nil
			}
			return taken.c
		}
		// A busy loop may not answer in time: ask again, but not for ever.
		for misses := 0; l.parked[i].count.Load() > 0 && misses < closeMissesMax; {
			if t.Steal(take, i) == nil {
				misses++
				continue
			}
			taken.close(t)
		}
	}
}
