package main

import (
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

func cmdJoin(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 2, "join NAME AT [FLAG…]")
	n := newJoiner(ts, args[0], args[1], "", args[2:])
	startNode(ts, n)
	n.again()
}

func cmdJoinBegin(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 2, "join-begin NAME AT [FLAG…]")
	ts.Check(newJoiner(ts, args[0], args[1], "", args[2:]).begin(nodeEnv(ts)))
}

func cmdNodeBegin(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 1, "node-begin NAME")
	ts.Check(theNode(ts, args[0]).begin(nodeEnv(ts)))
}

func cmdNodeReady(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 1, "node-ready NAME")
	n := theNode(ts, args[0])
	ts.Check(n.awaitReady())
	n.again()
}

func cmdNodeEnd(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 2, "node-end NAME CODE")
	n := theNode(ts, args[0])
	select {
	case <-n.done:
	case <-time.After(patience):
		ts.Fatalf("%s runs still: %s", n.name, n.tail())
	}
	if code := strconv.Itoa(n.cmd.ProcessState.ExitCode()); code != args[1] {
		ts.Fatalf("%s: exit code %s, want %s\n%s", n.name, code, args[1], n.tail())
	}
}

func cmdNodeMove(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 1, "node-move NAME")
	n := theNode(ts, args[0])
	address, err := freeAddress()
	ts.Check(err)
	ts.Setenv(n.name+"_CONTROL", address)
	n.args[slices.Index(n.args, "--control")+1] = address
}

func cmdCluster(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 2, "cluster AT NAME…")
	at, begun := args[0], time.Now()
	token := joinToken(ts, at, "--uses", strconv.Itoa(len(args)-1))
	var joining []*node
	for _, name := range args[1:] {
		n := newJoiner(ts, name, at, token, nil)
		ts.Check(n.begin(nodeEnv(ts)))
		joining = append(joining, n)
	}
	for _, n := range joining {
		ts.Check(n.awaitReady())
		n.again()
	}
	votes := func() (bool, string) {
		out, err := lbctlAt(ts, at, "cluster", "status", "-o", "jsonpath={.voters}").Output()
		return err == nil && strings.TrimSpace(string(out)) == strconv.Itoa(len(args)), string(out)
	}
	wait(ts, votes)
	ts.Setenv(at+"_FORMED_MS", strconv.FormatInt(time.Since(begun).Milliseconds(), 10))
	atNode(ts, at)
}

func cmdAt(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 1, "at NAME")
	atNode(ts, args[0])
}

func atNode(ts *testscript.TestScript, name string) {
	ts.Setenv("LBCTL_ENDPOINTS", "unix:"+ts.MkAbs(name)+"/control.sock")
}

// newJoiner prepares a node that joins another one. Without a token it has one made.
func newJoiner(ts *testscript.TestScript, name, at, token string, flags []string) *node {
	verb := []string{"join", ts.Getenv(at + "_CONTROL")}
	given := func(flag string) bool { return strings.HasPrefix(flag, "--token") }
	if token == "" && !slices.ContainsFunc(flags, given) {
		token = joinToken(ts, at)
	}
	if token != "" {
		verb = append(verb, "--token", token)
	}
	return makeNode(ts, name, verb, flags)
}

// again makes the next start of a node that has joined a plain one.
func (n *node) again() {
	n.args = slices.DeleteFunc(n.args, func(arg string) bool { return strings.HasPrefix(arg, "lbj_") || arg == "--token" })
	if at := slices.Index(n.args, "--token-file"); at >= 0 {
		n.args = slices.Delete(n.args, at, at+2)
	}
	n.args = append([]string{"run"}, n.args[2:]...)
}

func joinToken(ts *testscript.TestScript, at string, flags ...string) string {
	cmd := lbctlAt(ts, at, append([]string{"cluster", "join-token", "create"}, flags...)...)
	var told strings.Builder
	cmd.Stderr = &told
	out, err := cmd.Output()
	if err != nil {
		ts.Fatalf("make a join token: %v\n%s", err, told.String())
	}
	return strings.TrimSpace(string(out))
}

// lbctlAt is lbctl for a node's socket.
func lbctlAt(ts *testscript.TestScript, name string, args ...string) *exec.Cmd {
	cmd := program(ts, append([]string{"lbctl"}, args...))
	cmd.Env = append(cmd.Env, "LBCTL_ENDPOINTS=unix:"+ts.MkAbs(name)+"/control.sock")
	return cmd
}
