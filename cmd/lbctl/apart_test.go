package main

import (
	"os"
	"os/exec"
	"testing"
)

// binariesVariable is where a test that runs itself again finds the binaries.
const binariesVariable = "LBD_TEST_BINARIES"

// apart runs the calling test again in a mount namespace of its own, where what it mounts ends with it and, for whoever is
// not root, in a user namespace in which it is. It is false in the process that has done so: the test is over there.
func apart(t *testing.T) bool {
	t.Helper()
	if os.Getenv(binariesVariable) != "" {
		return true
	}
	flags := "-m"
	if os.Geteuid() != 0 {
		flags = "-Urm"
	}
	cmd := exec.Command("unshare", flags, os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=10m")
	cmd.Env = append(os.Environ(), binariesVariable+"="+binaries)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	return false
}
