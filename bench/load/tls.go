//go:build linux

package load

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
)

// tlsBufBytes holds one record. A TLS client has a buffer of its own: crypto/tls may park after it has filled it.
const tlsBufBytes = 16 << 10

var tlsVersions = map[string]uint16{"1.2": tls.VersionTLS12, "1.3": tls.VersionTLS13}

var tlsGroups = map[string]tls.CurveID{"X25519": tls.X25519, "P256": tls.CurveP256, "X25519MLKEM768": tls.X25519MLKEM768}

// config is what all clients of a flow share. The certificate is compared with the one expected instead of verified: it is cheaper, and
// stricter. Without one expected its name must fit.
func (t *TLS) config() (*tls.Config, error) {
	version, ok := tlsVersions[t.Version]
	if !ok {
		return nil, fmt.Errorf("unknown TLS version %q", t.Version)
	}
	c := &tls.Config{
		MinVersion:         version,
		MaxVersion:         version,
		NextProtos:         []string{"http/1.1"},
		InsecureSkipVerify: true,
		VerifyConnection: func(state tls.ConnectionState) error {
			switch {
			case len(state.PeerCertificates) == 0:
				return errors.New("no certificate")
			case len(t.LeafDER) == 0:
				return state.PeerCertificates[0].VerifyHostname(state.ServerName)
			case !bytes.Equal(state.PeerCertificates[0].Raw, t.LeafDER):
				return errors.New("not the certificate expected")
			}
			return nil
		},
	}
	for _, name := range t.Groups {
		group, ok := tlsGroups[name]
		if !ok {
			return nil, fmt.Errorf("unknown group %q", name)
		}
		c.CurvePreferences = append(c.CurvePreferences, group)
	}
	return c, nil
}

// handshake makes the client's socket a TLS connection.
func (c *client) handshake() (*tls.Conn, error) {
	config := c.flow.tls.Clone()
	config.ServerName = c.flow.Hosts[c.host]
	if c.flow.Kind == Resumed {
		config.ClientSessionCache = &c.tickets
	}
	if c.tlsBuf == nil {
		c.tlsBuf = make([]byte, tlsBufBytes)
	}
	conn := tls.Client(&c.socket, config)
	if err := conn.Handshake(); err != nil {
		return nil, fmt.Errorf("%w: %w", errHandshake, err)
	}
	c.flow.shaken(c, conn.ConnectionState())
	return conn, nil
}

// ticketsMax is how many tickets a client keeps; servers send one or two with each handshake.
const ticketsMax = 8

// ticketStore is one client's memory of sessions. A TLS 1.3 ticket is used once, as RFC 8446, appendix C.4, asks; a TLS 1.2 server sends no new one on resumption, so there a ticket is used until it is replaced.
type ticketStore struct {
	singleUse bool
	sessions  []*tls.ClientSessionState
}

// Put keeps a session, the newest last. crypto/tls puts nil for a session that the server refused.
func (s *ticketStore) Put(_ string, session *tls.ClientSessionState) {
	if session == nil {
		s.sessions = s.sessions[:0]
		return
	}
	if !s.singleUse {
		s.sessions = append(s.sessions[:0], session)
		return
	}
	if len(s.sessions) == ticketsMax {
		s.sessions = append(s.sessions[:0], s.sessions[1:]...)
	}
	s.sessions = append(s.sessions, session)
}

// Get gives the newest session out; one that may be used once is gone from the store then.
func (s *ticketStore) Get(string) (*tls.ClientSessionState, bool) {
	if len(s.sessions) == 0 {
		return nil, false
	}
	last := len(s.sessions) - 1
	session := s.sessions[last]
	if s.singleUse {
		s.sessions[last] = nil
		s.sessions = s.sessions[:last]
	}
	return session, true
}
