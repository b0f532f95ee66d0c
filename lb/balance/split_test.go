package balance

import (
	"testing"

	"pgregory.net/rapid"
)

// TestSplitIsExact: any row of turns as long as the sum of the weights holds each place exactly as often as its weight says.
func TestSplitIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		weights := rapid.SliceOfN(rapid.IntRange(0, 50), 1, 16).Draw(t, "weights")
		from := rapid.Uint64Range(0, 1<<40).Draw(t, "from")
		s := NewSplit(weights)
		sum := 0
		for _, w := range weights {
			sum += w
		}
		if sum == 0 {
			if s != nil {
				t.Fatal("a split of nothing")
			}
			return
		}
		got := make([]int, len(weights))
		for turn := range sum {
			got[s.Pick(from+uint64(turn))]++
		}
		for i, w := range weights {
			if got[i] != w {
				t.Fatalf("place %d: %d turns of %d, want %d", i, got[i], sum, w)
			}
		}
	})
}

// TestSplitIsSmooth: a canary's few requests do not come in a row, and the largest weights that a document may have are kept to.
func TestSplitIsSmooth(t *testing.T) {
	s := NewSplit([]int{95, 5})
	last, gaps := -1, 0
	for turn := range 2000 {
		if s.Pick(uint64(turn)) == 1 {
			if last >= 0 && turn-last < 8 {
				t.Errorf("turns %d and %d", last, turn)
			}
			last = turn
			gaps++
		}
	}
	if gaps != 100 {
		t.Errorf("%d turns of 2000, want 100", gaps)
	}
	s = NewSplit([]int{1_000_000, 1, 999_999})
	got := [3]int{}
	for turn := range 2_000_000 {
		got[s.Pick(uint64(turn))]++
	}
	if got != [3]int{1_000_000, 1, 999_999} {
		t.Errorf("%v", got)
	}
}

func TestSplitDoesNotAllocate(t *testing.T) {
	s, turn := NewSplit([]int{3, 2, 1}), uint64(0)
	if n := testing.AllocsPerRun(100, func() { turn += uint64(s.Pick(turn)) + 1 }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
