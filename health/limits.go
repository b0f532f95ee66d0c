package health

import "time"

// The package's limits, each with its reason.
const (
	// checksRunningMax bounds open sockets. Checks that answer take milliseconds: this is met only when thousands of
	// backends hang at once, and then checks come late instead of taking the listeners' descriptors.
	checksRunningMax = 2048
	// startSpacing spreads the first checks of many new backends: 10,000 begin within a second.
	startSpacing = 100 * time.Microsecond
	// settlingIntervalMax is the interval, at most, until a check has decided for the first time. A dead backend is out
	// soon after a start, and yet no single failure takes one out.
	settlingIntervalMax = time.Second
	// jitter spreads checks by this share of the interval, to either side.
	jitter = 0.1
	// statusLineBytesMax is far above any real status line.
	statusLineBytesMax = 1024
	// interimMax is how many 1xx answers may precede the final one.
	interimMax = 10
	// drainBytesMax and drainTimeout bound the rest of an answer that is read for politeness.
	drainBytesMax = 64 << 10
	drainTimeout  = 100 * time.Millisecond
	// transitionsMax is the history kept for each backend.
	transitionsMax = 8
)

// Defaults of a check, as the schema documents them.
const (
	intervalDefault = 5 * time.Second
	timeoutDefault  = time.Second
	riseDefault     = 2
	fallDefault     = 3
)
