// Package balance holds the algorithms that choose a backend, one per file.
//
// They are pure: an algorithm is an immutable value compiled from the weights of a pool's eligible backends, and what
// moves is handed in by the caller: the turn, random bits, a hash, the time, and the Loads of the backends, which are
// atomics. So a pool on many loops shares one value without a lock, and a test needs neither clock nor luck.
package balance

import "slices"

// Policy chooses one of the backends it was compiled from, by index. Safe for concurrent use; it allocates nothing.
type Policy interface {
	// Pick returns an index in [0, n): one that r does not avoid, if there is any.
	Pick(r *Request) int
}

// Request is what a pick depends on besides the loads. Each algorithm reads what it needs.
type Request struct {
	Turn   uint64 // counts the picks of the pool from any offset, and may wrap; for RoundRobin
	Random uint64 // any bits; for draws and ties
	Hash   uint64 // Hash of what tells clients apart; for Maglev
	Now    int64  // milliseconds from any moment, the same for all; for P2CEWMA
	Avoid  []int  // backends that have failed this request already: few, each once
}

func (r *Request) avoids(i int) bool { return len(r.Avoid) > 0 && slices.Contains(r.Avoid, i) }

// Hash is the fixed hash of this package: the same in every process and release, for nodes must agree. It is FNV-1a, whose
// weak upper bits mix makes good.
func Hash(key []byte) uint64 {
	h := uint64(0xcbf29ce484222325)
	for _, b := range key {
		h = (h ^ uint64(b)) * 0x100000001b3
	}
	return mix(h)
}

// mix is a bijection after which every bit depends on every other: the finalizer of SplitMix64.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// next steps a sequence of random words that begins anywhere.
func next(x uint64) uint64 { return x + 0x9e3779b97f4a7c15 }

// fraction is a number in [0, 1) made of random bits.
func fraction(x uint64) float64 { return float64(x>>11) / (1 << 53) }

// gcd is the greatest common divisor; with 0 it is the other number.
func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
