package main

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"

	"lbd/cmd/lbctl/document"
	lbdv1 "lbd/proto/lbd/v1"
)

// checkEverywhere is checkShown for every node.
func (c *cli) checkEverywhere(ctx context.Context, cl *client, u *url.URL, listener string) error {
	state, err := clusterState(ctx, cl)
	if err != nil {
		return err
	}
	var all []*shown
	bad := false
	for _, n := range state.GetNodes() {
		if !n.GetReachable() {
			c.warnUnreached([]*lbdv1.UnreachedNode{{Node: n.GetNode().GetName(), Reason: n.GetUnreachableReason()}})
			bad = true
			continue
		}
		s, err := c.checkNode(ctx, cl, u, listener, n.GetNode())
		if errors.Is(ctx.Err(), context.Canceled) {
			return fail(exitInterrupted, "interrupted")
		}
		if err != nil {
			return err
		}
		all = append(all, s)
		bad = bad || !s.ok()
	}
	values := []*document.Value{}
	var names []string
	for _, s := range all {
		values, names = append(values, s.value()), append(names, "nodes/"+s.node)
	}
	c.print(result{value: document.ListOf(values), names: names, table: func(*table) {
		for _, s := range all {
			fmt.Fprintf(c.stdout, "node %s: %s\n", oneLine(s.node), s.text())
		}
	}})
	if bad {
		return &failure{code: exitNo}
	}
	return nil
}

// checkNode looks at one node: by a handshake where its listener can be reached from here, else by what it has proven to itself.
func (c *cli) checkNode(ctx context.Context, cl *client, u *url.URL, listener string, n *lbdv1.Node) (*shown, error) {
	s, err := c.expected(ctx, cl, u, listener, n.GetName())
	if err != nil {
		return nil, err
	}
	bound, err := boundAddress(ctx, cl, s.listener, n.GetName())
	var no *failure
	if errors.As(err, &no) && no.code == exitNo {
		s.err = no.err
		return s, nil
	}
	if err != nil {
		return nil, err
	}
	if s.address, s.why = fromHere(bound, n.GetAddress()); s.why == nil {
		limited, cancel := context.WithTimeout(ctx, dialTimeout)
		defer cancel()
		leaf, err := handshake(limited, s.address, s.host)
		if unreached := new(unreachedError); !errors.As(err, &unreached) {
			if s.err = err; err == nil {
				s.read(leaf)
			}
			return s, nil
		}
		s.why = err
	}
	return s, s.believe(ctx, cl)
}

// fromHere is where lbctl reaches a listener of the node whose control port has an address; an error where it does not.
func fromHere(bound netip.AddrPort, control string) (string, error) {
	host, _, _ := net.SplitHostPort(control)
	local := host == "" || host == "localhost"
	if addr, err := netip.ParseAddr(host); err == nil {
		local = addr.IsLoopback()
	}
	port := strconv.Itoa(int(bound.Port()))
	switch {
	case bound.Addr().IsUnspecified() && host != "":
		return net.JoinHostPort(host, port), nil
	case bound.Addr().IsUnspecified():
		return onThisMachine(bound), nil
	case bound.Addr().IsLoopback() && !local:
		return "", fmt.Errorf("its listener is on %s, of that machine alone", bound)
	}
	return bound.String(), nil
}

// believe takes what the node says that it serves: it has proven that to itself by a handshake when it began to.
func (s *shown) believe(ctx context.Context, cl *client) error {
	s.proof = true
	if s.certificate == "" {
		return nil
	}
	answer, err := cl.certificate.GetStatus(ctx, &lbdv1.CertificateServiceGetStatusRequest{Name: s.certificate, Node: s.node})
	for _, served := range answer.GetCertificates() {
		s.served, s.names = served.GetServedSerial(), served.GetHosts()
		leaf := &x509.Certificate{}
		for _, name := range s.names {
			if ip := net.ParseIP(name); ip != nil {
				leaf.IPAddresses = append(leaf.IPAddresses, ip)
			} else {
				leaf.DNSNames = append(leaf.DNSNames, name)
			}
		}
		s.named = leaf.VerifyHostname(s.host) == nil
	}
	return err
}
