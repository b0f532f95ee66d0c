package node

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// programs are an lbd and an lbctl that are scripts: lbd says what it is told, and lbctl is content.
func programs(t *testing.T, lbd string) (bin string) {
	t.Helper()
	bin = t.TempDir()
	for name, text := range map[string]string{"lbd": lbd, "lbctl": "cat >/dev/null"} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+text+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return bin
}

// TestWhatLbdSays: it is there when somebody asks, of all processes, and in the error of one that does not come to serve; the one before it goes on.
func TestWhatLbdSays(t *testing.T) {
	// One lbd after the other says its number. The third one fails.
	bin := programs(t, `
count=$(ls "$(dirname "$0")"/count.* 2>/dev/null | wc -l)
: >"$(dirname "$0")/count.$count"
echo "number $count speaks" >&2
[ "$count" = 2 ] && exit 3
echo "lbd ready revision=1" >&2
exec sleep 1000`)
	n, err := Start(t.Context(), bin, "")
	if err != nil {
		t.Fatal(err)
	}
	left := n.log()
	if _, err := n.Again(t.Context(), bin); err != nil {
		t.Fatal(err)
	}
	serves := n.lbd
	if _, err := n.Upgrade(t.Context(), bin); err == nil || !strings.Contains(err.Error(), "number 2 speaks") || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("an upgrade that fails: %v", err)
	}
	if n.lbd != serves {
		t.Error("the one that failed counts as the node's")
	}
	select {
	case <-serves.ended:
		t.Error("the one before has ended")
	default:
	}
	ended, err := n.Upgrade(t.Context(), bin)
	if err != nil {
		t.Fatal(err)
	}
	serves.kill()
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("the one before ended with %v", err)
	}
	for i := range 4 {
		if want := "number " + strconv.Itoa(i) + " speaks\n"; strings.Count(n.Said(), want) != 1 {
			t.Errorf("%q is not in %q", want, n.Said())
		}
	}
	if err := n.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(left); err == nil {
		t.Error("its log is left")
	}
}

// TestSaidIsBounded: the newest is kept.
func TestSaidIsBounded(t *testing.T) {
	n := &Node{dir: filepath.Join(t.TempDir(), "node")}
	if err := os.WriteFile(n.log(), []byte(strings.Repeat("old ", saidBytesMax)+"new"), 0o600); err != nil {
		t.Fatal(err)
	}
	if said := n.Said(); len(said) != saidBytesMax || !strings.HasSuffix(said, "new") {
		t.Errorf("%d bytes, at the end %q", len(said), said[max(0, len(said)-8):])
	}
}

// TestFreeAddress: no port twice, none that somebody has, and none that the kernel gives to who asks for any.
func TestFreeAddress(t *testing.T) {
	given := map[string]bool{}
	for range 100 {
		address, err := FreeAddress("127.0.0.1")
		if err != nil {
			t.Fatal(err)
		}
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatalf("%s is not free: %v", address, err)
		}
		defer l.Close()
		if port := l.Addr().(*net.TCPAddr).Port; given[address] || port < 12_000 || port >= 32_000 {
			t.Errorf("%s is given", address)
		}
		given[address] = true
	}
}
