package balance

// LeastConnections picks the backend with the fewest requests in flight for its weight. Of equal ones each has its chance,
// the heavier the better; a light one is never given more than its weight's part of what the others hold, rounded up.
type LeastConnections struct {
	perWeight []float64 // 1 / weight
	loads     []*Load
}

// NewLeastConnections compiles it: weights are relative and positive, loads of the same length. It returns nil if there is nobody to pick.
func NewLeastConnections(weights []int, loads []*Load) *LeastConnections {
	if len(weights) == 0 {
		return nil
	}
	l := &LeastConnections{loads: loads}
	for _, w := range weights {
		l.perWeight = append(l.perWeight, 1/float64(w))
	}
	return l
}

// Pick looks at every backend. A part of a request, at random, added to each load is what decides between equal ones; it is
// less than one, so that of two with one weight the less loaded always wins.
func (l *LeastConnections) Pick(r *Request) int {
	best, least, random := -1, 0.0, r.Random
	for i, load := range l.loads {
		random = next(random)
		score := (float64(load.InFlight.Load()) + fraction(mix(random))) * l.perWeight[i]
		if (best < 0 || score < least) && !r.avoids(i) {
			best, least = i, score
		}
	}
	if best < 0 {
		return int(mix(random) % uint64(len(l.loads)))
	}
	return best
}
