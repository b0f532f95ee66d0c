package rpc

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lbd/cluster"
	lbdv1 "lbd/proto/lbd/v1"
)

// Port is where others reach the node over the network, by TLS 1.3: callers with a credential and other nodes by gRPC, and nodes' raft.
// A connection's way:
//
//  1. it is counted in, and an older one of strangers makes room where there are too many
//  2. the handshake, within the bounds of its kind: raft's fails for all but members
//  3. gRPC's go to the server, raft's to the seat
type Port struct {
	// Listener is of TCP. The port closes it.
	Listener net.Listener
	// Endpoint is the "host:port" by which others reach it.
	Endpoint string
	// Certificate is what the node shows, with the certificate of the cluster's authority behind it. It waits for the first one until
	// ctx ends.
	Certificate func(ctx context.Context) (*tls.Certificate, error)
	// Peers are the other nodes; nil: this one is alone.
	Peers *Peers
	// Journal gets the handshakes of those who come as nodes and are none; nil: nothing is kept.
	Journal Journal
	// Logger defaults to slog.Default().
	Logger *slog.Logger
	// Now dates what goes into the journal. Default time.Now.
	Now func() time.Time

	once       sync.Once
	begun      bool // before the server serves, by who closes it then
	life       context.Context
	end        context.CancelFunc
	callers    chan net.Conn // verified as far as TLS goes, for gRPC
	handshakes handshakes
	done       sync.WaitGroup
}

// Begin takes connections. Who calls it before Serve has to close the port; else the server does. Callers wait then until it serves.
func (p *Port) Begin() {
	p.begun = true
	p.open()
}

func (p *Port) open() {
	p.once.Do(func() {
		if p.Journal == nil {
			p.Journal = noJournal{}
		}
		if p.Logger == nil {
			p.Logger = slog.Default()
		}
		if p.Now == nil {
			p.Now = time.Now
		}
		p.callers = make(chan net.Conn, callersQueued)
		p.life, p.end = context.WithCancel(context.Background())
		p.handshakes.init()
		l := &portListener{Listener: p.Listener}
		if p.Peers != nil {
			l.member = p.Peers.callsFrom
		}
		p.done.Go(func() { p.accept(l) })
	})
}

// Close takes no more connections, and returns when no handshake is under way. Those that were handed over live on.
func (p *Port) Close() error {
	p.open() // also one that was never opened has a listener
	p.end()
	err := p.Listener.Close()
	p.done.Wait()
	for {
		select {
		case c := <-p.callers:
			_ = c.Close()
		default:
			if errors.Is(err, net.ErrClosed) {
				err = nil
			}
			return err
		}
	}
}

func (p *Port) accept(l net.Listener) {
	pause := time.Duration(0)
	for {
		c, err := l.Accept()
		switch {
		case p.life.Err() != nil || errors.Is(err, net.ErrClosed):
			if err == nil {
				_ = c.Close()
			}
			return
		case err != nil: // too many open files, say
			pause = min(max(2*pause, acceptPauseMin), acceptPauseMax)
			select {
			case <-time.After(pause):
			case <-p.life.Done():
			}
			continue
		}
		pause = 0
		p.done.Go(func() { p.take(c.(*portConn)) })
	}
}

// take makes a handshake and hands the connection over.
func (p *Port) take(conn *portConn) {
	ctx, cancel := context.WithTimeout(p.life, handshakeTimeout)
	defer cancel()
	working := &handshakeConn{portConn: conn}
	secure := tls.Server(working, p.tlsConfig(working))
	err := secure.HandshakeContext(ctx)
	working.rest()
	if err != nil {
		p.note(conn, working, err)
		_ = conn.Close()
		return
	}
	known := &callerConn{Conn: secure, port: conn, state: secure.ConnectionState()}
	if known.state.NegotiatedProtocol == alpnRaft {
		err = p.takeRaft(ctx, known, working.run)
	} else {
		err = p.takeCaller(ctx, known)
	}
	if err != nil {
		_ = conn.Close()
	}
}

// takeCaller hands a connection over to the server. Of a node it ends with the node's membership, like raft's.
func (p *Port) takeCaller(ctx context.Context, known *callerConn) error {
	if chain := known.state.PeerCertificates; p.Peers != nil && len(chain) > 0 && claimsNode(chain[0]) {
		if err := p.trackNode(ctx, known, chain[0]); err != nil {
			return err
		}
	}
	select {
	case p.callers <- known:
		return nil
	case <-ctx.Done():
		_ = known.Close()
		return ctx.Err()
	}
}

