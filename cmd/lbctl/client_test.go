package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"lbd/cluster/state"
	lbdv1 "lbd/proto/lbd/v1"
)

const shop = `api_version: lbd/v1
owner: web
pools:
  - name: shop
    backends: [{ address: "10.0.0.11:8080" }]
`

func created(revision int64) *lbdv1.ApplyResponse {
	return &lbdv1.ApplyResponse{Revision: revision, Changes: []*lbdv1.Change{
		{Action: lbdv1.ChangeAction_CHANGE_ACTION_CREATE, Kind: "pools", Name: "shop"},
	}}
}

func TestExitCodesOfAnswers(t *testing.T) {
	var answer error
	node := &fakeNode{get: func(*lbdv1.GetRequest) (*lbdv1.GetResponse, error) { return nil, answer }}
	node.start(t)
	for code, want := range map[codes.Code]int{
		codes.InvalidArgument:    3,
		codes.Unauthenticated:    4,
		codes.PermissionDenied:   4,
		codes.NotFound:           5,
		codes.AlreadyExists:      6,
		codes.Aborted:            6,
		codes.FailedPrecondition: 6,
		codes.Unavailable:        7,
		codes.ResourceExhausted:  7,
		codes.DeadlineExceeded:   7,
		codes.Internal:           9,
		codes.Unknown:            9,
		codes.Unimplemented:      9,
	} {
		answer = status.Error(code, "because "+code.String())
		text := "because " + code.String()
		if code == codes.DeadlineExceeded {
			text = "no answer within 30s"
		}
		lbctl("", "get", "pool/shop").wants(t, want, "", text)
	}
}

func TestWrongCommandLines(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing")
	for _, c := range []struct{ args, says string }{
		{"nothing", `unknown command "nothing"`},
		{"cert nothing", `unknown command "nothing" for "lbctl cert"`},
		{"drain shop/10.0.0.1:80", "there is no `lbctl drain` (did you mean `lbctl backend drain`?)"},
		{"get", "accepts 1 arg"},
		{"get pool shop", "error: write pool/shop\n"},
		{"describe route shop", "write route/shop"},
		{"delete pool shop", "write pool/shop"},
		{"wait backend/shop/10.0.0.1:80 --for=Healthy", "a backend is no resource: wait for its pool"},
		{"rollback --owner web --to abc", "--to takes a whole number, not \"abc\""},
		{"rollback --owner web --to 99999999999999999999", "--to takes a whole number up to 9223372036854775807, not"},
		{"apply -f - --if-revision=", "--if-revision takes a whole number, not \"\""},
		{"get pools --timeout soon", "--timeout takes a length of time such as 30s or 5m, not \"soon\""},
		{"get servers", "no kind named `servers`"},
		{"get pools/", "want kind/name"},
		{"get pools/a --owner web", "--owner"},
		{"get pools -o xml", `unknown output "xml"`},
		{"get pools -o jsonpath=.a[", "cannot read"},
		{"get pools --timeout 0s", "longer than 0"},
		{"get pools --endpoints localhost", "HOST:PORT or unix:PATH, not \"localhost\""},
		{"get pools --endpoints localhost:7443", "by what is localhost:7443 known to be of your cluster? set LBCTL_CA"},
		{"get pools --context nowhere", "there is no context `nowhere`"},
		{"apply", "error: say --file FILE (a"},
		{"apply -f " + missing, missing},
		{"apply shop.yaml", "documents are named with -f: lbctl apply -f shop.yaml"},
		{"diff -f - shop.yaml", "lbctl diff -f shop.yaml"},
		{"get pools -o jsonpath={.a}{.b}", "it is one path"},
		{"get pools/a\xff", "argument 2 is not UTF-8: \"pools/a\\xff\""},
		{"apply -f - --message=\xc3(", "argument 4 is not UTF-8: \"--message=\\xc3(\""},
		{"wait route/a --for=Healthy", "only pools are healthy or not"},
		{"apply -f - --wait --dry-run", "--dry-run"},
		{"validate -f - --error-format xml", "unknown error format"},
		{"init", "error: say --backend BACKEND ("},
		{"init --backend nowhere", "nowhere"},
		{"init --backend 10.0.0.1:80 --name Shop", "Shop"},
		{"cert add a --chain x --key y", "error: say --owner OWNER (whose it will be)\nsee"},
		{"cert rotate a --key y", "--key needs --chain"},
		{"cert rotate a --chain " + missing, missing},
		{"history --limit 0", "--limit"},
		{"export -o name", "yaml or json"},
		{"version extra", "unknown command"},
		{"completion tcsh", "unknown shell"},
	} {
		t.Setenv("LBCTL_ENDPOINTS", "")
		o := lbctl("", strings.Fields(c.args)...)
		if o.code != exitUsage || !strings.Contains(o.stderr, c.says) || o.stdout != "" {
			t.Errorf("lbctl %s: exit %d, stdout %q, stderr %q, want %q", c.args, o.code, o.stdout, o.stderr, c.says)
		}
	}
	t.Setenv("LBCTL_TIMEOUT", "soon")
	lbctl("", "get", "pools").wants(t, exitUsage, "", "read LBCTL_TIMEOUT")
}

