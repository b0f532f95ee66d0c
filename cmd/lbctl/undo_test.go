package main

import (
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	lbdv1 "lbd/proto/lbd/v1"
)

type waitStream = grpc.ServerStreamingServer[lbdv1.WaitForRevisionResponse]

// refusing is a node that serves every revision but one.
func refusing(t *testing.T, bad int64, changes []*lbdv1.Change) *fakeNode {
	fake := &fakeNode{
		apply: func(*lbdv1.ApplyHeader, []*lbdv1.Resource) (*lbdv1.ApplyResponse, error) {
			return &lbdv1.ApplyResponse{Revision: bad, Changes: changes}, nil
		},
		wait: func(r *lbdv1.WaitForRevisionRequest, stream waitStream) error {
			progress := &lbdv1.WaitForRevisionResponse{Node: "n1", Progress: lbdv1.NodeProgress_NODE_PROGRESS_SERVED, ServedRevision: r.GetRevision()}
			if r.GetRevision() == bad {
				progress = &lbdv1.WaitForRevisionResponse{Node: "n1", Progress: lbdv1.NodeProgress_NODE_PROGRESS_REFUSED, ServedRevision: bad - 1, Reason: "listeners/http: in use"}
			}
			return stream.Send(progress)
		},
	}
	fake.rollback = func(r *lbdv1.RollbackRequest) (*lbdv1.RollbackResponse, error) {
		return &lbdv1.RollbackResponse{Revision: bad + 1}, nil
	}
	fake.start(t)
	return fake
}

const undone = "api_version: lbd/v1\nowner: web\npools:\n  - { name: shop, backends: [{ address: \"10.0.0.1:80\" }] }\n"

func TestApplyRollsBack(t *testing.T) {
	fake := refusing(t, 5, []*lbdv1.Change{{Action: actionCreate, Kind: "pools", Name: "shop"}})
	lbctl(undone, "apply", "-f", "-", "--wait", "--rollback-on-failure").wants(t, exitNo, "revision 5: 1 change",
		"node n1 refuses revision 5: listeners/http: in use; revision 6 undoes revision 5\n")
	sent := received[*lbdv1.RollbackRequest](fake)
	if len(sent) != 1 || sent[0].GetOwner() != "web" || sent[0].GetOnly() != 5 || sent[0].GetRequestId() == "" || sent[0].To != nil {
		t.Errorf("rolled back by %v", sent)
	}
	// Not asked, not done.
	lbctl(undone, "apply", "-f", "-", "--wait").wants(t, exitNo, "revision 5", "node n1 refuses revision 5")
	lbctl(undone, "apply", "-f", "-", "--rollback-on-failure").wants(t, exitUsage, "", "needs --wait")
	if sent := received[*lbdv1.RollbackRequest](fake); len(sent) != 1 {
		t.Errorf("%d rollbacks", len(sent))
	}
	// Where it cannot be undone both are told.
	fake.rollback = func(*lbdv1.RollbackRequest) (*lbdv1.RollbackResponse, error) {
		return nil, why(t, codes.Aborted, "CHANGED_SINCE", "conflict: pools/shop was changed by owner `ops` since")
	}
	lbctl(undone, "apply", "-f", "-", "--wait", "--rollback-on-failure").wants(t, exitNo, "revision 5",
		"in use; revision 5 is not rolled back: conflict: pools/shop was changed by owner `ops` since\n")
}

// TestApplyKeepsWhatItDidNotMake: an apply that changed nothing has nothing to undo.
func TestApplyKeepsWhatItDidNotMake(t *testing.T) {
	fake := refusing(t, 5, nil)
	lbctl(undone, "apply", "-f", "-", "--wait", "--rollback-on-failure").wants(t, exitNo, "nothing to change", "revision 5 was there before this apply, and is not rolled back")
	if sent := received[*lbdv1.RollbackRequest](fake); len(sent) != 0 {
		t.Errorf("rolled back: %v", sent)
	}
}

// TestApplyKeepsWhatIsLate: a node that is only silent is no reason to undo anything.
func TestApplyKeepsWhatIsLate(t *testing.T) {
	fake := refusing(t, 5, []*lbdv1.Change{{Action: actionCreate, Kind: "pools", Name: "shop"}})
	fake.wait = func(_ *lbdv1.WaitForRevisionRequest, stream waitStream) error {
		if err := stream.Send(&lbdv1.WaitForRevisionResponse{Node: "n1", Progress: lbdv1.NodeProgress_NODE_PROGRESS_PENDING, ServedRevision: 4}); err != nil {
			return err
		}
		<-stream.Context().Done()
		return stream.Context().Err()
	}
	lbctl(undone, "apply", "-f", "-", "--wait", "--rollback-on-failure", "--timeout", "1s").wants(t, exitWaitTimedOut, "revision 5", "timed out")
	if sent := received[*lbdv1.RollbackRequest](fake); len(sent) != 0 {
		t.Errorf("rolled back: %v", sent)
	}
}

func TestApplyWaitsForHealth(t *testing.T) {
	fake := refusing(t, 0, nil)
	fake.apply = func(*lbdv1.ApplyHeader, []*lbdv1.Resource) (*lbdv1.ApplyResponse, error) {
		return &lbdv1.ApplyResponse{Revision: 7}, nil
	}
	asked := map[string]int{}
	fake.get = func(r *lbdv1.GetRequest) (*lbdv1.GetResponse, error) {
		asked[r.GetName()]++
		healthy := &lbdv1.Condition{Type: conditionHealthy, Status: asked[r.GetName()] > 1, Node: "n1", Reason: "NO_ELIGIBLE_BACKEND"}
		return &lbdv1.GetResponse{Resource: &lbdv1.Resource{Spec: &lbdv1.Resource_Pool{Pool: &lbdv1.Pool{Name: r.GetName()}}}, Conditions: []*lbdv1.Condition{healthy}}, nil
	}
	doc := undone + "routes:\n  - { name: shop, listeners: [http], forward: { pools: [{ pool: shop }, { pool: elsewhere }] } }\n"
	lbctl(doc, "apply", "-f", "-", "--wait=healthy").wants(t, exitOK, "revision 7", "pools/shop is not Healthy: node n1: NO_ELIGIBLE_BACKEND")
	if asked["shop"] != 2 || asked["elsewhere"] != 2 {
		t.Errorf("asked for %v", asked)
	}
	asked = map[string]int{"shop": -1000}
	lbctl(doc, "apply", "-f", "-", "--wait=healthy", "--timeout", "1s").wants(t, exitWaitTimedOut, "revision 7", "revision 7 is served")
	lbctl(doc, "apply", "-f", "-", "--wait=somehow").wants(t, exitUsage, "", "--wait takes served, healthy or reachable")
}
