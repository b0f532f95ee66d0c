package stats

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestBucketsTileTheLine(t *testing.T) {
	next := uint64(0)
	for i := range buckets {
		if bucket(next) != i {
			t.Fatalf("value %d is in bucket %d, want %d", next, bucket(next), i)
		}
		if edge := upperEdge(i); bucket(edge) != i {
			t.Fatalf("upper edge %d of bucket %d is in bucket %d", edge, i, bucket(edge))
		}
		next = upperEdge(i) + 1
	}
	if next != 0 {
		t.Fatalf("buckets end at %d, not at the last 64-bit value", next-1)
	}
}

func TestQuantileIsCloseToTheSortedTruth(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(rapid.Int64Range(0, int64(time.Minute)), 1, 500).Draw(t, "values")
		q := rapid.Float64Range(0, 1).Draw(t, "q")
		var h Histogram
		for _, v := range values {
			h.Add(time.Duration(v))
		}
		slices.Sort(values)
		rank := min(max(int(q*float64(len(values))+0.9999999), 1), len(values))
		want := float64(values[rank-1])
		got := float64(h.Quantile(q))
		if got < want || got > want*(1+1.0/subBuckets)+1 {
			t.Fatalf("quantile %v is %v, the sorted values say %v", q, got, want)
		}
	})
}

func TestHistogramOfNothing(t *testing.T) {
	var h Histogram
	if h.Quantile(0.99) != 0 || h.Mean() != 0 || h.Max() != 0 || h.Count() != 0 {
		t.Fatalf("an empty histogram reports %+v", h.Summary())
	}
}

func TestHistogramCountsNegativeAsZero(t *testing.T) {
	var h Histogram
	h.Add(-time.Second)
	if h.Count() != 1 || h.Max() != 0 {
		t.Fatalf("count %d, max %v", h.Count(), h.Max())
	}
}

func TestHistogramAddDoesNotAllocate(t *testing.T) {
	var h Histogram
	if n := testing.AllocsPerRun(100, func() { h.Add(time.Duration(rand.Int64N(1e9))) }); n != 0 {
		t.Fatalf("%v allocations", n)
	}
}

func TestSpread(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   Spread
	}{
		{nil, Spread{}},
		{[]float64{7}, Spread{7, 7, 7, 1}},
		{[]float64{3, 1, 2}, Spread{2, 1, 3, 3}},
		{[]float64{4, 1, 3, 2}, Spread{2.5, 1, 4, 4}},
	} {
		if got := Of(c.values); got != c.want {
			t.Errorf("Of(%v) = %+v, want %+v", c.values, got, c.want)
		}
	}
}

func TestOfLeavesItsArgumentAlone(t *testing.T) {
	values := []float64{3, 1, 2}
	Of(values)
	if !slices.Equal(values, []float64{3, 1, 2}) {
		t.Fatalf("argument is now %v", values)
	}
}

func TestPairedUsesOnlyCommonRepeats(t *testing.T) {
	a := map[int]float64{1: 10, 2: 30, 3: 99}
	b := map[int]float64{1: 20, 2: 20, 4: 1}
	if got, want := Paired(a, b), (Spread{1, 0.5, 1.5, 2}); got != want {
		t.Fatalf("got %+v, want %+v", got, want)
	}
	if got := Paired(a, map[int]float64{1: 0}); got.N != 0 {
		t.Fatalf("a base of zero gave %+v", got)
	}
}

func TestDecided(t *testing.T) {
	for _, c := range []struct {
		name string
		s    Spread
		want bool
	}{
		{"clear", Spread{0.8, 0.75, 0.85, 3}, true},
		{"clear the other way", Spread{1.3, 1.1, 1.5, 3}, true},
		{"crosses one", Spread{0.8, 0.7, 1.05, 3}, false},
		{"too small", Spread{0.95, 0.93, 0.97, 5}, false},
		{"two repeats", Spread{0.5, 0.5, 0.5, 2}, false},
	} {
		if got := c.s.Decided(); got != c.want {
			t.Errorf("%s: %+v decided %v", c.name, c.s, got)
		}
	}
}