// trackNode has a connection end with the membership of the node that has made it.
func (p *Port) trackNode(ctx context.Context, known *callerConn, leaf *x509.Certificate) error {
	n, err := p.Peers.verifyAsking(ctx, leaf)
	if err != nil { // it may be one yet
		if tracked := p.Peers.trackClaimed(known.Conn, leaf); tracked != nil {
			known.Conn = tracked
		}
		return nil
	}
	tracked, err := p.Peers.track(known.Conn, n.GetId(), n.GetKey())
	if err != nil {
		return err
	}
	known.Conn = tracked
	return nil
}

// takeRaft hands the connection of a member over to the seat.
func (p *Port) takeRaft(ctx context.Context, known *callerConn, run string) error {
	leaf := known.state.PeerCertificates[0]
	n, err := p.Peers.verify(leaf)
	if err != nil {
		return err
	}
	tracked, err := p.Peers.track(known, n.GetId(), n.GetKey())
	if err != nil {
		return err
	}
	known.port.trust("node/" + n.GetId())
	p.Peers.endCopied(tracked, n, run)
	if _, err = tracked.Write([]byte{raftWelcome}); err == nil {
		err = p.Peers.deliver(ctx, tracked)
	}
	if err != nil {
		_ = tracked.Close()
	}
	return err
}

// note tells the journal of who came as a node and is none, and nothing of other strangers: they are as good as a port scan.
func (p *Port) note(conn *portConn, working *handshakeConn, cause error) {
	if !working.raft || working.refusal == nil {
		p.Logger.Debug("a handshake failed", "source", conn.RemoteAddr().String(), "err", cause)
		return
	}
	p.Logger.Debug("a handshake of a node was refused", "source", conn.RemoteAddr().String(), "why", working.refusal)
	p.Journal.Refuse(&lbdv1.ListAuditResponse{
		Time: timestamppb.New(p.Now()), Source: hostOf(conn.RemoteAddr().String()), Method: "handshake of a node", Result: "unauthenticated",
		Message: clip(working.refusal.Error()), Count: 1,
	})
}

// tlsConfig asks callers for a certificate but judges none: a client is known by its key, whoever signed it. Of raft's connections it
// takes members' alone.
func (p *Port) tlsConfig(working *handshakeConn) *tls.Config {
	config := &tls.Config{
		MinVersion:             tls.VersionTLS13,
		NextProtos:             []string{alpnCalls},
		ClientAuth:             tls.RequestClientCert,
		SessionTicketsDisabled: true,
	}
	if p.Peers != nil {
		config.NextProtos = append(config.NextProtos, alpnRaft)
	}
	config.GetCertificate = func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		if err := p.work(working, hello); err != nil { // again, where the client had to send another hello
			return nil, err
		}
		if p.Peers != nil && claims(hello) {
			return p.Peers.cfg.Certificate(), nil
		}
		return p.Certificate(hello.Context())
	}
	config.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		if p.Peers == nil || !claims(hello) {
			if _, err := p.Certificate(hello.Context()); err != nil { // without a place
				return nil, err
			}
		}
		if err := p.work(working, hello); err != nil {
			return nil, err
		}
		if p.Peers == nil || !slices.Contains(hello.SupportedProtos, alpnRaft) {
			return nil, nil
		}
		working.raft, working.run = true, runOf(hello)
		raft := config.Clone()
		raft.GetConfigForClient = nil
		raft.NextProtos = []string{alpnRaft}
		raft.ClientAuth = tls.RequireAnyClientCert
		raft.VerifyConnection = func(s tls.ConnectionState) error {
			_, err := p.Peers.verifyAsking(hello.Context(), s.PeerCertificates[0])
			working.refusal = err
			return err
		}
		return raft, nil
	}
	return config
}

// claims tells whether a client comes as a node, which anybody may say.
func claims(hello *tls.ClientHelloInfo) bool {
	return slices.Contains(hello.SupportedProtos, alpnRaft) || strings.EqualFold(hello.ServerName, peerHost)
}

