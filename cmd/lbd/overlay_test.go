package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	lbdv1 "lbd/proto/lbd/v1"
)

// hereFor is said on this node alone, for an hour.
func hereFor(address string, what lbdv1.BackendState) *lbdv1.Override {
	return &lbdv1.Override{
		Pool: "p", Address: address, What: &lbdv1.Override_State{State: what}, Node: "n1", Author: "root", Reason: "fire",
		CreateTime: timestamppb.Now(), ExpireTime: timestamppb.New(time.Now().Add(time.Hour)),
	}
}

// TestOverlayLies: what is said on this node alone lies over what is said of all, is seen wherever that is seen, survives a restart and
// ends by itself.
func TestOverlayLies(t *testing.T) {
	r := newRig(t)
	r.propose(&lbdv1.Pool{Name: "p", Backends: []*lbdv1.Backend{{Address: "10.0.0.1:80"}, {Address: "10.0.0.2:80"}}})
	r.override(
		&lbdv1.Override{Pool: "p", Address: "10.0.0.1:80", What: &lbdv1.Override_State{State: lbdv1.BackendState_BACKEND_STATE_DRAIN}},
		&lbdv1.Override{Pool: "p", Address: "10.0.0.1:80", What: &lbdv1.Override_Weight{Weight: 7}},
	)
	r.publish()
	wants := func(address, want string) {
		t.Helper()
		for _, b := range r.Backends("p") {
			if b.GetAddress() != address {
				continue
			}
			got := strings.TrimPrefix(b.GetState().String(), "BACKEND_STATE_")
			if b.GetNodeLocal() {
				got += " here"
			}
			if got != want {
				t.Errorf("%s: %s, want %s", address, got, want)
			}
		}
	}
	wants("10.0.0.1:80", "DRAIN")
	r.overlay.Say(hereFor("10.0.0.1:80", lbdv1.BackendState_BACKEND_STATE_READY))
	r.overlay.Say(hereFor("10.0.0.2:80", lbdv1.BackendState_BACKEND_STATE_MAINTENANCE))
	<-r.overlay.wake()
	r.publish()
	wants("10.0.0.1:80", "UNSPECIFIED here")
	wants("10.0.0.2:80", "MAINTENANCE here")
	if b := r.Backends("p")[0]; b.GetWeight() != 7 || !b.GetEligible() {
		t.Errorf("%v: the weight of all nodes is to stay, the drain not", b)
	}
	problems := r.Status().GetProblems()
	for _, want := range []string{"node-local override: pools/p 10.0.0.1:80: ready until 2", "node-local override: pools/p 10.0.0.2:80: maintenance until 2"} {
		if !slices.ContainsFunc(problems, func(p string) bool { return strings.HasPrefix(p, want) }) {
			t.Errorf("problems %q lack %q", problems, want)
		}
	}
	if text, err := r.Metrics(); err != nil || !strings.Contains(text, "lbd_overrides{kind=\"node_local\"} 2") || !strings.Contains(text, "lbd_overrides{kind=\"replicated\"} 2") {
		t.Errorf("metrics do not count them: %v", err)
	}

	// A restart knows it.
	again := openOverlay(r.cfg.dataDir, r.log)
	if got := again.Overrides("p"); len(got) != 2 || got[0].GetReason() != "fire" {
		t.Errorf("after a restart: %v", got)
	}
	if ended := r.overlay.Unsay("p", "10.0.0.2:80", false); len(ended) != 1 {
		t.Errorf("ended %v", ended)
	}
	ending := hereFor("10.0.0.1:80", lbdv1.BackendState_BACKEND_STATE_READY)
	ending.ExpireTime = timestamppb.New(time.Now().Add(20 * time.Millisecond))
	r.overlay.Say(ending)
	r.publish()
	end := r.untilExpiry()
	if end == nil {
		t.Fatal("nobody waits for the end")
	}
	<-end
	r.publish()
	wants("10.0.0.1:80", "DRAIN")
	wants("10.0.0.2:80", "UNSPECIFIED")

	var told []string
	past, _ := r.Events(time.Time{})
	for _, e := range past {
		if strings.HasPrefix(e.GetType(), "override_") {
			told = append(told, e.GetType()+" "+e.GetResource()+": "+e.GetMessage())
		}
	}
	for _, want := range []string{
		"override_set pools/p/10.0.0.1:80: ready, on this node alone, by root (fire); weight 7, by test",
		"override_set pools/p/10.0.0.2:80: in maintenance, on this node alone, by root (fire)",
	} {
		if !slices.Contains(told, want) {
			t.Errorf("events %q lack %q", told, want)
		}
	}
}

// TestOverlayDisk: a damaged file is put aside and told of; what the disk does not take is in force all the same.
func TestOverlayDisk(t *testing.T) {
	r := newRig(t)
	path := filepath.Join(r.cfg.dataDir, overlayFile)
	r.overlay.Say(hereFor("10.0.0.1:80", lbdv1.BackendState_BACKEND_STATE_DRAIN))
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(strings.Replace(string(text), "10.0.0.1", "10.0.0.9", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	again := openOverlay(r.cfg.dataDir, r.log)
	if got := again.Overrides(""); len(got) > 0 {
		t.Errorf("what was damaged is in force: %v", got)
	}
	if p := again.problems(); len(p) != 1 || !strings.Contains(p[0], "its digest is wrong; the file is kept as "+path+".damaged") {
		t.Errorf("problems %q", p)
	}
	if _, err := os.Stat(path + ".damaged"); err != nil {
		t.Error(err)
	}

	again.path = filepath.Join(t.TempDir(), "gone", "file")
	again.Say(hereFor("10.0.0.1:80", lbdv1.BackendState_BACKEND_STATE_DRAIN))
	if got := again.Overrides("p"); len(got) != 1 {
		t.Errorf("in force: %v", got)
	}
	if p := again.problems(); !slices.ContainsFunc(p, func(s string) bool { return strings.Contains(s, "is in force, but a restart will not know it") }) {
		t.Errorf("problems %q", p)
	}
	again.damage = ""
	again.Unsay("p", "", false)
	if p := again.problems(); len(p) > 0 {
		t.Errorf("problems %q", p)
	}
}
