package seal

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func fileRing(t *testing.T) (*Ring, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "seal.key")
	source, err := ParseSource("", path)
	if err != nil {
		t.Fatal(err)
	}
	ring, err := OpenRing(t.Context(), source, true)
	if err != nil {
		t.Fatal(err)
	}
	return ring, path
}

// rotate makes a new key the active one.
func rotate(t *testing.T, ring *Ring) error {
	t.Helper()
	id, err := ring.Stage(t.Context())
	if err != nil {
		return err
	}
	return ring.Activate(id)
}

func TestRewrapChangesTheWrapAlone(t *testing.T) {
	old, next := bytes.Repeat([]byte{1}, keyBytes), bytes.Repeat([]byte{2}, keyBytes)
	before := sealer(t, old)
	both, err := NewSealer(next, old)
	if err != nil {
		t.Fatal(err)
	}
	blob := before.Seal(binding, secret)
	moved, err := both.Rewrap(binding, blob)
	if err != nil {
		t.Fatal(err)
	}
	if id, err := KeyOf(moved); err != nil || id != sealer(t, next).KeyID() {
		t.Errorf("under %s, %v", id, err)
	}
	if !bytes.Equal(moved[headBytes+wrapBytes:], blob[headBytes+wrapBytes:]) || bytes.Equal(moved[:headBytes+wrapBytes], blob[:headBytes+wrapBytes]) {
		t.Error("something else than the wrap is new")
	}
	if got, err := sealer(t, next).Open(binding, moved); err != nil || !bytes.Equal(got, secret) {
		t.Errorf("under the new key alone: %q, %v", got, err)
	}
	if again, err := both.Rewrap(binding, moved); err != nil || !bytes.Equal(again, moved) {
		t.Errorf("sealed anew though it was: %v", err)
	}
	other := binding
	other.Name = "shap"
	if _, err := both.Rewrap(other, blob); !errors.Is(err, ErrDamaged) {
		t.Errorf("rewrapped as something else: %v", err)
	}
	if _, err := before.Rewrap(binding, moved); !errors.Is(err, ErrUnknownKey) {
		t.Errorf("rewrapped without its key: %v", err)
	}
	for _, bad := range [][]byte{nil, blob[:blobMin-1], append([]byte{2}, blob[1:]...)} {
		if _, err := both.Rewrap(binding, bad); !errors.Is(err, ErrFormat) {
			t.Errorf("rewrapped %d bytes: %v", len(bad), err)
		}
		if _, err := KeyOf(bad); !errors.Is(err, ErrFormat) {
			t.Errorf("key of %d bytes: %v", len(bad), err)
		}
	}
}

