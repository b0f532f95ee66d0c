package main

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	lbdv1 "lbd/proto/lbd/v1"
)

const (
	killRounds = 30
	// killAfterMax is the longest time that a round writes before its kill.
	killAfterMax = 400 * time.Millisecond
	// restartMax is how soon a killed node must serve again. On an idle machine it does within a fifth of a second; an election
	// of a cluster that has lost its leader would not fit.
	restartMax = time.Second
)

// acknowledged is what the writer was told, kept outside the node: revision -> content hash.
type acknowledged struct {
	mu     sync.Mutex
	hashes map[int64]string
	last   int // the newest acknowledged count
}

// TestKillKeepsEveryAcknowledgedRevision kills a node at random moments under a writer. Afterwards every acknowledged
// revision is there with its content, and the node serves at least the newest of them at once.
func TestKillKeepsEveryAcknowledgedRevision(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	dir := t.TempDir()
	address, err := freeAddress()
	if err != nil {
		t.Fatal(err)
	}
	n := &node{name: "k", binary: "lbd-plain", log: filepath.Join(dir, "log"), args: []string{
		"run", "--dev", "--data-dir", filepath.Join(dir, "data"), "--node", "k",
		"--listen", "https=" + address, "--listen", "http=127.0.0.1:0", "--metrics", "off",
	}}
	t.Cleanup(n.kill)
	acks := &acknowledged{hashes: map[int64]string{}}
	var slowest time.Duration
	for round := range killRounds {
		took, err := n.start(os.Environ())
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		if round > 0 { // the first start holds an election and makes keys
			slowest = max(slowest, took)
		}
		conn, err := grpc.NewClient("unix:"+filepath.Join(dir, "data", "control.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		checkKept(t, conn, acks, address)
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() { defer close(done); write(ctx, conn, acks) }()
		time.Sleep(time.Duration(random.Int64N(int64(killAfterMax)))) // the random moment itself, nothing is awaited
		n.kill()
		cancel()
		<-done
		conn.Close()
	}
	if len(acks.hashes) < killRounds {
		t.Errorf("only %d revisions were acknowledged in %d rounds: the writer hardly wrote", len(acks.hashes), killRounds)
	}
	if slowest > restartMax {
		t.Errorf("the slowest restart took %v to serve, want under %v", slowest, restartMax)
	}
	t.Logf("%d revisions acknowledged over %d kills, slowest restart %v", len(acks.hashes), killRounds, slowest)
}

// write applies one revision after the other until the node is gone. What it records was acknowledged.
func write(ctx context.Context, conn *grpc.ClientConn, acks *acknowledged) {
	config := lbdv1.NewConfigServiceClient(conn)
	for ctx.Err() == nil {
		acks.mu.Lock()
		count := acks.last + 1
		acks.mu.Unlock()
		revision, err := applyCount(ctx, config, count)
		if err != nil {
			if ctx.Err() != nil || !transient(err) {
				return
			}
			continue
		}
		acks.mu.Lock()
		acks.last = count
		acks.hashes[revision] = ""
		acks.mu.Unlock()
		list, err := config.ListRevisions(ctx, &lbdv1.ListRevisionsRequest{PageSize: 1})
		if err == nil && len(list.GetRevisions()) == 1 && list.GetRevisions()[0].GetNumber() == revision {
			acks.mu.Lock()
			acks.hashes[revision] = list.GetRevisions()[0].GetContentHash()
			acks.mu.Unlock()
		}
	}
}

// transient tells "no leader yet" from a node that is gone: both are UNAVAILABLE, and asking again is right for the first.
func transient(err error) bool { return regexp.MustCompile("leader").MatchString(err.Error()) }

func applyCount(ctx context.Context, config lbdv1.ConfigServiceClient, count int) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	stream, err := config.Apply(ctx)
	if err != nil {
		return 0, err
	}
	header := &lbdv1.ApplyHeader{Owner: "web", Message: strconv.Itoa(count)}
	route := &lbdv1.Route{Name: "default", Listeners: []string{"http", "https"}, Action: &lbdv1.Route_Respond{
		Respond: &lbdv1.Respond{Status: 200, Body: fmt.Sprintf("count=%d", count)},
	}}
	if err := stream.Send(&lbdv1.ApplyRequest{Part: &lbdv1.ApplyRequest_Header{Header: header}}); err != nil {
		return 0, err
	}
	part := &lbdv1.ApplyResources{Resources: []*lbdv1.Resource{{Spec: &lbdv1.Resource_Route{Route: route}}}}
	if err := stream.Send(&lbdv1.ApplyRequest{Part: &lbdv1.ApplyRequest_Resources{Resources: part}}); err != nil {
		return 0, err
	}
	resp, err := stream.CloseAndRecv()
	return resp.GetRevision(), err
}

func checkKept(t *testing.T, conn *grpc.ClientConn, acks *acknowledged, address string) {
	t.Helper()
	stored := map[int64]string{}
	config := lbdv1.NewConfigServiceClient(conn)
	for token := ""; ; {
		page, err := config.ListRevisions(context.Background(), &lbdv1.ListRevisionsRequest{PageSize: 1000, PageToken: token})
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range page.GetRevisions() {
			stored[r.GetNumber()] = r.GetContentHash()
		}
		if token = page.GetNextPageToken(); token == "" {
			break
		}
	}
	for revision, hash := range maps.All(acks.hashes) {
		got, ok := stored[revision]
		if !ok {
			t.Fatalf("revision %d was acknowledged and is lost", revision)
		}
		if hash != "" && hash != got {
			t.Fatalf("revision %d has hash %s, was acknowledged with %s", revision, got, hash)
		}
	}
	if acks.last == 0 {
		return
	}
	h, err := hold("https://" + address + "/")
	if err != nil {
		t.Fatal(err)
	}
	defer h.c.Close()
	body, err := h.get()
	if err != nil {
		t.Fatal(err)
	}
	count, ok := strings.CutPrefix(string(body), "count=")
	if !ok {
		t.Fatalf("%q is served, count %d was acknowledged", body, acks.last)
	}
	served, err := strconv.Atoi(count)
	if err != nil || served < acks.last {
		t.Fatalf("%q is served, count %d was acknowledged (%v)", body, acks.last, err)
	}
}