func TestExitCodesAreDocumented(t *testing.T) {
	o := lbctl("", "help", "exit-codes")
	for _, e := range exitCodes {
		if !strings.Contains(o.stdout, fmt.Sprintf("%3d  %s\n", e.code, e.meaning)) {
			t.Errorf("exit code %d is not in\n%s", e.code, o.stdout)
		}
	}
}

func TestCompletion(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		lbctl("", "completion", shell).wants(t, 0, "lbctl", "")
	}
	lbctl("", "__complete", "get", "pool").wants(t, 0, "pools\n", "Completion ended")
}

func TestApply(t *testing.T) {
	node := &fakeNode{apply: func(h *lbdv1.ApplyHeader, resources []*lbdv1.Resource) (*lbdv1.ApplyResponse, error) {
		return created(7), nil
	}}
	node.start(t)
	lbctl(shop, "apply", "-f", "-", "-m", "why", "--take-over").wants(t, 0, "pools/shop  created\nrevision 7: 1 change\n", "")
	header := node.requests[0].(*lbdv1.ApplyRequest).GetHeader()
	if header.GetOwner() != "web" || header.GetMessage() != "why" || !header.GetTakeOver() || header.GetValidateOnly() || len(header.GetRequestId()) < 16 {
		t.Errorf("header is %v", header)
	}
	sent := node.requests[1].(*lbdv1.ApplyRequest).GetResources().GetResources()
	if len(sent) != 1 || sent[0].GetPool().GetBackends()[0].GetAddress() != "10.0.0.11:8080" {
		t.Errorf("sent %v", sent)
	}

	lbctl(shop, "apply", "-f", "-", "--dry-run").wants(t, 0, "pools/shop  would be created\ndry run: 1 change", "")
	if h := node.requests[2].(*lbdv1.ApplyRequest).GetHeader(); !h.GetValidateOnly() || h.GetRequestId() == header.GetRequestId() {
		t.Errorf("header of the dry run is %v", h)
	}
	lbctl(shop, "apply", "-f", "-", "-o", "json").wants(t, 0, `"action": "CREATE"`, "")
	lbctl(shop, "apply", "-f", "-", "-o", "name").wants(t, 0, "pools/shop\n", "")
	lbctl(shop, "apply", "-f", "-", "-o", "jsonpath={.revision}").wants(t, 0, "7\n", "")

	node.apply = func(*lbdv1.ApplyHeader, []*lbdv1.Resource) (*lbdv1.ApplyResponse, error) {
		return &lbdv1.ApplyResponse{Revision: 7}, nil
	}
	lbctl(shop, "apply", "-f", "-").wants(t, 0, "revision 7: nothing to change\n", "")

	node.apply = func(*lbdv1.ApplyHeader, []*lbdv1.Resource) (*lbdv1.ApplyResponse, error) {
		s, err := status.New(codes.Aborted, "conflict: pools/shop belongs to owner `api`").WithDetails(&errdetails.ErrorInfo{Reason: "OWNED_BY_OTHER"})
		if err != nil {
			t.Error(err)
		}
		return nil, s.Err()
	}
	lbctl(shop, "apply", "-f", "-").wants(t, 6, "", "error: conflict: pools/shop belongs to owner `api` (--take-over)\n")
}

