package balance

import (
	"bytes"
	"flag"
	"fmt"
	"math"
	"os"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

var update = flag.Bool("update", false, "rewrite golden files")

func ten() (names []string, weights []int) {
	for i := range 10 {
		names, weights = append(names, fmt.Sprintf("10.0.0.%d:8080", i+1)), append(weights, 1)
	}
	return names, weights
}

func all(n int) []float64 { return slices.Repeat([]float64{1}, n) }

// picks are the backends of keys "client-0", "client-1" and so on.
func picks(p Policy, keys int) []int {
	got := make([]int, keys)
	for i := range got {
		got[i] = p.Pick(&Request{Hash: Hash(fmt.Appendf(nil, "client-%d", i))})
	}
	return got
}

// TestMaglevGolden: what a release answers the next must answer too, or a rolling upgrade moves every client.
func TestMaglevGolden(t *testing.T) {
	names, weights := ten()
	weights[3], weights[7] = 2, 5
	var b bytes.Buffer
	for i, picked := range picks(NewMaglev(names, weights).Among(all(10)), 1000) {
		fmt.Fprintf(&b, "client-%d %s\n", i, names[picked])
	}
	const file = "testdata/maglev.golden"
	if *update {
		if err := os.WriteFile(file, b.Bytes(), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(b.Bytes(), want) {
		t.Errorf("picks differ from %s: every client would move", file)
	}
}

// TestMaglevMovement: with one of ten gone, out or removed, under 2 % of the others' keys move.
func TestMaglevMovement(t *testing.T) {
	const keys = 100_000
	names, weights := ten()
	m := NewMaglev(names, weights)
	before := picks(m.Among(all(10)), keys)
	for gone := range names {
		open := all(10)
		open[gone] = 0
		for i, now := range picks(m.Among(open), keys) {
			if now == gone || now != before[i] && before[i] != gone {
				t.Fatalf("%s out: client-%d went from %d to %d", names[gone], i, before[i], now)
			}
		}
		rest := NewMaglev(slices.Delete(slices.Clone(names), gone, gone+1), weights[1:])
		moved, others := 0, 0
		for i, now := range picks(rest.Among(all(9)), keys) {
			if now >= gone {
				now++
			}
			if before[i] != gone {
				others++
				if now != before[i] {
					moved++
				}
			}
		}
		if percent := 100 * float64(moved) / float64(others); percent >= 2 {
			t.Errorf("%s removed: %.2f %% of the others' keys moved", names[gone], percent)
		}
	}
}

// TestMaglevSpreadsWhatIsOut: the others share the keys of the one that is out.
func TestMaglevSpreadsWhatIsOut(t *testing.T) {
	const keys = 100_000
	names, weights := ten()
	m := NewMaglev(names, weights)
	before, open, got := picks(m.Among(all(10)), keys), all(10), make([]int, 10)
	open[4] = 0
	for i, now := range picks(m.Among(open), keys) {
		if before[i] == 4 {
			got[now]++
		}
	}
	for i, n := range got {
		if share := float64(n) / (keys / 10); i != 4 && (share < 0.08 || share > 0.15) {
			t.Errorf("%s got %.3f of them, want about a ninth", names[i], share)
		}
	}
}

// TestMaglevShares: slots are in proportion to weights, whatever the order of the backends.
func TestMaglevShares(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		weights := rapid.SliceOfN(rapid.IntRange(0, 20), 1, 12).Draw(t, "weights")
		names := make([]string, len(weights))
		sum := 0
		for i, w := range weights {
			names[i] = fmt.Sprintf("b%d", i)
			sum += w
		}
		m := NewMaglev(names, weights)
		if sum == 0 {
			if m != nil {
				t.Fatal("picks from nobody")
			}
			return
		}
		slots := make([]int, len(weights))
		for _, i := range m.table {
			slots[i]++
		}
		for i, w := range weights {
			want := float64(maglevSlots) * float64(w) / float64(sum)
			if math.Abs(float64(slots[i])-want) > 2+want/100 {
				t.Fatalf("%v: backend %d has %d slots, want %.0f", weights, i, slots[i], want)
			}
		}
		slices.Reverse(names)
		slices.Reverse(weights)
		turned := NewMaglev(names, weights)
		for slot, i := range m.table {
			if int(turned.table[slot]) != len(names)-1-int(i) {
				t.Fatalf("slot %d depends on the order", slot)
			}
		}
	})
}

// TestMaglevThousand: each of 1,000 gets its part within 2 %.
func TestMaglevThousand(t *testing.T) {
	names, weights := thousand()
	slots := make([]int, len(names))
	for _, i := range NewMaglev(names, weights).table {
		slots[i]++
	}
	if low, high := slices.Min(slots), slices.Max(slots); low < 65 || high > 66 {
		t.Errorf("between %d and %d slots, want 65 or 66", low, high)
	}
}

func thousand() (names []string, weights []int) {
	for i := range 1000 {
		names, weights = append(names, fmt.Sprintf("10.0.%d.%d:8080", i/256, i%256)), append(weights, 1)
	}
	return names, weights
}

// TestMaglevRamp: a backend that starts slowly takes a part of its keys, and the same ones when the part grows.
func TestMaglevRamp(t *testing.T) {
	const keys = 100_000
	names, weights := ten()
	m := NewMaglev(names, weights)
	whole := picks(m.Among(all(10)), keys)
	before, last := make([]bool, keys), 0
	for _, part := range []float64{0.1, 0.4, 0.7, 1} {
		open := all(10)
		open[2] = part
		count := 0
		for i, now := range picks(m.Among(open), keys) {
			if now == 2 {
				count++
			} else if before[i] {
				t.Fatalf("client-%d left at %.1f", i, part)
			}
			if now == 2 && whole[i] != 2 {
				t.Fatalf("client-%d is not its own", i)
			}
			before[i] = now == 2
		}
		if count <= last || deviations(count, keys, part/10) > 10 {
			t.Errorf("at %.1f it has %d of %d keys", part, count, keys)
		}
		last = count
	}
	if m.Among(make([]float64, 10)) != nil {
		t.Error("picks from nobody")
	}
}

func TestMaglevAvoids(t *testing.T) {
	avoiding(t, func(weights []int, _ []*Load) Policy {
		names := make([]string, len(weights))
		for i := range names {
			names[i] = fmt.Sprint(i)
			weights[i] = 1 + weights[i]/32 // else the lightest may have no slot
		}
		return NewMaglev(names, weights).Among(all(len(weights)))
	})
}

func TestRoundRobinAvoids(t *testing.T) {
	avoiding(t, func(weights []int, _ []*Load) Policy { return NewRoundRobin(weights) })
}
