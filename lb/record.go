package lb

import (
	"crypto/tls"
	"net/netip"
	"time"
)

// Record is one exchange, or one connection that never came to one, as the access log sees it. It is handed out when the
// exchange ends and is reused afterwards: what is kept must be copied.
type Record struct {
	Time     time.Time // when the head's first byte was seen
	Node     string
	Listener string
	Client   netip.AddrPort
	TLS      *tls.Conn // nil on a plain connection

	Method, Host, Path, Query []byte // as matched and forwarded; nil if the head could not be read
	Minor                     int    // HTTP/1.Minor
	RequestID                 []byte

	Route, Pool, Backend string // empty if it did not come so far
	Status               int    // that the client was told; 0: none
	Reason               Reason
	Detail               string // which rule or phase; empty if all is well

	RequestBytes  int64 // of body, decoded
	ResponseBytes int64 // of body, decoded
	Tries         int   // backends asked, first try included
	Reused        bool  // the last try used an idle connection

	// How long each phase took. Times are the loop's: one clock reading per round.
	Head      time.Duration // first byte of the head to its last
	Connect   time.Duration // head to a connection of the last try
	FirstByte time.Duration // from there to the head of the answer
	Total     time.Duration // first byte of the head to the last of the answer
}
