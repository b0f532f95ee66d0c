//go:build linux

package netnstest_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	"lbd/cluster/netnstest"
	lbdv1 "lbd/proto/lbd/v1"
)

var logFolder = flag.String("logs", "", "folder that gets a copy of each node's log")

const (
	frontPort   = "8443"
	controlPort = "7443"
	owner       = "web"
)

// frontDocument is what the nodes serve. Without a health check the nodes have no opinion of the backend that a fault could change.
const frontDocument = `
api_version: lbd/v1
owner: web
listeners: [{ name: https, addresses: [":8443"], protocol: HTTPS, timeouts: { handshake: 30s } }]
certificates: [{ name: front, self_signed: { hosts: [front.test] } }]
pools: [{ name: back, backends: [{ address: "BACKEND" }] }]
routes: [{ name: back, listeners: [https], matches: [{ path: { prefix: /load } }], forward: { pools: [{ pool: back }] } }]
`

// cluster is n nodes, node 1 to n on the host of that number, under load and with a writer.
type cluster struct {
	*netnstest.Net
	t      *testing.T
	dir    string
	disks  bool
	load   *load
	writer *writer

	mu    sync.Mutex
	nodes map[int]*node // those that are, or shall be, members
}

// node is one lbd.
type node struct {
	c      *cluster
	host   int
	name   string
	data   string
	binary string
	flags  []string
	conn   *grpc.ClientConn // by its control socket: no fault of the net is between
	proc   *netnstest.Process
	excuse func() // ends the excuse of a node that does not run; nil while it runs
}

// newCluster starts nodes 1 to size on a net that has spare hosts more, and asks them all from then on.
func newCluster(t *testing.T, size, spare int) *cluster {
	t.Helper()
	return startCluster(t, size, spare, false)
}

// startCluster is newCluster; with disks, each node's data has a file system of its own, of diskSize.
func startCluster(t *testing.T, size, spare int, disks bool) *cluster {
	t.Helper()
	begin := time.Now()
	dir, err := os.MkdirTemp("", "lbd-n-") // short: the paths of sockets are
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{Net: netnstest.New(t, size+spare), t: t, dir: dir, disks: disks, nodes: map[int]*node{}}
	t.Cleanup(func() { os.RemoveAll(dir) })
	c.load = startLoad(t, c.Net)
	first := c.add(1)
	first.start(t, "run")
	c.applyFront(first)
	if size > 1 {
		token := c.joinToken(t, first, size-1)
		var joins sync.WaitGroup
		for host := 2; host <= size; host++ {
			n := c.add(host)
			joins.Go(func() {
				if err := n.startOrError("join", first.control(), "--token", token); err != nil {
					t.Error(err)
				}
			})
		}
		if joins.Wait(); t.Failed() {
			t.FailNow()
		}
	}
	c.healthy(t, size)
	for host := range c.nodes {
		c.load.on(host)
	}
	c.writer = startWriter(c)
	t.Logf("net %s: %d nodes after %v", c.Address(netnstest.Root), size, time.Since(begin).Round(time.Millisecond))
	return c
}

// add makes a node that does not run yet.
func (c *cluster) add(host int) *node {
	c.t.Helper()
	n := &node{c: c, host: host, name: fmt.Sprintf("n%d", host), binary: "lbd"}
	n.data = filepath.Join(c.dir, n.name)
	if c.disks {
		n.mountDisk()
	}
	n.flags = []string{"--data-dir", n.data, "--node", n.name, "--control", n.control()}
	conn, err := grpc.NewClient("unix:"+n.socket(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.2, MaxDelay: 100 * time.Millisecond}, MinConnectTimeout: time.Second}))
	if err != nil {
		c.t.Fatal(err)
	}
	n.conn = conn
	c.t.Cleanup(func() { conn.Close() })
	c.mu.Lock()
	defer c.mu.Unlock()
	c.nodes[host] = n
	return n
}

// forget takes a node that was removed from the cluster off the list.
func (c *cluster) forget(n *node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.nodes, n.host)
}

func (c *cluster) node(host int) *node {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nodes[host]
}

// members are the hosts of the nodes.
func (c *cluster) members() []int {
	c.mu.Lock()
	defer c.mu.Unlock()
	var hosts []int
	for host := range c.nodes {
		hosts = append(hosts, host)
	}
	slices.Sort(hosts)
	return hosts
}

