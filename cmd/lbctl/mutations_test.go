package main

import (
	"crypto/tls"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"testing"
	"time"

	"lbd/lb/vectest"
)

var (
	mutations = flag.Int64("mutations", 15_000, "how many answers TestMutations waits for, each time")
	seedFlag  = flag.Uint64("seed", 0, "of TestMutations; 0: a new one")
)

const (
	mutationClients = 32
	// residentGrowthMax is how much more memory the node may have at the end than half-way: garbage that the collector had not yet
	// found worth a cycle in a short run. A buffer lost with each request would be more, even in that.
	residentGrowthMax = 64 << 20
)

// TestMutations sends requests that are nearly right through the real binary, plain and over TLS. What the backend gets, all
// parsers must read alike; each answer must be the one to its request; the node must neither fall nor grow.
func TestMutations(t *testing.T) {
	vectors, err := vectest.Load(filepath.Join("..", "..", "lb", "testdata", "vectors", "A"))
	if err != nil {
		t.Fatal(err)
	}
	seed := *seedFlag
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("-seed %d", seed)
	for _, engine := range engines() {
		t.Run(engine, func(t *testing.T) { mutate(t, "lbd", engine, vectors, seed) })
	}
	if raceEnabled { // how much memory a node needs only a node without the detector tells
		t.Run("plain", func(t *testing.T) { mutate(t, "lbd-plain", engines()[0], vectors, seed) })
	}
}

func mutate(t *testing.T, binary, engine string, vectors []*vectest.Vector, seed uint64) {
	campaign, err := vectest.NewCampaign(vectest.CampaignConfig{Vectors: vectors, Seed: seed, Requests: *mutations, Clients: mutationClients})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(campaign.Close)
	n, lanes := startLanes(t, binary, engine, []string{campaign.Address()})
	_, plain := lanes[0].target(false)
	_, secure := lanes[0].target(true)
	secure.TLS.ClientSessionCache = tls.NewLRUClientSessionCache(mutationClients)
	before := int64(0)
	begin := time.Now()
	r := campaign.Run([]vectest.Target{plain, plain, secure}, func() { before = resident(t, n) })
	after := resident(t, n)
	t.Logf("%d requests on %d connections, %d answered, %d read by the backend, in %v; answers by status: %v; resident memory %d MiB half-way, %d MiB at the end",
		r.Sent, r.Connections, r.Answers, r.AtBackend, time.Since(begin).Round(time.Second), r.Statuses, before>>20, after>>20)
	if r.Faults > 0 {
		t.Errorf("%d faults", r.Faults)
	}
	for _, example := range r.Examples() {
		t.Error(example)
	}
	if grown := after - before; grown > residentGrowthMax && !(raceEnabled && binary == "lbd") {
		t.Errorf("resident memory has grown from %d to %d MiB", before>>20, after>>20)
	}
	if !n.alive() {
		t.Fatalf("the node has ended: %v\n%s", n.err, n.tail())
	}
	if said := regexp.MustCompile("(?i)panic|data race").FindString(n.tail()); said != "" {
		t.Errorf("the node's log speaks of %q:\n%s", said, n.tail())
	}
}

// resident is the node's memory; 0 where the system does not tell.
func resident(t *testing.T, n *node) int64 {
	if runtime.GOOS != "linux" {
		return 0
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", n.cmd.Process.Pid))
	if err != nil {
		t.Error(err)
		return 0
	}
	m := regexp.MustCompile(`VmRSS:\s+(\d+) kB`).FindSubmatch(text)
	if m == nil {
		t.Errorf("no VmRSS in %s", text)
		return 0
	}
	kB, err := strconv.ParseInt(string(m[1]), 10, 64)
	if err != nil {
		t.Error(err)
	}
	return kB << 10
}
