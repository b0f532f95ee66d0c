package rpc

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	lbdv1 "lbd/proto/lbd/v1"
)

// TestUnknownFieldsAreRefused: what a newer client means by a field that this build does not know is not done as if it had not
// said it, in one message as in a stream.
func TestUnknownFieldsAreRefused(t *testing.T) {
	r := newRig(t)
	newer := func(m proto.Message) {
		m.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 4000, protowire.VarintType), 1))
	}
	refused := func(err error) {
		t.Helper()
		if f := failureOf(t, err); f.code != codes.InvalidArgument || f.reason != reasonInvalid || !strings.Contains(f.message, "field 4000 of lbd.v1.") {
			t.Errorf("got %+v", f)
		}
	}
	get := &lbdv1.GetRequest{Kind: "pools", Name: "shop"}
	newer(get)
	_, err := r.config.Get(r.ctx(), get)
	refused(err)

	requests := r.request(owner("web"), pool("shop", "192.0.2.1:80"))
	newer(requests[1].GetResources().GetResources()[0].GetPool().GetBackends()[0])
	_, err = r.send(requests)
	refused(err)
	if r.store.proposals() > 0 {
		t.Error("the change was proposed all the same")
	}
}
