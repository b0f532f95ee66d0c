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
	listener := ""
	cmd := &cobra.Command{
		Use:   "check HOST[:PORT]",
		Short: "See by a handshake whether a host's stored certificate is the one that clients get",
		Long: `See by a TLS handshake with the answering node, as a client that asks for HOST, whether it shows the certificate that is stored.
The port, or --listener, chooses the listener. Whether clients would trust who signed it is not looked at. Exit 1 if another one is
shown, or none, or one that does not name HOST.`,
		Example: `  lbctl cert check shop.example.com`,
		Args:    cobra.ExactArgs(1),
		RunE: c.does(func(ctx context.Context, args []string) error {
			host := args[0]
			if strings.Count(host, ":") > 1 && !strings.HasPrefix(host, "[") {
				host = "[" + host + "]" // a bare IPv6 address
			}
			u := url.URL{Scheme: "https", Host: host, Path: "/"}
			if u.Hostname() == "" || strings.ContainsAny(host, "/?#@ ") {
				return fail(exitUsage, "a host is written HOST or HOST:PORT, not %q", args[0])
			}
			return c.call(func(cl *client) error { return c.checkShown(ctx, cl, &u, listener) })
		}),
	}
	cmd.Flags().StringVar(&listener, "listener", "", "the listener to ask (default: by the port)")
	return cmd
}

// shown is what a check has found.
type shown struct {
	host, listener, address string
	// The stored certificate that this host should get, and its serial; empty: none.
	certificate, stored string
	// What the handshake gave: a serial, the names of the certificate and whether the host is one, or an error.
	served string
	names  []string
	named  bool
	err    error
}

func (s *shown) same() bool { return s.err == nil && s.stored != "" && s.served == s.stored }

func (s *shown) ok() bool { return s.same() && s.named }

// checkShown asks the node which certificate is the host's, then what is stored of it, then the listener itself.
func (c *cli) checkShown(ctx context.Context, cl *client, u *url.URL, listener string) error {
	d, err := cl.traffic.TestRoute(ctx, &lbdv1.TestRouteRequest{Url: u.String(), Listener: listener})
	if err != nil {
		return c.complained(err)
	}
	s := &shown{host: u.Hostname(), listener: d.GetListener().GetName(), certificate: d.GetCertificate().GetName()}
	if d.GetCertificate() == nil {
		return fail(exitUsage, "listener %s has no TLS: nothing is shown there", s.listener)
	}
	if s.certificate != "" {
		answer, err := cl.certificate.GetStatus(ctx, &lbdv1.CertificateServiceGetStatusRequest{Name: s.certificate})
		if err != nil {
			return err
		}
		for _, stored := range answer.GetCertificates() {
			s.stored = stored.GetSerial()
		}
	}
	if s.address, err = boundAddress(ctx, cl, s.listener); err != nil {
		return err
	}
	leaf, err := handshake(ctx, s.address, s.host)
	if s.err = err; err == nil {
		s.read(leaf)
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		return fail(exitInterrupted, "interrupted")
	}
	c.printShown(s)
	if !s.ok() {
		return &failure{code: exitNo}
	}
	return nil
}

// boundAddress is where on this machine a listener can be reached.
func boundAddress(ctx context.Context, cl *client, listener string) (string, error) {
	answer, err := cl.system.GetStatus(ctx, &lbdv1.SystemServiceGetStatusRequest{})
	if err != nil {
		return "", err
	}
	for _, l := range answer.GetListeners() {
		if l.GetName() != listener || len(l.GetAddresses()) == 0 {
			continue
		}
		bound, err := netip.ParseAddrPort(l.GetAddresses()[0])
		if err != nil {
			return "", fail(exitInternal, "listener %s is bound to %q: %w", listener, l.GetAddresses()[0], err)
		}
		if !bound.Addr().IsUnspecified() {
			return bound.String(), nil
		}
		loopback := netip.IPv6Unspecified().Next() // ::1
		if bound.Addr().Is4() {
			loopback = netip.MustParseAddr("127.0.0.1")
		}
		return netip.AddrPortFrom(loopback, bound.Port()).String(), nil
	}
	return "", fail(exitNo, "listener %s is not served: `lbctl status` says why", listener)
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
			return nil, fmt.Errorf("no connection: %w", op.Err)
		}
		return nil, fmt.Errorf("the handshake fails: %w", err)
	}
	defer conn.Close()
	return conn.(*tls.Conn).ConnectionState().PeerCertificates[0], nil
}

func (c *cli) printShown(s *shown) {
	why := ""
	hosts := []*document.Value{}
	for _, name := range s.names {
		hosts = append(hosts, document.Text(name))
	}
	if s.err != nil {
		why = s.err.Error()
	}
	value := document.MapOf().With("host", document.Text(s.host)).With("listener", document.Text(s.listener)).
		With("address", document.Text(s.address)).With("certificate", document.Text(s.certificate)).
		With("stored_serial", document.Text(s.stored)).With("shown_serial", document.Text(s.served)).
		With("hosts", document.ListOf(hosts)).With("named", document.Truth(s.named)).
		With("error", document.Text(why)).With("same", document.Truth(s.same()))
	var names []string
	if s.certificate != "" {
		names = []string{"certificates/" + s.certificate}
	}
	c.print(result{value: value, names: names, table: func(*table) {
		where := fmt.Sprintf("%s on listener %s (%s)", s.host, s.listener, s.address)
		stored := "no certificate is stored for it"
		if s.certificate != "" {
			stored = fmt.Sprintf("certificates/%s is stored with serial %s", s.certificate, s.stored)
		}
		switch {
		case s.err != nil:
			fmt.Fprintf(c.stdout, "%s: %s; %s\n", where, oneLine(why), stored)
		case s.same() && !s.named:
			fmt.Fprintf(c.stdout, "%s: shows certificates/%s, serial %s, which does not name it but %s\n", where, s.certificate, s.stored,
				oneLine(cmp.Or(list(s.names), "nothing")))
		case s.ok():
			fmt.Fprintf(c.stdout, "%s: shows certificates/%s, serial %s, as stored\n", where, s.certificate, s.stored)
		default:
			fmt.Fprintf(c.stdout, "%s: shows serial %s, but %s\n", where, s.served, stored)
		}
	}})
}
