package lb

import (
	"bytes"
	"crypto/tls"
	"net/netip"
	"time"
)

// TLSFacts are what a handshake has agreed. One value serves all records of its connection.
type TLSFacts struct {
	Version    string // "1.2" or "1.3"; empty if the handshake ended before one was agreed
	Suite      string // the standard's name; empty likewise
	ServerName string // that the client asked for
	Protocol   string // by ALPN
	Resumed    bool
}

func tlsFacts(c *tls.Conn) *TLSFacts {
	s := c.ConnectionState()
	f := &TLSFacts{ServerName: s.ServerName, Protocol: s.NegotiatedProtocol, Resumed: s.DidResume}
	switch s.Version {
	case tls.VersionTLS12:
		f.Version = "1.2"
	case tls.VersionTLS13:
		f.Version = "1.3"
	}
	if s.CipherSuite != 0 {
		f.Suite = tls.CipherSuiteName(s.CipherSuite)
	}
	return f
}

// refusedLine is what the log shows of a head that was refused: up to the first line end of any kind, for what follows it
// may be a secret.
func refusedLine(head []byte) []byte {
	head = head[:min(len(head), refusedLineBytesMax)]
	if i := bytes.IndexAny(head, "\r\n"); i >= 0 {
		head = head[:i]
	}
	return head
}

// Record is one exchange, or one connection that never came to one, as the access log sees it. It is handed out when the
// exchange ends and is reused afterwards: what is kept must be copied.
type Record struct {
	Time     time.Time // when the head's first byte was seen
	Node     string
	Listener string
	Loop     int // that ended it: records of one loop come one after the other
	Client   netip.AddrPort
	TLS      *TLSFacts // nil on a plain connection, and where the handshake failed before anything was said

	Line                      []byte // of a head that was refused, its first bytes as they came, to the end of the line
	Target                    []byte // as it came; nil, like all that follows, if the head was refused
	Method, Host, Path, Query []byte // as matched, before any rewrite
	Minor                     int    // HTTP/1.Minor
	UserAgent, Referer        []byte
	RequestID                 []byte // nil without an exchange

	Route, Pool, Backend string // empty if it did not come so far
	Status               int    // that the client was told; 0: none
	Reason               Reason
	Detail               string // which rule or phase; empty if all is well

	RequestBytes  int64 // of body, decoded
	ResponseBytes int64 // of body, decoded
	Tries         int   // backends asked, first try included; 0 also if the only one picked had no connection to give
	Reused        bool  // the last try used an idle connection

	// How long each phase took. Times are the loop's: one clock reading per round.
	Head      time.Duration // first byte of the head to its last
	Connect   time.Duration // head to a connection of the last try
	Queued    time.Duration // of that, in queues for a backend's connection
	FirstByte time.Duration // from there to the head of the answer
	Total     time.Duration // first byte of the head to the last of the answer
}
