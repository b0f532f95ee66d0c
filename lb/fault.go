package lb

import (
	"errors"
	"io"
	"os"
	"syscall"

	"lbd/lb/loop"
)

// fault says why an exchange cannot go on: whose doing it is, what the client may still be told, and whether another try
// can help. A nil *fault is success.
type fault struct {
	reason Reason
	status int    // our answer if none has begun; 0: there is nobody to tell
	detail string // short and stable: the log's detail
	retry  retry
	on     RetryOn // what the route must allow, if retry is elsewhere
	cause  error   // nil where detail says all
}

// retry is where another try may succeed.
type retry uint8

const (
	// never: a second try may do harm, or cannot help.
	never retry = iota
	// fresh: an idle connection turned out stale; the same backend on a new connection, outside attempts and budget.
	fresh
	// elsewhere: another eligible backend.
	elsewhere
)

// ofBackend reports whether it counts as the backend's failure. A stale idle connection does not: both sides may close one.
func (f *fault) ofBackend() bool {
	switch f.reason {
	case ConnectFailed, BackendTimeout, BackendAborted, BackendTruncated:
		return f.retry != fresh
	}
	return false
}

// Faults that need no cause. They are values: never written to.
var (
	faultNoRoute   = &fault{reason: NoRoute, status: 404, detail: "no_route"}
	faultNoBackend = &fault{reason: NoBackend, status: 503, detail: "no_eligible_backend"}
	faultTruncated = &fault{reason: BackendTruncated, status: 502, detail: "ended_early"}
	faultInterim   = &fault{reason: BackendAborted, status: 502, detail: "too_many_interim_answers"}
	faultBodySize  = &fault{reason: Limited, status: 413, detail: "body_size"}
	// faultStatus is a whole answer that the route does not want: no failure of the backend's, and never the client's.
	faultStatus = &fault{reason: OK, detail: "status_5xx", retry: elsewhere, on: OnStatus5xx}
	// faultGone: the client has reset its connection while an answer was awaited or under way. Its FIN alone is no such thing.
	faultGone    = &fault{reason: ClientAborted, detail: "gone"}
	faultStalled = &fault{reason: ClientTimeout, detail: "write_stall"}
)

// clientFault judges a failed read from or write to the client.
func clientFault(err error, phase string) *fault {
	switch {
	case isTimeout(err):
		return &fault{reason: ClientTimeout, status: 408, detail: phase, cause: err}
	case errors.Is(err, loop.ErrClosed):
		return &fault{reason: Drained, detail: phase, cause: err}
	}
	return &fault{reason: ClientAborted, detail: phase, cause: err}
}

// isTimeout reports whether a deadline of ours has passed.
func isTimeout(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }

// isGone reports whether the other side has closed or reset the connection.
func isGone(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) ||
		errors.Is(err, syscall.EPIPE)
}
