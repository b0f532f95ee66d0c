package main

import (
	"testing"
	"time"
)

// TestUpgrades is the program, for some seconds.
func TestUpgrades(t *testing.T) {
	r, err := measure(t.Context(), options{
		lasts: 7 * time.Second, every: 2 * time.Second, deadline: 4 * time.Second, rate: 200, plain: 200, kept: 10, tunnels: 20, uploads: 2, upload: 2 * time.Second,
	})
	if err != nil && r != nil {
		t.Logf("what lbd has said at last:\n%s", r.said)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s", r)
	if err := r.verdict(); err != nil {
		t.Error(err)
	}
	if r.upgrades < 2 {
		t.Errorf("only %d upgrades", r.upgrades)
	}
	if t.Failed() {
		t.Logf("what lbd has said at last:\n%s", r.said)
	}
}
