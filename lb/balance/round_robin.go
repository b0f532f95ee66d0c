package balance

import (
	"cmp"
	"slices"
)

// scheduleMax bounds a schedule's length (4 bytes a turn). A pool of 1,000 backends with weights up to 256 needs at most
// 256,000 turns; above the limit weights are scaled down, which costs precision only at the light end (none falls to 0).
const scheduleMax = 1 << 16

// RoundRobin is smooth weighted round robin: over one round every index is picked in proportion to its weight, and the
// picks of a heavy one are spread over the round instead of coming in a burst.
type RoundRobin struct {
	schedule []int32
}

// NewRoundRobin compiles the schedule. Weights are relative; an index with weight 0 is never picked. It returns nil if no
// weight is positive: there is nobody to pick.
func NewRoundRobin(weights []int) *RoundRobin {
	classes := classesOf(weights)
	total := 0
	for i := range classes {
		total += classes[i].weight * len(classes[i].members)
	}
	if total == 0 {
		return nil
	}
	return &RoundRobin{schedule: interleave(classes, total)}
}

// Pick returns the index whose turn it is, and one at random in the place of one that is to be avoided: the next in the
// schedule would get all that the other fails.
func (s *RoundRobin) Pick(r *Request) int {
	rounds := uint64(len(s.schedule))
	at, random := r.Turn%rounds, r.Random
	if !r.avoids(int(s.schedule[at])) {
		return int(s.schedule[at])
	}
	for range 8 {
		random = next(random)
		at = mix(random) % rounds
		if !r.avoids(int(s.schedule[at])) {
			return int(s.schedule[at])
		}
	}
	for range s.schedule {
		at = (at + 1) % rounds
		if !r.avoids(int(s.schedule[at])) {
			break
		}
	}
	return int(s.schedule[at])
}

// class is all indexes of one weight. Pools have few distinct weights, so working on classes makes compiling a pool of
// 1,000 equal backends linear where working on single backends is quadratic.
type class struct {
	weight  int
	members []int32
	current int // the class's claim to the next turn
	next    int // the member who is next within the class
}

// classesOf groups indexes by weight, heaviest first, with weights divided by what they have in common.
func classesOf(weights []int) []class {
	sum, common := 0, 0
	for _, w := range weights {
		sum, common = sum+max(w, 0), gcd(common, max(w, 0))
	}
	if common == 0 {
		return nil
	}
	var classes []class
	for i, w := range weights {
		if w <= 0 {
			continue
		}
		w = scaled(w/common, sum/common, len(weights))
		at := slices.IndexFunc(classes, func(c class) bool { return c.weight == w })
		if at < 0 {
			at = len(classes)
			classes = append(classes, class{weight: w})
		}
		classes[at].members = append(classes[at].members, int32(i))
	}
	slices.SortStableFunc(classes, func(a, b class) int { return cmp.Compare(b.weight, a.weight) })
	return classes
}

// scaled shrinks w so that n weights of the given sum fit a schedule; none falls to 0.
func scaled(w, sum, n int) int {
	if sum <= scheduleMax {
		return w
	}
	return max(1, w*max(scheduleMax-n, n)/sum)
}

// interleave writes one round. Each turn every class gains what it is owed per turn, and the one that is owed most pays a
// whole round for being picked.
func interleave(classes []class, total int) []int32 {
	schedule := make([]int32, total)
	for turn := range schedule {
		best := 0
		for i := range classes {
			classes[i].current += classes[i].weight * len(classes[i].members)
			if classes[i].current > classes[best].current {
				best = i
			}
		}
		c := &classes[best]
		c.current -= total
		schedule[turn] = c.members[c.next]
		c.next = (c.next + 1) % len(c.members)
	}
	return schedule
}
