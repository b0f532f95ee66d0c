package balance

import (
	"math"
	"sync/atomic"
	"time"
)

const (
	// latencyMemory is how fast a latency is forgotten: of what was measured so long ago a third (1/e) is left in an average that
	// goes on, and nothing in one that does not.
	latencyMemory = 10 * time.Second
	// latencyGrain is added to what is compared: what is faster than that differs by chance.
	latencyGrain = float64(time.Millisecond)
	// What a failed request counts as.
	failureLatency      = time.Second
	firstFailureLatency = 10 * time.Millisecond
)

// Load is how busy one backend is, over all loops. All of it is atomic. It is written for every request: the caller puts
// nothing read-mostly beside it.
type Load struct {
	InFlight atomic.Int64
	// The average latency (float32, nanoseconds) above the moment of its last change (milliseconds, 32 bits): one word, so
	// that a change is one compare-and-swap.
	latency atomic.Uint64
}

// Observe counts a latency into the moving average, by the time that has passed since the last one. Of those within one
// millisecond the first counts, and of two at the same instant one: at such rates none is missed. now is Request.Now.
func (l *Load) Observe(took time.Duration, now int64) {
	before := l.latency.Load()
	average, passed := unpack(before, now)
	switch {
	case before == 0:
		average = float32(took)
	case passed <= 0:
		return
	default:
		average += (float32(took) - average) * float32(1-math.Exp(-float64(passed)/float64(latencyMemory)))
	}
	l.latency.CompareAndSwap(before, uint64(math.Float32bits(max(average, 1)))<<32|uint64(uint32(now)))
}

// Latency is the moving average; 0 if none was observed.
func (l *Load) Latency() time.Duration {
	average, _ := unpack(l.latency.Load(), 0)
	return time.Duration(average)
}

// Fail counts a request without a good answer as a latency that is bad enough to keep others away: an error that comes at once
// must attract nobody. The first that is known of a backend is not taken so hard.
func (l *Load) Fail(now int64) {
	if l.latency.Load() == 0 {
		l.Observe(firstFailureLatency, now)
		return
	}
	l.Observe(failureLatency, now)
}

// Forget makes the latency unknown: the backend was away, and may be another by now.
func (l *Load) Forget() { l.latency.Store(0) }

// expected is the average as far as it is still believed, 0 if nothing is: it fades, so that a backend that was slow is tried
// again within the memory's time.
func (l *Load) expected(now int64) float64 {
	average, passed := unpack(l.latency.Load(), now)
	return float64(average) * (1 - min(1, float64(passed)/float64(latencyMemory)))
}

func unpack(word uint64, now int64) (average float32, passed time.Duration) {
	// The difference is right also where 32 bits have wrapped; a clock that was set back counts as standing still.
	since := int32(uint32(now) - uint32(word))
	return math.Float32frombits(uint32(word >> 32)), time.Duration(max(since, 0)) * time.Millisecond
}
