package loop

import "runtime"

// Procs is the GOMAXPROCS that an engine with this many loops wants: loops,
// workers and one for everything else, because a loop that waits for the network
// keeps its P. 0 means the default number of loops.
func Procs(loops int) int {
	if loops <= 0 {
		loops = cores()
	}
	return loops + workersFor(loops) + 1
}

func workersFor(loops int) int { return max(1, loops/4) }

// cores is what affinity and CPU quota leave to the process, rounded down, at
// least 1: a loop on a core that is there half of the time would be stalled for
// the other half.
func cores() int {
	n := runtime.NumCPU()
	if quota := cpuQuota(); quota > 0 {
		n = min(n, int(quota))
	}
	return max(1, n)
}