// applyFront gives the first node something to serve.
func (c *cluster) applyFront(n *node) {
	c.t.Helper()
	path := filepath.Join(c.dir, "front.yaml")
	if err := os.WriteFile(path, []byte(strings.ReplaceAll(frontDocument, "BACKEND", backend(c.t, c.Net))), 0o600); err != nil {
		c.t.Fatal(err)
	}
	n.mustLbctl(c.t, "apply", "-f", path, "--wait")
}

func (c *cluster) joinToken(t *testing.T, n *node, uses int) string {
	t.Helper()
	out := n.mustLbctl(t, "cluster", "join-token", "create", "--uses", fmt.Sprint(uses), "-o", "jsonpath={.secret}")
	return strings.TrimSpace(out)
}

func (n *node) socket() string { return filepath.Join(n.data, "control.sock") }
func (n *node) control() string {
	return net.JoinHostPort(n.c.Address(n.host).String(), controlPort)
}

// front is where clients reach a node.
func (c *cluster) front(host int) string {
	return net.JoinHostPort(c.Address(host).String(), frontPort)
}

// start runs the node until it is ready to serve.
func (n *node) start(t *testing.T, verb string, args ...string) {
	t.Helper()
	if err := n.startOrError(verb, args...); err != nil {
		t.Fatal(err)
	}
}

func (n *node) startOrError(verb string, args ...string) error {
	n.begin(verb, args...)
	err := n.proc.Expect("lbd ready revision=", patience)
	if err == nil && n.excuse != nil {
		n.excuse()
		n.excuse = nil
	}
	return err
}

// begin starts the process and waits for nothing.
func (n *node) begin(verb string, args ...string) {
	program := filepath.Join(netnstest.Binaries(), n.binary)
	n.proc = n.c.Start(n.host, n.name, nil, program, append(append([]string{verb}, args...), n.flags...)...)
	if *logFolder != "" {
		proc := n.proc
		path := filepath.Join(*logFolder, fmt.Sprintf("%s-%s-%d.log", strings.ReplaceAll(n.c.t.Name(), "/", "_"), n.name, proc.Pid()))
		n.c.t.Cleanup(func() { _ = os.WriteFile(path, []byte(proc.Log()), 0o600) })
	}
}

// kill ends the node without a word. Until it is started again it need not answer.
func (n *node) kill() {
	if n.excuse == nil {
		n.excuse = n.c.Excuse(n.host)
	}
	n.proc.Kill()
}

// freeze stops the process until thaw.
func (n *node) freeze() (thaw func()) {
	n.excuse = n.c.Excuse(n.host)
	n.proc.Signal(syscall.SIGSTOP)
	return func() {
		n.proc.Signal(syscall.SIGCONT)
		n.excuse()
		n.excuse = nil
	}
}

// lbctl runs lbctl against the node's control socket.
func (n *node) lbctl(args ...string) (stdout, stderr string, code int) {
	cmd := exec.Command(filepath.Join(netnstest.Binaries(), "lbctl"), args...)
	cmd.Env = append(os.Environ(), "LBCTL_ENDPOINTS=unix:"+n.socket())
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return "", err.Error(), -1
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// mustLbctl is lbctl, which must end with 0, and its stdout.
func (n *node) mustLbctl(t *testing.T, args ...string) string {
	t.Helper()
	stdout, stderr, code := n.lbctl(args...)
	if code != 0 {
		t.Fatalf("%s: lbctl %s: exit %d\n%s%s", n.name, strings.Join(args, " "), code, stdout, stderr)
	}
	return stdout
}

// clusterStatus is what a node says of the cluster.
func (n *node) clusterStatus() (*lbdv1.ClusterServiceGetStatusResponse, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 8*time.Second)
	defer cancel()
	return lbdv1.NewClusterServiceClient(n.conn).GetStatus(ctx, &lbdv1.ClusterServiceGetStatusRequest{})
}

// leader waits until most nodes agree on who leads, and returns that node.
func (c *cluster) leader(t *testing.T) *node {
	t.Helper()
	var found *node
	eventually(t, "there is a leader", func() (bool, string) {
		counts := map[string]int{}
		for _, host := range c.members() {
			if s, err := c.node(host).clusterStatus(); err == nil {
				counts[s.GetLeader()]++
			}
		}
		for _, host := range c.members() {
			if n := c.node(host); 2*counts[n.name] > len(c.members()) {
				found = n
				return true, ""
			}
		}
		return false, c.describe()
	})
	return found
}

