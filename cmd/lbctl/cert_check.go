package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"lbd/cmd/lbctl/document"
	lbdv1 "lbd/proto/lbd/v1"
)

func (c *cli) certCheck() *cobra.Command {
	listener, all := "", false
	cmd := &cobra.Command{
		Use:   "check HOST[:PORT]",
		Short: "See by a handshake whether a host's stored certificate is the one that clients get",
		Long: `See by a TLS handshake with the answering node, as a client that asks for HOST, whether it shows the certificate that is stored.
The port, or --listener, chooses the listener. Whether clients would trust who signed it is not looked at. Exit 1 if another one is
shown, or none, or one that does not name HOST.

With --all-nodes every node is looked at: by a handshake where lbctl reaches the node's listener, else by the proof that the node has given
itself when it began to serve the certificate; the answer says which. A node that does not answer is exit 1, too.`,
		Example: `  lbctl cert check shop.example.com
  lbctl cert check shop.example.com --all-nodes`,
		Args: cobra.ExactArgs(1),
		RunE: c.does(func(ctx context.Context, args []string) error {
			host := args[0]
			if strings.Count(host, ":") > 1 && !strings.HasPrefix(host, "[") {
				host = "[" + host + "]" // a bare IPv6 address
			}
			u := url.URL{Scheme: "https", Host: host, Path: "/"}
			if u.Hostname() == "" || strings.ContainsAny(host, "/?#@ ") {
				return fail(exitUsage, "a host is written HOST or HOST:PORT, not %q", args[0])
			}
			return c.call(func(cl *client) error {
				if all {
					return c.checkEverywhere(ctx, cl, &u, listener)
				}
				return c.checkShown(ctx, cl, &u, listener)
			})
		}),
	}
	cmd.Flags().StringVar(&listener, "listener", "", "the listener to ask (default: by the port)")
	cmd.Flags().BoolVar(&all, "all-nodes", false, "look at every node, not at the answering one alone")
	return cmd
}

// shown is what a check has found.
type shown struct {
	// The node that was looked at.
	node string
	// Where the handshake was tried; empty: nowhere.
	host, listener, address string
	// The stored certificate that this host should get, and its serial; empty: none.
	certificate, stored string
	// What the handshake gave: a serial, the names of the certificate and whether the host is one, or an error.
	served string
	names  []string
	named  bool
	err    error
	// Whether that is what the node has proven to itself, and why there was no handshake from here.
	proof bool
	why   error
}

func (s *shown) same() bool { return s.err == nil && s.stored != "" && s.served == s.stored }

func (s *shown) ok() bool { return s.same() && s.named }

// checkShown asks the node which certificate is the host's, then what is stored of it, then the listener itself.
func (c *cli) checkShown(ctx context.Context, cl *client, u *url.URL, listener string) error {
	s, err := c.expected(ctx, cl, u, listener, "")
	if err != nil {
		return err
	}
	bound, err := boundAddress(ctx, cl, s.listener, "")
	if err != nil {
		return err
	}
	s.address = onThisMachine(bound)
	leaf, err := handshake(ctx, s.address, s.host)
	if s.err = err; err == nil {
		s.read(leaf)
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		return fail(exitInterrupted, "interrupted")
	}
	c.print(result{value: s.value(), names: s.resources(), table: func(*table) { fmt.Fprintln(c.stdout, s.text()) }})
	if !s.ok() {
		return &failure{code: exitNo}
	}
	return nil
}

// expected is which certificate a node has for the host, and what is stored of it. The node is the answering one where none is named.
func (c *cli) expected(ctx context.Context, cl *client, u *url.URL, listener, node string) (*shown, error) {
	d, err := cl.traffic.TestRoute(ctx, &lbdv1.TestRouteRequest{Url: u.String(), Listener: listener, Node: node})
	if err != nil {
		return nil, c.complained(err)
	}
	s := &shown{node: d.GetNode(), host: u.Hostname(), listener: d.GetListener().GetName(), certificate: d.GetCertificate().GetName()}
	if d.GetCertificate() == nil {
		return nil, fail(exitUsage, "listener %s has no TLS: nothing is shown there", s.listener)
	}
	if s.certificate == "" {
		return s, nil
	}
	answer, err := cl.certificate.GetStatus(ctx, &lbdv1.CertificateServiceGetStatusRequest{Name: s.certificate})
	for _, stored := range answer.GetCertificates() {
		s.stored = stored.GetSerial()
	}
	return s, err
}

