package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

// An attacker who has a node's data directory, or is a node that lies, does not run lbd: these commands speak with control ports as such
// a program would. What they are told, or let do, is their standard output.

// errWelcome: the other side has taken the attacker for somebody.
var errWelcome = errors.New("welcome")

// cmdIDs sets NAME_ID for each node, and CLUSTER_ID.
func cmdIDs(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 1, "ids AT")
	read := func(path string) []string {
		out, err := lbctlAt(ts, args[0], "cluster", "status", "-o", "jsonpath="+path).Output()
		ts.Check(err)
		return strings.Fields(string(out))
	}
	ids := read("{.nodes[*].node.id}")
	for i, name := range read("{.nodes[*].node.name}") {
		ts.Setenv(name+"_ID", ids[i])
	}
	ts.Setenv("CLUSTER_ID", read("{.cluster_id}")[0])
}

// cmdKnock comes as the node ID with the key of a data directory, to raft's port or with calls of a node's own.
func cmdKnock(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, false, args, 4, "knock DIR ADDRESS raft|calls ID [expired]")
	shown := stolenCertificate(ts, args[0], args[3], slices.Contains(args[4:], "expired"))
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var err error
	switch args[2] {
	case "raft":
		err = knockRaft(ctx, args[1], shown)
	case "calls":
		err = knockCalls(ctx, args[1], shown)
	default:
		ts.Fatalf("%s is no way in", args[2])
	}
	tellKnock(ts, neg, err)
}

// cmdKnockFor comes as a node that passes on a call in somebody's name, with metadata as NAME=VALUE.
func cmdKnockFor(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, false, args, 3, "knock-for DIR ADDRESS ID NAME=VALUE…")
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for _, pair := range args[3:] {
		name, value, _ := strings.Cut(pair, "=")
		ctx = metadata.AppendToOutgoingContext(ctx, name, value)
	}
	conn, err := knockConn(args[1], stolenCertificate(ts, args[0], args[2], false))
	ts.Check(err)
	defer conn.Close()
	me, err := lbdv1.NewAuthServiceClient(conn).WhoAmI(ctx, &lbdv1.WhoAmIRequest{})
	if err == nil {
		fmt.Fprintln(ts.Stdout(), me.GetAuthor(), me.GetRole())
		err = errWelcome
	}
	tellKnock(ts, neg, err)
}

// tellKnock prints how it went. That nobody was there is no refusal.
func tellKnock(ts *testscript.TestScript, neg bool, err error) {
	fmt.Fprintln(ts.Stdout(), err)
	switch welcome := errors.Is(err, errWelcome); {
	case welcome == neg:
		ts.Fatalf("%v", err)
	case neg && status.Code(err) == codes.Unavailable:
		ts.Fatalf("nobody has refused it: %v", err)
	}
}

// stolenCertificate is one that the holder of a node's key makes for himself, under any id: who has signed it counts for nothing.
func stolenCertificate(ts *testscript.TestScript, dir, id string, expired bool) *tls.Certificate {
	text, err := os.ReadFile(filepath.Join(ts.MkAbs(dir), "node.key"))
	ts.Check(err)
	block, _ := pem.Decode(text)
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	ts.Check(err)
	key := parsed.(*ecdsa.PrivateKey)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "lbd node"}, NotBefore: time.Now().Add(-48 * time.Hour), NotAfter: time.Now().Add(time.Hour),
		UnknownExtKeyUsage: []asn1.ObjectIdentifier{{2, 25, 1818391908, 1}},
		URIs:               []*url.URL{{Scheme: "lbd", Host: ts.Getenv("CLUSTER_ID"), Path: "/" + id}},
	}
	if expired {
		template.NotAfter = time.Now().Add(-time.Hour)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	ts.Check(err)
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func knockTLS(shown *tls.Certificate, alpn string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{alpn}, ServerName: "node.lbd.internal", InsecureSkipVerify: true,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return shown, nil },
	}
}

// knockRaft shakes hands for raft. The one byte that a member sends then is the welcome.
func knockRaft(ctx context.Context, address string, shown *tls.Certificate) error {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return status.Error(codes.Unavailable, err.Error())
	}
	defer conn.Close()
	secure := tls.Client(conn, knockTLS(shown, "lbd-raft/1"))
	if err := secure.HandshakeContext(ctx); err != nil {
		return err
	}
	_ = secure.SetReadDeadline(time.Now().Add(patience))
	if _, err := secure.Read(make([]byte, 1)); err != nil {
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return status.Error(codes.Unavailable, "neither a welcome nor a refusal")
		}
		return err
	}
	return errWelcome
}

func knockConn(address string, shown *tls.Certificate) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(credentials.NewTLS(knockTLS(shown, "h2"))), grpc.WithNoProxy())
}

// knockCalls asks what only nodes may ask, and what only people may. The first answer is the welcome.
func knockCalls(ctx context.Context, address string, shown *tls.Certificate) error {
	conn, err := knockConn(address, shown)
	if err != nil {
		return err
	}
	defer conn.Close()
	peers := raftv1.NewPeerServiceClient(conn)
	var why error
	for name, ask := range map[string]func() error{
		"GetMembers":    func() error { _, err := peers.GetMembers(ctx, &raftv1.GetMembersRequest{}); return err },
		"ReadIndex":     func() error { _, err := peers.ReadIndex(ctx, &raftv1.ReadIndexRequest{}); return err },
		"GetSealKeys":   func() error { _, err := peers.GetSealKeys(ctx, &raftv1.GetSealKeysRequest{}); return err },
		"StageSealKeys": func() error { _, err := peers.StageSealKeys(ctx, &raftv1.StageSealKeysRequest{}); return err },
		"GetStatus": func() error {
			_, err := lbdv1.NewSystemServiceClient(conn).GetStatus(ctx, &lbdv1.SystemServiceGetStatusRequest{})
			return err
		},
	} {
		switch err := ask(); status.Code(err) {
		case codes.OK:
			return fmt.Errorf("%w: %s is answered", errWelcome, name)
		case codes.Unauthenticated, codes.PermissionDenied:
			why = err
		case codes.ResourceExhausted: // after many failures nobody is told why
			if why == nil {
				why = err
			}
		default:
			return status.Errorf(codes.Unavailable, "%s: %v", name, err)
		}
	}
	return why
}
