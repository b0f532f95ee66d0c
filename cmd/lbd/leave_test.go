package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

// joined makes the rig's node a member, the first one.
func (r *rig) joined() {
	r.t.Helper()
	n := &lbdv1.Node{
		Id: r.node.ID(), Name: "n1", Address: "127.0.0.1:7443", Role: lbdv1.NodeRole_NODE_ROLE_VOTER, Gate: 1, Key: "sha256:" + strings.Repeat("0", 64),
	}
	if r.record() == nil {
		r.nodeCommand(&raftv1.NodeCommand{Change: &raftv1.NodeCommand_Join{Join: &raftv1.JoinNode{Node: n}}})
	}
}

// nodeCommand changes a node's record.
func (r *rig) nodeCommand(cmd *raftv1.NodeCommand) {
	r.t.Helper()
	cmd.Author, cmd.Time = "test", timestamppb.Now()
	_, err := r.node.ProposeCommand(r.t.Context(), &raftv1.Command{Kind: &raftv1.Command_Node{Node: cmd}})
	if err != nil {
		r.t.Fatal(err)
	}
}

// drained drains the rig's node, or ends that, as run follows it.
func (r *rig) drained(yes bool) {
	r.t.Helper()
	set := &raftv1.SetNodeDrain{Id: r.node.ID()}
	if yes {
		set.Drain = &lbdv1.NodeDrain{Reason: "new kernel"}
	}
	r.nodeCommand(&raftv1.NodeCommand{Change: &raftv1.NodeCommand_Drain{Drain: set}})
	r.followDrain()
	r.report()
}

// becomes waits for what the node does with traffic.
func (r *rig) becomes(word string) {
	r.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); r.Status().GetTraffic() != word; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			r.t.Fatalf("traffic is %s, want %s", r.Status().GetTraffic(), word)
		}
	}
}

// slowBackend answers, /slow not before release is closed; started tells of each that it holds.
func slowBackend(t *testing.T, release <-chan struct{}) (address string, started <-chan struct{}) {
	t.Helper()
	holds := make(chan struct{}, 16)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			holds <- struct{}{}
			select {
			case <-release:
			case <-r.Context().Done():
			}
		}
		_, _ = io.WriteString(w, "hi")
	})}
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close(); <-done })
	return l.Addr().String(), holds
}

// leaving is a rig with a listener of its own before a slow backend, and what else the cluster's settings say of a drain.
func leaving(t *testing.T, healthPath string, drain *lbdv1.DrainSettings) (r *rig, url string, started <-chan struct{}, release chan struct{}) {
	t.Helper()
	r, release = newRig(t), make(chan struct{})
	backend, started := slowBackend(t, release)
	r.cfg.listen["web"] = "127.0.0.1:0"
	web := &lbdv1.Listener{Name: "web", Addresses: []string{"127.0.0.1:8081"}, Protocol: lbdv1.Protocol_PROTOCOL_HTTP, HealthPath: healthPath}
	r.propose(web, &lbdv1.Pool{Name: "p", Backends: []*lbdv1.Backend{{Address: backend}}},
		&lbdv1.Route{Name: "r", Listeners: []string{"web"}, Action: &lbdv1.Route_Forward{Forward: &lbdv1.Forward{Pools: []*lbdv1.ForwardPool{{Pool: "p"}}}}},
		&lbdv1.ClusterSettings{AllowLoopbackBackends: proto.Bool(true), Drain: drain})
	r.publish()
	r.joined()
	return r, "http://" + r.address("web"), started, release
}

