package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// binaries is the folder with the real lbd and lbctl, built once for all scripts.
var binaries string

func TestMain(m *testing.M) { os.Exit(buildAndRun(m)) }

func buildAndRun(m *testing.M) int {
	if binaries = os.Getenv(binariesVariable); binaries != "" { // a test that runs itself again, see apart
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "lbd-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	if err := errors.Join(goBuild(dir, "lbd", "lbd", raceEnabled), goBuild(dir, "lbd-plain", "lbd", false),
		goBuild(dir, "lbd-fault", "lbd", false, "-tags", "lbdfault"), goBuild(dir, "lbd-next", "lbd", false, "-tags", "lbdnext"),
		goBuild(dir, "lbctl", "lbctl", false)); err != nil {
		fmt.Fprintln(os.Stderr, "building the binaries:", err)
		return 1
	}
	binaries = dir
	// Nodes that are started without a word about a control port have none: several run at a time.
	if err := os.Setenv("LBD_CONTROL", "off"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// goBuild builds one command into dir under a name. lbd is there twice: scripts that measure load choose lbd-plain, and lbd-fault
// can be made to panic or to hang; lbd-next is what a next version may be, with one kind of log entry more. lbctl is
// built without the race detector, which its own tests have: scripts start it hundreds of times. What is built without it has no cgo,
// as a release.
func goBuild(dir, name, command string, race bool, flags ...string) error {
	args := append([]string{"build", "-o", filepath.Join(dir, name)}, flags...)
	if race {
		args = append(args, "-race")
	}
	cmd := exec.Command("go", append(args, "lbd/cmd/"+command)...)
	if !race {
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	}
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	return cmd.Run()
}

// engines are the ways to serve: every script runs on the first, and what traffic could notice on each.
func engines() []string {
	if runtime.GOOS == "linux" {
		return []string{"epoll", "goroutine"}
	}
	return []string{"goroutine"}
}

// TestScript runs the end-to-end suite over the real binaries.
func TestScript(t *testing.T) {
	for _, engine := range engines() {
		t.Run(engine, func(t *testing.T) {
			testscript.Run(t, testscript.Params{
				Files:               scriptsFor(t, engine),
				RequireExplicitExec: true,
				RequireUniqueNames:  true,
				Setup:               func(e *testscript.Env) error { return setupScript(e, engine) },
				Cmds:                scriptCommands,
			})
		})
	}
}

// scriptsFor are the scripts to run on an engine: all on the first. What clusters agree on knows nothing of the data plane; of those scripts the other engine has
// the one in which connections are given up.
func scriptsFor(t *testing.T, engine string) []string {
	all, err := filepath.Glob(filepath.Join("testdata", "script", "*.txtar"))
	if err != nil || len(all) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	if engine == engines()[0] {
		return all
	}
	return slices.DeleteFunc(all, func(path string) bool {
		name := filepath.Base(path)
		return strings.HasPrefix(name, "cluster_") && name != "cluster_drain.txtar"
	})
}

func setupScript(e *testscript.Env, engine string) error {
	examples, err := filepath.Abs(filepath.Join("..", "..", "examples"))
	if err != nil {
		return err
	}
	e.Setenv("PATH", binaries+string(filepath.ListSeparator)+os.Getenv("PATH"))
	e.Setenv("EXAMPLES", examples)
	e.Setenv("LBD", "lbd")
	e.Setenv("LBD_ENGINE", engine)
	e.Setenv("LBD_CONTROL", "off")
	e.Setenv("GORACE", "halt_on_error=1")
	e.Setenv("XDG_STATE_HOME", filepath.Join(e.WorkDir, "state"))
	e.Setenv("XDG_RUNTIME_DIR", filepath.Join(e.WorkDir, "run"))
	world := newWorld(e)
	e.Values[worldKey{}] = world
	e.Defer(world.close)
	return nil
}
