package rpc

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"lbd/cluster"
	"lbd/cluster/state"
	lbdv1 "lbd/proto/lbd/v1"
)

func TestStatusOf(t *testing.T) {
	for _, test := range []struct {
		err    error
		code   codes.Code
		reason string
		retry  bool
	}{
		{&state.InvalidError{Violations: []*lbdv1.Violation{violation("owner", "is gone")}}, codes.InvalidArgument, "INVALID", false},
		{&state.ConflictError{Reason: state.OwnedByOther}, codes.Aborted, "OWNED_BY_OTHER", false},
		{&state.ConflictError{Reason: state.RequestIDReused}, codes.Aborted, "REQUEST_ID_REUSED", false},
		{fmt.Errorf("%w: %w", cluster.ErrNoLeader, context.DeadlineExceeded), codes.Unavailable, "NO_LEADER", true},
		{fmt.Errorf("%w: %w", cluster.ErrOutcomeUnknown, context.DeadlineExceeded), codes.Unavailable, "OUTCOME_UNKNOWN", true},
		{cluster.ErrClosed, codes.Unavailable, "STOPPING", true},
		{errStopping, codes.Unavailable, "STOPPING", true},
		{fmt.Errorf("wait: %w", context.DeadlineExceeded), codes.DeadlineExceeded, "", false},
		{context.Canceled, codes.Canceled, "", false},
		{&state.PanicError{Value: "boom"}, codes.Internal, "", false},
		{errors.New("write state.db: no space left on device"), codes.Internal, "", false},
		{notFound("there is no pool named `x`"), codes.NotFound, "NOT_FOUND", false},
		{alreadyExists("it is there"), codes.AlreadyExists, "ALREADY_EXISTS", false},
	} {
		f := failureOf(t, statusOf(test.err))
		if f.code != test.code || f.reason != test.reason || f.retry != test.retry || f.message == "" {
			t.Errorf("%v: %+v, want %s %s", test.err, f, test.code, test.reason)
		}
	}
}

// A report that is larger than a status may be still arrives, with the rest counted.
func TestManyViolationsArrive(t *testing.T) {
	r := newRig(t)
	var specs []proto.Message
	for i := range 600 {
		specs = append(specs, pool(fmt.Sprintf("p%d", i), strings.Repeat("x", 3000)))
	}
	_, err := r.apply(owner("web"), specs...)
	f := failureOf(t, err)
	if f.code != codes.InvalidArgument || len(f.fields) < 50 || len(f.fields) >= 500 || !strings.HasSuffix(f.message, "more)") {
		t.Errorf("%d of many causes arrived: %s, message of %d bytes", len(f.fields), f.code, len(f.message))
	}
	for _, text := range f.fields {
		if len(text) > detailBytesMax+len("…") {
			t.Fatalf("a description of %d bytes", len(text))
		}
	}
}
