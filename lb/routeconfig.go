package lb

import (
	"net/netip"
	"regexp"
	"sync"
	"sync/atomic"
	"time"
)

// RouteConfig says what happens to the requests that it matches. Exactly one of Forward, Redirect and Respond is set.
type RouteConfig struct {
	Name      string
	Listeners []string // names
	Hosts     []string // lower case; exact, or "*." and a suffix (one label); none: any host
	Matches   []Match  // any of them; none: any request
	Priority  int      // of one host's routes the higher is asked first; 0

	Forward     *Forward
	Redirect    *Redirect
	Respond     *Respond
	Maintenance *Maintenance // in place of the action

	RequestHeaders  HeaderChanges
	ResponseHeaders HeaderChanges
	ErrorPages      []ErrorPage // the first that has the status counts

	BodyBytesMax int64          // of a request's body; 0: no limit
	EncodedSlash bool           // a path may hold %2F or %5C
	Addresses    []*AddressRule // all must let the client pass
	Concurrency  []*Concurrency // all must have a place; shared by the routes that name one policy
}

// Match is a set of conditions that all must hold. At most one of Exact, Prefix and Regex is set; none: any path.
type Match struct {
	Exact   string
	Prefix  string         // whole segments
	Regex   *regexp.Regexp // anchored at both ends by the caller
	Methods []string       // any of them; none: any
	Headers []FieldMatch
	Query   []FieldMatch
}

// FieldMatch is a condition on a field or on a query parameter; without Exact, Prefix and Regex it must only be there. It holds if
// one of several values fulfils it.
type FieldMatch struct {
	Name   string // a field's in lower case
	Kind   FieldMatchKind
	Text   string         // for FieldExact and FieldPrefix
	Regex  *regexp.Regexp // for FieldRegex; anchored at both ends by the caller
	Invert bool
}

// FieldMatchKind is how a value is compared.
type FieldMatchKind uint8

// The kinds of a FieldMatch.
const (
	FieldPresent FieldMatchKind = iota
	FieldExact
	FieldPrefix
	FieldRegex
)

// Forward sends the request to one of its pools.
type Forward struct {
	Pools       []WeightedPool
	Persistence *SplitPersistence // nil: off
	Rewrite     Rewrite
	Timeouts    RouteTimeouts
	Retry       Retry
}

// WeightedPool is a pool and its share of the requests.
type WeightedPool struct {
	Pool   string
	Weight int // 0: no new requests
}

// SplitPersistence keeps a client with the pool that it had.
type SplitPersistence struct {
	Cookie      string
	IdleTimeout time.Duration // 0: never ends
}

// Rewrite is what the backend sees in place of what the client sent. Empty fields: as it came.
type Rewrite struct {
	Host   string
	Prefix string // in place of the prefix that matched
}

// Redirect sends the client elsewhere. Empty fields stay as in the request.
type Redirect struct {
	Scheme, Host, Path string
	Port               int
	Code               int
}

// Respond is a fixed answer.
type Respond struct {
	Status  int // 200 to 599
	Body    string
	Headers []Header // neither framing nor connection fields
}

// Header is one field.
type Header struct{ Name, Value string }

// HeaderChanges are done in this order: Remove, Set, Add. Neither framing nor connection fields.
type HeaderChanges struct {
	Remove []string // lower case
	Set    []Header
	Add    []Header
}

// ErrorPage is a body for errors of our own.
type ErrorPage struct {
	Status      []string // codes ("503") and classes ("5xx")
	ContentType string
	Body        string // "{request_id}" and "{status}" are replaced
}

// Maintenance answers 503 for all but some clients.
type Maintenance struct {
	RetryAfter  time.Duration
	Bypass      []netip.Prefix
	Body        string // as an ErrorPage's; empty: the route's error page for 503
	ContentType string // of Body; "text/html; charset=utf-8"
}

// AddressRule says which clients are served. Immutable and shared by the routes that name one policy.
type AddressRule struct {
	Policy     string // its name, for explanations
	Allow      []netip.Prefix
	Deny       []netip.Prefix
	AllowLists []AddressList
	DenyLists  []AddressList
	DenyExcept []netip.Prefix // not touched by Deny and DenyLists
	Closed     bool           // whoever is in neither Allow nor AllowLists is denied

	once                sync.Once
	allow, deny, except networks
}

// AddressList is a set of networks with a name.
type AddressList struct {
	Name     string
	Networks []netip.Prefix
}

// Concurrency bounds the requests in flight of the routes that share it, over all loops. The publisher keeps one for each policy by name
// for as long as the policy is there, and changes its limit in place.
type Concurrency struct {
	Policy   string
	_        [64]byte
	max      atomic.Int64
	inFlight atomic.Int64
	_        [64]byte
}

// NewConcurrency returns a limit with nothing in flight.
func NewConcurrency(policy string, limit int) *Concurrency {
	c := &Concurrency{Policy: policy}
	c.SetMax(limit)
	return c
}

// SetMax changes the limit; what is in flight stays.
func (c *Concurrency) SetMax(limit int) { c.max.Store(int64(limit)) }
