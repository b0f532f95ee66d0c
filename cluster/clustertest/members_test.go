package clustertest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lbd/cluster"
	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

// member is what the leader says of a host's node.
func (c *Cluster) member(h *Host) (found cluster.Member, ok bool) {
	for _, m := range c.Leader().Node.Members() {
		if m.Node.GetId() == h.ID {
			return m, true
		}
	}
	return found, false
}

func (c *Cluster) votes(h *Host) bool {
	m, _ := c.member(h)
	return m.Voter
}

func (h *Host) knowsThatItIsRemoved() bool {
	select {
	case <-h.Node.Removed():
		return true
	default:
		return false
	}
}

func TestLearnerVotesOnceItHasCaughtUp(t *testing.T) {
	t.Parallel()
	c := New(t, 1, Options{})
	h := c.host()
	h.seed()
	c.Admit(h)
	c.Await("it is a member", func() bool { _, ok := c.member(h); return ok })
	for i := range 80 {
		write(c, "shop", i+1)
	}
	if c.votes(h) {
		t.Fatal("a node that never ran has a vote")
	}
	h.Start()
	c.Await("it votes", func() bool { return c.votes(h) })
	c.SetRole(h, lbdv1.NodeRole_NODE_ROLE_NON_VOTER)
	c.Await("it votes no more", func() bool { return !c.votes(h) })
	write(c, "shop", 90)
	reads(c, h, "shop", 90)
	c.SetRole(h, lbdv1.NodeRole_NODE_ROLE_VOTER)
	c.Await("it votes again", func() bool { return c.votes(h) })
	c.Equal()
}

func TestFiveVotersAtMost(t *testing.T) {
	t.Parallel()
	c := New(t, 6, Options{})
	for _, h := range c.Hosts {
		c.Await(h.Name+" is live", func() bool { m, ok := c.member(h); return ok && m.Live })
	}
	if n := c.Voters(); n != 5 {
		t.Fatalf("%d voters", n)
	}
	var spare, voter *Host
	for _, h := range c.But(c.Leader()) {
		if c.votes(h) {
			voter = h
		} else {
			spare = h
		}
	}
	c.Remove(voter)
	c.Await("the sixth votes in the place of one that is gone", func() bool { return c.votes(spare) })
	c.Await("the removed one knows it", voter.knowsThatItIsRemoved)
	voter.Stop()
	c.Equal()
}

func TestLeaderRemoved(t *testing.T) {
	t.Parallel()
	c := New(t, 3, Options{})
	old := c.Leader()
	c.Remove(old)
	c.Await("it knows it", old.knowsThatItIsRemoved)
	rest := c.But(old)
	c.Await("another leads two voters", func() bool {
		leader := c.Leader(rest...)
		voters := 0
		for _, m := range leader.Node.Members() {
			if m.Voter {
				voters++
			}
		}
		return voters == 2 && len(leader.Node.Members()) == 2
	})
	old.Stop()
	write(c, "shop", 1)
	c.Equal()
}

// A member whose removal would leave no quorum of those that live stays until it can go.
func TestNoStepLosesTheQuorum(t *testing.T) {
	t.Parallel()
	c := New(t, 3, Options{})
	leader := c.Leader()
	down, doomed := c.But(leader)[0], c.But(leader)[1]
	down.Stop()
	c.Await("it is missed", func() bool { m, _ := c.member(down); return !m.Live })
	c.Remove(doomed)
	c.Await("the leader says what it waits for", func() bool {
		return strings.Contains(strings.Join(leader.Node.Problems(), "\n"), "out of contact")
	})
	write(c, "shop", 1)
	down.Start()
	c.Await("then it is removed", func() bool {
		return len(c.Leader(leader, down).Node.Members()) == 2 && doomed.knowsThatItIsRemoved()
	})
	doomed.Stop()
	c.Await("nothing is left to wait for", func() bool { return len(c.Leader().Node.Problems()) == 0 })
	c.Await("two voters", func() bool { return c.Voters() == 2 })
}

