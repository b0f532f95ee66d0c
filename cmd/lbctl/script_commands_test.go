package main

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// scriptCommands are the words that scripts have beside testscript's own.
//
//	node NAME [FLAG…]              start a dev node of binary $LBD and wait until it is ready; sets NAME_HTTP, NAME_HTTPS, NAME_METRICS, NAME_CONTROL, each with _PORT, and LBCTL_ENDPOINTS
//	node-start NAME                start it again, same data and flags; sets NAME_START_MS
//	node-move NAME                 give a node that is stopped another control address
//	node-stop NAME [SIGNAL]        default TERM, which must exit 0; KILL just kills
//	node-log NAME REGEXP           its stderr so far must match (waits)
//	join NAME AT [FLAG…]           start a dev node that joins the one named AT, whose lbctl makes the token unless a flag brings one; otherwise as node
//	join-begin NAME AT [FLAG…]     the same without waiting, node-begin NAME as node-start; node-ready NAME waits, node-end NAME CODE waits for its end
//	cluster AT NAME…               let several nodes join the one named AT at once, by one token; sets AT_FORMED_MS
//	node-signal NAME STOP|CONT     stop a node in the middle of what it does, and let it go on
//	at NAME                        lbctl talks to this node from now on
//	backend NAME                   start a backend; sets NAME, NAME_PORT
//	backend-stop NAME, backend-start NAME, backend-health NAME STATUS
//	fetch URL STATUS [REGEXP]      one GET on a new connection, any certificate
//	metric NODE REGEXP             one of the node's metrics must match, name to value (waits: they follow a request by a moment)
//	raw HOST:PORT STATUS[,STATUS…][,end] TEXT…    say exactly that; the statuses of the answers, and whether the connection ends
//	until REGEXP PROGRAM ARG…      run until stdout matches (a bounded wait)
//	exit CODE PROGRAM ARG…         run, the exit code must be CODE; stdout and stderr as after exec
//	repeat N FILE|- PROGRAM ARG…   run N times, each must succeed; {} is a copy of FILE with @i@ (the round) and @even@ (1 or 2) filled in
//	envsubst FILE                  fill in $NAME and write the file back
//	same A B, differ A B           compare two words
//	lines stdout|stderr N REGEXP   exactly N lines of the last output match
//	serial VAR HOST:PORT NAME      handshake with that server name, VAR becomes the leaf's serial
//	hold NAME URL, held NAME       keep one connection open; "held" makes a request on it and fails if it was closed
//	load NAME RATE URL REGEXP      checked load: RATE requests/s, half of them on new connections; no retry
//	load-reach NAME N              wait until N requests were answered
//	load-stop NAME FLOOR           print what was sent; fail on any failed request or fewer than FLOOR
//	backend-tls NAME CHAIN KEY [CLIENT-CA]    start a backend that speaks TLS; its answers say the server name and the client's certificate
//	backend-at NAME HOST:PORT      start a backend there
//	hosts FILE                     nodes started from now on find names there, not in /etc/hosts
//	pair CHAIN KEY HOST FROM TO SERIAL    make a certificate that signs itself, valid from and to so many days from now
//	occupy VAR, vacate ADDRESS     hold an address so that nobody else can listen there; let it go
//	tally VAR N URL REGEXP         how many of N answers match; between N LEAST MOST
//	count N FILE PART              append PART to FILE N times, with @i@ filled in
//	within TIME REGEXP PROGRAM ARG…    as until, but no later
//	secret KEY PATH…                   no file there has that private key in any form; with "!" one must
var scriptCommands = map[string]func(ts *testscript.TestScript, neg bool, args []string){
	"node":           cmdNode,
	"node-start":     cmdNodeStart,
	"node-stop":      cmdNodeStop,
	"node-log":       cmdNodeLog,
	"join":           cmdJoin,
	"join-begin":     cmdJoinBegin,
	"node-begin":     cmdNodeBegin,
	"node-ready":     cmdNodeReady,
	"node-end":       cmdNodeEnd,
	"node-move":      cmdNodeMove,
	"node-signal":    cmdNodeSignal,
	"cluster":        cmdCluster,
	"at":             cmdAt,
	"backend":        cmdBackend,
	"backend-stop":   cmdBackendStop,
	"backend-start":  cmdBackendStart,
	"backend-health": cmdBackendHealth,
	"fetch":          cmdFetch,
	"metric":         cmdMetric,
	"raw":            cmdRaw,
	"until":          cmdUntil,
	"exit":           cmdExit,
	"repeat":         cmdRepeat,
	"envsubst":       cmdEnvsubst,
	"same":           cmdSame,
	"differ":         cmdDiffer,
	"lines":          cmdLines,
	"serial":         cmdSerial,
	"hold":           cmdHold,
	"held":           cmdHeld,
	"load":           cmdLoad,
	"load-reach":     cmdLoadReach,
	"load-stop":      cmdLoadStop,
	"backend-tls":    cmdBackendTLS,
	"backend-at":     cmdBackendAt,
	"hosts":          cmdHosts,
	"pair":           cmdPair,
	"occupy":         cmdOccupy,
	"vacate":         cmdVacate,
	"tally":          cmdTally,
	"between":        cmdBetween,
	"count":          cmdCount,
	"within":         cmdWithin,
	"secret":         cmdSecret,
	"ids":            cmdIDs,
	"knock":          cmdKnock,
	"knock-for":      cmdKnockFor,
}

