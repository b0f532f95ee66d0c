package lb

import "lbd/lb/loop"

// parkedList is the parked connections of one listener on one loop, which alone touches it: a ring through its root.
type parkedList struct {
	root clientConn
	_    [64]byte
}

func newParkedLists(loops int) []parkedList {
	lists := make([]parkedList, loops)
	for i := range lists {
		root := &lists[i].root
		root.next, root.prev = root, root
	}
	return lists
}

func (p *parkedList) add(cc *clientConn) {
	cc.prev, cc.next = p.root.prev, &p.root
	cc.prev.next, cc.next.prev = cc, cc
}

// remove takes cc out; a second time does nothing.
func (p *parkedList) remove(cc *clientConn) {
	if cc.next == nil {
		return
	}
	cc.prev.next, cc.next.prev = cc.next, cc.prev
	cc.next, cc.prev = nil, nil
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

// closeParked closes the parked connections of a listener that is leaving, on the loop of t. One that a request reaches meanwhile
// answers it and closes.
func (l *listener) closeParked(t *loop.Task) {
	parked := &l.parked[t.Loop()]
	for cc := parked.pop(); cc != nil; cc = parked.pop() {
		if cc.c.Claim(t) {
			cc.close(t)
		}
	}
}
