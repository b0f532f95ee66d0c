package balance

import "sort"

// P2CEWMA draws two backends at random by weight and picks the one that is expected to answer sooner: its latency, a moving
// average, times one more than its requests in flight for its weight. Two draws avoid both the herd that runs to the one
// best backend and the look at all of them.
type P2CEWMA struct {
	ends    []int     // of each backend's part of the draw
	portion []float64 // 1 / weight, where 1 is the average weight
	loads   []*Load
}

// NewP2CEWMA compiles it: weights are relative and positive, loads of the same length. It returns nil if there is nobody to pick.
func NewP2CEWMA(weights []int, loads []*Load) *P2CEWMA {
	if len(weights) == 0 {
		return nil
	}
	p := &P2CEWMA{loads: loads}
	sum := 0
	for _, w := range weights {
		sum += w
		p.ends = append(p.ends, sum)
	}
	for _, w := range weights {
		p.portion = append(p.portion, float64(sum)/float64(len(weights)*w))
	}
	return p
}

// Pick draws without putting back: two different ones, if there are.
func (p *P2CEWMA) Pick(r *Request) int {
	random := r.Random
	a := p.drawAllowed(r, &random, -1)
	b := p.drawAllowed(r, &random, a)
	if p.worse(a, b, r.Now) {
		return b
	}
	return a
}

// worse compares what is to be expected. Where one latency is not known both count as the same: to be unknown is no merit, or
// all would run to a new backend.
func (p *P2CEWMA) worse(a, b int, now int64) bool {
	latencyA, latencyB := p.loads[a].expected(now), p.loads[b].expected(now)
	if latencyA == 0 || latencyB == 0 {
		latencyA, latencyB = 0, 0
	}
	return (latencyA+latencyGrain)*p.queue(a) > (latencyB+latencyGrain)*p.queue(b)
}

// queue is a backend's requests in flight for its weight, and the one to come. That one is counted without weight: the draw
// has counted it already, and idle backends get their shares by the draw alone.
func (p *P2CEWMA) queue(i int) float64 {
	return float64(p.loads[i].InFlight.Load())*p.portion[i] + 1
}

// drawAllowed draws one that is neither avoided nor the first. Where draws do not find one, the nearest is taken; where there
// is none at all, the first, or if that is -1 anyone.
func (p *P2CEWMA) drawAllowed(r *Request, random *uint64, first int) int {
	drawn := 0
	for range 4 {
		*random = next(*random)
		if drawn = p.draw(mix(*random), first); drawn != first && !r.avoids(drawn) {
			return drawn
		}
		if len(r.Avoid) == 0 {
			break // only one backend
		}
	}
	for range p.loads {
		drawn = (drawn + 1) % len(p.loads)
		if drawn != first && !r.avoids(drawn) {
			return drawn
		}
	}
	if first >= 0 {
		return first
	}
	return drawn
}

// draw returns a backend by weight, and not the first, if there is another.
func (p *P2CEWMA) draw(random uint64, first int) int {
	total, start, width := p.ends[len(p.ends)-1], 0, 0
	if first >= 0 {
		if first > 0 {
			start = p.ends[first-1]
		}
		width = p.ends[first] - start
	}
	if total == width {
		return first
	}
	at := int(random % uint64(total-width))
	if first >= 0 && at >= start {
		at += width
	}
	return sort.SearchInts(p.ends, at+1)
}
