package main

import (
	"os"
	"path/filepath"
	"testing"
)

// An empty file is not the chain or key that was left out: nothing is sent, nobody is asked.
func TestEmptyPEMFile(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty.pem")
	if err := os.WriteFile(empty, []byte("\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("LBCTL_ENDPOINTS", "unix:"+filepath.Join(t.TempDir(), "nobody.sock"))
	lbctl("", "cert", "rotate", "a", "--chain", empty).wants(t, exitInvalid, "", empty+" is empty")
	lbctl("", "cert", "rotate", "a", "--chain", filepath.Join("testdata", "script", "start.txtar"), "--key", empty).
		wants(t, exitInvalid, "", empty+" is empty")
}
