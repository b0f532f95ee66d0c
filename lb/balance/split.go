package balance

import "math"

// Split shares turns among a few places by weight. In any row of turns as long as the sum of the weights each place gets exactly
// its share, however large the weights are, and a light one's turns lie apart: turn k is mapped to k·step modulo the sum, where
// step has no divisor in common with the sum and is near its golden section. No schedule is kept.
type Split struct {
	ends []uint64 // of each place's part of [0, sum)
	step uint64
}

// NewSplit compiles weights of at most 1,000,000 each for at most 4,096 places. It returns nil if no weight is positive.
func NewSplit(weights []int) *Split {
	s := &Split{}
	sum, common := uint64(0), 0
	for _, w := range weights {
		common = gcd(common, max(w, 0))
	}
	if common == 0 {
		return nil
	}
	for _, w := range weights {
		sum += uint64(max(w, 0) / common)
		s.ends = append(s.ends, sum)
	}
	s.step = uint64(math.Round(float64(sum) * (math.Sqrt(5) - 1) / 2))
	for s.step == 0 || gcd(int(s.step), int(sum)) != 1 {
		s.step++
	}
	return s
}

// Pick returns the place whose turn it is. turn counts from any offset.
func (s *Split) Pick(turn uint64) int {
	sum := s.ends[len(s.ends)-1]
	at := turn % sum * s.step % sum
	for i, end := range s.ends {
		if at < end {
			return i
		}
	}
	return len(s.ends) - 1
}
