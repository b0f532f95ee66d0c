package main

import (
	"os"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"time"
)

const (
	// heapRoom is how much may be allocated between two collections, however little is live. A balancer's live heap is
	// small, and Go's default (as much as is live) would collect it many times a second in a storm of handshakes: 311 µs of
	// CPU for a new TLS connection with the default, 259 with this.
	heapRoom = 64 << 20
	// gcPercentMin is Go's default, from where a live heap larger than heapRoom is collected as usual.
	gcPercentMin = 100
	// memoryInterval is how often the settings follow the heap.
	memoryInterval = time.Second
	// calmBytes is what may be allocated in an interval that still counts as calm.
	calmBytes = 1 << 20
	// calmIntervals of calm after a burst, what it left behind goes back to the system.
	calmIntervals = 5
	// leftBytes of garbage and of heap that is free but not given back are not worth a collection in a calm hour.
	leftBytes = 16 << 20
)

// memory paces the garbage collector: rarely under load, and once more after it. An operator's own GOGC wins.
type memory struct {
	stop chan struct{}
	done sync.WaitGroup

	percent   int
	allocated uint64 // at the last look
	calm      int    // intervals in a row
}

func paceCollector() *memory {
	m := &memory{stop: make(chan struct{})}
	if os.Getenv("GOGC") != "" {
		return m
	}
	m.set(gcPercent(0))
	m.done.Go(m.run)
	return m
}

func (m *memory) close() {
	close(m.stop)
	m.done.Wait()
}

func (m *memory) run() {
	tick := time.NewTicker(memoryInterval)
	defer tick.Stop()
	for {
		select {
		case <-m.stop:
			return
		case <-tick.C:
			live, held, allocated := readHeap()
			m.set(gcPercent(live))
			if m.settled(live, held, allocated) {
				debug.FreeOSMemory()
			}
		}
	}
}

func (m *memory) set(percent int) {
	if percent != m.percent {
		m.percent = percent
		debug.SetGCPercent(percent)
	}
}

// gcPercent leaves heapRoom between collections. It moves in steps, because each change stops the world for a moment.
func gcPercent(live uint64) int {
	const step = 4 << 20 // Go's own smallest heap
	return max(gcPercentMin, heapRoom*100/(step*int(1+live/step)))
}

// settled reports whether a burst is over and has left memory that is worth giving back.
func (m *memory) settled(live, held, allocated uint64) bool {
	quiet := allocated-m.allocated < calmBytes
	m.allocated = allocated
	if !quiet {
		m.calm = 0
		return false
	}
	m.calm++
	return m.calm == calmIntervals && held > live+leftBytes
}

// readHeap reads what the last collection found alive, what is held (objects, and what is free but not given back), and what
// was ever allocated.
func readHeap() (live, held, allocated uint64) {
	samples := []metrics.Sample{
		{Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/free:bytes"},
		{Name: "/gc/heap/allocs:bytes"},
	}
	metrics.Read(samples)
	return samples[0].Value.Uint64(), samples[1].Value.Uint64() + samples[2].Value.Uint64(), samples[3].Value.Uint64()
}
