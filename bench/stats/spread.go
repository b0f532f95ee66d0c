package stats

import "slices"

// Spread is what the repeats of one figure say: their median and how far apart they are.
type Spread struct {
	Median, Min, Max float64
	N                int
}

// Of returns the spread of the values; of none, the zero value (N is 0). The median of an even number is the mean of the two in
// the middle. The argument is not changed.
func Of(values []float64) Spread {
	if len(values) == 0 {
		return Spread{}
	}
	v := slices.Sorted(slices.Values(values))
	mid := len(v) / 2
	median := v[mid]
	if len(v)%2 == 0 {
		median = (v[mid-1] + v[mid]) / 2
	}
	return Spread{Median: median, Min: v[0], Max: v[len(v)-1], N: len(v)}
}

// Paired divides figures that were taken next to each other: a[repeat] by b[repeat], for the repeats that both have. A slow minute
// of the machine hits both sides of a pair, so the spread of these ratios is smaller than the ratio of two spreads.
func Paired(a, b map[int]float64) Spread {
	var ratios []float64
	for repeat, value := range a {
		if base, ok := b[repeat]; ok && base != 0 {
			ratios = append(ratios, value/base)
		}
	}
	return Of(ratios)
}

// noResult is the difference below which a ratio proves nothing on a machine whose repeats spread by that much.
const noResult = 0.10

// Decided says whether a ratio is a result: all of at least three pairs lie on the same side of 1, and the median is at least 10 % away.
func (s Spread) Decided() bool {
	if s.N < 3 {
		return false
	}
	oneSide := s.Max < 1 || s.Min > 1
	return oneSide && (s.Median <= 1-noResult || s.Median >= 1+noResult)
}
