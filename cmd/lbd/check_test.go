package main

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"lbd/cluster"
	lbdv1 "lbd/proto/lbd/v1"
)

// told are findings as LEVEL check.
func told(found []*lbdv1.Finding) string {
	var out []string
	for _, f := range found {
		out = append(out, strings.TrimPrefix(f.GetLevel().String(), "FINDING_LEVEL_")+" "+f.GetCheck()+": "+f.GetMessage())
	}
	return strings.Join(out, "\n")
}

func TestBindable(t *testing.T) {
	l, taken := held(t)
	_, port, _ := net.SplitHostPort(taken)
	if err := bindable(taken); err != syscall.EADDRINUSE {
		t.Errorf("an address that somebody has: %v", err)
	}
	if err := bindable(":" + port); err != syscall.EADDRINUSE {
		t.Errorf("every address, where somebody has one: %v", err)
	}
	if err := bindable("192.0.2.1:80"); err != syscall.EADDRNOTAVAIL {
		t.Errorf("an address that is not here: %v", err)
	}
	if err := bindable("no.such.host.invalid:80"); err == nil {
		t.Error("a name that is none can be listened on")
	}
	l.Close()
	for _, address := range []string{taken, ":" + port, "127.0.0.1:0", "localhost:0"} {
		if err := bindable(address); err != nil {
			t.Errorf("%s: %v", address, err)
		}
	}
	again, err := net.Listen("tcp", taken)
	if err != nil {
		t.Fatalf("the look has taken the address: %v", err)
	}
	again.Close()
}

// TestCheckOfTheSealingKeys: keys that stored secrets need must be there, and none is made.
func TestCheckOfTheSealingKeys(t *testing.T) {
	r := newRig(t)
	in := cluster.Inspection{State: r.node.State()}
	look := func(source string) string {
		c := &check{cfg: r.cfg}
		c.cfg.sealKey = source
		c.sealKeys(t.Context(), in)
		return told(c.found)
	}
	if got := look(""); !strings.HasPrefix(got, "OK seal_key: file ") {
		t.Error(got)
	}
	missing := filepath.Join(t.TempDir(), "seal.key")
	if got := look("file:" + missing); !strings.HasPrefix(got, "ERROR seal_key: ") {
		t.Error(got)
	}
	others := mustRing(t).Sealer()
	other := filepath.Join(t.TempDir(), "seal.key")
	writeFile(t, other, string(others.KeyText(others.KeyIDs()...)))
	if got := look("file:" + other); !strings.HasPrefix(got, "ERROR seal_key: ") || !strings.Contains(got, "under which stored secrets are") {
		t.Error(got)
	}
	if got := look("command:/bin/false secret"); !strings.HasPrefix(got, "ERROR seal_key: ") || strings.Contains(got, "secret") {
		t.Error(got)
	}
	if _, err := os.Stat(missing); err == nil {
		t.Error("a key was made")
	}
}

// TestCheckOfDirectories: what a start could not make is told, and what it could make is not made.
func TestCheckOfDirectories(t *testing.T) {
	dir := t.TempDir()
	if f := directoryFinding("d", filepath.Join(dir, "a", "b")); f != nil {
		t.Errorf("one that can be made: %v", f)
	}
	if _, err := os.Stat(filepath.Join(dir, "a")); err == nil {
		t.Error("it was made")
	}
	file := filepath.Join(dir, "file")
	writeFile(t, file, "")
	for _, path := range []string{file, filepath.Join(file, "below")} {
		if f := directoryFinding("d", path); f.GetLevel() != lbdv1.FindingLevel_FINDING_LEVEL_ERROR {
			t.Errorf("%s: %v", path, f)
		}
	}
	c := &check{cfg: config{socket: filepath.Join(dir, strings.Repeat("x", socketPathMax), "control.sock")}}
	c.socket(false)
	c.cfg.socket = filepath.Join(dir, "control.sock")
	c.socket(false)
	l, err := net.Listen("unix", c.cfg.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c.socket(true)
	c.socket(false)
	var levels []string
	for _, f := range c.found {
		levels = append(levels, f.GetLevel().String())
	}
	if got := strings.ReplaceAll(strings.Join(levels, " "), "FINDING_LEVEL_", ""); got != "ERROR OK OK ERROR" {
		t.Errorf("%s: %s", got, told(c.found))
	}
}

// TestCheckOfTheDataDirectory: others have nothing to look for in it.
func TestCheckOfTheDataDirectory(t *testing.T) {
	dir := t.TempDir()
	for mode, want := range map[os.FileMode]string{0o700: "OK", 0o750: "WARNING", 0o701: "WARNING"} {
		if err := os.Chmod(dir, mode); err != nil {
			t.Fatal(err)
		}
		c := &check{cfg: config{dataDir: dir}}
		if in := c.dataDir(); in.State != nil || in.Running || !strings.HasPrefix(told(c.found), want+" data_dir: ") {
			t.Errorf("mode %o: %+v, %s", mode, in, told(c.found))
		}
	}
}
