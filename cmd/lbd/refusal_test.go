package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lbd/cluster/rpc"
	"lbd/cluster/state"
	lbdv1 "lbd/proto/lbd/v1"
	"lbd/tls/seal"
)

// panicsFor makes compile panic for one resource until the test ends.
func panicsFor(t *testing.T, key string) {
	compileFault = func(k state.Key) {
		if k.String() == key {
			panic("fault injected")
		}
	}
	t.Cleanup(func() { compileFault = nil })
}

// TestStartWithABadRevision: the newest revision makes this build panic and no run before has met it, as after an upgrade. The
// revision before is served, and so it is after the next start.
func TestStartWithABadRevision(t *testing.T) {
	r := newRig(t)
	good := r.propose(respondRoute("default", 203, "http"))
	bad := r.propose(respondRoute("bad", 204, "http"), respondRoute("default", 202, "http"))
	worse := r.propose(respondRoute("default", 201, "http"))
	panicsFor(t, "routes/bad")
	second, err := r.again(nil)
	if err != nil {
		t.Fatal(err)
	}
	second.begin()
	second.serves("http://"+second.address("http"), 203)
	whole := second.refusals()[""]
	if second.Progress().Revision != good || whole.Revision != worse || !strings.Contains(whole.Reason, "routes/bad") {
		t.Errorf("progress %+v, want %d served, not %d nor %d", second.Progress(), good, bad, worse)
	}
	if !slices.ContainsFunc(second.Status().GetProblems(), func(p string) bool { return strings.Contains(p, "routes/bad") }) {
		t.Errorf("problems %q", second.Status().GetProblems())
	}

	third, err := r.again(nil)
	if err != nil {
		t.Fatal(err)
	}
	third.begin()
	if third.said.count("panicked") > 0 || third.Progress().Revision != good {
		t.Errorf("the next start tries again: %+v", third.Progress())
	}
	mended := r.delete("routes/bad")
	third.publish()
	third.wantServed(mended)
	third.serves("http://"+third.address("http"), 201)
}

// TestStartWithNothingGood: a node whose every revision panics comes up all the same, so that it can be mended.
func TestStartWithNothingGood(t *testing.T) {
	r := newRig(t)
	revision := r.propose(respondRoute("more", 203, "http"))
	panicsFor(t, "routes/default")
	second, err := r.again(nil)
	if err != nil {
		t.Fatal(err)
	}
	second.begin()
	if p := second.Progress(); !p.Serving || p.Revision != 0 || len(p.Refused) == 0 {
		t.Errorf("progress %+v", p)
	}
	if err := second.startError(); err != nil {
		t.Errorf("start error %v", err)
	}
	if _, err := second.TestRoute(t.Context(), &lbdv1.TestRouteRequest{Url: "http://a.test/"}); err == nil {
		t.Error("a route is found where nothing is served")
	}
	compileFault = nil
	third, err := r.again(nil)
	if err != nil {
		t.Fatal(err)
	}
	third.begin() // the same build: what was refused stays refused, what it fell back on is good now
	if p := third.Progress(); p.Revision != revision && p.Revision != revision-1 {
		t.Errorf("progress %+v", p)
	}
}

func TestServeRevision(t *testing.T) {
	r := newRig(t)
	old := r.propose(respondRoute("default", 203, "http"))
	newest := r.propose(respondRoute("default", 204, "http"))
	for _, unknown := range []int64{newest + 1, 1 << 40} {
		_, err := r.again(func(c *config) { c.serveRevision = unknown })
		if err == nil || !strings.Contains(err.Error(), "--serve-revision") || !strings.Contains(err.Error(), "the newest is") || !strings.Contains(err.Error(), "lbctl history") {
			t.Errorf("revision %d: %v", unknown, err)
		}
	}
	second, err := r.again(func(c *config) { c.serveRevision = old })
	if err != nil {
		t.Fatal(err)
	}
	second.begin()
	second.serves("http://"+second.address("http"), 203)
	if f := second.refusals()[""]; f.Revision != newest || !strings.Contains(f.Reason, "--serve-revision") {
		t.Errorf("refusals %v", second.refusals())
	}
	third, err := r.again(func(c *config) { c.serveRevision = newest })
	if err != nil {
		t.Fatal(err)
	}
	third.begin()
	third.wantServed(newest)
	next := r.propose(respondRoute("default", 205, "http"))
	second.publish()
	second.wantServed(next)
}