// asks makes a request, and tells how it ended: its status and body, or the error.
func asks(url string) <-chan string {
	told := make(chan string, 1)
	go func() {
		c := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		resp, err := c.Get(url)
		if err != nil {
			told <- err.Error()
			return
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		told <- fmt.Sprint(resp.StatusCode, " ", string(body), " ", err)
	}()
	return told
}

// lastAnswer is the head of an answer on a new connection; empty: there was none.
func lastAnswer(t *testing.T, address string) (head string) {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	for s := bufio.NewScanner(c); s.Scan() && s.Text() != ""; {
		head += s.Text() + "\n"
	}
	return head
}

// TestNodeDrain: a node that is drained says so first, ends what is under way, goes on answering who comes all the same and following
// revisions, stays drained through a restart, and takes its traffic back.
func TestNodeDrain(t *testing.T) {
	r, url, started, release := leaving(t, "/ready", nil)
	r.serves(url+"/ready", 200)
	busy := asks(url + "/slow")
	<-started
	r.drained(true)
	if p := r.Progress(); p.Serving || p.Revision == 0 {
		t.Errorf("progress %+v: a node that drains is not ready, and follows revisions", p)
	}
	r.serves(url+"/ready", 503)
	r.becomes(trafficDraining)
	close(release)
	if got := <-busy; got != "200 hi <nil>" {
		t.Errorf("what was under way ended with %s", got)
	}
	r.becomes(trafficDrained)
	if head := lastAnswer(t, r.address("web")); !strings.HasPrefix(head, "HTTP/1.1 200") || !strings.Contains(head, "Connection: close") {
		t.Errorf("who comes to a drained node gets %q", head)
	}
	for _, problem := range r.Status().GetProblems() {
		if strings.Contains(problem, "stopping") {
			t.Errorf("problems of a node that was drained: %q", r.Status().GetProblems())
		}
	}
	revision := r.propose(&lbdv1.Route{Name: "other", Listeners: []string{"web"}, Hosts: []string{"other.test"},
		Action: &lbdv1.Route_Respond{Respond: &lbdv1.Respond{Status: 204}}})
	r.publish()
	if p := r.Progress(); p.Serving || p.Revision != revision {
		t.Errorf("progress %+v, want revision %d", p, revision)
	}

	again, err := r.again(func(cfg *config) {
		cfg.listen = map[string]string{"http": "127.0.0.1:0", "https": "127.0.0.1:0", "web": "127.0.0.1:0"}
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { again.drainer.end() })
	again.begin()
	again.t = t
	again.serves("http://"+again.address("web")+"/ready", 503)
	again.becomes(trafficDrained)

	r.drained(false)
	r.serves(url+"/ready", 200)
	r.becomes(trafficReady)
	if head := lastAnswer(t, r.address("web")); strings.Contains(head, "Connection: close") {
		t.Errorf("an undrained node says %q", head)
	}
}

// TestNodeDrainDeadline: what does not end is cut off at the deadline, and not if the drain is taken back before.
func TestNodeDrainDeadline(t *testing.T) {
	r, url, started, release := leaving(t, "", &lbdv1.DrainSettings{Deadline: durationpb.New(time.Second)})
	defer close(release)
	busy := asks(url + "/slow")
	<-started
	r.drained(true)
	r.drained(false)
	r.becomes(trafficReady)
	r.drained(true)
	r.becomes(trafficDrained)
	if got := <-busy; strings.HasPrefix(got, "200") {
		t.Errorf("what did not end ended with %s", got)
	}
	past, _ := r.events.since(time.Time{})
	if last := past[len(past)-1]; last.GetType() != "node_drained" {
		t.Errorf("the last event is %v", last)
	}
	r.drained(false)
}

// TestLeave: an idle process ends at once, a busy one at its deadline; a second signal hurries either.
func TestLeave(t *testing.T) {
	for name, c := range map[string]struct {
		healthPath      string
		grace, deadline time.Duration
		busy, again     bool
		least, most     time.Duration
	}{
		"idle":                        {"", 10 * time.Minute, time.Hour, false, false, 0, 20 * time.Second},
		"idle, asked for its health":  {"/ready", 300 * time.Millisecond, time.Hour, false, false, 300 * time.Millisecond, 20 * time.Second},
		"busy until the deadline":     {"", 0, time.Second, true, false, time.Second, 20 * time.Second},
		"busy, with a second signal":  {"", 0, time.Hour, true, true, 0, 20 * time.Second},
		"grace, with a second signal": {"/ready", 10 * time.Minute, time.Hour, true, true, 0, 20 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			r, url, started, release := leaving(t, c.healthPath, &lbdv1.DrainSettings{Grace: durationpb.New(c.grace), Deadline: durationpb.New(c.deadline)})
			defer close(release)
			r.cfg.dev = false
			idle, err := net.Dial("tcp", r.address("web"))
			if err != nil {
				t.Fatal(err)
			}
			defer idle.Close()
			if _, err := io.WriteString(idle, "GET / HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
			if line, err := bufio.NewReader(idle).ReadString('\n'); err != nil || !strings.Contains(line, "200") {
				t.Fatal(line, err)
			}
			if c.busy {
				asks(url + "/slow")
				<-started
			}
			again, hurry := context.WithCancel(t.Context())
			defer hurry()
			if c.again {
				hurry()
			}
			began := time.Now()
			r.leave(again, false)
			if took := time.Since(began); took < c.least || took > c.most {
				t.Errorf("took %s, want %s to %s", took, c.least, c.most)
			}
			if conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://")); err == nil {
				conn.Close()
				t.Error("a process that has left takes connections")
			}
		})
	}
}

// TestLeaveHandedOver: a process whose place another one has stops accepting at once, also a dev node; who is at a request has the
// deadline, and the health path says what it said before.
func TestLeaveHandedOver(t *testing.T) {
	r, url, started, release := leaving(t, "/ready", &lbdv1.DrainSettings{Grace: durationpb.New(10 * time.Minute)})
	busy := asks(url + "/slow")
	<-started
	kept, err := net.Dial("tcp", r.address("web"))
	if err != nil {
		t.Fatal(err)
	}
	defer kept.Close()
	in := bufio.NewReader(kept)
	ask := func() (int, bool) {
		t.Helper()
		if _, err := io.WriteString(kept, "GET /ready HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		return resp.StatusCode, resp.Close
	}
	if code, last := ask(); code != 200 || last {
		t.Fatalf("%d, the last one: %t", code, last)
	}
	address, done := r.address("web"), make(chan struct{})
	go func() { defer close(done); r.leave(context.Background(), true) }()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		c, err := net.Dial("tcp", address)
		if err != nil {
			break
		}
		c.Close()
		if time.Now().After(deadline) {
			t.Fatal("it goes on accepting")
		}
	}
	if code, last := ask(); code != 200 || !last {
		t.Errorf("one last answer: %d, the last one: %t", code, last)
	}
	close(release)
	if got := <-busy; got != "200 hi <nil>" {
		t.Errorf("what was under way ended with %s", got)
	}
	<-done
	if words := []string{r.traffic.get()}; !slices.Equal(words, []string{trafficDraining}) {
		t.Errorf("it is %s", words)
	}
}
