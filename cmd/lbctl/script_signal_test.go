package main

import (
	"syscall"

	"github.com/rogpeppe/go-internal/testscript"
)

func cmdNodeSignal(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 2, "node-signal NAME STOP|CONT")
	signals := map[string]syscall.Signal{"STOP": syscall.SIGSTOP, "CONT": syscall.SIGCONT}
	signal, ok := signals[args[1]]
	if !ok {
		ts.Fatalf("node-signal takes STOP or CONT, not %s", args[1])
	}
	ts.Check(theNode(ts, args[0]).cmd.Process.Signal(signal))
}
