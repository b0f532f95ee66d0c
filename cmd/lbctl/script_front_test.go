package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// cmdBackendTLS starts a backend that is spoken to in TLS. Its answers begin with the server name that it was asked for and the common
// name of the certificate that it was shown. With a third file it demands one that this authority has signed.
func cmdBackendTLS(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 3, "backend-tls NAME CHAIN KEY [CLIENT-CA]")
	pair, err := tls.LoadX509KeyPair(ts.MkAbs(args[1]), ts.MkAbs(args[2]))
	ts.Check(err)
	config := &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequestClientCert}
	if len(args) > 3 {
		config.ClientAuth, config.ClientCAs = tls.RequireAndVerifyClientCert, x509.NewCertPool()
		config.ClientCAs.AppendCertsFromPEM([]byte(ts.ReadFile(args[3])))
	}
	address, err := freeAddress()
	ts.Check(err)
	l, err := net.Listen("tcp", address)
	ts.Check(err)
	b := &backend{name: args[0], address: address, status: http.StatusOK}
	b.server = &http.Server{TLSConfig: config, ErrorLog: log.New(io.Discard, "", 0), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		client := "none"
		if shown := r.TLS.PeerCertificates; len(shown) > 0 {
			client = shown[0].Subject.CommonName
		}
		if r.URL.Path != "/healthz" {
			fmt.Fprintf(w, "sni=%s client=%s ", r.TLS.ServerName, client)
		}
		b.serve(w, r)
	})}
	go func(s *http.Server) { _ = s.ServeTLS(l, "", "") }(b.server)
	worldOf(ts).backends[b.name] = b
	ts.Setenv(b.name, address)
	_, port, err := net.SplitHostPort(address)
	ts.Check(err)
	ts.Setenv(b.name+"_PORT", port)
}

// cmdPair makes a certificate that signs itself, and its key, valid from and to so many days from now: OpenSSL 3.0 has no option for a
// time that has been.
func cmdPair(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 6, "pair CHAIN KEY HOST FROM TO SERIAL")
	from, err := strconv.Atoi(args[3])
	ts.Check(err)
	to, err := strconv.Atoi(args[4])
	ts.Check(err)
	serial, ok := new(big.Int).SetString(args[5], 16)
	if !ok {
		ts.Fatalf("%q is no serial number", args[5])
	}
	ca := x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: args[2]}, DNSNames: []string{args[2]},
		NotBefore: time.Now().AddDate(0, 0, from), NotAfter: time.Now().AddDate(0, 0, to), BasicConstraintsValid: true, IsCA: true,
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	ts.Check(err)
	der, err := x509.CreateCertificate(rand.Reader, &ca, &ca, key.Public(), key)
	ts.Check(err)
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), 0o600))
}

// cmdBackendAt starts a backend on an address of its own.
func cmdBackendAt(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 2, "backend-at NAME HOST:PORT")
	b := &backend{name: args[0], address: args[1], status: http.StatusOK}
	ts.Check(b.start())
	worldOf(ts).backends[b.name] = b
	ts.Setenv(b.name, b.address)
}

// cmdHosts makes the nodes that are started from now on take names from a file in place of /etc/hosts: each has a mount namespace of its
// own.
func cmdHosts(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 1, "hosts FILE")
	f, err := os.CreateTemp(binaries, "lbd-hosts-")
	ts.Check(err)
	defer f.Close()
	unshare := "unshare -m"
	if os.Geteuid() != 0 {
		unshare = "unshare -rm"
	}
	_, err = fmt.Fprintf(f, "#!/bin/sh\nexec %s sh -c 'mount --bind \"$0\" /etc/hosts && exec \"$@\"' %q %q \"$@\"\n", unshare, ts.MkAbs(args[0]), filepath.Join(binaries, ts.Getenv("LBD")))
	ts.Check(err)
	ts.Check(f.Chmod(0o700))
	ts.Setenv("LBD", filepath.Base(f.Name()))
}

// occupied are the addresses that scripts hold: address -> net.Listener.
var occupied sync.Map

// cmdOccupy takes an address away from whoever wants to listen there; one that is new if none is given.
func cmdOccupy(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 1, "occupy VAR")
	for range 100 {
		address, err := freeAddress()
		ts.Check(err)
		l, err := net.Listen("tcp", address)
		if err != nil {
			continue // somebody else's by now
		}
		occupied.Store(address, l)
		ts.Defer(func() { l.Close() })
		ts.Setenv(args[0], address)
		return
	}
	ts.Fatalf("no address can be had")
}

func cmdVacate(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 1, "vacate ADDRESS")
	l, ok := occupied.LoadAndDelete(args[0])
	if !ok {
		ts.Fatalf("nobody holds %s", args[0])
	}
	ts.Check(l.(net.Listener).Close())
}

// cmdTally counts, of N requests one after another, those whose answer's body matches; the others must be whole answers, too.
func cmdTally(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 4, "tally VAR N URL REGEXP")
	n, err := strconv.Atoi(args[1])
	ts.Check(err)
	re, count := regexp.MustCompile(args[3]), 0
	tr := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	defer tr.CloseIdleConnections()
	c := &http.Client{Transport: tr, Timeout: patience}
	for range n {
		resp, err := c.Get(args[2])
		ts.Check(err)
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		ts.Check(err)
		if re.Match(body) {
			count++
		}
	}
	ts.Logf("%d of %d match", count, n)
	ts.Setenv(args[0], strconv.Itoa(count))
}

func cmdBetween(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 3, "between N LEAST MOST")
	var n [3]int
	for i := range n {
		var err error
		n[i], err = strconv.Atoi(args[i])
		ts.Check(err)
	}
	if n[0] < n[1] || n[0] > n[2] {
		ts.Fatalf("%d is not in %d to %d", n[0], n[1], n[2])
	}
}

// cmdCount writes a document's part once for each number, with @i@ filled in.
func cmdCount(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 3, "count N HEAD PART: append PART N times to HEAD")
	n, err := strconv.Atoi(args[0])
	ts.Check(err)
	f, err := os.OpenFile(ts.MkAbs(args[1]), os.O_APPEND|os.O_WRONLY, 0)
	ts.Check(err)
	defer f.Close()
	part, re := ts.ReadFile(args[2]), regexp.MustCompile("@i@")
	for i := range n {
		_, err := f.WriteString(re.ReplaceAllString(part, strconv.Itoa(i)))
		ts.Check(err)
	}
}

// cmdWithin runs a program again and again until its output matches, which must be so before the time is over.
func cmdWithin(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 3, "within TIME REGEXP PROGRAM ARG…")
	limit, err := time.ParseDuration(args[0])
	ts.Check(err)
	re, began := regexp.MustCompile(args[1]), time.Now()
	wait(ts, func() (bool, string) {
		out, err := program(ts, args[2:]).CombinedOutput()
		return re.Match(out), fmt.Sprintf("%s%v", out, err)
	})
	took := time.Since(began)
	ts.Logf("after %v", took)
	if took > limit {
		ts.Fatalf("only after %v, want %v", took, limit)
	}
}
