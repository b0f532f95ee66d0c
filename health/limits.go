package health

import "time"

// The package's limits, each with its reason.
const (
	// checksRunningMax bounds open sockets. Checks that answer take milliseconds: this is met only when thousands of
	// backends hang at once, and then checks come late instead of taking the listeners' descriptors.
	checksRunningMax = 2048
	// startSpacing is between the first checks of new backends, and startSpread bounds how long the last of them waits. A
	// handshake costs a millisecond of a core: a thousand at once would be felt by requests.
	startSpacing = time.Millisecond
	startSpread  = time.Second
	// settlingIntervalMax is the interval, at most, until a check has decided for the first time. A dead backend is out
	// soon after a start, and yet no single failure takes one out.
	settlingIntervalMax = time.Second
	// jitter spreads checks by this share of the interval, to either side.
	jitter = 0.1
	// lineBytesMax is far above any real status line, and above what a line of a head is read for.
	lineBytesMax = 1024
	// interimMax is how many 1xx answers may precede the final one.
	interimMax = 10
	// headBytesMax bounds the fields that are read on the way to a body.
	headBytesMax = 64 << 10
	// bodyBytesMax is how much of a body is searched for the expected text, as the schema says.
	bodyBytesMax = 64 << 10
	// drainBytesMax and drainTimeout bound the rest of an answer that is read for politeness.
	drainBytesMax = 64 << 10
	drainTimeout  = 100 * time.Millisecond
	// transitionsMax is the history kept for each backend.
	transitionsMax = 8
	// savedAgeMax is how old a saved state may be: after a longer pause what was known says nothing.
	savedAgeMax = 10 * time.Minute
)

// Defaults of a check, as the schema documents them.
const (
	intervalDefault = 5 * time.Second
	timeoutDefault  = time.Second
	riseDefault     = 2
	fallDefault     = 3
)
