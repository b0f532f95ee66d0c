package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

type waitStream = grpc.ServerStreamingClient[lbdv1.WaitForRevisionResponse]

func (r *rig) wait(ctx context.Context, revision int64) waitStream {
	r.t.Helper()
	stream, err := r.config.WaitForRevision(ctx, &lbdv1.WaitForRevisionRequest{Revision: revision})
	if err != nil {
		r.t.Fatal(err)
	}
	return stream
}

// next is the stream's next answer in words, or how it ended.
func (r *rig) next(stream waitStream) string {
	r.t.Helper()
	answer, err := stream.Recv()
	switch {
	case errors.Is(err, io.EOF):
		return "end"
	case err != nil:
		f := failureOf(r.t, err)
		return fmt.Sprintf("%s %s", f.code, f.reason)
	}
	word := strings.TrimPrefix(answer.GetProgress().String(), "NODE_PROGRESS_")
	return strings.TrimSpace(fmt.Sprintf("%s %s %d %s", answer.GetNode(), word, answer.GetServedRevision(), answer.GetReason()))
}

func (r *rig) expect(stream waitStream, want ...string) {
	r.t.Helper()
	for _, w := range want {
		if got := r.next(stream); got != w {
			r.t.Fatalf("got %q, want %q", got, w)
		}
	}
}

func TestWaitForRevisionServed(t *testing.T) {
	r := newRig(t)
	r.expect(r.wait(r.ctx(), 0), "n1 SERVED 0", "end") // a cluster without a revision
	r.mustApply(owner("web"), web()...)
	r.mustApply(owner("web"), pool("shop", "192.0.2.2:80"))
	stream := r.wait(r.ctx(), 0) // the newest
	r.expect(stream, "n1 PENDING 0")
	r.observer.set(func(p *Progress) { p.Revision = 1 })
	r.expect(stream, "n1 PENDING 1")
	r.observer.set(func(p *Progress) { p.Revision = 2 })
	r.expect(stream, "n1 SERVED 2", "end")
	r.expect(r.wait(r.ctx(), 1), "n1 SERVED 2", "end")
}

// TestPassingRefusal: a node that has still to get a sealing key is waited for; what else it refuses counts.
func TestPassingRefusal(t *testing.T) {
	changed := []*lbdv1.Change{{Kind: "certificates", Name: "shop"}, {Kind: "listeners", Name: "http"}}
	passing := Refusal{Revision: 3, Kind: "certificates", Name: "shop", Reason: "the others are asked for its key", Passing: true}
	got := progressOf("n1", 3, changed, Progress{Revision: 3, Refused: []Refusal{passing}})
	if got.GetProgress() != lbdv1.NodeProgress_NODE_PROGRESS_PENDING || got.GetReason() == "" {
		t.Errorf("%v", got)
	}
	got = progressOf("n1", 3, changed, Progress{Revision: 3, Refused: []Refusal{passing, {Revision: 3, Kind: "listeners", Name: "http", Reason: "ADDRESS_IN_USE"}}})
	if got.GetProgress() != lbdv1.NodeProgress_NODE_PROGRESS_REFUSED {
		t.Errorf("with another one: %v", got)
	}
}

func TestWaitForRevisionRefused(t *testing.T) {
	r := newRig(t)
	r.mustApply(owner("web"), web()...)                     // 1
	r.mustApply(owner("web"), listener("http", ":8081"))    // 2
	r.mustApply(owner("web"), pool("shop", "192.0.2.2:80")) // 3
	stream := r.wait(r.ctx(), 2)
	r.expect(stream, "n1 PENDING 0")
	r.observer.set(func(p *Progress) {
		p.Revision = 3
		p.Refused = []Refusal{{Revision: 2, Kind: "listeners", Name: "http", Reason: "ADDRESS_IN_USE: 127.0.0.1:8081"}}
	})
	r.expect(stream, "n1 REFUSED 3 listeners/http: ADDRESS_IN_USE: 127.0.0.1:8081", "end")
	r.expect(r.wait(r.ctx(), 3), "n1 SERVED 3", "end") // it did not touch the listener
	r.expect(r.wait(r.ctx(), 1), "n1 REFUSED 3 listeners/http: ADDRESS_IN_USE: 127.0.0.1:8081", "end")

	r.mustApply(owner("web"), pool("shop", "192.0.2.4:80")) // 4
	stream = r.wait(r.ctx(), 4)
	r.expect(stream, "n1 PENDING 3")
	r.observer.set(func(p *Progress) { p.Refused = []Refusal{{Revision: 4, Reason: "compile panicked"}} })
	r.expect(stream, "n1 REFUSED 3 revision 4: compile panicked", "end")
	r.expect(r.wait(r.ctx(), 3), "n1 SERVED 3", "end")
}

func TestWaitForRevisionEnds(t *testing.T) {
	r := newRig(t)
	r.mustApply(owner("web"), web()...)
	r.expect(r.wait(r.ctx(), 2), "NotFound NOT_FOUND")
	r.expect(r.wait(r.ctx(), -1), "NotFound NOT_FOUND")

	ctx, cancel := context.WithTimeout(r.ctx(), 50*time.Millisecond)
	defer cancel()
	stream := r.wait(ctx, 1)
	r.expect(stream, "n1 PENDING 0", "DeadlineExceeded ")

	stream = r.wait(r.ctx(), 1)
	r.expect(stream, "n1 PENDING 0")
	if err := r.server.Close(); err != nil {
		t.Fatal(err)
	}
	r.expect(stream, "Unavailable STOPPING")
	_, err := r.config.Get(r.ctx(), &lbdv1.GetRequest{Kind: "pools", Name: "shop"})
	if f := failureOf(t, err); f.code != codes.Unavailable {
		t.Errorf("a call after Close: %v", f)
	}
}

// A revision that no node serves, as all are drained, is waited for until one takes traffic again.
func TestWaitForRevisionAllDrained(t *testing.T) {
	c := newNodes(t, 2)
	drain := func(i int, d *lbdv1.NodeDrain) {
		t.Helper()
		cmd := &raftv1.NodeCommand{Author: "ann", Time: timestamppb.New(now), Change: &raftv1.NodeCommand_Drain{Drain: &raftv1.SetNodeDrain{Id: nodeID(i), Drain: d}}}
		if _, err := c.apply(nodeID(1), &raftv1.Command{Kind: &raftv1.Command_Node{Node: cmd}}); err != nil {
			t.Fatal(err)
		}
	}
	d := &lbdv1.NodeDrain{Author: "ann", Time: timestamppb.New(now)}
	drain(1, d)
	drain(2, d)
	n := c.nodes[0]
	stream := n.wait(n.ctx(), 0)
	n.expect(stream, "edge-1 LEFT_OUT 0 it is drained", "edge-2 LEFT_OUT 0 it is drained")
	drain(2, nil)
	for said := ""; said != "edge-2 SERVED 0"; {
		if said = n.next(stream); !strings.HasPrefix(said, "edge-2 ") {
			t.Fatalf("%q, while edge-2 is waited for", said)
		}
	}
	n.expect(stream, "end")
}
