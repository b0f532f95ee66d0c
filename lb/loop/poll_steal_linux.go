package loop

import "sync/atomic"

// A theft is one task's request to one other loop.
type theft struct {
	task  *pollTask
	take  func(loop int) *Conn
	state atomic.Int32 // asked -> taking (by the victim) or cancelled (by the task)
	conn  *pollConn    // written while taking
	done  bool         // belongs to the task's loop
}

const (
	theftAsked int32 = iota
	theftTaking
	theftCancelled
)

func (t *pollTask) steal(take func(loop int) *Conn, loops []int) *Conn {
	all := t.loop.engine.loops
	for _, i := range loops {
		if i < 0 || i >= len(all) || all[i] == t.loop || all[i].stalled.Load() {
			continue
		}
		if c := t.stealFrom(all[i], take); c != nil {
			t.loop.stolen.Add(1)
			return &c.Conn
		}
	}
	return nil
}

func (t *pollTask) stealFrom(victim *pollLoop, take func(loop int) *Conn) *pollConn {
	if t.loop.closing {
		return nil
	}
	th := &theft{task: t, take: take}
	// A task of its own, so that a panic in take stays one.
	if !victim.post(func() { victim.spawn(th.run) }) {
		return nil
	}
	t.await(th)
	if th.conn == nil || th.conn.enter(t.loop, t) != nil {
		return nil
	}
	return th.conn
}

// await returns when the victim has answered, or has been kept from beginning:
// take must not run once Steal has returned.
func (t *pollTask) await(th *theft) {
	giveUp := t.loop.now + t.loop.stealWait
	for !th.done {
		if t.block(giveUp) == nil || th.done {
			continue
		}
		if th.state.CompareAndSwap(theftAsked, theftCancelled) {
			return
		}
		t.state = stateOffloaded
		t.co.yield(struct{}{})
	}
}

// run is a task of the other loop.
func (th *theft) run(at *Task) {
	if !th.state.CompareAndSwap(theftAsked, theftTaking) {
		return
	}
	defer th.task.loop.post(th.answer)
	victim := at.on.(*pollTask).loop
	for !victim.closing {
		conn := th.take(victim.index)
		if conn == nil {
			return
		}
		if c := conn.on.(*pollConn); c.parked && c.loop == victim {
			c.leave()
			th.conn = c
			return
		}
	}
}

// answer runs on the asker's loop.
func (th *theft) answer() {
	th.done = true
	switch th.task.state {
	case stateBlocked:
		th.task.wake(nil, false)
	case stateOffloaded:
		th.task.enqueue(false)
	}
}
