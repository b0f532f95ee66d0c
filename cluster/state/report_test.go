package state

import (
	"fmt"
	"testing"

	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

// TestWarningsCrowdOutNoError: a document with more warnings than a report holds is still refused for its one error.
func TestWarningsCrowdOutNoError(t *testing.T) {
	change := &raftv1.ChangeCommand{Owner: "web"}
	for i := range violationsMax + 10 { // routes to a pool that is not here: offline, a warning each
		change.Upserts = append(change.Upserts, &raftv1.StoredResource{Resource: wrapped(t, &lbdv1.Route{
			Name: fmt.Sprintf("a%04d", i), Listeners: []string{"https"},
			Hosts:  []string{fmt.Sprintf("a%04d.example.com", i)},
			Action: &lbdv1.Route_Forward{Forward: &lbdv1.Forward{Pools: []*lbdv1.ForwardPool{{Pool: "elsewhere"}}}},
		})})
	}
	change.Upserts = append(change.Upserts, &raftv1.StoredResource{Resource: wrapped(t, &lbdv1.Route{
		Name: "z", Listeners: []string{"https"}, Action: &lbdv1.Route_Respond{Respond: &lbdv1.Respond{Status: 99}},
	})})
	if violations := Validate(nil, change); !hasError(violations) {
		t.Errorf("%d warnings, and the error is not among them", len(violations))
	}
}

func wrapped(t *testing.T, r *lbdv1.Route) *lbdv1.Resource {
	t.Helper()
	out, ok := Wrap("web", r)
	if !ok {
		t.Fatal("no kind for a route")
	}
	return out
}