// work waits for the handshake's place.
func (p *Port) work(working *handshakeConn, hello *tls.ClientHelloInfo) error {
	if working.leave != nil {
		return nil
	}
	leave, err := p.handshakes.enter(hello.Context(), working.portConn, claims(hello))
	working.leave = leave
	return err
}

// handshakes bounds those that are at work at a time, apart for members, for who else says to be one, and for all others: a flood of
// one kind delays no other.
type handshakes struct {
	members, claimed, others chan struct{}

	mu      sync.Mutex
	sources map[netip.Prefix]int // how many of the claimed ones are of each
	waiting map[chan struct{}]int
}

func (h *handshakes) init() {
	h.members, h.claimed, h.others = make(chan struct{}, handshakesMembers), make(chan struct{}, handshakesClaimed), make(chan struct{}, handshakesOthers)
	h.sources, h.waiting = map[netip.Prefix]int{}, map[chan struct{}]int{}
}

// enter waits for a place until ctx ends. leave gives it back; it is called once.
func (h *handshakes) enter(ctx context.Context, conn *portConn, claims bool) (leave func(), err error) {
	places := h.others
	switch {
	case claims && conn.member:
		places = h.members
	case claims:
		places = h.claimed
	}
	if !h.queue(places, conn.source) {
		return nil, errors.New("too many handshakes are under way")
	}
	select {
	case places <- struct{}{}:
		h.unqueue(places)
		return func() {
			h.forget(places, conn.source)
			<-places
		}, nil
	case <-ctx.Done():
		h.unqueue(places)
		h.forget(places, conn.source)
		return nil, ctx.Err()
	}
}

// queue counts a handshake in; false: there are too many.
func (h *handshakes) queue(places chan struct{}, source netip.Prefix) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.waiting[places] >= handshakesQueueMax || places == h.claimed && h.sources[source] >= handshakesEachMax {
		return false
	}
	if places == h.claimed {
		h.sources[source]++
	}
	h.waiting[places]++
	return true
}

func (h *handshakes) unqueue(places chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.waiting[places]--
}

func (h *handshakes) forget(places chan struct{}, source netip.Prefix) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if places != h.claimed {
		return
	}
	if h.sources[source]--; h.sources[source] == 0 {
		delete(h.sources, source)
	}
}

// handshakeConn gives a handshake's place back when the node has done its part and waits for the client: that is when TLS writes.
type handshakeConn struct {
	*portConn
	leave   func() // nil: it holds no place
	raft    bool   // it asked for raft
	refusal error  // why it is no member
	run     string // the process that asked for raft
}

func (c *handshakeConn) Write(b []byte) (int, error) {
	c.rest()
	return c.portConn.Write(b)
}

func (c *handshakeConn) rest() {
	if c.leave != nil {
		c.leave()
		c.leave = nil
	}
}

// callerConn is a connection whose handshake is done.
type callerConn struct {
	net.Conn
	port  *portConn
	state tls.ConnectionState
}

// callersListener gives the server those that call.
type callersListener struct {
	port *Port
	once sync.Once
	gone chan struct{}
}

func (p *Port) listener() *callersListener {
	return &callersListener{port: p, gone: make(chan struct{})}
}

func (l *callersListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.port.callers:
		return c, nil
	case <-l.gone:
	case <-l.port.life.Done():
	}
	return nil, net.ErrClosed
}

func (l *callersListener) Addr() net.Addr { return l.port.Listener.Addr() }

func (l *callersListener) Close() error {
	l.once.Do(func() { close(l.gone) })
	return nil
}

// portPeer is a client of the port.
type portPeer struct {
	credentials.TLSInfo
	conn *portConn
}

// serverCredentials are those of all ways into the server.
type serverCredentials struct{ peerCredentials }

// ServerHandshake identifies the client in the way of the listener that it came by.
func (c serverCredentials) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	known, ok := conn.(*callerConn)
	if !ok {
		return c.peerCredentials.ServerHandshake(conn)
	}
	if known.state.NegotiatedProtocol != alpnCalls {
		return nil, nil, fmt.Errorf("control port: %s is no protocol of callers", cmp.Or(known.state.NegotiatedProtocol, "nothing"))
	}
	info := credentials.TLSInfo{State: known.state, CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}}
	return known, portPeer{info, known.port}, nil
}

// Clone returns the credentials, which do not change.
func (c serverCredentials) Clone() credentials.TransportCredentials { return c }

var _ cluster.Network = (*Peers)(nil)
