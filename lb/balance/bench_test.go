package balance

import (
	"fmt"
	"testing"
)

// policies are all algorithms over n backends of different weights.
func policies(n int) map[string]Policy {
	names, weights := make([]string, n), make([]int, n)
	for i := range weights {
		names[i], weights[i] = fmt.Sprintf("10.0.%d.%d:80", i/256, i%256), 1+i%5
	}
	loads := newLoads(n)
	return map[string]Policy{
		"round_robin":       NewRoundRobin(weights),
		"least_connections": NewLeastConnections(weights, loads),
		"p2c_ewma":          NewP2CEWMA(weights, loads),
		"maglev":            NewMaglev(names, weights).Among(all(n)),
	}
}

func TestPickDoesNotAllocate(t *testing.T) {
	for name, p := range policies(20) {
		r := &Request{Now: 1, Avoid: []int{3, 5}}
		if n := testing.AllocsPerRun(100, func() { r.Turn++; r.Random++; r.Hash++; p.Pick(r) }); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

func BenchmarkPick(b *testing.B) {
	for _, n := range []int{3, 20, 1000} {
		for name, p := range policies(n) {
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				r := &Request{Now: 1}
				for b.Loop() {
					r.Turn++
					r.Random = next(r.Random)
					r.Hash = r.Random
					p.Pick(r)
				}
			})
		}
	}
}

func BenchmarkCompile(b *testing.B) {
	weights := make([]int, 1000)
	for i := range weights {
		weights[i] = 1 + i%5
	}
	b.Run("round_robin", func(b *testing.B) {
		for b.Loop() {
			NewRoundRobin(weights)
		}
	})
	names, _ := thousand()
	b.Run("maglev", func(b *testing.B) {
		for b.Loop() {
			NewMaglev(names, weights)
		}
	})
}

func BenchmarkObserve(b *testing.B) {
	var l Load
	now := int64(0)
	for b.Loop() {
		now++
		l.Observe(1e6, now)
	}
}