// A node that was removed while it was away is told, also at the next start, and keeps its state.
func TestRemovedWhileAway(t *testing.T) {
	t.Parallel()
	c := New(t, 3, Options{})
	gone := c.But(c.Leader())[0]
	gone.Stop()
	c.Remove(gone)
	c.Await("it is removed", func() bool { return c.Voters() == 2 })
	gone.Start()
	c.Await("it is told", gone.knowsThatItIsRemoved)
	if err := gone.Node.ReadBarrier(t.Context()); !errors.Is(err, cluster.ErrRemoved) && !errors.Is(err, cluster.ErrNoLeader) {
		t.Errorf("its reads: %v", err)
	}
	for _, h := range c.But(gone) {
		if h.knowsThatItIsRemoved() {
			t.Errorf("%s believes that it was removed", h.Name)
		}
	}
	gone.Stop()
	gone.Start()
	if m := gone.Node.Members(); len(m) == 0 {
		t.Error("its state is gone")
	}
	gone.Stop()
}

func TestTransferLeader(t *testing.T) {
	t.Parallel()
	c := New(t, 3, Options{})
	old := c.Leader()
	heir := c.But(old)[1]
	if err := heir.Node.TransferLeader(t.Context(), old.ID); !errors.Is(err, cluster.ErrNoLeader) {
		t.Errorf("a follower hands over: %v", err)
	}
	c.Await("it hands over", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		return c.Leader().Node.TransferLeader(ctx, heir.ID) == nil || c.Leader() == heir
	})
	if c.Leader() != heir {
		t.Error("another one leads")
	}
	old.Stop()
	c.Await("the dead one cannot lead", func() bool {
		err := heir.Node.TransferLeader(t.Context(), old.ID)
		return err != nil && strings.Contains(err.Error(), "does not answer")
	})
	write(c, "shop", 1)
}

// What a node says of itself at a start is known to all, but for a name that is another's.
func TestNamesAndAddresses(t *testing.T) {
	t.Parallel()
	c := New(t, 2, Options{})
	leader := c.Leader()
	h := c.But(leader)[0]
	own := h.Name
	h.Stop()
	h.address = "10.0.0.9:7443"
	h.Start()
	c.Await("its address is known", func() bool { m, _ := c.member(h); return m.Node.GetAddress() == h.address })
	h.Stop()
	h.Name = leader.Name
	h.Start()
	c.Await("it says why", func() bool {
		return strings.Contains(strings.Join(h.Node.Problems(), "\n"), "is another node's")
	})
	if m, _ := c.member(h); m.Node.GetName() != own {
		t.Errorf("it is called %s", m.Node.GetName())
	}
}

func epoch(c *Cluster, h *Host) *raftv1.EpochCommand {
	return &raftv1.EpochCommand{Author: "unix", Time: timestamppb.Now(), Node: h.ID, Epoch: c.Hosts[0].epochOf(h) + 1}
}

func (*Host) epochOf(h *Host) int64 { return h.Node.State().Epoch() }

// One node goes on where the others are lost; those that come back are told.
func TestRecover(t *testing.T) {
	t.Parallel()
	c := New(t, 3, Options{})
	write(c, "shop", 3)
	h, lost := c.Hosts[0], c.Hosts[1:]
	reads(c, h, "shop", 3)
	for _, other := range lost {
		other.Crash()
	}
	c.Await("it has nobody to lead", func() bool { return h.Node.Role() != "leader" })
	wrong := epoch(c, h)
	wrong.Epoch = 7
	if err := h.Node.Recover(t.Context(), wrong); err == nil {
		t.Error("an epoch that does not follow was begun")
	}
	next := h.Node.Next()
	if err := h.Node.Recover(t.Context(), epoch(c, h)); err != nil {
		t.Fatal(err)
	}
	<-next
	if n := c.Voters(); n != 1 || h.Node.State().Epoch() != 2 || held(h.Node.State(), "shop") != 3 {
		t.Errorf("%d voters, epoch %d", n, h.Node.State().Epoch())
	}
	write(c, "shop", 4)
	for _, other := range lost {
		other.Start()
	}
	for _, other := range lost {
		c.Await(other.Name+" is told", other.knowsThatItIsRemoved)
	}
	if h.knowsThatItIsRemoved() || h.Node.Role() != "leader" {
		t.Error("the old ones took the new cluster with them")
	}
	for _, other := range lost {
		other.Stop()
	}
	h.Crash()
	h.Start()
	reads(c, h, "shop", 4)
	c.Join()
	c.AwaitVoters(2)
	c.Equal()
}

