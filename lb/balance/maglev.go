package balance

import (
	"cmp"
	"slices"
)

// maglevSlots is the size of the table: a prime, and so much larger than a pool (1,000 backends) that each backend's part of it
// is right within 2 %.
const maglevSlots = 65537

// Maglev sends what has the same hash to the same backend, on every node. Its table is made from all configured backends and
// stays as it is while some of them are out: their part is spread over the others, who keep theirs (Eisenbud et al., "Maglev:
// A Fast and Reliable Software Network Load Balancer", 3.4).
type Maglev struct {
	table [maglevSlots]uint16
	n     int
}

// NewMaglev fills the table for backends with these names, which are unique, and weights; one with weight 0 gets no part. Their
// order does not matter. It returns nil if no weight is positive. n is at most 65,536.
func NewMaglev(names []string, weights []int) *Maglev {
	backends, heaviest := maglevBackends(names, weights)
	if len(backends) == 0 {
		return nil
	}
	m := &Maglev{n: len(names)}
	taken := make([]bool, maglevSlots)
	for left := maglevSlots; left > 0; {
		for i := range backends {
			b := &backends[i]
			// In a round the heaviest takes one slot, the others one in as many rounds as they are lighter.
			if b.owed += b.weight; b.owed < heaviest {
				continue
			}
			b.owed -= heaviest
			m.table[b.take(taken)] = b.index
			if left--; left == 0 {
				break
			}
		}
	}
	return m
}

// maglevBackend walks over all slots in an order of its own.
type maglevBackend struct {
	index      uint16
	name       string
	weight     int
	owed       int
	slot, skip uint64
}

func maglevBackends(names []string, weights []int) (backends []maglevBackend, heaviest int) {
	for i, name := range names {
		if weights[i] <= 0 {
			continue
		}
		h := Hash([]byte(name))
		backends = append(backends, maglevBackend{
			index: uint16(i), name: name, weight: weights[i], slot: h % maglevSlots, skip: mix(next(h))%(maglevSlots-1) + 1,
		})
		heaviest = max(heaviest, weights[i])
	}
	slices.SortFunc(backends, func(a, b maglevBackend) int { return cmp.Compare(a.name, b.name) })
	return backends, heaviest
}

// take returns the next slot in b's order that is free, and takes it. There is one.
func (b *maglevBackend) take(taken []bool) uint64 {
	for taken[b.slot] {
		b.slot = (b.slot + b.skip) % maglevSlots
	}
	taken[b.slot] = true
	return b.slot
}

// Among returns the policy that picks from those of the table that are open now. open[i] is which part of its keys backend i
// takes, 0 to 1: between, it is the same keys each time, and more of them when the part grows. It returns nil if nobody is
// wholly open.
func (m *Maglev) Among(open []float64) *MaglevAmong {
	a := &MaglevAmong{m: m, open: make([]uint32, m.n)}
	whole := make([]bool, m.n)
	for i, part := range open {
		a.open[i] = uint32(min(max(part, 0), 1) * maglevWhole)
		whole[i] = a.open[i] == maglevWhole
	}
	// What the table does not have is never reached: a weight of 0, or one so small that it got no slot.
	for _, i := range m.table {
		if whole[i] {
			whole[i] = false
			a.wholes++
		}
	}
	if a.wholes == 0 {
		return nil
	}
	return a
}

// maglevWhole is the part of a backend that takes all its keys.
const maglevWhole = 1 << 16

// MaglevAmong is a Maglev with some backends out.
type MaglevAmong struct {
	m      *Maglev
	open   []uint32 // of maglevWhole
	wholes int      // how many are wholly open
}

// Pick goes from the hash's slot to the first that is open.
func (a *MaglevAmong) Pick(r *Request) int {
	slot, which := r.Hash%maglevSlots, uint32(mix(next(r.Hash))%maglevWhole)
	avoid := *r
	if len(r.Avoid) >= a.wholes {
		avoid.Avoid = nil // else there may be nobody
	}
	for {
		if i := int(a.m.table[slot]); which < a.open[i] && !avoid.avoids(i) {
			return i
		}
		if slot++; slot == maglevSlots {
			slot = 0
		}
	}
}
