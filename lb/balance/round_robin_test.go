package balance

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// TestScript reads testdata/round_robin.txt: "weights -> one round of picks".
func TestScript(t *testing.T) {
	f, err := os.Open("testdata/round_robin.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	ran := 0
	for lines := bufio.NewScanner(f); lines.Scan(); {
		line := strings.TrimSpace(lines.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		left, want, ok := strings.Cut(line, "->")
		if !ok {
			t.Fatalf("no arrow in %q", line)
		}
		var weights []int
		for _, word := range strings.Fields(left) {
			var w int
			if _, err := fmt.Sscan(word, &w); err != nil {
				t.Fatal(err)
			}
			weights = append(weights, w)
		}
		if got := round(weights); got != strings.TrimSpace(want) {
			t.Errorf("%q: got %s", line, got)
		}
		ran++
	}
	if ran < 6 {
		t.Errorf("ran %d lines only", ran)
	}
}

// round writes one round of picks as letters.
func round(weights []int) string {
	r := NewRoundRobin(weights)
	if r == nil {
		return "nobody"
	}
	var b strings.Builder
	for turn := range r.schedule {
		b.WriteByte(byte('a' + r.Pick(&Request{Turn: uint64(turn)})))
	}
	return b.String()
}

func TestShares(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		weights := rapid.SliceOfN(rapid.IntRange(0, 256), 1, 20).Draw(t, "weights")
		offset := rapid.Uint64().Draw(t, "offset")
		r := NewRoundRobin(weights)
		sum := 0
		for _, w := range weights {
			sum += w
		}
		if sum == 0 {
			if r != nil {
				t.Fatal("picks from nobody")
			}
			return
		}
		// The counter may wrap inside a round once in 2^64 picks; a round elsewhere is exact.
		offset %= 1 << 62
		got := make([]int, len(weights))
		for turn := range len(r.schedule) {
			got[r.Pick(&Request{Turn: offset + uint64(turn)})]++
		}
		for i, w := range weights {
			if got[i]*sum != w*len(r.schedule) {
				t.Fatalf("index %d of weight %d (sum %d): %d of %d picks", i, w, sum, got[i], len(r.schedule))
			}
		}
	})
}

// TestSmooth: within a class or between classes, nobody waits longer than two of his own intervals.
func TestSmooth(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		weights := rapid.SliceOfN(rapid.IntRange(1, 20), 1, 10).Draw(t, "weights")
		r := NewRoundRobin(weights)
		n := len(r.schedule)
		for i, w := range weights {
			sum, since, worst := 0, 0, 0
			for _, v := range weights {
				sum += v
			}
			for turn := range 2 * n {
				since++
				if r.Pick(&Request{Turn: uint64(turn)}) == i {
					worst, since = max(worst, since), 0
				}
			}
			if limit := 2*(sum/w) + 2; worst > limit {
				t.Fatalf("%v: index %d waits %d turns, want at most %d", weights, i, worst, limit)
			}
		}
	})
}

func TestScheduleIsBounded(t *testing.T) {
	weights := make([]int, 1000)
	sum := 0
	for i := range weights {
		weights[i] = 1 + i*255/999
		sum += weights[i]
	}
	r := NewRoundRobin(weights)
	if len(r.schedule) > scheduleMax {
		t.Fatalf("schedule has %d turns", len(r.schedule))
	}
	got := make([]int, len(weights))
	for _, i := range r.schedule {
		got[i]++
	}
	heavy := float64(got[999]) / float64(len(r.schedule)) / (float64(weights[999]) / float64(sum))
	if heavy < 0.98 || heavy > 1.02 {
		t.Errorf("the heaviest gets %.3f of its share", heavy)
	}
	if got[0] == 0 {
		t.Error("the lightest is never picked")
	}
}