// TestChoiceThatIsDamaged: nobody is kept from starting by a file of ours, and nothing is taken from one that cannot be true.
func TestChoiceThatIsDamaged(t *testing.T) {
	r := newRig(t)
	newest := r.propose(respondRoute("default", 203, "http"))
	build := readBuild().id()
	for _, text := range []string{
		"", "{", "[]", `{"refused":"x"}`, "\x00\x00",
		`{"refused":99,"serve":1,"build":"` + build + `"}`, // another directory's
		`{"refused":2,"serve":2,"build":"` + build + `"}`,
		`{"refused":2,"serve":0,"build":"` + build + `"}`,
		`{"refused":2,"serve":-5,"build":"` + build + `"}`,
		`{"refused":2,"serve":1,"build":"another"}`,
	} {
		writeFile(t, filepath.Join(r.cfg.dataDir, choiceFile), text)
		second, err := r.again(nil)
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		second.begin()
		if p := second.Progress(); p.Revision != newest || len(p.Refused) > 0 {
			t.Errorf("%q: progress %+v", text, p)
		}
	}
}

// TestSurvive: what panics while it follows health, names or a port that is taken puts no blame on a revision, least of all on one
// that has not been looked at.
func TestSurvive(t *testing.T) {
	r := newRig(t)
	revision := r.propose(respondRoute("default", 203, "http"))
	prober, refused, server := r.prober, r.refused, r.server
	r.prober, r.refused = nil, map[state.Key]rpc.Refusal{{Kind: state.Listeners, Name: "http"}: {}}
	r.server = nil
	r.followHealth()
	r.retryListeners()
	r.prober, r.refused, r.server = prober, refused, server
	if n := r.said.count("panicked"); n != 2 {
		t.Errorf("%d panics, want 2", n)
	}
	if r.choice.Refused != 0 || len(r.Progress().Refused) > 0 {
		t.Errorf("choice %+v, progress %+v", r.choice, r.Progress())
	}
	r.publish()
	r.wantServed(revision)
}

// TestRefusedRevisionKeepsChecks: what stays is checked as before, though the refused revision would have taken its checks away, and it
// is what is served that hears of flips.
func TestRefusedRevisionKeepsChecks(t *testing.T) {
	r := newRig(t)
	r.propose(&lbdv1.Pool{Name: "other", Backends: []*lbdv1.Backend{{Address: "10.0.0.7:80"}}}, &lbdv1.Pool{
		Name: "checked", Backends: []*lbdv1.Backend{{Address: free(t)}},
		HealthCheck: &lbdv1.HealthCheck{Check: &lbdv1.HealthCheck_Tcp{Tcp: &lbdv1.TcpCheck{}}},
	})
	r.publish()
	key := r.current.pools["checked"].backends[0].checkKey
	r.current.routes["ghost"] = compiledRoute(t, stored(t, 1, &lbdv1.Route{
		Name: "ghost", Listeners: []string{"http"}, Action: &lbdv1.Route_Forward{Forward: &lbdv1.Forward{Pools: []*lbdv1.ForwardPool{{Pool: "none"}}}},
	}))
	r.propose(&lbdv1.Pool{Name: "other", Backends: []*lbdv1.Backend{{Address: "10.0.0.7:80", Weight: proto.Int32(7)}}})
	r.delete("pools/checked")
	r.publish()
	if len(r.refusals()) != 1 {
		t.Fatalf("refusals %v", r.refusals())
	}
	r.server.SetEligible("other", "10.0.0.7:80", false)
	if b := r.Backends("other")[0]; b.GetEligible() || b.GetWeight() != 1 {
		t.Errorf("what is served is %v", b)
	}
	if _, checked := r.prober.Status(key); !checked {
		t.Error("a backend that is served is checked no more")
	}
}

func TestReplaceFileLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.json")
	writeFile(t, path+".new", "left by a kill, and longer than what comes")
	if err := replaceFile(path, []byte("new")); err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(path); err != nil || string(data) != "new" {
		t.Errorf("%q, %v", data, err)
	}
	if err := os.Mkdir(filepath.Join(dir, "taken"), 0o700); err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(dir, "taken", "x"), "")
	if err := replaceFile(filepath.Join(dir, "taken"), []byte("new")); err == nil {
		t.Error("a folder was replaced")
	}
	if files, _ := filepath.Glob(filepath.Join(dir, "*.new")); len(files) > 0 {
		t.Errorf("left behind: %v", files)
	}
	if s, err := os.Stat(path); err != nil || s.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", s.Mode(), err)
	}
}

// TestOverrideThatEndedMeanwhile: what expires while a node is down does not hold at its start, and is no news there.
func TestOverrideThatEndedMeanwhile(t *testing.T) {
	r := newRig(t)
	in := func(d time.Duration) *timestamppb.Timestamp { return timestamppb.New(time.Now().Add(d)) }
	r.propose(&lbdv1.Pool{Name: "p", Backends: []*lbdv1.Backend{{Address: "10.0.0.1:80"}, {Address: "10.0.0.2:80"}}})
	drain := &lbdv1.Override_State{State: lbdv1.BackendState_BACKEND_STATE_DRAIN}
	r.override(
		&lbdv1.Override{Pool: "p", Address: "10.0.0.1:80", What: drain, ExpireTime: in(300 * time.Millisecond)},
		&lbdv1.Override{Pool: "p", Address: "10.0.0.2:80", What: drain, ExpireTime: in(time.Hour)},
	)
	for end := time.Now().Add(10 * time.Second); ; { // the clock is the wall's: it is waited for
		if set, _ := overridesAt(r.node.State(), nil, time.Now()); len(set["p"]) == 1 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("an override does not expire")
		}
	}
	second, err := r.again(nil)
	if err != nil {
		t.Fatal(err)
	}
	second.begin()
	for _, b := range second.Backends("p") {
		if want := b.GetAddress() == "10.0.0.2:80"; (b.GetState() == lbdv1.BackendState_BACKEND_STATE_DRAIN) != want {
			t.Errorf("backend %v", b)
		}
	}
	if left := time.Until(second.expiry); left <= 0 || left > time.Hour {
		t.Errorf("the next ends in %s", left)
	}
	told := func() (all []string) {
		past, _ := second.Events(time.Time{})
		for _, e := range past {
			if strings.HasPrefix(e.GetType(), "override_") {
				all = append(all, e.GetType()+" "+e.GetResource())
			}
		}
		return all
	}
	if all := told(); len(all) > 0 {
		t.Errorf("events of a start: %q", all)
	}
	r.override(&lbdv1.Override{Pool: "p", Address: "10.0.0.2:80", What: &lbdv1.Override_State{State: lbdv1.BackendState_BACKEND_STATE_READY}})
	second.publish()
	if all := told(); !slices.Equal(all, []string{"override_cleared pools/p/10.0.0.2:80"}) {
		t.Errorf("events %q", all)
	}
}

// mustRing has a sealing key that has sealed nothing.
func mustRing(t *testing.T) *seal.Ring {
	t.Helper()
	source, err := seal.ParseSource("", filepath.Join(t.TempDir(), "seal.key"))
	if err != nil {
		t.Fatal(err)
	}
	ring, err := seal.OpenRing(t.Context(), source, true)
	if err != nil {
		t.Fatal(err)
	}
	return ring
}
