package state

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

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

// TestSettingsTwice: the second of two cluster_settings would decide after what the first allows was checked.
func TestSettingsTwice(t *testing.T) {
	change := &raftv1.ChangeCommand{Owner: "web", Upserts: []*raftv1.StoredResource{
		{Resource: wrapped(t, &lbdv1.ClusterSettings{AllowLoopbackBackends: proto.Bool(true)})},
		{Resource: wrapped(t, &lbdv1.Pool{Name: "p", Backends: []*lbdv1.Backend{{Address: "127.0.0.1:80"}}})},
		{Resource: wrapped(t, &lbdv1.ClusterSettings{AllowLoopbackBackends: proto.Bool(false)})},
	}}
	violations := Validate(New("c"), change)
	if !slices.ContainsFunc(violations, func(v *lbdv1.Violation) bool { return strings.Contains(v.GetDescription(), "twice") }) {
		t.Errorf("%v", violations)
	}
}

func wrapped(t *testing.T, r proto.Message) *lbdv1.Resource {
	t.Helper()
	out, ok := Wrap("web", r)
	if !ok {
		t.Fatal("no kind for a route")
	}
	return out
}