// TestStageAndRetire: what is on disk is what is in use, after each step and after a restart.
func TestStageAndRetire(t *testing.T) {
	ring, path := fileRing(t)
	first := ring.Sealer().KeyID()
	blob := ring.Sealer().Seal(binding, secret)
	staged, err := ring.Stage(t.Context())
	if ids := ring.Sealer().KeyIDs(); err != nil || len(ids) != 2 || ids[0] != first || ids[1] != staged {
		t.Fatalf("staged %s, %v: keys %v after %s", staged, err, ids, first)
	}
	if err := ring.Activate(staged); err != nil {
		t.Fatal(err)
	}
	if err := ring.Activate("0000000000000000"); err == nil {
		t.Error("a key that is not there is active")
	}
	second := ring.Sealer().KeyID()
	if ids := ring.Sealer().KeyIDs(); len(ids) != 2 || ids[0] == first || ids[1] != first {
		t.Fatalf("keys %v after %s", ids, first)
	}
	onDisk := func() []string {
		t.Helper()
		s, err := Load(path)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := s.Open(binding, blob); err != nil || !bytes.Equal(got, secret) {
			t.Errorf("after a restart: %q, %v", got, err)
		}
		return s.KeyIDs()
	}
	if ids := onDisk(); ids[0] != second || ids[1] != first {
		t.Errorf("keys %v on disk", ids)
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if err := ring.Retire(second); err == nil || !strings.Contains(err.Error(), "is the active one") {
		t.Errorf("retire the active key: %v", err)
	}
	if err := ring.Retire("0000000000000000"); err == nil {
		t.Error("a key that is not there is retired")
	}
	if blob, err = ring.Sealer().Rewrap(binding, blob); err != nil {
		t.Fatal(err)
	}
	if err := ring.Retire(first); err != nil {
		t.Fatal(err)
	}
	if ids := onDisk(); len(ids) != 1 || ids[0] != second {
		t.Errorf("keys %v on disk", ids)
	}
	if left, _ := os.ReadDir(filepath.Dir(path)); len(left) != 1 {
		t.Errorf("files left behind: %v", left)
	}
}

// TestStageKeepsWhatSomebodyWrote: a file that changed behind the node's back is not written over.
func TestStageKeepsWhatSomebodyWrote(t *testing.T) {
	ring, path := fileRing(t)
	_, other := fileRing(t)
	text, err := os.ReadFile(other)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	before := ring.Sealer().KeyIDs()
	if _, err := ring.Stage(t.Context()); err == nil || !strings.Contains(err.Error(), "has changed since lbd read it") {
		t.Errorf("stage: %v", err)
	}
	if now, _ := os.ReadFile(path); !bytes.Equal(now, text) || fmt.Sprint(ring.Sealer().KeyIDs()) != fmt.Sprint(before) {
		t.Error("the keys were written over")
	}
}

// TestAdd: what another node has comes in behind what is here, once; a source that lbd cannot write has to have it.
func TestAdd(t *testing.T) {
	ring, path := fileRing(t)
	other, otherPath := fileRing(t)
	mine, theirs := ring.Sealer().KeyID(), other.Sealer().KeyID()
	for range 2 {
		if err := ring.Add(t.Context(), other.Sealer()); err != nil {
			t.Fatal(err)
		}
	}
	for _, ids := range [][]string{ring.Sealer().KeyIDs(), func() []string { s, _ := Load(path); return s.KeyIDs() }()} {
		if len(ids) != 2 || ids[0] != mine || ids[1] != theirs {
			t.Errorf("keys %v", ids)
		}
	}
	t.Setenv("CREDENTIALS_DIRECTORY", filepath.Dir(otherPath))
	source, err := ParseSource("credential:seal.key", "")
	if err != nil {
		t.Fatal(err)
	}
	fixed, err := OpenRing(t.Context(), source, false)
	if err != nil {
		t.Fatal(err)
	}
	if err := fixed.Add(t.Context(), ring.Sealer()); !errors.Is(err, ErrNotWritable) || !strings.Contains(err.Error(), mine) {
		t.Errorf("add to a credential that lacks it: %v", err)
	}
	if err := other.Add(t.Context(), ring.Sealer()); err != nil { // the operator brings it
		t.Fatal(err)
	}
	if err := fixed.Add(t.Context(), ring.Sealer()); err != nil || len(fixed.Sealer().KeyIDs()) != 2 {
		t.Errorf("add to a credential that has it by now: %v", err)
	}
}

func TestKeysAreFew(t *testing.T) {
	ring, _ := fileRing(t)
	for range keysMax - 1 {
		if _, err := ring.Stage(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := ring.Stage(t.Context()); err == nil || !strings.Contains(err.Error(), "retire one first") {
		t.Errorf("one too many: %v", err)
	}
	if _, err := NewSealer(testKey, testKey); err == nil {
		t.Error("a key is there twice")
	}
}

// script is a program that runs these lines.
func script(t *testing.T, lines ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "keys.sh")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+strings.Join(lines, "\n")+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestCommandAndCredential(t *testing.T) {
	_, file := fileRing(t)
	dir := filepath.Dir(file)
	t.Setenv("CREDENTIALS_DIRECTORY", dir)
	for _, text := range []string{"credential:seal.key", "command:" + script(t, `cat "$1"`) + "  " + file, "file:" + file} {
		source, err := ParseSource(text, "")
		if err != nil {
			t.Fatal(err)
		}
		ring, err := OpenRing(t.Context(), source, false)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		want, err := Load(file)
		if err != nil || ring.Sealer().KeyID() != want.KeyID() {
			t.Errorf("%s: key %s, %v", text, ring.Sealer().KeyID(), err)
		}
		if source.Writable() {
			continue
		}
		before := ring.Sealer().KeyID()
		if _, err := ring.Stage(t.Context()); !errors.Is(err, ErrNotWritable) || !strings.Contains(err.Error(), "make a new key its first line (`lbctl cluster seal-key new`)") {
			t.Errorf("%s: stage: %v", text, err)
		}
		// The operator brings a new key, and leaves the old one out by mistake: it stays in use as long as the node runs.
		old, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		line := NewKeyLine()
		if err := os.WriteFile(file, line, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := rotate(t, ring); err != nil {
			t.Fatal(err)
		}
		if ids := ring.Sealer().KeyIDs(); len(ids) != 2 || ids[1] != before {
			t.Errorf("%s: keys %v", text, ids)
		}
		if err := ring.Retire(before); err != nil || len(ring.Sealer().KeyIDs()) != 1 {
			t.Errorf("%s: retire: %v", text, err)
		}
		if err := os.WriteFile(file, old, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestSourcesThatFail(t *testing.T) {
	for _, text := range []string{"seal.key", "vault:x", "credential:", "credential:../x", "command:", "command:  ", "file:"} {
		if _, err := ParseSource(text, "seal.key"); err == nil || !strings.Contains(err.Error(), "want file:PATH, credential:NAME or command:CMD") {
			t.Errorf("%q: %v", text, err)
		}
	}
	t.Setenv("CREDENTIALS_DIRECTORY", "")
	key := string(keyLine(bytes.Repeat([]byte{9}, keyBytes)))
	for _, test := range []struct{ text, want string }{
		{"credential:seal", "CREDENTIALS_DIRECTORY is not set"},
		{"command:" + script(t, "echo no vault >&2", "exit 3"), "exit status 3: no vault"},
		{"command:" + script(t, "echo hello"), "not a sealing key"},
		{"command:" + script(t, "head -c 10000 /dev/zero"), "too long for sealing keys"},
		{"command:/no/such/program", "no such file"},
		{"command:" + script(t, "printf '%s' '"+strings.TrimSpace(key[:len(key)-10])+"'"), "the key is damaged"},
	} {
		source, err := ParseSource(test.text, "")
		if err != nil {
			t.Fatal(err)
		}
		_, err = OpenRing(t.Context(), source, true)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", test.text, err, test.want)
		}
		if err != nil && strings.Contains(err.Error(), strings.Fields(key)[2][:20]) {
			t.Errorf("%s: the error shows the key", test.text)
		}
	}
}