func need(ts *testscript.TestScript, neg bool, args []string, n int, usage string) {
	if neg || len(args) < n {
		ts.Fatalf("usage: %s", usage)
	}
}

func nodeEnv(ts *testscript.TestScript) []string {
	env := os.Environ()
	for _, k := range []string{"LBD_ENGINE", "GORACE", "XDG_STATE_HOME", "XDG_RUNTIME_DIR", "PATH", "LBD_FAULT", "LBD_SEAL_KEY"} {
		env = append(env, k+"="+ts.Getenv(k))
	}
	return env
}

func cmdNode(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 1, "node NAME [FLAG…]")
	n := makeNode(ts, args[0], []string{"run"}, args[1:])
	startNode(ts, n)
}

// makeNode prepares a dev node with addresses of its own; verb is `run`, or how it joins.
func makeNode(ts *testscript.TestScript, name string, verb, more []string) *node {
	dir := ts.MkAbs(name)
	flags := append(verb, "--dev", "--data-dir", dir, "--node", name)
	for _, l := range []string{"http", "https", "metrics", "control"} {
		address, err := freeAddress()
		ts.Check(err)
		ts.Setenv(name+"_"+strings.ToUpper(l), address)
		ts.Setenv(name+"_"+strings.ToUpper(l)+"_PORT", address[strings.LastIndexByte(address, ':')+1:])
		if l == "metrics" || l == "control" {
			flags = append(flags, "--"+l, address)
		} else {
			flags = append(flags, "--listen", l+"="+address)
		}
	}
	ts.Setenv("LBCTL_ENDPOINTS", "unix:"+filepath.Join(dir, "control.sock"))
	n := &node{name: name, binary: ts.Getenv("LBD"), args: append(flags, more...), log: ts.MkAbs(name + ".log")}
	worldOf(ts).nodes[name] = n
	return n
}

func startNode(ts *testscript.TestScript, n *node) {
	took, err := n.start(nodeEnv(ts))
	ts.Check(err)
	ts.Setenv(n.name+"_START_MS", strconv.FormatInt(took.Milliseconds(), 10))
}

func theNode(ts *testscript.TestScript, name string) *node {
	n := worldOf(ts).nodes[name]
	if n == nil {
		ts.Fatalf("no node %s", name)
	}
	return n
}

func cmdNodeStart(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 1, "node-start NAME")
	startNode(ts, theNode(ts, args[0]))
}

func cmdNodeStop(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 1, "node-stop NAME [SIGNAL]")
	n := theNode(ts, args[0])
	if len(args) > 1 && args[1] == "KILL" {
		n.kill()
		return
	}
	sig := syscall.SIGTERM
	if len(args) > 1 && args[1] == "INT" {
		sig = syscall.SIGINT
	}
	if err := n.signal(sig); err != nil {
		ts.Fatalf("%s: %v\n%s", n.name, err, n.tail())
	}
}

func cmdNodeLog(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 2, "node-log NAME REGEXP")
	n, re := theNode(ts, args[0]), regexp.MustCompile(args[1])
	wait(ts, func() (bool, string) { b, _ := os.ReadFile(n.log); return re.Match(b), string(b) })
}

func cmdBackend(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 1, "backend NAME")
	address, err := freeAddress() // it comes back on the same one
	ts.Check(err)
	b := &backend{name: args[0], address: address, status: http.StatusOK}
	ts.Check(b.start())
	worldOf(ts).backends[b.name] = b
	ts.Setenv(b.name, b.address)
	_, port, err := net.SplitHostPort(b.address)
	ts.Check(err)
	ts.Setenv(b.name+"_PORT", port)
}

func theBackend(ts *testscript.TestScript, name string) *backend {
	b := worldOf(ts).backends[name]
	if b == nil {
		ts.Fatalf("no backend %s", name)
	}
	return b
}

func cmdBackendStop(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 1, "backend-stop NAME")
	theBackend(ts, args[0]).stop()
}

func cmdBackendStart(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 1, "backend-start NAME")
	ts.Check(theBackend(ts, args[0]).start())
}

func cmdBackendHealth(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 2, "backend-health NAME STATUS")
	status, err := strconv.Atoi(args[1])
	ts.Check(err)
	b := theBackend(ts, args[0])
	b.mu.Lock()
	defer b.mu.Unlock()
	b.status = status
}

