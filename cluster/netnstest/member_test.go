//go:build linux

package netnstest_test

import (
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	lbdv1 "lbd/proto/lbd/v1"
)

const (
	// bulkRoutes times bulkBytes, which no compression makes less, is what a new node has to be sent.
	bulkRoutes, bulkBytes = 48, 24 << 10
	// slowKbit lets that take some seconds: many heartbeats.
	slowKbit = 3000
)

func TestMembers(t *testing.T) {
	t.Parallel()
	newCluster(t, 3, 1).run(
		faultCase{"node joins in a partition", (*cluster).joinInPartition},
		faultCase{"change of members refused without a quorum", (*cluster).refusedInPartition},
		faultCase{"leader removed", (*cluster).removeLeader},
		faultCase{"snapshot into a new node over a slow link", (*cluster).slowJoin},
		faultCase{"snapshot into a node that lags over a slow link", (*cluster).slowLag},
	)
}

// joinInPartition adds a fourth node while a follower hears nothing of it.
func (c *cluster) joinInPartition(t *testing.T) {
	leader, follower := c.leader(t), c.follower(t)
	c.Partition([]int{follower.host}, append(c.others(follower), c.spare()))
	n := c.join(t, leader, c.spare())
	c.during(t, time.Second)
	c.Heal()
	c.healthy(t, 4)
	c.writer.only(n.host) // it forwards like the others
	c.writer.resumed(t, time.Now())
}

// refusedInPartition tries on the wrong side to change who is a member.
func (c *cluster) refusedInPartition(t *testing.T) {
	leader := c.leader(t)
	others := c.others(leader)
	c.Partition([]int{leader.host}, others)
	c.writer.only(others...)
	c.writer.resumed(t, time.Now())
	for _, args := range [][]string{
		{"cluster", "remove", c.node(others[0]).name, "--yes", "--timeout", "5s"},
		{"node", "demote", c.node(others[0]).name, "--timeout", "5s"},
		{"cluster", "join-token", "create", "--timeout", "2s"},
	} {
		if stdout, stderr, code := leader.lbctl(args...); code != 7 {
			t.Errorf("lbctl %s on a node without a quorum: exit %d, want 7\n%s%s", strings.Join(args, " "), code, stdout, stderr)
		}
	}
	c.Heal()
	c.healthy(t, len(c.members()))
}

// removeLeader removes the leader by way of another node, and then has its host join anew.
func (c *cluster) removeLeader(t *testing.T) {
	leader := c.leader(t)
	back := c.remove(t, leader)
	c.healthy(t, len(c.members()))
	n := c.join(t, c.leader(t), leader.host)
	back()
	c.healthy(t, len(c.members()))
	if c.leader(t) == n {
		t.Error("the node that has just joined leads")
	}
}

// remove takes a node out of the cluster by way of another one, while it serves: it answers what it has accepted, and ends. Its host is
// excused until back is called.
func (c *cluster) remove(t *testing.T, n *node) (back func()) {
	t.Helper()
	by := c.node(c.others(n)[0])
	begin := time.Now()
	c.load.leaves(n.host)
	c.forget(n) // nothing is asked of its socket
	by.mustLbctl(t, "cluster", "remove", n.name, "--yes", "--timeout", "30s")
	t.Logf("%s removed after %v, writes resumed after %v", n.name, time.Since(begin).Round(time.Millisecond), c.writer.resumed(t, begin))
	_ = n.proc.Wait(patience) // it says why, and ends
	if n.proc.Running() {
		t.Fatalf("%s was removed and runs:\n%s", n.name, n.proc.Tail(30))
	}
	back = c.Excuse(n.host)
	c.load.returns(n.host)
	if err := os.RemoveAll(n.data); err != nil {
		t.Fatal(err)
	}
	return back
}

// slowJoin has a node join that needs a snapshot, over a link on which that takes longer than many elections.
func (c *cluster) slowJoin(t *testing.T) {
	n := c.node(4)
	back := c.remove(t, n)
	c.healthy(t, len(c.members()))
	c.bulk(t)
	c.dropLog(t)
	leader := c.leader(t)
	begin := time.Now()
	c.Rate(n.host, slowKbit)
	c.join(t, leader, n.host)
	c.healthy(t, len(c.members()))
	back()
	t.Logf("caught up after %v", time.Since(begin).Round(time.Millisecond))
	if c.leader(t) != leader {
		t.Errorf("%s led before, now %s does", leader.name, c.leader(t).name)
	}
}

// slowLag lets a follower miss what is then no longer in the log.
func (c *cluster) slowLag(t *testing.T) {
	follower := c.follower(t)
	follower.kill()
	c.bulk(t)
	c.dropLog(t)
	leader := c.leader(t)
	begin := time.Now()
	c.Rate(follower.host, slowKbit)
	follower.start(t, "run")
	t.Logf("serves after %v", time.Since(begin).Round(time.Millisecond))
	c.healthy(t, len(c.members()))
	t.Logf("caught up after %v", time.Since(begin).Round(time.Millisecond))
	if c.leader(t) != leader {
		t.Errorf("%s led before, now %s does", leader.name, c.leader(t).name)
	}
}

// spare is the first host without a node.
func (c *cluster) spare() int {
	for _, host := range c.Hosts() {
		if c.node(host) == nil {
			return host
		}
	}
	c.t.Fatal("no host is free")
	return 0
}

// join makes a host a node, by way of another.
func (c *cluster) join(t *testing.T, by *node, host int) *node {
	t.Helper()
	token := c.joinToken(t, by, 1)
	n := c.add(host)
	n.start(t, "join", by.control(), "--token", token)
	c.load.on(host)
	return n
}

// bulk makes the state large.
func (c *cluster) bulk(t *testing.T) {
	t.Helper()
	for part := 0; part < bulkRoutes; part += 8 {
		var routes []*lbdv1.Resource
		for i := part; i < part+8; i++ {
			b := make([]byte, bulkBytes*3/4)
			_, _ = rand.Read(b)
			routes = append(routes, &lbdv1.Resource{Spec: &lbdv1.Resource_Route{Route: &lbdv1.Route{
				Name: fmt.Sprintf("bulk-%d", i), Listeners: []string{"https"}, Matches: []*lbdv1.RouteMatch{{Path: &lbdv1.PathMatch{Match: &lbdv1.PathMatch_Exact{Exact: fmt.Sprintf("/bulk/%d", i)}}}},
				Action: &lbdv1.Route_Respond{Respond: &lbdv1.Respond{Status: 200, Body: base64.StdEncoding.EncodeToString(b)}},
			}}})
		}
		id := rand.Text()
		eventually(t, "a large change is applied", func() (bool, string) {
			_, err := c.leader(t).apply(nil, "bulk", id, routes...)
			return err == nil, fmt.Sprint(err)
		})
	}
}

// dropLog lets every node that runs forget the log up to now, as a purge does.
func (c *cluster) dropLog(t *testing.T) {
	t.Helper()
	n := c.leader(t)
	id := rand.Text()
	certificate := &lbdv1.Certificate{Name: "purged", Source: &lbdv1.Certificate_SelfSigned{SelfSigned: &lbdv1.CertificateSelfSigned{Hosts: []string{"purged.test"}}}}
	if _, err := n.apply(nil, "to be purged", id, &lbdv1.Resource{Spec: &lbdv1.Resource_Certificate{Certificate: certificate}}); err != nil {
		t.Fatal(err)
	}
	stdout, stderr, code := n.lbctl("cert", "delete", "purged", "--purge", "--yes", "--timeout", "5s")
	t.Logf("purge: exit %d %s%s", code, stdout, stderr)
}
