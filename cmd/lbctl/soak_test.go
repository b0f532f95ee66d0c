//go:build soak

package main

import (
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// TestSoak runs the scripts that wait for minutes.
func TestSoak(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 filepath.Join("testdata", "soak"),
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup:               func(e *testscript.Env) error { return setupScript(e, engines()[0]) },
		Cmds:                scriptCommands,
	})
}
