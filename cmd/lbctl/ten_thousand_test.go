package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	lbdv1 "lbd/proto/lbd/v1"
	"lbd/tls/tlstest"
)

const (
	manyCertificates = 10_000
	certificatesPart = 200 // of one message
	// What an idle machine does in under 3 s and 200 ms, with room for a busy one; that it grows with the square of the number, as
	// the case has it, would show all the same.
	manyStartMax  = 15 * time.Second
	manyRotateMax = 2 * time.Second
)

// TestA12TenThousandCertificates is case A12: with 10,000 certificates a node starts soon and serves a new one at once, and its memory
// does not grow by that. Its siblings: a name that is served from the last of them, and one that nobody has.
func TestA12TenThousandCertificates(t *testing.T) {
	dir := t.TempDir()
	address, err := freeAddress()
	if err != nil {
		t.Fatal(err)
	}
	n := &node{name: "many", binary: "lbd-plain", log: filepath.Join(dir, "log"), args: []string{
		"run", "--dev", "--data-dir", filepath.Join(dir, "data"), "--node", "many", "--listen", "https=" + address, "--listen", "http=127.0.0.1:0", "--metrics", "off",
	}}
	t.Cleanup(n.kill)
	if _, err := n.start(os.Environ()); err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient("unix:"+filepath.Join(dir, "data", "control.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ca := tlstest.NewCA(t)
	began := time.Now()
	serials := applyMany(t, conn, ca)
	t.Logf("%d certificates applied in %v", manyCertificates, time.Since(began))

	n.kill()
	took, err := n.start(os.Environ())
	if err != nil {
		t.Fatal(err)
	}
	if took > manyStartMax {
		t.Errorf("the start took %v, want under %v", took, manyStartMax)
	}
	for _, i := range []int{0, 4711, manyCertificates - 1} {
		if got := servedTo(t, address, manyHost(i)); got != serials[i] {
			t.Errorf("%s: serial %s, want %s", manyHost(i), got, serials[i])
		}
	}
	if got, fallback := servedTo(t, address, "nobody.test"), servedTo(t, address, "localhost"); got != fallback {
		t.Errorf("an unknown name is shown %s, want the default, %s", got, fallback)
	}

	var slowest time.Duration
	before := int64(0)
	for round := range 10 {
		slowest = max(slowest, rotateOne(t, conn, ca, address, 4711))
		if round == 0 {
			before = resident(t, n) // the first one makes what the others need
		}
	}
	after := resident(t, n)
	t.Logf("started in %v, a rotation was served after %v at most, %d MB resident before 9 rotations, %d after", took, slowest, before>>20, after>>20)
	if slowest > manyRotateMax {
		t.Errorf("a rotation took %v to be served, want under %v", slowest, manyRotateMax)
	}
	if after > before*3/2 {
		t.Errorf("memory grew from %d MB to %d MB over 9 rotations", before>>20, after>>20)
	}
	carryMany(t, conn, address, manyHost(42))
}

func manyHost(i int) string { return fmt.Sprintf("h%d.example.test", i) }

// applyMany stores the certificates in one revision, and returns their serials.
func applyMany(t *testing.T, conn *grpc.ClientConn, ca *tlstest.CA) (serials []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	stream, err := lbdv1.NewConfigServiceClient(conn).Apply(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&lbdv1.ApplyRequest{Part: &lbdv1.ApplyRequest_Header{Header: &lbdv1.ApplyHeader{Owner: "many"}}}); err != nil {
		t.Fatal(err)
	}
	inline := func(text []byte) *lbdv1.Content {
		return &lbdv1.Content{Source: &lbdv1.Content_Inline{Inline: string(text)}}
	}
	for i := 0; i < manyCertificates; i += certificatesPart {
		part := &lbdv1.ApplyResources{}
		for j := i; j < i+certificatesPart; j++ {
			pair := ca.Issue(tlstest.Leaf{Hosts: []string{manyHost(j)}, SharedKey: true})
			serials = append(serials, pair.Serial())
			part.Resources = append(part.Resources, &lbdv1.Resource{Spec: &lbdv1.Resource_Certificate{Certificate: &lbdv1.Certificate{
				Name: fmt.Sprint("c", j), Source: &lbdv1.Certificate_Pem{Pem: &lbdv1.CertificatePem{Chain: inline(pair.ChainPEM()), Key: inline(pair.KeyPEM())}},
			}}})
		}
		if err := stream.Send(&lbdv1.ApplyRequest{Part: &lbdv1.ApplyRequest_Resources{Resources: part}}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := stream.CloseAndRecv(); err != nil {
		t.Fatal(err)
	}
	return serials
}

// servedTo is the serial that a client of that name is shown.
func servedTo(t *testing.T, address, name string) string {
	t.Helper()
	c, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true, ServerName: name})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	return c.ConnectionState().PeerCertificates[0].SerialNumber.Text(16)
}

// rotateOne replaces one certificate, and returns how long it took from the answer until a client was shown it.
func rotateOne(t *testing.T, conn *grpc.ClientConn, ca *tlstest.CA, address string, i int) time.Duration {
	t.Helper()
	pair := ca.Issue(tlstest.Leaf{Hosts: []string{manyHost(i)}, SharedKey: true})
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if _, err := lbdv1.NewCertificateServiceClient(conn).Rotate(ctx, &lbdv1.RotateRequest{
		Name: fmt.Sprint("c", i), ChainPem: string(pair.ChainPEM()), KeyPem: string(pair.KeyPEM()),
	}); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	for servedTo(t, address, manyHost(i)) != pair.Serial() {
		if time.Since(began) > patience {
			t.Fatalf("the rotated certificate is not served after %v", patience)
		}
		time.Sleep(5 * time.Millisecond)
	}
	return time.Since(began)
}
