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
	headersMax        = 32
	headerBytesMax    = 8 << 10
	bodyBytesMax      = 64 << 10
	statusesMax       = 20

	trustedProxiesMax  = 256
	policiesMax        = 16
	policyBodyBytesMax = 1 << 50
	retriesMax         = 5
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
)

// What the state remembers. Everything here is bounded, and what is dropped is the same on every node.
const (
	// An owner's revisions are kept while among its last revisionsKeptMin or younger than revisionsKeptFor, at
	// most revisionsKeptMax.
	revisionsKeptMin = 100
	revisionsKeptMax = 10_000
	revisionsKeptFor = 30 * 24 * time.Hour
	// requestsKeptMax bounds the answers kept for retries: hours of them, where a retry comes within minutes.
	requestsKeptMax = 1000
	// Changes under way in parts: several callers at once, and what callers that died left behind.
	uploadsMax      = 16
	uploadsBytesMax = 2 * ChangeBytesMax
)

// violationsMax bounds a report: nobody reads more, and an answer has to fit a message.
const violationsMax = 500
