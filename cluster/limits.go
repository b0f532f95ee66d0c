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

	// One voter has no competitor, so nothing is lost by electing itself at once. Serving does not wait for it.
	soleElectionTimeout = 50 * time.Millisecond

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

	// A disk that refuses is asked again, less and less often.
	retryFirst = 10 * time.Millisecond
	retryLast  = 2 * time.Second
	// stallAfter is when a disk that has not answered is reported: far above what a busy one takes.
	stallAfter = 2 * time.Second
	// diskPatience is how long a proposal waits for a disk that is reported before its caller is told the reason.
	diskPatience = 10 * time.Second
	// stepDownPause is between a log that cannot be written and the next election.
	stepDownPause = 500 * time.Millisecond
)