// What a flag says is the command line's fault.
func TestLongMessage(t *testing.T) {
	long := refusal(t, &errdetails.BadRequest_FieldViolation{Field: "message", Description: "has 5000 bytes: at most 4096"})
	node := &fakeNode{
		apply: func(*lbdv1.ApplyHeader, []*lbdv1.Resource) (*lbdv1.ApplyResponse, error) { return nil, long },
		get: func(*lbdv1.GetRequest) (*lbdv1.GetResponse, error) {
			return &lbdv1.GetResponse{Resource: &lbdv1.Resource{Owner: "web"}}, nil
		},
	}
	node.start(t)
	lbctl(shop, "apply", "-f", "-", "-m", "long").wants(t, 2, "", "error: -m: has 5000 bytes: at most 4096\nerror: 1 error\n")
	lbctl("", "delete", "pool/shop", "-m", "long").wants(t, 2, "", "error: -m: has 5000 bytes")
}

func TestApplyReportsAtTheWord(t *testing.T) {
	node := &fakeNode{apply: func(*lbdv1.ApplyHeader, []*lbdv1.Resource) (*lbdv1.ApplyResponse, error) {
		return nil, refusal(t, &errdetails.BadRequest_FieldViolation{Field: `pools["shop"].backends[0].address`, Description: "is this node itself"})
	}}
	node.start(t)
	lbctl(shop, "apply", "-f", "-").wants(t, 3, "", "stdin:5:27: error: `address` is this node itself\nerror: 1 error\n")

	node.apply = func(*lbdv1.ApplyHeader, []*lbdv1.Resource) (*lbdv1.ApplyResponse, error) {
		a := created(7)
		a.Warnings = []*lbdv1.Violation{{Severity: lbdv1.Severity_SEVERITY_WARNING, Field: `pools["shop"]`, Description: "is used by no route"}}
		return a, nil
	}
	lbctl(shop, "apply", "-f", "-").wants(t, 0, "revision 7", "stdin:4:5: warning: pool `shop` is used by no route\n")
}

// What cannot be read is told with all that the rules say, and is not sent.
func TestApplyDoesNotSendWhatCannotBeRead(t *testing.T) {
	node := &fakeNode{}
	node.start(t)
	// Nobody was asked whether the listener is there: nothing is said of it, unless it looks misspelt.
	const routes = "routes:\n  - { name: a, listeners: [https], forward: { pools: [{ pool: shp }] }, colour: red }\n"
	lbctl(shop+routes, "apply", "-f", "-").wants(t, 3, "", "stdin:7:63: warning: no pool named `shp` (did you mean `shop`)\n"+
		"stdin:7:73: error: unknown field `colour`; fields here are ")
	if o := lbctl(shop+routes, "diff", "-f", "-"); o.code != 3 || strings.Contains(o.stderr, "https") {
		t.Errorf("exit %d, %s", o.code, o.stderr)
	}

	o := lbctl(shop+"    healthCheck: {}\n  - { name: other }\n", "apply", "-f", "-")
	o.wants(t, 3, "", "stdin:6:5: error: unknown field `healthCheck` (did you mean `health_check`?)\nstdin:7:5: error: `backends` is required")
	if len(node.requests) > 0 {
		t.Errorf("sent %v", node.requests)
	}
}

