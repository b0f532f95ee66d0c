package main

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestReadme runs the README's way from nothing to a balancer as it is written, on ports that are free here.
func TestReadme(t *testing.T) {
	readme, err := os.ReadFile(filepath.Join("..", "..", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok1 := strings.Cut(string(readme), "## From nothing to a balancer\n\n```\n")
	block, _, ok2 := strings.Cut(rest, "\n```")
	if !ok1 || !ok2 {
		t.Fatal("the README has no block under \"From nothing to a balancer\"")
	}
	if n := strings.Count(block, "\n") + 1; n < 6 {
		t.Fatalf("the block has only %d lines", n)
	}
	b := &backend{name: "b1", address: "127.0.0.1:0", status: http.StatusOK}
	if err := b.start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.stop)
	dir := t.TempDir()
	script, err := readmeScript(dir, block, b.address)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("bash", "-c", script)
	cmd.Dir = filepath.Join("..", "..")
	cmd.Env = append(os.Environ(), "PATH="+filepath.Join(dir, "bin")+":"+os.Getenv("PATH"), "LBCTL_ENDPOINTS=unix:"+filepath.Join(dir, "data", "control.sock"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{"lbd ready revision=", "lbd is running", "revision 2", "backend=b1", "revision 3"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("the output has no %q:\n%s", want, out)
		}
	}
}

// readmeScript makes the block runnable beside other nodes: lbd gets a directory and ports of its own. A command that fails
// ends it.
func readmeScript(dir, block, backend string) (string, error) {
	plain, secure := "", ""
	for _, address := range []*string{&plain, &secure} {
		free, err := freeAddress()
		if err != nil {
			return "", err
		}
		*address = free
	}
	bin := filepath.Join(dir, "bin")
	if err := os.Mkdir(bin, 0o700); err != nil {
		return "", err
	}
	lbd := fmt.Sprintf("#!/bin/sh\nexec %q \"$@\" --data-dir %q --metrics off --listen http=%s --listen https=%s\n",
		filepath.Join(binaries, "lbd-plain"), filepath.Join(dir, "data"), plain, secure)
	if err := os.WriteFile(filepath.Join(bin, "lbd"), []byte(lbd), 0o700); err != nil {
		return "", err
	}
	if err := os.Symlink(filepath.Join(binaries, "lbctl"), filepath.Join(bin, "lbctl")); err != nil {
		return "", err
	}
	var lines []string
	for _, line := range strings.Split(block, "\n") {
		switch {
		case strings.HasPrefix(line, "go install"): // the suite has built them
		case strings.HasPrefix(line, "python3"): // the suite has a backend of its own
		default:
			lines = append(lines, line)
		}
	}
	text := strings.NewReplacer("127.0.0.1:8443", secure, "127.0.0.1:3000", backend).Replace(strings.Join(lines, "\n"))
	return "set -e\ntrap 'kill %1; wait %1' EXIT\n" + text + "\n", nil
}
