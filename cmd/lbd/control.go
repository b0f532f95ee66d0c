package main

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"lbd/cluster"
	"lbd/cluster/journal"
	"lbd/cluster/rpc"
	"lbd/cluster/state"
	raftv1 "lbd/proto/lbd/raft/v1"
)

// control is the ways into the control plane from outside, beside the socket: the control port, and metrics that others than this
// machine may read. Both show the node's certificate.
type control struct {
	listener  net.Listener // nil: no port
	endpoint  string
	key       *ecdsa.PrivateKey
	authority *authority // nil: nobody is shown a certificate
	peers     *rpc.Peers // nil: no port, and so no others
	port      *rpc.Port  // nil: none
	// neighbours are where the other nodes have their control ports; nil: nobody can know, without a port of one's own.
	neighbours *neighbours
	journal    *journal.Journal
	// strange says that the other nodes know this one by another key; empty: nothing is wrong.
	strange string
	// advertised is where --advertise leads; nil: not known yet, or it is nowhere else.
	advertised atomic.Pointer[[]netip.AddrPort]
	stop       context.CancelFunc
	done       sync.WaitGroup
}

// openControl binds the control port, so that a second lbd ends before it takes a connection. Of port 0, the configuration says then
// which one it became.
func openControl(from *inherited, cfg *config) (*control, error) {
	c := &control{stop: func() {}}
	if cfg.control == "off" {
		return c, nil
	}
	l, err := from.listen(forControl, cfg.control)
	if err != nil {
		return nil, fmt.Errorf("control port: %w; give --control HOST:PORT, or off", err)
	}
	host, _, _ := net.SplitHostPort(cfg.control)
	_, port, _ := net.SplitHostPort(l.Addr().String())
	cfg.control = net.JoinHostPort(host, port)
	c.listener, c.endpoint = l, cmp.Or(cfg.advertise, cfg.control)
	return c, nil
}

// prepare makes the connections to other nodes possible, where there is a port for theirs, and says what package cluster has to know of
// this node. seed is what it was told when it was let in; nil: nothing.
func (c *control) prepare(cfg config, seed *raftv1.JoinResponse, log *slog.Logger) (out cluster.Config, err error) {
	out = cluster.Config{Dir: cfg.dataDir, Node: cfg.node, Logger: log}
	if c.key, err = openNodeKey(cfg.dataDir); err != nil {
		return out, err
	}
	out.Self = cfg.self(c.key)
	if seed != nil {
		out.Seed = &cluster.Seed{ClusterID: seed.GetClusterId()}
	}
	if c.listener == nil {
		return out, nil
	}
	c.peers = rpc.NewPeers(rpc.PeersConfig{
		Certificate: func() *tls.Certificate { return c.authority.identity() }, // nobody asks before begin
		Seed:        seed.GetMembers(),
		Logger:      log,
	})
	out.Network = c.peers
	return out, nil
}

// checkCopy refuses a copy of the data directory of a node that runs: it answers at the address of its record, which is not this process's. The control port
// has to be silent still.
func (c *control) checkCopy(ctx context.Context, cfg *config, node *cluster.Node) error {
	if at := c.movedFrom(cfg, node); at != "" && rpc.RunsAt(ctx, at, nodeKeyPin(c.key)) {
		return cfg.errCopied(" at " + at)
	}
	return nil
}

// askForCopy is checkCopy by the other nodes. They have to be let in, and raft has to be silent still.
func (c *control) askForCopy(ctx context.Context, cfg *config, node *cluster.Node) error {
	at := c.movedFrom(cfg, node)
	if at == "" {
		return nil
	}
	if c.peers.RunsBeside(ctx) != nil {
		return cfg.errCopied(" at " + at + ", as another node says")
	}
	return nil
}

// movedFrom is the address of the node's record, where it is another one than this process's; empty: it is not.
func (c *control) movedFrom(cfg *config, node *cluster.Node) string {
	recorded, ok := node.State().Node(node.ID())
	if c.peers == nil || !ok || recorded.GetAddress() == cfg.address() {
		return ""
	}
	return recorded.GetAddress()
}

// ways are those to the other nodes, for this node's own questions; nil: there are none.
func (c *control) ways() func(id string) (grpc.ClientConnInterface, error) {
	if c.peers == nil {
		return nil
	}
	return c.peers.Own
}