func TestRetriesCarryOneRequestID(t *testing.T) {
	attempts := 0
	node := &fakeNode{apply: func(*lbdv1.ApplyHeader, []*lbdv1.Resource) (*lbdv1.ApplyResponse, error) {
		if attempts++; attempts < 3 {
			return nil, status.Error(codes.Unavailable, "no leader")
		}
		return created(7), nil
	}}
	node.start(t)
	lbctl(shop, "apply", "-f", "-").wants(t, 0, "revision 7", "")
	ids := map[string]bool{}
	for _, r := range node.requests {
		if h := r.(*lbdv1.ApplyRequest).GetHeader(); h != nil {
			ids[h.GetRequestId()] = true
		}
	}
	if attempts != 3 || len(ids) != 1 {
		t.Errorf("%d attempts with the ids %v", attempts, ids)
	}

	node.apply = func(*lbdv1.ApplyHeader, []*lbdv1.Resource) (*lbdv1.ApplyResponse, error) {
		return nil, status.Error(codes.Unavailable, "no leader")
	}
	lbctl(shop, "apply", "-f", "-", "--timeout", "3s").wants(t, 7, "", "no leader")
}

func progress(node string, p lbdv1.NodeProgress, served int64, reason string) *lbdv1.WaitForRevisionResponse {
	return &lbdv1.WaitForRevisionResponse{Node: node, Progress: p, ServedRevision: served, Reason: reason}
}

func TestWait(t *testing.T) {
	const (
		pending     = lbdv1.NodeProgress_NODE_PROGRESS_PENDING
		served      = lbdv1.NodeProgress_NODE_PROGRESS_SERVED
		refused     = lbdv1.NodeProgress_NODE_PROGRESS_REFUSED
		unreachable = lbdv1.NodeProgress_NODE_PROGRESS_UNREACHABLE
		leftOut     = lbdv1.NodeProgress_NODE_PROGRESS_LEFT_OUT
	)
	type stream = grpc.ServerStreamingServer[lbdv1.WaitForRevisionResponse]
	send := func(s stream, all ...*lbdv1.WaitForRevisionResponse) error {
		for _, p := range all {
			if err := s.Send(p); err != nil {
				return err
			}
		}
		return nil
	}
	calls := 0
	for name, c := range map[string]struct {
		wait   func(s stream) error
		code   int
		stderr string
	}{
		"unreachable": {func(s stream) error {
			err := send(s, progress("n1", served, 7, ""), progress("n3", pending, 0, "it has not answered yet"), progress("n2", unreachable, 0, "connection refused"))
			if err != nil {
				return err
			}
			<-s.Context().Done()
			return s.Context().Err()
		}, 8, "timed out after 2s: revision 7 is stored, but node n2 does not answer: connection refused; node n3 not yet revision 7: it has not answered yet\n"},
		"left out": {func(s stream) error {
			return send(s, progress("n1", served, 7, ""), progress("n2", pending, 6, ""), progress("n2", leftOut, 6, "it is drained"))
		}, 0, "node n2: is not waited for: it is drained\n"},
		"nobody there": {
			func(s stream) error { return send(s, progress("n1", leftOut, 6, "it is drained")) },
			8, "error: revision 7 is stored, but no node serves: all are drained\n",
		},
		"refused though another is silent": {func(s stream) error {
			return send(s, progress("n2", unreachable, 0, "connection refused"), progress("n1", refused, 6, "listeners/https: address in use"))
		}, 1, "error: node n1 refuses revision 7: listeners/https: address in use\n"},
		"served": {func(s stream) error {
			return send(s, progress("n1", pending, 6, ""), progress("n1", pending, 6, ""), progress("n2", served, 8, ""), progress("n1", served, 7, ""))
		}, 0, "node n1: serves revision 6, not yet 7\nnode n2: serves revision 7\nnode n1: serves revision 7\n"},
		"refused": {func(s stream) error {
			return send(s, progress("n2", pending, 6, ""), progress("n1", refused, 6, "listeners/https: address in use"))
		}, 1, "error: node n1 refuses revision 7: listeners/https: address in use\n"},
		"silent": {func(s stream) error {
			if err := send(s, progress("n2", served, 7, ""), progress("n1", pending, 6, "")); err != nil {
				return err
			}
			<-s.Context().Done()
			return s.Context().Err()
		}, 8, "error: timed out after 2s: revision 7 is stored, but node n1 serves revision 6, not yet 7\n"},
		"nothing heard": {func(s stream) error {
			<-s.Context().Done()
			return s.Context().Err()
		}, 8, "revision 7 is stored, but no node has said what it serves"},
		"broken off": {func(s stream) error {
			if calls++; calls < 3 {
				if err := send(s, progress("n1", pending, 6, "")); err != nil {
					return err
				}
				return status.Error(codes.Unavailable, "stopping")
			}
			return send(s, progress("n1", served, 7, ""))
		}, 0, "node n1: serves revision 6, not yet 7\nnode n1: serves revision 7\n"},
		"gone":  {func(stream) error { return status.Error(codes.NotFound, "no revision 7") }, 5, "no revision 7"},
		"early": {func(s stream) error { return send(s, progress("n1", pending, 6, "")) }, 9, "the wait ended early"},
	} {
		t.Run(name, func(t *testing.T) {
			node := &fakeNode{
				apply: func(*lbdv1.ApplyHeader, []*lbdv1.Resource) (*lbdv1.ApplyResponse, error) { return created(7), nil },
				wait: func(r *lbdv1.WaitForRevisionRequest, s stream) error {
					if r.GetRevision() != 7 {
						t.Errorf("waits for revision %d", r.GetRevision())
					}
					return c.wait(s)
				},
			}
			node.start(t)
			timeout := "30s"
			if c.code == exitWaitTimedOut {
				timeout = "2s"
			}
			lbctl(shop, "apply", "-f", "-", "--wait", "--timeout", timeout).wants(t, c.code, "revision 7: 1 change\n", c.stderr)
		})
	}
	node := &fakeNode{
		apply: func(*lbdv1.ApplyHeader, []*lbdv1.Resource) (*lbdv1.ApplyResponse, error) { return created(7), nil },
		wait: func(r *lbdv1.WaitForRevisionRequest, s stream) error {
			if !r.GetReachable() {
				t.Error("--wait=reachable is not in the request")
			}
			return send(s, progress("n1", served, 7, ""), progress("n2", unreachable, 0, "connection refused"))
		},
	}
	node.start(t)
	lbctl(shop, "apply", "-f", "-", "--wait=REACHABLE").wants(t, 0, "revision 7: 1 change\n",
		"warning: revision 7 is not known to be served everywhere: node n2 does not answer: connection refused\n")
}