func cmdFetch(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 2, "fetch URL STATUS [REGEXP]")
	tr := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}
	defer tr.CloseIdleConnections()
	c := &http.Client{Transport: tr, Timeout: patience, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := c.Get(args[0])
	ts.Check(err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	ts.Check(err)
	ts.Logf("%s: %s\n%s", args[0], resp.Status, body)
	if strconv.Itoa(resp.StatusCode) != args[1] {
		ts.Fatalf("status %d, want %s", resp.StatusCode, args[1])
	}
	if len(args) > 2 && !regexp.MustCompile(args[2]).Match(body) {
		ts.Fatalf("the body does not match %q", args[2])
	}
}

// wait polls until ok, at most for the suite's patience.
func wait(ts *testscript.TestScript, ok func() (bool, string)) {
	deadline := time.Now().Add(patience)
	for {
		done, last := ok()
		if done {
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("waited %v; last:\n%s", patience, last)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func cmdMetric(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 2, "metric NODE REGEXP")
	re := regexp.MustCompile("(?m)^" + args[1] + "$")
	wait(ts, func() (bool, string) {
		resp, err := http.Get("http://" + ts.Getenv(args[0]+"_METRICS") + "/metrics")
		ts.Check(err)
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		ts.Check(err)
		return re.Match(body), string(body)
	})
}

func cmdUntil(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 2, "until REGEXP PROGRAM ARG…")
	re := regexp.MustCompile(args[0])
	wait(ts, func() (bool, string) {
		out, err := program(ts, args[1:]).CombinedOutput()
		return re.Match(out), fmt.Sprintf("%s%v", out, err)
	})
}

func program(ts *testscript.TestScript, args []string) *exec.Cmd {
	path := args[0]
	if p := filepath.Join(binaries, path); fileExists(p) {
		path = p
	}
	cmd := exec.Command(path, args[1:]...)
	cmd.Dir = ts.MkAbs(".")
	cmd.Env = append(nodeEnv(ts), "LBCTL_ENDPOINTS="+ts.Getenv("LBCTL_ENDPOINTS"))
	return cmd
}

func fileExists(p string) bool {
	_, err := os.Stat(p)
	return err == nil
}

func cmdExit(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 2, "exit CODE PROGRAM ARG…")
	err := ts.Exec(args[1], args[2:]...)
	code := 0
	if ee, ok := err.(*exec.ExitError); ok {
		code = ee.ExitCode()
	} else if err != nil {
		ts.Fatalf("%v", err)
	}
	if strconv.Itoa(code) != args[0] {
		ts.Fatalf("exit code %d, want %s", code, args[0])
	}
}

func cmdSerial(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 3, "serial VAR HOST:PORT NAME")
	c, err := tls.Dial("tcp", args[1], &tls.Config{InsecureSkipVerify: true, ServerName: args[2]})
	ts.Check(err)
	defer c.Close()
	ts.Setenv(args[0], c.ConnectionState().PeerCertificates[0].SerialNumber.Text(16))
}

func cmdRepeat(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 3, "repeat N FILE|- PROGRAM ARG…")
	n, err := strconv.Atoi(args[0])
	ts.Check(err)
	for i := range n {
		argv := append([]string(nil), args[2:]...)
		if args[1] != "-" {
			filled := strings.NewReplacer("@i@", strconv.Itoa(i), "@even@", strconv.Itoa(1+i%2)).Replace(ts.ReadFile(args[1]))
			path := ts.MkAbs("repeat-" + filepath.Base(args[1]))
			ts.Check(os.WriteFile(path, []byte(filled), 0o600))
			for j, a := range argv {
				argv[j] = strings.ReplaceAll(a, "{}", path)
			}
		}
		if out, err := program(ts, argv).CombinedOutput(); err != nil {
			ts.Fatalf("round %d: %v: %v\n%s", i, argv, err, out)
		}
	}
}

func cmdEnvsubst(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 1, "envsubst FILE")
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(os.Expand(ts.ReadFile(args[0]), ts.Getenv)), 0o600))
}

func cmdSame(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 2, "same A B")
	if args[0] != args[1] {
		ts.Fatalf("%q is not %q", args[0], args[1])
	}
}

func cmdDiffer(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 2, "differ A B")
	if args[0] == args[1] {
		ts.Fatalf("both are %q", args[0])
	}
}

func cmdLines(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 3, "lines stdout|stderr N REGEXP")
	re, n := regexp.MustCompile(args[2]), 0
	for _, l := range strings.Split(ts.ReadFile(args[0]), "\n") {
		if re.MatchString(l) {
			n++
		}
	}
	if strconv.Itoa(n) != args[1] {
		ts.Fatalf("%d lines match, want %s", n, args[1])
	}
}
