package loop

import (
	"fmt"
	"log/slog"
	"math"
	"runtime/debug"
	"sync/atomic"
	"time"
)

// counters are one loop's, written by that loop and read by anyone.
type counters struct {
	connections  atomic.Int64
	served       atomic.Int64 // of listeners: here, or on their way here
	tasks        atomic.Int64
	busy         atomic.Uint64 // bits of a float64; written by the watchdog
	stalled      atomic.Bool   // written by the watchdog
	stalls       atomic.Int64  // written by the watchdog
	stalledFor   atomic.Int64  // nanoseconds; written by the watchdog
	panics       atomic.Int64
	heavyQueued  atomic.Int64
	heavyDropped atomic.Int64
	accepted     atomic.Int64
	moved        atomic.Int64
	acceptErrors atomic.Int64
	stolen       atomic.Int64
	rounds       atomic.Int64
}

func (c *counters) snapshot() LoopStats {
	return LoopStats{
		Connections:  c.connections.Load(),
		Served:       c.served.Load(),
		Tasks:        c.tasks.Load(),
		Busy:         math.Float64frombits(c.busy.Load()),
		Stalled:      c.stalled.Load(),
		Stalls:       c.stalls.Load(),
		StalledFor:   time.Duration(c.stalledFor.Load()),
		Panics:       c.panics.Load(),
		HeavyQueued:  c.heavyQueued.Load(),
		HeavyDropped: c.heavyDropped.Load(),
		Accepted:     c.accepted.Load(),
		Moved:        c.moved.Load(),
		AcceptErrors: c.acceptErrors.Load(),
		Stolen:       c.stolen.Load(),
		Rounds:       c.rounds.Load(),
	}
}

// died counts and logs a task that ended by a panic with value r, or by
// runtime.Goexit if r is nil. It is called on the task's stack.
func (c *counters) died(log *slog.Logger, loop int, r any) {
	c.panics.Add(1)
	if r == nil {
		log.Error("task ended by runtime.Goexit", "loop", loop, "stack", string(debug.Stack()))
		return
	}
	log.Error("task panicked", "loop", loop, "panic", fmt.Sprint(r), "stack", string(debug.Stack()))
}

// admission counts a listener's open connections over all loops.
type admission struct {
	opts ListenOptions
	max  atomic.Int64
	open atomic.Int64
}

func newAdmission(opts ListenOptions) *admission {
	a := &admission{opts: opts}
	a.max.Store(int64(opts.ConnectionsMax))
	return a
}

// admit takes a place for a connection, or refuses it.
func (a *admission) admit() bool {
	n := a.open.Add(1)
	if limit := a.max.Load(); limit > 0 && n > limit {
		a.open.Add(-1)
		a.refuse(RefusedConnectionsMax)
		return false
	}
	return true
}

// leave gives the place back; dialled connections have no admission.
func (a *admission) leave() {
	if a != nil {
		a.open.Add(-1)
	}
}

func (a *admission) refuse(reason string) {
	if a != nil && a.opts.Refused != nil {
		a.opts.Refused(reason)
	}
}
