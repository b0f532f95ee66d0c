package main

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"lbd/lb/vectest"
)

// lane is a way of its own through a node: a backend that only its two listeners lead to. So many raw tests can run at once,
// and what a backend or the log shows belongs to one of them.
type lane struct {
	plain, secure string // names of its listeners
	plainAddress  string
	secureAddress string
}

// target is how the judge reaches the lane.
func (l *lane) target(secure bool) (listener string, t vectest.Target) {
	if secure {
		return l.secure, vectest.Target{Address: l.secureAddress, TLS: &tls.Config{InsecureSkipVerify: true, ServerName: "v.test"}}
	}
	return l.plain, vectest.Target{Address: l.plainAddress}
}

// startLanes starts a node that serves one lane for each backend, any host and path, over plain HTTP and TLS.
func startLanes(t *testing.T, binary, engine string, backends []string, flags ...string) (*node, []*lane) {
	t.Helper()
	dir := t.TempDir()
	n := &node{name: "v", binary: binary, log: filepath.Join(dir, "log"), args: append([]string{
		"run", "--dev", "--data-dir", filepath.Join(dir, "data"), "--node", "v",
		"--listen", "http=127.0.0.1:0", "--listen", "https=127.0.0.1:0", "--metrics", "off",
	}, flags...)}
	t.Cleanup(n.kill)
	if _, err := n.start(append(os.Environ(), "LBD_ENGINE="+engine, "GORACE=halt_on_error=1")); err != nil {
		t.Fatal(err)
	}
	lanes := make([]*lane, len(backends))
	var listeners, pools, routes strings.Builder
	for i, backend := range backends {
		l := &lane{plain: fmt.Sprintf("plain%d", i), secure: fmt.Sprintf("secure%d", i)}
		lanes[i] = l
		for _, address := range []*string{&l.plainAddress, &l.secureAddress} {
			free, err := freeAddress()
			if err != nil {
				t.Fatal(err)
			}
			*address = free
		}
		fmt.Fprintf(&listeners, "  - { name: %s, addresses: [%q], protocol: HTTP }\n", l.plain, l.plainAddress)
		fmt.Fprintf(&listeners, "  - { name: %s, addresses: [%q], protocol: HTTPS, tls: { default_certificate: v } }\n", l.secure, l.secureAddress)
		fmt.Fprintf(&pools, "  - { name: p%d, backends: [{ address: %q }] }\n", i, backend)
		fmt.Fprintf(&routes, "  - { name: r%d, listeners: [%s, %s], forward: { pools: [{ pool: p%d }] } }\n", i, l.plain, l.secure, i)
	}
	document := "api_version: lbd/v1\nowner: vectors\nlisteners:\n" + listeners.String() +
		"certificates:\n  - { name: v, self_signed: { hosts: [v.test] } }\npools:\n" + pools.String() + "routes:\n" + routes.String()
	apply := exec.Command(filepath.Join(binaries, "lbctl"), "apply", "-f", "-", "--wait")
	apply.Env = append(os.Environ(), "LBCTL_ENDPOINTS=unix:"+filepath.Join(dir, "data", "control.sock"))
	apply.Stdin = strings.NewReader(document)
	if out, err := apply.CombinedOutput(); err != nil {
		t.Fatalf("apply: %v\n%s\n%s", err, out, document)
	}
	return n, lanes
}

// logged is a line of the access log, as far as raw tests look at it.
type logged struct {
	Time             string
	Listener, Client string
	Path             string
	Status           int
	Reason, Detail   string
}

func readAccessLog(path string) (all []logged, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(text)) {
		var l logged
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			return nil, fmt.Errorf("%q: %w", line, err)
		}
		all = append(all, l)
	}
	return all, nil
}