func TestQuiet(t *testing.T) {
	node := &fakeNode{
		apply: func(*lbdv1.ApplyHeader, []*lbdv1.Resource) (*lbdv1.ApplyResponse, error) { return created(7), nil },
		wait: func(_ *lbdv1.WaitForRevisionRequest, s grpc.ServerStreamingServer[lbdv1.WaitForRevisionResponse]) error {
			return s.Send(progress("n1", lbdv1.NodeProgress_NODE_PROGRESS_SERVED, 7, ""))
		},
	}
	node.start(t)
	lbctl(shop, "apply", "-q", "-f", "-", "--wait").wants(t, 0, "revision 7", "")
	lbctl(shop, "validate", "-q", "-f", "-").wants(t, 0, "", "")
}

// SIGINT during a wait says what is stored already.
func TestInterrupt(t *testing.T) {
	node := &fakeNode{
		apply: func(*lbdv1.ApplyHeader, []*lbdv1.Resource) (*lbdv1.ApplyResponse, error) { return created(7), nil },
		wait: func(_ *lbdv1.WaitForRevisionRequest, s grpc.ServerStreamingServer[lbdv1.WaitForRevisionResponse]) error {
			if err := syscall.Kill(syscall.Getpid(), syscall.SIGINT); err != nil {
				return err
			}
			<-s.Context().Done()
			return s.Context().Err()
		},
	}
	node.start(t)
	lbctl(shop, "apply", "-f", "-", "--wait").wants(t, 130, "revision 7", "error: interrupted: revision 7 is stored\n")
}

