package cluster

import (
	"time"

	"lbd/cluster/state"
)

const (
	// lockWait is how long a directory that another process holds is waited for: the end of a process that was told
	// to stop, not more.
	lockWait = time.Second
	lockPoll = 10 * time.Millisecond

	// votersMax is how many nodes vote: more would make every change slower, and the cluster no safer.
	votersMax = 5
	// liveFor is how long after its last report a node counts as alive: some intervals of the keeper.
	liveFor = 5 * time.Second
	// A node gets its vote when it has been within caughtUpEntries of the leader for caughtUpFor.
	caughtUpEntries = 64
	caughtUpFor     = time.Second
	// reportsFor is how many of the keeper's intervals a new leader gives the others to report: they do so when they hear of it.
	reportsFor = 2
	// reportsMax bounds the nodes whose reports are kept: far more than a cluster has.
	reportsMax = 256
	// digestsMax is how many of the newest states are kept to be compared; they share what did not change.
	digestsMax = 64
	// barrierWait is what each thing of the pulse may take.
	barrierWait = 2 * time.Second
	// electionPoll is how often it is looked at whether there is a leader by now.
	electionPoll = 20 * time.Millisecond
	// announceAgain is how long a node waits before it says again of itself what was refused.
	announceAgain = 30 * time.Second

	// shortWait is what a heartbeat or a vote may take, and dialWait a connection.
	shortWait = 2 * time.Second
	dialWait  = 2 * time.Second
	// requestWait is how long an incoming connection may be silent. The other side does not use one that was idle for idleMax any more.
	requestWait = 10 * time.Second
	idleMax     = 4 * time.Second
	// writeWait is what another node has to take a piece, and bulkAnswerWait to answer: a slow disk may need it.
	writeWait      = 30 * time.Second
	bulkAnswerWait = 2 * time.Minute
	// pooledMax bounds the idle connections to each node, of each kind.
	pooledMax = 3
	// pieceBytes is how much is written at once, so that a slow link shows that something moves, and sendBufferBytes what the kernel may take of it.
	pieceBytes      = 64 << 10
	sendBufferBytes = 256 << 10

	// leaderWait is how long a proposal waits for a leader before it tells its caller to come again: an election of
	// a healthy cluster fits.
	leaderWait = 3 * time.Second
	// enqueueWait is how long raft may leave a proposal at the door.
	enqueueWait = 2 * time.Second

	// A snapshot is due after snapshotEntries entries, and then all but the last trailingEntries of the log go. An
	// entry has at most state.PartBytesMax, so that the log stays below half a gigabyte at worst.
	snapshotEntries  = 1024
	trailingEntries  = 512
	snapshotInterval = time.Minute
	snapshotsKept    = 2

	// snapshotRecordBytesMax bounds one record of a snapshot: a revision lists what it changed, and a change has at
	// most state.ChangeBytesMax.
	snapshotRecordBytesMax = 2 * state.ChangeBytesMax

	// commitAttempts is how often a change in parts is sent when other changes pushed its parts out.
	commitAttempts = 3

	// followsPoll is how often it is looked at whether an attempt on a node that does not answer is of any use.
	followsPoll = 200 * time.Millisecond

	// A disk that refuses is asked again, less and less often.
	retryFirst = 10 * time.Millisecond
	retryLast  = 2 * time.Second
	// stallAfter is when a disk that has not answered is reported: far above what a busy one takes.
	stallAfter = 2 * time.Second
	// illAfterRefusal is how long a node leads nobody after its disk has refused something: more than retryLast.
	illAfterRefusal = 5 * time.Second
	// diskPatience is how long a proposal waits for a disk that is reported before its caller is told the reason.
	diskPatience = 10 * time.Second
	// stepDownPause is between a log that cannot be written and the next election.
	stepDownPause = 500 * time.Millisecond
)
