// Package balance holds the algorithms that choose a backend, one per file.
//
// They are pure: an algorithm is an immutable value compiled from the weights of a pool's eligible backends, and what
// moves (the turn, later a hash or a load) is handed in by the caller. So a pool on many loops shares one value without
// a lock, and a test needs neither clock nor luck.
package balance

// Policy chooses one of the backends it was compiled from, by index. Safe for concurrent use.
type Policy interface {
	// Pick returns an index in [0, n). turn counts the picks of the pool, from any offset, and may wrap.
	Pick(turn uint64) int
}