func TestNoNode(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("LBCTL_ENDPOINTS", "unix:"+filepath.Join(dir, "a.sock")+",unix:"+filepath.Join(dir, "b.sock"))
	o := lbctl("", "status")
	o.wants(t, 7, "", "a.sock (no such file or directory) or unix:"+filepath.Join(dir, "b.sock")+" (no such file or directory): is it running? one with a --data-dir of its own answers at --endpoints unix:DIR/control.sock; `lbd run --dev` starts one to try out")
	lbctl("", "version").wants(t, 0, "lbctl", "no lbd node answers")
	lbctl(shop, "apply", "-f", "-", "--timeout", "300ms").wants(t, 7, "", "no lbd node answers")

	denied := error(fmt.Errorf("unix:/x (%w)", syscall.EACCES))
	cl := &client{conn: &nodes{all: []*nodeConn{{}}}, reach: &reach{}}
	cl.conn.all[0].unreached.Store(&denied)
	var f *failure
	if err := cl.explain(status.Error(codes.Unavailable, "")); !errors.As(err, &f) || f.code != exitForbidden || !errors.Is(err, fs.ErrPermission) {
		t.Errorf("no right to the socket: %v", err)
	}
}

// A node that is just starting is waited for by what changes something.
func TestApplyWaitsForTheSocket(t *testing.T) {
	node := &fakeNode{apply: func(*lbdv1.ApplyHeader, []*lbdv1.Resource) (*lbdv1.ApplyResponse, error) { return created(7), nil }}
	live := node.start(t)
	socket := filepath.Join(t.TempDir(), "late.sock")
	t.Setenv("LBCTL_ENDPOINTS", "unix:"+socket)
	ended := make(chan outcome)
	go func() { ended <- lbctl(shop, "apply", "-f", "-") }()
	time.Sleep(50 * time.Millisecond) // let it fail at least once; it has to succeed whenever the socket comes
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go forward(l, live)
	o := <-ended
	o.wants(t, 0, "revision 7", "")
}

// forward passes one connection on to another socket. An error ends the connection, which the client sees.
func forward(l net.Listener, socket string) {
	in, err := l.Accept()
	if err != nil {
		return
	}
	defer in.Close()
	out, err := net.Dial("unix", socket)
	if err != nil {
		return
	}
	defer out.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		io.Copy(out, in)
		out.Close()
	}()
	io.Copy(in, out)
	in.Close()
	<-done
}

// Flag over environment over default; of several endpoints the first that answers.
func TestEndpoints(t *testing.T) {
	version := func(v string) *fakeNode {
		return &fakeNode{version: func() (*lbdv1.GetVersionResponse, error) { return &lbdv1.GetVersionResponse{Version: v}, nil }}
	}
	one := version("one").start(t)
	two := version("two").start(t) // now in LBCTL_ENDPOINTS
	lbctl("", "version").wants(t, 0, "two", "")
	lbctl("", "version", "--endpoints", "unix:"+one).wants(t, 0, "one", "")
	lbctl("", "version", "--endpoints", "unix:"+two+".gone,unix:"+one).wants(t, 0, "one", "")

	env := map[string]string{}
	c := &cli{getenv: func(k string) (string, bool) { v, ok := env[k]; return v, ok }}
	for _, step := range []struct {
		key, value string
		uid        int
		want       []string
	}{
		{"", "", 0, []string{"unix:/run/lbd/control.sock"}},
		{"", "", 1000, []string{"unix:/run/lbd/control.sock"}},
		{"HOME", "/home/ann", 1000, []string{"unix:/home/ann/.local/state/lbd/control.sock", "unix:/run/lbd/control.sock"}},
		{"XDG_STATE_HOME", "/state", 1000, []string{"unix:/state/lbd/control.sock", "unix:/run/lbd/control.sock"}},
		{"XDG_RUNTIME_DIR", "/run/user/1000", 1000, []string{"unix:/run/user/1000/lbd/control.sock", "unix:/run/lbd/control.sock"}},
		{"", "", 0, []string{"unix:/run/lbd/control.sock"}},
	} {
		env[step.key] = step.value
		if got := c.localSockets(step.uid); !slices.Equal(got, step.want) {
			t.Errorf("with %v and uid %d: %v, want %v", env, step.uid, got, step.want)
		}
	}
}