// boundAddress is where a node has a listener.
func boundAddress(ctx context.Context, cl *client, listener, node string) (netip.AddrPort, error) {
	answer, err := cl.system.GetStatus(ctx, &lbdv1.SystemServiceGetStatusRequest{Node: node})
	if err != nil {
		return netip.AddrPort{}, err
	}
	for _, l := range answer.GetListeners() {
		if l.GetName() != listener || len(l.GetAddresses()) == 0 {
			continue
		}
		bound, err := netip.ParseAddrPort(l.GetAddresses()[0])
		if err != nil {
			return bound, fail(exitInternal, "listener %s is bound to %q: %w", listener, l.GetAddresses()[0], err)
		}
		return bound, nil
	}
	return netip.AddrPort{}, fail(exitNo, "listener %s is not served: `lbctl status` says why", listener)
}

// onThisMachine is where a listener of this machine can be reached.
func onThisMachine(bound netip.AddrPort) string {
	switch {
	case !bound.Addr().IsUnspecified():
		return bound.String()
	case bound.Addr().Is4():
		return netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), bound.Port()).String()
	}
	return netip.AddrPortFrom(netip.IPv6Unspecified().Next(), bound.Port()).String() // ::1
}

// read takes what is compared from the certificate that was shown.
func (s *shown) read(leaf *x509.Certificate) {
	s.served = fmt.Sprintf("%x", leaf.SerialNumber)
	s.names = slices.Clone(leaf.DNSNames)
	for _, ip := range leaf.IPAddresses {
		s.names = append(s.names, ip.String())
	}
	s.named = leaf.VerifyHostname(s.host) == nil
}

// unreachedError is that there was no connection, so that nothing is known of what is shown there.
type unreachedError struct{ err error }

func (e *unreachedError) Error() string { return "no connection: " + e.err.Error() }
func (e *unreachedError) Unwrap() error { return e.err }

// handshake returns the certificate that a client gets who asks for host.
func handshake(ctx context.Context, address, host string) (*x509.Certificate, error) {
	// No trust is put in what is shown: its serial and names are compared.
	config := &tls.Config{InsecureSkipVerify: true, ServerName: host}
	if _, err := netip.ParseAddr(host); err == nil {
		config.ServerName = "" // an address is no server name (RFC 6066 section 3)
	}
	d := tls.Dialer{Config: config}
	conn, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		var op *net.OpError
		if errors.As(err, &op) && op.Op == "dial" {
			return nil, &unreachedError{op.Err}
		}
		return nil, fmt.Errorf("the handshake fails: %w", err)
	}
	defer conn.Close()
	return conn.(*tls.Conn).ConnectionState().PeerCertificates[0], nil
}

func (s *shown) value() *document.Value {
	hosts := []*document.Value{}
	for _, name := range s.names {
		hosts = append(hosts, document.Text(name))
	}
	why := ""
	if s.err != nil {
		why = s.err.Error()
	}
	return document.MapOf().With("node", document.Text(s.node)).With("host", document.Text(s.host)).With("listener", document.Text(s.listener)).
		With("address", document.Text(s.address)).With("certificate", document.Text(s.certificate)).
		With("stored_serial", document.Text(s.stored)).With("shown_serial", document.Text(s.served)).
		With("hosts", document.ListOf(hosts)).With("named", document.Truth(s.named)).
		With("error", document.Text(why)).With("same", document.Truth(s.same())).With("by_own_proof", document.Truth(s.proof))
}

// resources is what the check was about.
func (s *shown) resources() []string {
	if s.certificate == "" {
		return nil
	}
	return []string{"certificates/" + s.certificate}
}

// text says it to a person.
func (s *shown) text() string {
	where := fmt.Sprintf("%s on listener %s", s.host, s.listener)
	if s.address != "" {
		where += " (" + s.address + ")"
	}
	stored := "no certificate is stored for it"
	if s.certificate != "" {
		stored = fmt.Sprintf("certificates/%s is stored with serial %s", s.certificate, s.stored)
	}
	by := ""
	if s.proof {
		by = fmt.Sprintf(", as the node has proven to itself (%s)", oneLine(s.why.Error()))
	}
	switch {
	case s.err != nil:
		return fmt.Sprintf("%s: %s; %s", where, oneLine(s.err.Error()), stored)
	case s.same() && !s.named:
		return fmt.Sprintf("%s: shows certificates/%s, serial %s, which does not name it but %s%s", where, s.certificate, s.stored,
			oneLine(cmp.Or(list(s.names), "nothing")), by)
	case s.ok():
		return fmt.Sprintf("%s: shows certificates/%s, serial %s, as stored%s", where, s.certificate, s.stored, by)
	}
	return fmt.Sprintf("%s: shows serial %s, but %s%s", where, cmp.Or(s.served, "none"), stored, by)
}
