package rpc

import (
	"time"

	"lbd/cluster/state"
)

const (
	// messageBytesMax bounds a message that comes in, and what an export and a page put into one: it is also what
	// gRPC's clients take unless told otherwise.
	messageBytesMax = 4 << 20
	// answerBytesMax bounds every other answer: the status of ten thousand certificates is about 4 MB.
	answerBytesMax = 16 << 20
	// partBytesMax is where an export and a page begin a new message: far enough below messageBytesMax for one more
	// resource of any size.
	partBytesMax = 1 << 20
	// fieldsBytesMax bounds the fields of all changes in one answer. Changes beyond are told without them.
	fieldsBytesMax = 2 << 20
	// resourceBytesMax bounds one resource.
	resourceBytesMax = 1 << 20
	// applyBytesMax bounds all parts of one apply by what a change may hold.
	applyBytesMax = state.ChangeBytesMax
	// entryBytes is what a resource or a key to delete counts beyond its own bytes: millions of empty ones are no small apply.
	entryBytes = 16
	// receivedBytesMax bounds what all applies together hold while they receive, so that a few clients that send
	// slowly cannot fill the memory.
	receivedBytesMax = 2 * applyBytesMax
	// receivedBytesReserved are for those who keep the cluster in order.
	receivedBytesReserved = 16 << 20

	// detailsBytesMax bounds a status's details, which travel in a header that clients limit, and detailBytesMax each
	// text in them.
	detailsBytesMax = 256 << 10
	detailBytesMax  = 2 << 10

	// connectionsMax bounds the socket's connections. More wait in the kernel's queue.
	connectionsMax = 128
	// callsMax bounds the calls in flight of all connections. More are refused with UNAVAILABLE.
	callsMax = 256
	// waitsMax bounds the streams that wait, which are not counted in callsMax: clients that wait never keep a change out.
	waitsMax = 128
	// callsEachMax and waitsEachMax bound those of one caller, and the reserved ones are for admins and this machine's operators: nobody
	// who stalls keeps them from revoking his credential.
	callsEachMax  = callsMax / 4
	waitsEachMax  = waitsMax / 2
	callsReserved = 32
	waitsReserved = 16
	// streamsMax bounds the calls in flight on one connection.
	streamsMax = 100

	// strangerCallsMax and strangerWaitsMax bound the calls in flight of callers without a credential, who may only ask for health.
	strangerCallsMax = 32
	strangerWaitsMax = 32
	// headerBytesMax bounds the metadata of a call: a token, a deadline, a trace.
	headerBytesMax = 32 << 10

	// portConnectionsMax bounds the connections of the control port, and strangersPerSourceMax those from one source on which nobody has
	// shown a credential yet. Where there are more, the oldest of these makes room; where there are none, the oldest of the credential that
	// has the most.
	portConnectionsMax    = 512
	connectionsEachMax    = portConnectionsMax / 4 // of one credential
	strangersPerSourceMax = 32
	// failuresBurst failed logins from one source are answered with the cause, then one every failuresInterval: more than anybody
	// mistypes, and far too few to guess 32 bytes.
	failuresBurst    = 20
	failuresInterval = 3 * time.Second
	// failureSourcesMax bounds the table of sources, some hundred bytes each.
	failureSourcesMax = 4096
	// authorRunesMax is how much of a token's description is in what it authors, which the state bounds.
	authorRunesMax = 48

	// callTimeoutMax ends a call whose client set no deadline, or a later one.
	callTimeoutMax = 2 * time.Minute
	// waitTimeoutMax does so for the streams that wait.
	waitTimeoutMax = time.Hour
	// proposeTimeoutMax is what a change has to be stored, whatever its caller's deadline.
	proposeTimeoutMax = 30 * time.Second
	// scrubTimeoutMax is what the disk has to forget a purged key.
	scrubTimeoutMax = time.Minute
	// resealBytesMax bounds the seals of one command, which fits one entry of the log.
	resealBytesMax = 192 << 10
	// pieceBytes is a message's worth of a backup or a debug archive.
	pieceBytes = 256 << 10
	// statusInterval is how often WatchStatus looks whether something has changed.
	statusInterval = time.Second
	// statsIntervalMin to statsIntervalMax is how often WatchStats may be asked to send.
	statsIntervalMin     = 100 * time.Millisecond
	statsIntervalMax     = time.Minute
	statsIntervalDefault = time.Second
	// profileMin to profileMax is what a CPU profile may take: well below callTimeoutMax.
	profileMin     = time.Second
	profileMax     = time.Minute
	profileDefault = 10 * time.Second
	// debugFileBytesMax bounds each file of a debug archive, which is held in memory until it is sent, and debugFileTimeoutMax
	// what it may take, a CPU profile's length apart.
	debugFileBytesMax   = 16 << 20
	debugFileTimeoutMax = 5 * time.Second
	// debugRevisionsMax and debugAuditAge bound how far back an archive looks.
	debugRevisionsMax = 100
	debugAuditAge     = 7 * 24 * time.Hour
	// lookupTimeout bounds what DNS may take before a change is judged, all names together, and lookupsAtOnceMax how many are asked
	// for at a time.
	lookupTimeout    = 2 * time.Second
	lookupsAtOnceMax = 32
	// unresolvedToldMax bounds the names that a change is warned of.
	unresolvedToldMax = 100
	// tokensToldMax bounds the tokens that a restore names.
	tokensToldMax = 50
	// idleTimeout ends connections without a call.
	idleTimeout = 10 * time.Minute
	// handshakeTimeout is what a new connection has to finish TLS and begin HTTP/2.
	handshakeTimeout = 10 * time.Second
	// retryDelay is what a client that was refused for now is told to wait.
	retryDelay = 500 * time.Millisecond
	// authorityWait is what a new token waits for the cluster's authority.
	authorityWait = 3 * time.Second
	// closeTimeout is what Close gives the calls in flight before it cancels them.
	closeTimeout = 5 * time.Second

	// pageSizeDefault and pageSizeMax are the entries of a page.
	pageSizeDefault = 100
	pageSizeMax     = 1000
	// connectionsListedDefault and connectionsListedMax are the connections of one list.
	connectionsListedDefault = 1000
	connectionsListedMax     = 10_000

	// staleTold is how long a node may not have heard from a leader before that is told as a fault; an election takes a second or two.
	staleTold = 10 * time.Second
	// lagMax is how long a node may be behind the newest revision before that is told as a fault, and lagPause how often it is asked.
	lagMax   = time.Second
	lagPause = 100 * time.Millisecond
	// verifyAttempts are how often an entry of the log is looked for that all nodes still know.
	verifyAttempts = 5

	// peerCallsMax bounds the calls of other nodes for themselves in flight, and peerCallsEachMax those of one.
	peerCallsMax     = 128
	peerCallsEachMax = 32
	// relayedMax bounds what others ask in their callers' names of this node alone: each of them bounds it by callsMax and waitsMax.
	relayedMax = 1024
	// learnTimeout bounds a question who the members are, and learnInterval is how often one is asked at most, whoever comes.
	learnTimeout  = 2 * time.Second
	learnInterval = time.Second
	// confirmMemberTimeout is how long a member's handshake waits for others to confirm that it is one, where this node has been cut off.
	confirmMemberTimeout = 500 * time.Millisecond
	// membersLearnedMax bounds what is kept of an answer to it.
	membersLearnedMax = 256
	// undecidedMax bounds the calls whose credential is looked for a second time.
	undecidedMax = 16
	// leaderWait is how long a call waits for a leader: an election fits. leaderLook is how often it looks for one.
	leaderWait = 3 * time.Second
	leaderLook = 50 * time.Millisecond
	// tellMax is what is left of a caller's deadline at most to tell him that there is none.
	tellMax = 300 * time.Millisecond
	// forwardedWait is how long a node that has passed a call on waits until it has what that has written. One that is too far behind has
	// other troubles: the next read waits for itself.
	forwardedWait = 5 * time.Second
	// barrierTimeout is how long a read waits to be up to date before it is answered with what there is, and barrierTimeoutLost where it
	// has been in vain for lostAfter.
	barrierTimeout     = 3 * time.Second
	barrierTimeoutLost = 500 * time.Millisecond
	lostAfter          = 5 * time.Second
	// confirmAfter is how long ago a node may have heard of the leader before it asks whether a credential is still good, and staleMax before it
	// takes none any more.
	confirmAfter = 3 * time.Second
	staleMax     = 60 * time.Second
	// staleLook is how often calls that go on are ended for that.
	staleLook = 2 * time.Second

	// peerDialTimeout bounds a connection to another node and its handshake; peerLossAfter is how long it may take nothing of what was sent.
	peerDialTimeout = 2 * time.Second
	peerLossAfter   = 2 * time.Second
	// An idle connection is asked after peerKeepAliveIdle whether the other node is there.
	peerKeepAliveIdle     = time.Second
	peerKeepAliveInterval = time.Second
	peerKeepAliveCount    = 2
	// peerRetryMin to peerRetryMax is how often a node that is away is tried again.
	peerRetryMin = 50 * time.Millisecond
	peerRetryMax = 500 * time.Millisecond
	// peerRelays are the connections to each node for calls in somebody's name: each carries streamsMax at a time.
	peerRelays = 4

	// handshakesMembers, handshakesClaimed and handshakesOthers are how many handshakes are at work at a time, of each kind; more wait, at most
	// handshakesQueueMax. handshakesEachMax is what one source has of those that say to be nodes.
	handshakesMembers  = 16
	handshakesClaimed  = 2
	handshakesOthers   = 4
	handshakesQueueMax = 256
	handshakesEachMax  = 4
	// callersQueued are connections whose handshake is done and that the server has not taken yet.
	callersQueued = 64
	// acceptPauseMin to acceptPauseMax is how long nothing is accepted after the kernel has refused.
	acceptPauseMin = 5 * time.Millisecond
	acceptPauseMax = time.Second

	// askTimeout is how long another node has to answer a question.
	askTimeout = 5 * time.Second
	// waitBeat is how often a node that is waited for says that it is there, waitTick how often it is looked at who is silent, and waitPause is between
	// attempts on one.
	waitBeat  = time.Second
	waitTick  = 250 * time.Millisecond
	waitPause = 250 * time.Millisecond
	// waitBarrierMax is how long a node waits to have the revision that is to be waited for.
	waitBarrierMax = 2 * time.Second
	// sealKeepInterval is how often the sealing keys are looked after.
	sealKeepInterval = 10 * time.Second
	// connectionAgeMax ends connections of the control port, so that certificates which were renewed are shown.
	connectionAgeMax = 12 * time.Hour
	// memberStrangersMax is strangersPerSourceMax of where other nodes call from.
	memberStrangersMax = 64
	// handOverTimeout is how long another node may take to lead; lookInterval is how often that is looked at.
	handOverTimeout = 10 * time.Second
	lookInterval    = 20 * time.Millisecond
	// ticketKeepInterval is how often the ticket keys are looked after: their times are of hours.
	ticketKeepInterval = 2 * time.Second
	// ticketExtendMax is how long a node may issue under an old key before its tickets' end is moved, once more.
	ticketExtendMax = 10 * time.Minute
	// ticketSyncMax is how long nodes in contact have to take new ticket keys, ticketSyncRest what is left of the caller's time for the answer.
	ticketSyncMax  = 10 * time.Second
	ticketSyncRest = 500 * time.Millisecond
	ticketSyncLook = 50 * time.Millisecond
	// ticketImportsMax is how many keys come from outside at once, ticketBytesMax how long a ticket may be: its length has two bytes (RFC 8446, section 4.6.1).
	ticketImportsMax = 16
	ticketBytesMax   = 1<<16 - 1
	// recoverTimeoutMax bounds a recovery, which writes the state once.
	recoverTimeoutMax = time.Minute
	// electionWait is how long somebody may take to be elected before a cluster counts as without a leader: several times what an election takes.
	// electionLook is how often that is looked at, and whoLeadsTimeout what the others have to answer.
	electionWait    = 3 * time.Second
	electionLook    = 200 * time.Millisecond
	whoLeadsTimeout = 2 * time.Second
)
