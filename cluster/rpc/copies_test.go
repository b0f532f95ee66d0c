package rpc

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"lbd/cluster"
)

// copyOf is another process on a copy of a node's data directory.
func copyOf(t *testing.T, c *nodesRig, n *nodeRig) *Peers {
	t.Helper()
	peers := NewPeers(PeersConfig{Certificate: n.peers.cfg.Certificate, Now: n.peers.cfg.Now, Logger: n.peers.cfg.Logger})
	peers.Take(&standInSeat{rig: c, node: &nodeRig{id: n.id, name: n.name}, store: n.seat.store, ever: true})
	t.Cleanup(func() { _ = peers.Close() })
	return peers
}

// A node is the process that answers at the address of its record, for as long as one does.
func TestCopyIsRefused(t *testing.T) {
	c := newNodes(t, 2)
	first, n := c.nodes[0], c.nodes[1]
	copied := copyOf(t, c, n)
	report := func(p *Peers) error {
		_, err := p.ReadIndex(first.ctx(), first.id, cluster.Report{Node: n.id})
		return err
	}
	recorded, _ := first.store0().Node(n.id)
	moved := proto.CloneOf(recorded)
	moved.Address = "127.0.0.1:1"
	for range 2 {
		if err := report(n.peers); err != nil {
			t.Errorf("the node: %v", err)
		}
		if err := report(copied); !errors.Is(err, cluster.ErrCopied) {
			t.Errorf("the copy: %v", err)
		}
		if _, err := copied.ProposeNode(first.ctx(), first.id, moved); !errors.Is(err, cluster.ErrCopied) {
			t.Errorf("the copy's address: %v", err)
		}
	}
	if now, _ := first.store0().Node(n.id); now.GetAddress() != recorded.GetAddress() {
		t.Errorf("the record has %s", now.GetAddress())
	}
	if err := n.peers.RunsBeside(first.ctx()); err != nil {
		t.Errorf("the node asks: %v", err)
	}
	if err := copied.RunsBeside(first.ctx()); !errors.Is(err, cluster.ErrCopied) {
		t.Errorf("the copy asks: %v", err)
	}

	_ = n.server.Close()
	if next := copyOf(t, c, n); next.RunsBeside(first.ctx()) != nil || report(next) != nil {
		t.Error("another one is refused, and the first one does not run any more")
	}
}

// A copy's connections to raft are ended by whoever sees that the node is elsewhere, and the node's are not.
func TestCopyConnection(t *testing.T) {
	c := newNodes(t, 2)
	first, n := c.nodes[0], c.nodes[1]
	accepted := make(chan net.Conn, 2)
	go func() {
		for range cap(accepted) {
			conn, err := first.peers.Accept()
			if err != nil {
				return
			}
			accepted <- conn
		}
	}()
	own, err := n.peers.Dial(t.Context(), first.id)
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	there := <-accepted
	defer there.Close()
	conn, err := copyOf(t, c, n).Dial(t.Context(), first.id)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
	if _, err := conn.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the copy's connection ended with %v", err)
	}
	if _, err := own.Write([]byte("v")); err != nil {
		t.Fatal(err)
	}
	_ = there.SetReadDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.ReadFull(there, make([]byte, 1)); err != nil {
		t.Errorf("the node's connection ended with %v", err)
	}
}

func TestRunsAt(t *testing.T) {
	c := newNodes(t, 2)
	key := publicKeyPin(c.nodes[1].shown.Leaf)
	if !RunsAt(t.Context(), c.nodes[1].address, key) {
		t.Error("a node is not found at its address")
	}
	if RunsAt(t.Context(), c.nodes[0].address, key) {
		t.Error("a node is found at another one's address")
	}
	_ = c.nodes[1].server.Close()
	if RunsAt(t.Context(), c.nodes[1].address, key) {
		t.Error("a node that has ended is found")
	}
}
