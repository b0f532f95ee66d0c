package loop

import "time"

// BufferBytes is the size of a buffer from Task.Buffer: a whole TLS record,
// and more than almost every request or response head.
const BufferBytes = 16 << 10

// BulkBytes is the size of a buffer from Task.Bulk, for bodies that fill one
// buffer after the other: a quarter of the system calls.
const BulkBytes = 64 << 10

const (
	cacheLine = 64

	// bufferSpread is within how many bytes buffers begin at different places:
	// 32 cache lines, for what the allocator's size classes waste least with.
	bufferSpread = 2 << 10

	// buffersFreeMax bounds a loop's free list: 18 MiB at most stay with it,
	// the rest goes back to the garbage collector.
	buffersFreeMax = 1024

	// bulkMax bounds the bulk buffers of a loop that are in use: 8 MiB, however
	// many slow readers hold one.
	bulkMax = 128

	// coroutinesFreeMax bounds the idle coroutines a loop keeps for reuse. Each
	// holds a stack that has grown to what its last task needed.
	coroutinesFreeMax = 1024

	// stackDepths is at how many depths coroutines run their tasks: with frames
	// of some 160 bytes over 2.5 KiB.
	stackDepths = 16

	// stepOperations is how many reads and writes a task may make before it
	// goes to the end of the line, so that a fast download cannot hold the loop:
	// 32 of 16 KiB each take about a third of a millisecond.
	stepOperations = 32

	// heavyMax bounds a loop's queue of heavy steps. At 0.3 ms for a handshake
	// step, 4096 of them are more than a second of work: who would come out at
	// the far end has usually gone away.
	heavyMax = 4096

	// heavyPatience is how long a heavy step waits in line before the loop takes
	// the newest first. Up to a thousand connections that arrive at once are
	// served in turn within it; a client does not give up in that time.
	heavyPatience = 250 * time.Millisecond

	// offloadsWaitingMax: while more calls than this wait for a worker, loops
	// run no heavy steps (they are what makes such calls). At 1.1 ms for an
	// RSA-2048 signature that is 70 ms of work for one worker.
	offloadsWaitingMax = 64

	// heavyRetry is how soon a loop looks again whether the workers caught up.
	heavyRetry = 2 * time.Millisecond

	// eventsMax is how many events one wait returns.
	eventsMax = 256

	// acceptsMax bounds the connections one loop accepts from one socket before
	// it serves what it has.
	acceptsMax = 16

	// listenBacklog is asked of the kernel, which caps it by net.core.somaxconn.
	listenBacklog = 4096

	// acceptBackoff is the pause after the process or the machine ran out of
	// files or memory for a new connection; without it a level-triggered
	// listening socket would spin the loop.
	acceptBackoff = 100 * time.Millisecond

	// moveSlack: a new connection moves to another loop if this one would have a
	// quarter and moveSlack more than the mean. The quarter is for many
	// connections, of which the kernel's hash gives each loop much the same; the
	// slack is for few, and small enough that at eight a loop none has over
	// one and a half times the mean.
	moveSlack = 2

	// stallAfter is when a loop that has not come back from its tasks counts as
	// stalled; watchEvery is how often the watchdog looks.
	stallAfter = time.Second
	watchEvery = 250 * time.Millisecond

	// stealWait is how long a task waits for another loop to answer. A dial
	// inside a data centre takes less, so waiting longer never pays.
	stealWait = 20 * time.Millisecond

	// Keep-alive finds a peer that vanished without a word within about a
	// minute; userTimeout is how long sent data may stay unacknowledged.
	keepAliveIdle     = 30 * time.Second
	keepAliveInterval = 10 * time.Second
	userTimeout       = 60 * time.Second

	// unsentMax bounds what the kernel keeps for a connection beyond what is on
	// its way. Otherwise that is up to net.ipv4.tcp_wmem (4 MiB, over loopback
	// 2.5 MiB from the start), and a thousand clients that read slowly hold
	// gigabytes.
	unsentMax = 128 << 10
)
