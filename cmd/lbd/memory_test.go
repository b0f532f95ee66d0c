package main

import "testing"

func TestGCPercentLeavesRoom(t *testing.T) {
	for _, live := range []uint64{0, 1 << 20, 5 << 20, 30 << 20, 63 << 20, 64 << 20, 200 << 20, 4 << 30} {
		p := gcPercent(live)
		room := max(live, 4<<20) * uint64(p) / 100
		if p < gcPercentMin || live >= heapRoom && p != gcPercentMin || room > 2*heapRoom && p != gcPercentMin || room < heapRoom/4 {
			t.Errorf("live %d MiB: %d %%, room %d MiB", live>>20, p, room>>20)
		}
	}
}

func TestMemorySettlesOnceAfterABurst(t *testing.T) {
	m := &memory{}
	const live, garbage = 10 << 20, 60 << 20
	allocated, given := uint64(0), 0
	look := func(allocates, held uint64) {
		allocated += allocates
		if m.settled(live, held, allocated) {
			given++
		}
	}
	for range 10 {
		look(100<<20, live+garbage)
	}
	if given != 0 {
		t.Fatal("collects in the middle of a burst")
	}
	for range 10 * calmIntervals {
		look(1<<10, live+garbage)
	}
	if given != 1 {
		t.Errorf("collects %d times after a burst, want once", given)
	}
	look(100<<20, live)
	for range 10 * calmIntervals {
		look(1<<10, live+leftBytes)
	}
	if given != 1 {
		t.Error("collects for little")
	}
}

func TestReadHeap(t *testing.T) {
	_, held, allocated := readHeap()
	if held == 0 || allocated == 0 {
		t.Errorf("held %d, allocated %d: a metric has another name", held, allocated)
	}
}