// Members that were left behind while they had a leader and a majority take no change from when they hear of it, whatever they say to each other.
func TestLeftBehindTakeNoChanges(t *testing.T) {
	t.Parallel()
	c := New(t, 3, Options{})
	write(c, "shop", 3)
	h := c.But(c.Leader())[0]
	reads(c, h, "shop", 3)
	rest := c.But(h)
	c.Isolate(h)
	c.Await("it hears nobody", func() bool { return h.Node.Leader() == "" })
	if err := h.Node.Recover(t.Context(), epoch(c, h)); err != nil {
		t.Fatal(err)
	}
	c.Leader(rest...) // the old epoch lives
	c.Heal()
	for _, other := range rest {
		c.Await(other.Name+" is told", other.knowsThatItIsRemoved)
		c.Await(other.Name+" has ended raft", func() bool { return other.Node.Role() == "none" })
		if _, err := other.Node.Propose(t.Context(), pool("shop", 7)); err == nil {
			t.Errorf("%s acknowledged a change that the cluster will never know of", other.Name)
		}
		if err := other.Node.Recover(t.Context(), epoch(c, other)); !errors.Is(err, cluster.ErrRemoved) {
			t.Errorf("%s begins an epoch of its own: %v", other.Name, err)
		}
		if other.Node.State().Revision() == 0 {
			t.Errorf("%s serves nothing any more", other.Name)
		}
	}
	write(c, "shop", 4)
}

// A recovery that was cut off before its entry was written goes on at the next start.
func TestRecoverGoesOn(t *testing.T) {
	t.Parallel()
	c := New(t, 3, Options{})
	write(c, "shop", 3)
	h := c.But(c.Leader())[0]
	c.SetRole(h, lbdv1.NodeRole_NODE_ROLE_NON_VOTER)
	c.AwaitVoters(2)
	reads(c, h, "shop", 3)
	intent, err := proto.Marshal(epoch(c, h))
	if err != nil {
		t.Fatal(err)
	}
	for _, other := range c.But() {
		other.Crash()
	}
	if err := os.WriteFile(filepath.Join(h.Dir, "recover"), intent, 0o600); err != nil {
		t.Fatal(err)
	}
	h.Start()
	c.Await("the epoch begins", func() bool { return h.Node.State().Epoch() == 2 })
	reads(c, h, "shop", 3)
	c.Await("the intent is forgotten", func() bool {
		_, err := os.Stat(filepath.Join(h.Dir, "recover"))
		return errors.Is(err, os.ErrNotExist)
	})
	if n := c.Voters(); n != 1 {
		t.Errorf("%d voters", n)
	}
	if p := h.Node.Problems(); len(p) > 0 {
		t.Errorf("problems: %q", p)
	}
}

// scatter is a change that no compression makes small.
func scatter(name string) *raftv1.ChangeCommand {
	change := pool(name, 1000)
	for _, b := range change.GetUpserts()[0].GetResource().GetPool().GetBackends() {
		b.Address = fmt.Sprintf("10.%d.%d.%d:%d", rand.IntN(256), rand.IntN(256), rand.IntN(256), 1+rand.IntN(65535))
	}
	return change
}

// What is no longer in the log is sent as a snapshot, however long that takes.
func TestSnapshotsOverASlowLink(t *testing.T) {
	t.Parallel()
	c := New(t, 3, Options{})
	leader := c.Leader()
	lagging := c.But(leader)[0]
	lagging.Stop()
	for i := range 12 {
		c.Do(&raftv1.Command{Kind: &raftv1.Command_Change{Change: scatter(fmt.Sprint("p", i))}})
	}
	leader = c.Leader()
	if err := leader.Node.Scrub(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.Rate(leader, lagging, 64<<10)
	began := time.Now()
	lagging.Start()
	c.Await("the lagging node has it", func() bool { return lagging.Node.State().Revision() == leader.Node.State().Revision() })
	if took := time.Since(began); took < time.Second {
		t.Errorf("that was no slow link: %v", took)
	}
	c.Heal()
	h := c.Join()
	c.Await("the new node has it", func() bool { return h.Node.State().Revision() == leader.Node.State().Revision() })
	c.AwaitVoters(4)
	c.Equal()
}
