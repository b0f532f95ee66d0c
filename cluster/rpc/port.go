package rpc

import (
	"net"
	"net/netip"
	"slices"
	"sync"
)

// portListener bounds the connections of the port. Those on which nobody has shown a credential yet make room for new ones,
// oldest first, so that strangers never keep a caller with a credential out, also not one who shares their address. Nor does another
// caller: of a credential with too many the oldest makes room, too.
type portListener struct {
	net.Listener
	// member tells whether other nodes call from a source; nil: none do.
	member func(source netip.Prefix) bool

	mu        sync.Mutex
	open      int
	strangers []*portConn            // in the order in which they came
	known     map[string][]*portConn // by whose credential was shown first; never an empty list
}

// portConn is a connection of the port.
type portConn struct {
	net.Conn
	source netip.Prefix
	port   *portListener
	member bool // its source is one that other nodes call from
	once   sync.Once
	whose  string // who is known on it; the port's lock is for it
}

// Accept takes the next connection, and closes an older one of a stranger where there are too many.
func (l *portListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	conn := &portConn{Conn: c, source: sourceNetwork(c.RemoteAddr().String()), port: l}
	conn.member = l.member != nil && l.member(conn.source)
	if victim := l.admit(conn); victim != nil {
		_ = victim.Conn.Close() // whoever has it closes the rest when it notices
	}
	return conn, nil
}

// admit counts a connection in. victim, if any, has to be closed for it.
func (l *portListener) admit(conn *portConn) (victim *portConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	same := 0
	for _, s := range l.strangers {
		if s.source == conn.source {
			same++
		}
	}
	perSource := strangersPerSourceMax
	if conn.member {
		perSource = memberStrangersMax
	}
	switch {
	case same >= perSource:
		victim = l.oldestLocked(func(s *portConn) bool { return s.source == conn.source })
	case l.open >= portConnectionsMax:
		if victim = l.oldestLocked(func(*portConn) bool { return true }); victim == nil {
			victim = l.oldestOfMostLocked()
		}
	}
	l.open++
	l.strangers = append(l.strangers, conn)
	return victim
}

// oldestLocked takes the stranger that came first out of the list.
func (l *portListener) oldestLocked(which func(*portConn) bool) *portConn {
	i := slices.IndexFunc(l.strangers, which)
	if i < 0 {
		return nil
	}
	victim := l.strangers[i]
	l.strangers = slices.Delete(l.strangers, i, i+1)
	return victim
}

// oldestOfMostLocked takes out the oldest connection of whoever has the most; nil: there is none.
func (l *portListener) oldestOfMostLocked() *portConn {
	most := ""
	for who, conns := range l.known {
		if len(conns) > len(l.known[most]) {
			most = who
		}
	}
	if len(l.known[most]) == 0 {
		return nil
	}
	victim := l.known[most][0]
	l.forgetLocked(victim)
	return victim
}

// forgetLocked takes a connection out of the lists.
func (l *portListener) forgetLocked(c *portConn) {
	is := func(other *portConn) bool { return other == c }
	l.strangers = slices.DeleteFunc(l.strangers, is)
	if c.whose == "" {
		return
	}
	if l.known[c.whose] = slices.DeleteFunc(l.known[c.whose], is); len(l.known[c.whose]) == 0 {
		delete(l.known, c.whose)
	}
}

// trust is called when somebody has shown a credential on the connection.
func (c *portConn) trust(who string) {
	if victim := c.port.trust(c, who); victim != nil {
		_ = victim.Conn.Close()
	}
}

// trust notes whose a connection is. victim, if any, has to be closed: it was one too many.
func (l *portListener) trust(c *portConn, who string) (victim *portConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.Index(l.strangers, c)
	if i < 0 {
		return nil // it is known, or about to be closed
	}
	l.strangers = slices.Delete(l.strangers, i, i+1)
	if l.known == nil {
		l.known = map[string][]*portConn{}
	}
	c.whose = who
	l.known[who] = append(l.known[who], c)
	if len(l.known[who]) > connectionsEachMax {
		victim = l.known[who][0]
		l.forgetLocked(victim)
	}
	return victim
}

func (c *portConn) Close() error {
	c.once.Do(func() {
		c.port.mu.Lock()
		c.port.forgetLocked(c)
		c.port.open--
		c.port.mu.Unlock()
	})
	return c.Conn.Close()
}

// sourceNetwork is what counts as one source of calls: an IPv4 address, or the /64 of an IPv6 one, which one machine may have all
// of. It is invalid for what is no address.
func sourceNetwork(address string) netip.Prefix {
	ap, err := netip.ParseAddrPort(address)
	ip := ap.Addr()
	if err != nil {
		if ip, err = netip.ParseAddr(address); err != nil {
			return netip.Prefix{}
		}
	}
	ip = ip.Unmap().WithZone("")
	bits := ip.BitLen()
	if ip.Is6() {
		bits = 64
	}
	prefix, _ := ip.Prefix(bits)
	return prefix
}