// begin opens the journal, sees to the node's certificate and lets other nodes in, until ctx or close ends it. Raft starts after it. Without a
// journal lbd serves all the same: the disk that refuses it is an operator's concern, and told.
func (c *control) begin(ctx context.Context, cfg config, node *cluster.Node, k keys, log *slog.Logger) {
	j, err := journal.Open(journal.Options{Dir: cfg.dataDir, Syslog: cfg.auditSyslog, Logger: log})
	if err != nil {
		log.Error("refused calls are not kept", "err", err)
	}
	c.journal = j
	if c.peers != nil {
		if c.strange = strangeKey(node.State(), node.ID(), nodeKeyPin(c.key)); c.strange != "" {
			log.Error("the other nodes do not know this one", "problem", c.strange)
		}
	}
	if c.listener == nil && (cfg.metrics == "off" || isLoopback(cfg.metrics)) {
		return
	}
	ctx, c.stop = context.WithCancel(ctx)
	c.authority = newAuthority(node, k, c.key, log, cfg.certificateNames(c.endpoint))
	if c.listener != nil {
		c.port = &rpc.Port{Listener: c.listener, Endpoint: c.endpoint, Certificate: c.authority.certificate, Peers: c.peers, Logger: log}
		if c.journal != nil {
			c.port.Journal = c.journal
		}
		if c.peers != nil {
			c.peers.Take(node)
		}
		c.port.Begin()
		c.neighbours = &neighbours{self: node.ID(), store: node, lookup: net.DefaultResolver.LookupNetIP}
		c.done.Go(func() { c.neighbours.run(ctx) })
	}
	c.done.Go(func() { c.authority.run(ctx) })
	c.done.Go(func() { c.locate(ctx, cfg.advertise, net.DefaultResolver.LookupNetIP) })
}

// locate finds out where an advertised address leads, again and again if it is a name, until ctx ends: no backend may be there.
func (c *control) locate(ctx context.Context, advertised string, lookup lookupFunc) {
	q, ok := parseQuestion(advertised)
	if at, literal := parseLiteral(advertised); literal {
		c.advertised.Store(&[]netip.AddrPort{unzoned(at)})
		return
	}
	for ok {
		wait := resolveRetry
		asked, cancel := context.WithTimeout(ctx, resolveTimeout)
		ips, err := lookup(asked, "ip", q.host)
		cancel()
		if err == nil {
			var all []netip.AddrPort
			for _, ip := range ips {
				all = append(all, unzoned(netip.AddrPortFrom(ip, q.port)))
			}
			c.advertised.Store(&all)
			wait = resolveInterval
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// reached is where others reach the control port, as far as that is known.
func (c *control) reached() []port {
	all := c.neighbours.ports()
	if at := c.advertised.Load(); at != nil {
		for _, at := range *at {
			all = append(all, port{"the control port", at})
		}
	}
	return all
}

// serve answers on the socket, and on the port.
func (c *control) serve(cfg config, node *cluster.Node, k keys, a *appliance, log *slog.Logger) (*rpc.Server, error) {
	conf := rpc.Config{
		Socket: cfg.socket, SocketGroup: cfg.socketGroup(), LocalAdmin: cfg.localAdmin, Node: cfg.node, Build: buildProto(),
		Store: node, Keys: k, Observer: a, Places: a, BackupFault: backupFault, Overlay: a.overlay, Logger: log,
	}
	if c.journal != nil {
		conf.Journal = c.journal
	}
	if c.authority != nil {
		conf.Authorities = c.authority
	}
	conf.Port, conf.Peers, conf.Seat = c.port, c.peers, node
	conf.SocketListener = a.sockets.controlSocket()
	return rpc.Serve(conf)
}

// problems are what an operator has to look at.
func (c *control) problems() []string {
	if c == nil {
		return nil
	}
	var all []string
	if c.strange != "" {
		all = append(all, c.strange)
	}
	if c.journal != nil {
		all = append(all, c.journal.Problems()...)
	}
	return all
}

// strangeKey is what is wrong where the cluster knows a node by another key than the one that it has; empty: nothing. Alone it says itself which one it has.
func strangeKey(s *state.State, id, pin string) string {
	known, ok := s.Node(id)
	if !ok || known.GetKey() == pin || !hasOthers(s) {
		return ""
	}
	return "node.key is not the key by which the other nodes know this one, so none of them talks to it: put it back from a copy; or remove the node from the cluster and join anew with an empty data directory"
}

// close is called when the server has closed.
func (c *control) close() error {
	c.stop()
	if c.port != nil {
		_ = c.port.Close()
	} else if c.listener != nil {
		_ = c.listener.Close()
	}
	c.done.Wait()
	if c.journal == nil {
		return nil
	}
	return c.journal.Close()
}

// certificateNames are those by which a client may call this node.
func (c *config) certificateNames(endpoint string) []string {
	names := []string{"localhost", "127.0.0.1", "::1"}
	for _, address := range []string{endpoint, c.control, c.metrics} {
		if host, _, err := net.SplitHostPort(address); err == nil && !wildcard(host) {
			names = append(names, host)
		}
	}
	if !strings.ContainsFunc(c.node, func(r rune) bool { return !strings.ContainsRune(nameRunes, r) }) {
		names = append(names, strings.ToLower(c.node))
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// nameRunes are those of names in certificates; a node's name may have others.
const nameRunes = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-."
