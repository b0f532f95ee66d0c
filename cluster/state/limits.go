package state

import "time"

// APIVersion is the only value of api_version.
const APIVersion = "lbd/v1"

// OwnerDev owns what a node makes for its first start; the first apply that names such a resource takes it over.
const OwnerDev = "dev"

// What a change may hold. A change that fits these fits memory and log.
const (
	// PartBytesMax is the most that one log entry carries: raft copies entries several times and heartbeats wait
	// behind them, its authors advise 512 KiB.
	PartBytesMax = 256 << 10
	// ChangeBytesMax is the most that a change may hold, encoded: ten thousand certificates need about half.
	ChangeBytesMax = 64 << 20

	nameBytesMax      = 63
	messageBytesMax   = 1 << 10
	authorBytesMax    = 256
	requestIDBytesMax = 64
	labelsMax         = 64
	labelBytesMax     = 255
	hostBytesMax      = 253 // RFC 1035, section 2.3.4, less the root dot
	hostsMax          = 100
	pathBytesMax      = 4 << 10 // well below what the request head may hold
	addressesMax      = 16
	backendsMax       = 1000
	weightMax         = 256
	matchesMax        = 100
	conditionsMax     = 16 // of a match: headers, and again query parameters
	regexBytesMax     = 1 << 10
	// regexSizeMax bounds a regular expression with its repetitions written out: a kilobyte can ask for millions.
	regexSizeMax = 4096
	// regexesMany is how many expressions for paths a host may have unwarned. Those that do not match cost 0.1 to 1.1 µs each, a whole
	// request over a kept connection about 15: with as many of the slower kind it costs three times as much.
	regexesMany    = 32
	headersMax     = 32
	headerBytesMax = 8 << 10
	bodyBytesMax   = 64 << 10
	statusesMax    = 20
	errorPagesMax  = 16
	poolsMax       = 16
	poolWeightMax  = 1_000_000
	priorityMax    = 1000

	allowedOwnersMax        = 100
	boundHostsMax           = 1000
	boundNetworksMax        = 1000
	boundListenersMax       = 1000
	listenerCertificatesMax = 100
	trustedProxiesMax       = 256
	bypassMax               = 256
	policiesMax             = 16
	policyBodyBytesMax      = 1 << 50
	policyNetworksMax       = 1024
	policyListsMax          = 16
	concurrencyMax          = 1_000_000
	addressListMax          = 50_000
	trustBundleBytesMax     = 1 << 20
	retriesMax              = 5
	// Every wait that a document sets. Less than timeoutMin would cut off what is only scheduled late; who wants more than a
	// day wants no limit, and has to say so.
	timeoutMin = 10 * time.Millisecond
	timeoutMax = 24 * time.Hour
	// What a listener may grant its clients. Below the least the first browser would be refused; the most bounds what one
	// client can make a node hold.
	connectionsMax           = 1 << 20
	requestsPerConnectionMax = 1_000_000_000
	requestHeadBytesMin      = 4 << 10
	requestHeadBytesMax      = 1 << 20
	requestFieldsMin         = 16
	requestFieldsMax         = 1024

	checkIntervalMin     = 100 * time.Millisecond
	checkIntervalMax     = time.Hour
	checkIntervalDefault = 5 * time.Second
	checkTimeoutDefault  = time.Second
	checkCountMax        = 100
	checkHeadersMax      = 16
	checkBodyBytesMax    = 1 << 10

	// What a pool may say of its backends. Names of cookies go into each request; the rest bounds what a mistyped unit can do.
	backendConnectionsMax = 1 << 20
	idleTimeoutMax        = time.Hour // longer than any server keeps a connection without a request
	connectionAgeMin      = time.Second
	queueLengthMax        = 100_000
	queueTimeoutMax       = 10 * time.Minute
	ejectionErrorsMax     = 1000
	ejectionTimeMin       = time.Second
	ejectionTimeMax       = time.Hour
	slowStartMin          = time.Second
	slowStartMax          = time.Hour
	drainTimeoutMin       = time.Second
	cookieBytesMax        = 64
	bindingMin            = time.Second
	bindingMax            = 365 * 24 * time.Hour
	retryAfterMin         = time.Second
)

// Finding out which routes can never win reads other routes. All numbers are per change and far above what a change
// by hand needs; what a larger one leaves unread is only not warned of.
const (
	looksMax     = 300_000 // at what may win before a route of the change, some tenths of a second
	looksBackMax = 20_000  // at what a route of the change may win before
	// Of networks of policies and of the lists that they name, to find out whether they serve anybody.
	looksNetworksMax = 400_000
	// At one place in the routing table, and of a path's ancestors.
	looksPerPlaceMax  = 32
	ancestorsMax      = 64
	looksPerClaimBack = 100
)

// StateBytesMin to StateBytesMax is what cluster_settings.state_bytes may be: the least still takes a change of some thousand resources,
// the most is what a node can keep in memory.
const (
	StateBytesMin = 16 << 20
	StateBytesMax = 16 << 30
)

