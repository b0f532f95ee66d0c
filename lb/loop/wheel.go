package loop

import "math/bits"

const (
	wheelSlots = 2048
	wheelTick  = instant(4e6) // 4 ms: how late a deadline may be noticed
)

// A wheel keeps one loop's deadlines. They are lazy: a timer that is armed for an
// earlier moment than asked stays where it is, and its target, when it fires,
// arms it again for what the deadline is by then. So a deadline that is set anew
// for each request costs a comparison, and the timer moves once in its term. The
// wheel has one level: what lies beyond its 8 s waits in the farthest slot and
// is put back from there.
type wheel struct {
	slots    [wheelSlots]*timer
	occupied [wheelSlots / 64]uint64
	tick     int64 // the last tick that has been fired
}

// A timer is part of what it wakes. The zero value with a target is ready.
type timer struct {
	target     expirer
	next, prev *timer
	tick       int64 // 0 when not armed
	when       instant
}

// expirer is told that its timer, no longer armed, has fired.
type expirer interface{ expire(now instant) }

// arm makes t fire at when or earlier. when is not 0.
func (w *wheel) arm(t *timer, when instant) {
	if t.tick != 0 {
		if t.when <= when {
			return
		}
		w.disarm(t)
	}
	t.when = when
	w.insert(t)
}

func (w *wheel) insert(t *timer) {
	tick := int64((t.when + wheelTick - 1) / wheelTick)
	t.tick = min(max(tick, w.tick+1), w.tick+wheelSlots-1)
	i := t.tick % wheelSlots
	t.prev, t.next = nil, w.slots[i]
	if t.next != nil {
		t.next.prev = t
	}
	w.slots[i] = t
	w.occupied[i/64] |= 1 << (i % 64)
}

// disarm may be called whether t is armed or not.
func (w *wheel) disarm(t *timer) {
	if t.tick == 0 {
		return
	}
	i := t.tick % wheelSlots
	if t.next != nil {
		t.next.prev = t.prev
	}
	if t.prev != nil {
		t.prev.next = t.next
	} else {
		w.slots[i] = t.next
		if t.next == nil {
			w.occupied[i/64] &^= 1 << (i % 64)
		}
	}
	t.next, t.prev, t.tick = nil, nil, 0
}

// advance fires every timer whose moment has come.
func (w *wheel) advance(now instant) {
	target := int64(now / wheelTick)
	if target-w.tick > wheelSlots {
		w.tick = target - wheelSlots
	}
	for {
		due := w.nextTick()
		if due == 0 || due > target {
			break
		}
		w.tick = due
		w.fire(due%wheelSlots, now)
	}
	w.tick = max(w.tick, target)
}

func (w *wheel) fire(slot int64, now instant) {
	for t := w.slots[slot]; t != nil; t = w.slots[slot] {
		w.disarm(t)
		if t.when > now {
			w.insert(t) // a later tick: it was beyond the wheel's reach
			continue
		}
		t.target.expire(now)
	}
}

// nextTick is the first tick after the current one that has timers, 0 if none.
func (w *wheel) nextTick() int64 {
	start := (w.tick + 1) % wheelSlots
	word, shift := start/64, uint(start%64)
	for i := range int64(len(w.occupied) + 1) {
		at := (word + i) % int64(len(w.occupied))
		set := w.occupied[at]
		if i == 0 {
			set &= ^uint64(0) << shift
		}
		if set != 0 {
			slot := at*64 + int64(bits.TrailingZeros64(set))
			return w.tick + 1 + (slot-start+wheelSlots)%wheelSlots
		}
	}
	return 0
}

// next is when the wheel wants to be advanced, 0 for never.
func (w *wheel) next() instant { return instant(w.nextTick()) * wheelTick }
