//go:build linux

package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"text/template"
	"time"

	"lbd/bench/node"
)

// site is what every proxy is told to serve in a scenario.
type site struct {
	tlsVersion string // "1.2" or "1.3", of the TLS listener; empty is 1.3
	rsa        bool   // an RSA-2048 certificate instead of ECDSA P-256
	backends   int    // zero is one
	delay      time.Duration
	// backendIdle is after how long backends close a connection without requests. Zero: never.
	backendIdle time.Duration
	// encrypted: backends speak TLS 1.3, and the proxy verifies them.
	encrypted bool
	// mortal: the last backend is a process of its own, which is killed and started again during the window.
	mortal bool
	// loops, workers or threads of the proxy; zero is one.
	loops int
	hosts int // with a route each; zero is one
	// certificates: every host has one of its own.
	certificates bool
}

func (s site) version() string {
	if s.tlsVersion == "" {
		return "1.3"
	}
	return s.tlsVersion
}

// hostNames are the names that the site answers to.
func (s site) hostNames() []string {
	var names []string
	for i := range max(s.hosts, 1) {
		names = append(names, fmt.Sprintf("host%d.bench.test", i))
	}
	return names
}

// setup is what the templates in bench/peers fill in.
type setup struct {
	Dir             string
	HTTP, HTTPS     string
	Metrics         string // empty: off
	Backends, Hosts []string
	Chain, Key      string
	Bundle          string // chain and key in one file
	HostMap         string // a line for each host: the host and "backends"
	TLSVersion      string
	AccessLog       string // a file; empty: off
	OpenFiles       int
	Certificates    []certificateFiles // of the hosts, in their order; empty: one for all
	CertificateList string             // a line for each of them: its bundle
	Loops           int
	ExtraHost       string // one more name of the first host; empty: none
	BackendCA       string // that backends are verified with; empty: they are spoken to in the clear
	leaf            []byte // of the one for all
}

// NamesOf are the names of host i.
func (s setup) NamesOf(i int) []string {
	if i == 0 && s.ExtraHost != "" {
		return []string{s.Hosts[0], s.ExtraHost}
	}
	return []string{s.Hosts[i]}
}

// BackendName is what encrypted backends are asked for and verified as.
func (s setup) BackendName() string { return backendName }

// The parts of addresses and versions, for formats that want them apart.
func (s setup) IP() string          { host, _, _ := net.SplitHostPort(s.HTTP); return host }
func (s setup) HTTPPort() string    { _, port, _ := net.SplitHostPort(s.HTTP); return port }
func (s setup) HTTPSPort() string   { _, port, _ := net.SplitHostPort(s.HTTPS); return port }
func (s setup) TLSDigits() string   { return strings.ReplaceAll(s.TLSVersion, ".", "") }
func (s setup) ConnectionsMax() int { return s.OpenFiles / 5 * 2 }

// prepare chooses the proxy's addresses on the host and writes certificate and host map into dir.
func (s site) prepare(dir, host string, openFiles int, backends []string) (setup, error) {
	addresses, err := freeAddresses(host, 2)
	if err != nil {
		return setup{}, err
	}
	metrics, err := freeAddresses("127.0.0.1", 1)
	if err != nil {
		return setup{}, err
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	c := setup{
		Dir: dir, HTTP: addresses[0], HTTPS: addresses[1], Metrics: metrics[0],
		Backends: backends, Hosts: s.hostNames(),
		Chain: at("chain.pem"), Key: at("key.pem"), Bundle: at("bundle.pem"), HostMap: at("hosts.map"), CertificateList: at("certificates.list"),
		TLSVersion: s.version(), OpenFiles: openFiles, Loops: max(s.loops, 1),
	}
	if s.encrypted {
		c.BackendCA = backendCA(dir)
	}
	all := certificateFiles{Name: "bench", Chain: c.Chain, Key: c.Key, Bundle: c.Bundle}
	if c.leaf, err = all.make("*.bench.test", s.rsa); err != nil {
		return setup{}, err
	}
	var hostMap, list strings.Builder
	for i, host := range c.Hosts {
		fmt.Fprintf(&hostMap, "%s backends\n", host)
		if !s.certificates {
			continue
		}
		own := filesFor(dir, i)
		if _, err := own.make(host, s.rsa); err != nil {
			return setup{}, err
		}
		c.Certificates = append(c.Certificates, own)
		fmt.Fprintln(&list, own.Bundle)
	}
	return c, errors.Join(
		os.WriteFile(c.HostMap, []byte(hostMap.String()), 0o600),
		os.WriteFile(c.CertificateList, []byte(list.String()), 0o600),
	)
}

// write fills in a template of bench/peers.
func (s setup) write(templateFile, to string) error {
	t, err := template.ParseFiles(templateFile)
	if err != nil {
		return err
	}
	f, err := os.Create(to)
	if err != nil {
		return err
	}
	return errors.Join(t.Execute(f, s), f.Close())
}

// freeAddresses returns addresses of this host on which nobody listens just now.
func freeAddresses(host string, n int) (all []string, err error) {
	for range n {
		address, err := node.FreeAddress(host)
		if err != nil {
			return nil, err
		}
		all = append(all, address)
	}
	return all, nil
}