// What the state remembers. Everything here is bounded, and what is dropped is the same on every node.
const (
	// An owner's revisions are kept while among its last revisionsKeptMin or younger than revisionsKeptFor, at
	// most revisionsKeptMax.
	revisionsKeptMin = 100
	revisionsKeptMax = 10_000
	revisionsKeptFor = 30 * 24 * time.Hour
	// Where the state is at its budget fewer are: revisionsForRoomMin of each owner stay, and a roomShare'th of the budget is made free.
	revisionsForRoomMin = 10
	roomShare           = 16
	// requestsKeptMax bounds the answers kept for retries: hours of them, where a retry comes within minutes.
	requestsKeptMax = 1000
	// overridesMax bounds what operators say beside the documents: two of each of thousands of backends.
	overridesMax = 10_000
	// overridesPoolMax bounds those of one pool, two of each backend that it may have, and overridesOwnerMax those of one owner's: with
	// discovery any address may be a backend, and nobody keeps the others from draining theirs.
	overridesPoolMax  = 2000
	overridesOwnerMax = overridesMax / 2
	// overridesChangedMax makes a command fit one entry of the log.
	overridesChangedMax = 100
	// tokensMax bounds credentials, and lets all of them, at their longest, fit one answer.
	tokensMax = 1000
	// tokenExpiredKeptFor is how long an expired credential is remembered, so that its user is told what happened to it.
	tokenExpiredKeptFor = 30 * 24 * time.Hour
	tokenOwnersMax      = 100
	tokenIDBytesMax     = 16
	// The audit's entries are kept while among the last auditKeptMin or younger than auditKeptFor, at most auditKeptMax: some
	// megabytes.
	auditKeptMin         = 1000
	auditKeptMax         = 10_000
	auditKeptFor         = 365 * 24 * time.Hour
	auditMessageBytesMax = 512
	// Changes under way in parts: several callers at once, and what callers that died left behind.
	uploadsMax      = 16
	uploadsBytesMax = 2 * ChangeBytesMax
	// uploadsKeptFor is far longer than sending one takes.
	uploadsKeptFor = time.Hour
	// Scheduled backups: seldom enough to be more than a copy of the log, often enough to be of use; recipients as age's users have them.
	backupEveryMin      = time.Hour
	backupEveryMax      = 365 * 24 * time.Hour
	backupsKeptMax      = 10_000
	backupRecipientsMax = 20
	// RestoreBytesMax bounds what a backup may hold: all of it is one command.
	RestoreBytesMax = uploadsBytesMax - 1<<20
)

// Nodes. More than a few dozen are not one front door any more, and each answers for itself where all are asked.
const (
	nodesMax        = 64
	removedNodesMax = 100
	// FormerAuthoritiesMax is how many certificate authorities before the present one may be pinned still: each is a certificate more in every
	// handshake of the control port.
	FormerAuthoritiesMax = 8
	// VotersMax is how many nodes vote at most: more only make each write wait for more disks.
	VotersMax = 5

	joinTokensMax    = 100
	joinTokenUsesMax = 100
	joinSourcesMax   = 64
	pendingNodesMax  = 64
	pendingKeptFor   = 24 * time.Hour
	// JoinTokenLifeMin to JoinTokenLifeMax is how long a join token is good.
	JoinTokenLifeMin = time.Minute
	JoinTokenLifeMax = 24 * time.Hour
	// JoinTokenLifeDefault is how long unless it is said.
	JoinTokenLifeDefault = time.Hour

	drainGraceDefault    = 5 * time.Second
	drainGraceMax        = 10 * time.Minute
	drainDeadlineDefault = 30 * time.Second
	drainDeadlineMin     = time.Second
	drainDeadlineMax     = 24 * time.Hour
)

// Session-ticket keys. Each ticket that none of them opens is compared with all names, and each key is a record of some 300 bytes.
const (
	ticketIntervalDefault = 12 * time.Hour
	ticketAcceptDefault   = 36 * time.Hour
	ticketAgeDefault      = 72 * time.Hour
	// Less than ticketIntervalMin would be an entry in the log every few seconds; ticketIntervalMax is as long as clients keep a ticket (RFC 8446,
	// section 4.6.1).
	ticketIntervalMin = time.Minute
	ticketIntervalMax = 7 * 24 * time.Hour
	ticketAgeMax      = 2 * ticketIntervalMax
	// ticketIntervalsMax keeps what accept_for asks for below ticketKeysMax.
	ticketIntervalsMax = 200
	// ticketKeysMax bounds the epochs at a time, ticketKeysImportedMax the keys from outside.
	ticketKeysMax           = 250
	ticketKeysImportedMax   = 32
	ticketKeyNameBytes      = 16
	ticketKeySealedBytesMax = 1 << 10
	// TicketImportMax is how long keys from outside are accepted at most.
	TicketImportMax = 30 * 24 * time.Hour
)

// diffValueBytesMax bounds a value in a difference: a line of a terminal or two.
const diffValueBytesMax = 256

// violationsMax bounds a report: nobody reads more, and an answer has to fit a message.
const violationsMax = 500
