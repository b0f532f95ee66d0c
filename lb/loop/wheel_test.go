package loop

import (
	"testing"

	"pgregory.net/rapid"
)

// alarm is a timer with the deadline that it stands for.
type alarm struct {
	timer
	w        *wheel
	deadline instant // 0: none
	fired    []instant
}

func (a *alarm) expire(now instant) {
	switch {
	case a.deadline == 0:
	case a.deadline.passed(now):
		a.fired = append(a.fired, now)
		a.deadline = 0
	default:
		a.w.arm(&a.timer, a.deadline)
	}
}

// However deadlines are set, moved and lifted, each fires exactly once, never
// early, and at the first advance that lies a tick or more behind it.
func TestWheel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := &wheel{}
		clock := instant(rapid.Int64Range(1, 1e15).Draw(rt, "start"))
		w.advance(clock)
		alarms := make([]*alarm, 5)
		for i := range alarms {
			alarms[i] = &alarm{w: w}
			alarms[i].target = alarms[i]
		}
		spans := rapid.OneOf(rapid.Int64Range(0, 20e6), rapid.Int64Range(0, 10e9), rapid.Int64Range(0, 3600e9))
		for range rapid.IntRange(1, 60).Draw(rt, "operations") {
			a := alarms[rapid.IntRange(0, len(alarms)-1).Draw(rt, "alarm")]
			switch rapid.IntRange(0, 4).Draw(rt, "operation") {
			case 0, 1:
				a.deadline = clock + instant(spans.Draw(rt, "in"))
				w.arm(&a.timer, a.deadline)
			case 2:
				a.deadline = 0
			case 3:
				a.deadline = 0
				w.disarm(&a.timer)
			case 4:
				clock = advanceWheel(rt, w, alarms, clock+instant(spans.Draw(rt, "by")))
			}
			checkNext(rt, w, alarms, clock)
		}
		advanceWheel(rt, w, alarms, clock+4000e9)
		if w.next() != 0 {
			rt.Fatal("a timer is left")
		}
	})
}

func advanceWheel(rt *rapid.T, w *wheel, alarms []*alarm, to instant) instant {
	want := make([]instant, len(alarms))
	for i, a := range alarms {
		want[i], a.fired = a.deadline, nil
	}
	w.advance(to)
	for i, a := range alarms {
		switch {
		case len(a.fired) > 1:
			rt.Fatalf("fired %d times", len(a.fired))
		case len(a.fired) == 1 && (want[i] == 0 || want[i] > to):
			rt.Fatalf("deadline %d fired at %d", want[i], to)
		case len(a.fired) == 0 && want[i] != 0 && want[i]+wheelTick <= to:
			rt.Fatalf("deadline %d has not fired at %d", want[i], to)
		}
	}
	return to
}

// checkNext: whoever sleeps until next oversleeps no deadline by more than a tick.
func checkNext(rt *rapid.T, w *wheel, alarms []*alarm, clock instant) {
	next := w.next()
	for _, a := range alarms {
		if a.deadline != 0 && (next == 0 || next > max(a.deadline, clock)+wheelTick) {
			rt.Fatalf("next is %d, a deadline %d", next, a.deadline)
		}
	}
}

// Setting a deadline anew for each request costs nothing that grows with the
// number of timers, and no allocation.
func BenchmarkWheelRearm(b *testing.B) {
	w := &wheel{}
	others := make([]*alarm, 100_000)
	for i := range others {
		others[i] = &alarm{w: w}
		others[i].target = others[i]
		w.arm(&others[i].timer, instant(60e9+i))
	}
	a := &alarm{w: w}
	a.target = a
	b.ReportAllocs()
	for i := range b.N {
		w.arm(&a.timer, instant(60e9+i))
	}
}
