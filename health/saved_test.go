package health

import (
	"encoding/json"
	"testing"
	"testing/synctest"
	"time"
)

// TestRestart is case A41: what one process knows of backends, the next one knows too, from before its first check. A dead backend
// is not up for a moment.
func TestRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		n.set("dead:1", refuse)
		n.set("good:1", ok)
		n.set("hangs:1", blackHole)
		n.set("changed:1", refuse)
		dead, good, hangs, changed := Check{Address: "dead:1"}, Check{Address: "good:1"}, Check{Address: "hangs:1", Fall: 100}, Check{Address: "changed:1"}
		first := New(Options{Dial: n.dial, Rand: steady})
		t.Cleanup(first.Close)
		first.Set(byKey(dead, good, hangs, changed))
		time.Sleep(10 * time.Second)
		synctest.Wait()
		before, _ := first.Status(dead.Key())
		stored, err := json.Marshal(first.Snapshot())
		if err != nil {
			t.Fatal(err)
		}
		first.Close()
		time.Sleep(5 * time.Minute)

		var saved []Saved
		if err := json.Unmarshal(stored, &saved); err != nil {
			t.Fatal(err)
		}
		flips := 0
		second := New(Options{Dial: n.dial, Rand: steady, Saved: saved, OnFlip: func(Key, State, State, string, time.Time) { flips++ }})
		t.Cleanup(second.Close)
		changed.Rise = 7
		for _, address := range []string{"dead:1", "good:1", "changed:1"} {
			n.set(address, blackHole) // for a second no check ends
		}
		second.Set(byKey(dead, good, hangs, changed))
		after, _ := second.Status(dead.Key())
		if after.State != Down || !after.Since.Equal(before.Since) || !after.LastCheck.Equal(before.LastCheck) || after.LastError != "connect: connection refused" ||
			before.LastErrorTime.IsZero() || !after.LastErrorTime.Equal(before.LastErrorTime) {
			t.Errorf("before %v\nafter  %v", before, after)
		}
		for check, want := range map[*Check]State{&good: Up, &hangs: Unknown, &changed: Unknown} {
			if s, _ := second.Status(check.Key()); s.State != want {
				t.Errorf("%s: %v, want %s", check.Address, s, want)
			}
		}
		if got := second.TakeFlipped(); len(got) != 2 || flips != 0 {
			t.Errorf("%d states to publish, want 2; %d flips, want none", len(got), flips)
		}
		time.Sleep(10 * time.Millisecond) // all first checks have begun
		n.set("dead:1", ok)
		time.Sleep(1500 * time.Millisecond)
		wantState(t, second, dead, Down) // one success of two
		time.Sleep(time.Second)
		wantState(t, second, dead, Up)
	})
}

// TestSavedWithoutTime: a process that was killed had not written for as long as nothing changed.
func TestSavedWithoutTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		n.set(address, blackHole)
		check := Check{Address: address}
		p := New(Options{Dial: n.dial, Saved: []Saved{{Key: check.Key(), State: Down, Since: time.Now().Add(-24 * time.Hour)}}})
		defer p.Close()
		p.Set(byKey(check))
		wantState(t, p, check, Down)
	})
}

// TestSavedIsTooOld: after a longer pause what was known says nothing; nor does what is from the future, or what was taken over once.
func TestSavedIsTooOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		n.set(address, blackHole)
		check, now := Check{Address: address}, time.Now()
		for age, want := range map[time.Duration]State{
			savedAgeMax:               Down,
			savedAgeMax + time.Second: Unknown,
			-time.Second:              Unknown,
		} {
			p := New(Options{Dial: n.dial, Saved: []Saved{{Key: check.Key(), State: Down, At: now.Add(-age)}}})
			p.Set(byKey(check))
			if s, _ := p.Status(check.Key()); s.State != want {
				t.Errorf("%s old: %s, want %s", age, s.State, want)
			}
			p.Set(nil)
			p.Set(byKey(check))
			if s, _ := p.Status(check.Key()); s.State != Unknown {
				t.Errorf("%s old, after it was removed and came back: %s", age, s.State)
			}
			p.Close()
		}
	})
}

func TestStateText(t *testing.T) {
	for _, state := range []State{Unknown, Up, Down} {
		text, err := state.MarshalText()
		var back State
		if err != nil || back.UnmarshalText(text) != nil || back != state {
			t.Errorf("%s: %s, %v, %s", state, text, err, back)
		}
	}
	var s State
	if err := json.Unmarshal([]byte(`"ILL"`), &s); err == nil {
		t.Error("a word that is no state")
	}
}