// follower is a node that does not lead.
func (c *cluster) follower(t *testing.T) *node {
	t.Helper()
	leader := c.leader(t)
	for _, host := range c.members() {
		if n := c.node(host); n != leader {
			return n
		}
	}
	t.Fatal("there is no follower")
	return nil
}

// others are the hosts of all nodes but this one.
func (c *cluster) others(n *node) []int {
	return slices.DeleteFunc(c.members(), func(host int) bool { return host == n.host })
}

// healthy waits until so many voters are there and every node finds nothing wrong.
func (c *cluster) healthy(t *testing.T, voters int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d voters, all is well", voters), func() (bool, string) {
		for _, host := range c.members() {
			s, err := c.node(host).clusterStatus()
			if err != nil || int(s.GetVoters()) != voters || s.GetLeader() == "" || len(s.GetProblems()) > 0 {
				return false, c.describe()
			}
		}
		return true, ""
	})
}

// describe is what each node says of the cluster.
func (c *cluster) describe() string {
	var b strings.Builder
	for _, host := range c.members() {
		s, err := c.node(host).clusterStatus()
		if err != nil {
			fmt.Fprintf(&b, "n%d: %v\n", host, err)
			continue
		}
		fmt.Fprintf(&b, "n%d: leader %q, %d voters, problems %q\n", host, s.GetLeader(), s.GetVoters(), s.GetProblems())
	}
	return b.String()
}

// equal waits until all nodes hold the same, at the same entry of the log.
func (c *cluster) equal(t *testing.T) {
	t.Helper()
	n := c.node(c.members()[0])
	eventually(t, "all nodes hold the same", func() (bool, string) {
		stdout, stderr, code := n.lbctl("cluster", "verify")
		return code == 0, stdout + stderr
	})
}

// settle ends a case: the faults are healed, the cluster is well, writes go on, all hold the same, and no request was lost.
func (c *cluster) settle(t *testing.T) {
	t.Helper()
	c.Heal()
	healed := time.Now()
	c.writer.only()
	c.healthy(t, len(c.members()))
	well := time.Since(healed)
	for _, host := range c.members() {
		eventually(t, fmt.Sprintf("n%d answers clients again", host), func() (bool, string) { return c.load.answered(host) > 0, "" })
	}
	c.writer.resumed(t, time.Now())
	c.equal(t)
	t.Logf("well %v after the end of the fault", well.Round(time.Millisecond))
	c.load.judge(t)
}

// finish stops writer and load, and looks for everything that was acknowledged on every node.
func (c *cluster) finish(t *testing.T) {
	t.Helper()
	c.writer.stop()
	c.writer.check(t)
	c.load.stop()
	c.load.judge(t)
}

// run runs cases one after the other on the same cluster, as subtests. After one that leaves the cluster ill the others are not tried.
func (c *cluster) run(cases ...faultCase) {
	for i, f := range cases {
		settled := false
		c.t.Run(f.name, func(t *testing.T) {
			f.run(c, t)
			c.settle(t)
			settled = true
		})
		if !settled {
			said := c.describe()
			c.dump()
			c.t.Fatalf("the cluster is ill after %q: %d cases were not tried\n%s", f.name, len(cases)-i-1, said)
		}
	}
	c.finish(c.t)
}

// dump ends the nodes with what their goroutines do, for -logs.
func (c *cluster) dump() {
	if *logFolder == "" {
		return
	}
	for _, host := range c.members() {
		if p := c.node(host).proc; p.Running() {
			p.Signal(syscall.SIGQUIT)
			_ = p.Wait(5 * time.Second)
		}
	}
}

// faultCase is one fault, from its beginning to where it is healed.
type faultCase struct {
	name string
	run  func(c *cluster, t *testing.T)
}

// eventually waits for what processes bring about.
func eventually(t *testing.T, what string, ok func() (done bool, last string)) {
	t.Helper()
	for begin := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		done, last := ok()
		if done {
			return
		}
		if time.Since(begin) > patience {
			t.Fatalf("not within %v: %s; last:\n%s", patience, what, last)
		}
	}
}
