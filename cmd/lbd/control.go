package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"lbd/cluster"
	"lbd/cluster/journal"
	"lbd/cluster/rpc"
)

// control is the ways into the control plane from outside, beside the socket: the control port, and metrics that others than this
// machine may read. Both show the node's certificate.
type control struct {
	listener  net.Listener // nil: no port
	endpoint  string
	authority *authority // nil: nobody is shown a certificate
	journal   *journal.Journal
	// advertised is where --advertise leads; nil: not known yet, or it is nowhere else.
	advertised atomic.Pointer[[]netip.AddrPort]
	stop       context.CancelFunc
	done       sync.WaitGroup
}

// openControl binds the control port, so that a second lbd ends before it takes a connection. Of port 0, the configuration says then
// which one it became.
func openControl(cfg *config) (*control, error) {
	c := &control{stop: func() {}}
	if cfg.control == "off" {
		return c, nil
	}
	l, err := net.Listen("tcp", cfg.control)
	if err != nil {
		return nil, fmt.Errorf("control port: %w; give --control HOST:PORT, or off", err)
	}
	host, _, _ := net.SplitHostPort(cfg.control)
	_, port, _ := net.SplitHostPort(l.Addr().String())
	cfg.control = net.JoinHostPort(host, port)
	c.listener, c.endpoint = l, cmp.Or(cfg.advertise, cfg.control)
	return c, nil
}

// begin opens the journal and sees to the node's certificate, until ctx or close ends it. Without a journal lbd serves all the same: the disk
// that refuses it is an operator's concern, and told.
func (c *control) begin(ctx context.Context, cfg config, node *cluster.Node, k keys, log *slog.Logger) {
	j, err := journal.Open(journal.Options{Dir: cfg.dataDir, Syslog: cfg.auditSyslog, Logger: log})
	if err != nil {
		log.Error("refused calls are not kept", "err", err)
	}
	c.journal = j
	if c.listener == nil && (cfg.metrics == "off" || isLoopback(cfg.metrics)) {
		return
	}
	ctx, c.stop = context.WithCancel(ctx)
	c.authority = newAuthority(node, k, log, cfg.certificateNames(c.endpoint))
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
	var all []port
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
		Store: node, Keys: k, Observer: a, Places: a, BackupFault: backupFault, Logger: log,
	}
	if c.journal != nil {
		conf.Journal = c.journal
	}
	if c.listener != nil {
		conf.Port = &rpc.Port{Listener: c.listener, Endpoint: c.endpoint, Certificate: c.authority.certificate}
	}
	return rpc.Serve(conf)
}

// problems are what an operator has to look at.
func (c *control) problems() []string {
	if c == nil || c.journal == nil {
		return nil
	}
	return c.journal.Problems()
}

// close is called when the server has closed.
func (c *control) close() error {
	c.stop()
	if c.listener != nil {
		_ = c.listener.Close() // again, where a server has it
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