func TestSplit(t *testing.T) {
	var resources []*lbdv1.Resource
	for i := range 100 {
		r, _ := state.Wrap("web", &lbdv1.Route{Name: fmt.Sprint("r", i), Action: &lbdv1.Route_Respond{Respond: &lbdv1.Respond{Body: strings.Repeat("x", 10_000)}}})
		resources = append(resources, r)
	}
	huge, _ := state.Wrap("web", &lbdv1.Route{Name: "huge", Action: &lbdv1.Route_Respond{Respond: &lbdv1.Respond{Body: strings.Repeat("x", 2*partBytesMax)}}})
	resources = append(resources, huge)
	var names []string
	for _, p := range split(resources) {
		size := 0
		for _, r := range p.GetResources() {
			size += len(r.GetRoute().GetRespond().GetBody())
			names = append(names, r.GetRoute().GetName())
		}
		if size > partBytesMax && len(p.GetResources()) > 1 {
			t.Errorf("a part of %d bytes", size)
		}
	}
	if len(names) != 101 || names[0] != "r0" || names[100] != "huge" {
		t.Errorf("%d resources were sent", len(names))
	}
	if split(nil) != nil {
		t.Error("nothing has parts")
	}
}

// What a node said before the time was up says more than that the time is up, and what lbd says to programs is put into
// words for people.
func TestUnavailableSaysWhy(t *testing.T) {
	said := func(reason, message string) error {
		s, err := status.New(codes.Unavailable, message).WithDetails(&errdetails.ErrorInfo{Reason: reason, Domain: "lbd"})
		if err != nil {
			t.Fatal(err)
		}
		return s.Err()
	}
	cl := &client{conn: &nodes{}, timeout: time.Second}
	late := status.Error(codes.DeadlineExceeded, "late")
	for _, c := range []struct {
		err  error
		want string
	}{
		{said("NO_LEADER", "no leader"), "no leader; `lbctl status` may say why"},
		{said("OUTCOME_UNKNOWN", "repeat it with the same request id"), "`lbctl history` tells"},
		{said("STOPPING", "this node is stopping"), "this node is stopping"},
		{&lateError{late, said("NO_LEADER", "no leader")}, "no leader; `lbctl status`"},
		{late, "no answer within 1s"},
		{status.Error(codes.Unavailable, "error reading from server: EOF"), "has not answered (error reading from server: EOF): safe to retry"},
	} {
		var f *failure
		if err := failed(cl.explain(c.err)); !errors.As(err, &f) || f.code != exitUnavailable || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v is told as %v, want exit code 7 and %q", c.err, err, c.want)
		}
	}
	if status.Code(&lateError{late, said("NO_LEADER", "")}) != codes.DeadlineExceeded {
		t.Error("a wait takes a deadline for something else: it would not exit 8")
	}
}

// A deadline in the middle of repeated calls keeps the answer before it.
func TestRetriedKeepsTheLastAnswer(t *testing.T) {
	calls := 0
	_, err := retried(t.Context(), &client{conn: &nodes{}}, 0, func() (struct{}, error) {
		if calls++; calls == 1 {
			return struct{}{}, status.Error(codes.Unavailable, "no leader")
		}
		return struct{}{}, status.Error(codes.DeadlineExceeded, "late")
	})
	var late *lateError
	if !errors.As(err, &late) || status.Convert(late.last).Message() != "no leader" {
		t.Errorf("error %v after %d calls", err, calls)
	}
}
