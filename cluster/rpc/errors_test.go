package rpc

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
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
		{fmt.Errorf("wait: %w", context.DeadlineExceeded), codes.DeadlineExceeded, "DEADLINE_EXCEEDED", false},
		{context.Canceled, codes.Canceled, "CANCELED", false},
		{&state.PanicError{Value: "boom"}, codes.Internal, "INTERNAL", false},
		{errors.New("write state.db: no space left on device"), codes.Internal, "INTERNAL", false},
		{notFound("pools/x", "there is no pool named `x`"), codes.NotFound, "NOT_FOUND", false},
		{alreadyExists("certificates/x", "it is there"), codes.AlreadyExists, "ALREADY_EXISTS", false},
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

// TestEveryReasonIsFurnished: a client can tell by the details alone what is wrong, with what, and whether to try again. A reason that
// is new needs a line here.
func TestEveryReasonIsFurnished(t *testing.T) {
	conflict := func(reason state.ConflictReason) error {
		return &state.ConflictError{Reason: reason, Owner: "web", Want: 1, Have: 2, Conflicts: []state.Conflict{{Key: state.Key{Kind: state.Pools, Name: "shop"}, Owner: "web"}}}
	}
	examples := map[string]error{
		reasonInvalid:                 invalidField("owner", "is missing"),
		reasonNotFound:                &state.MissingError{Text: "there is no pool named `x`", Resource: "pools/x"},
		reasonExists:                  alreadyExists("certificates/x", "it is there"),
		reasonMassDelete:              notAllowed(reasonMassDelete, "too many"),
		reasonOlderCertificate:        notAllowed(reasonOlderCertificate, "too old"),
		reasonNoLeader:                cluster.ErrNoLeader,
		reasonRemoved:                 cluster.ErrRemoved,
		reasonCopied:                  cluster.ErrCopied,
		reasonLeftBehind:              cluster.ErrLeftBehind,
		reasonPast:                    cluster.ErrPast,
		reasonStale:                   unavailable(reasonStale, "no leader for long"),
		reasonUnreached:               unavailable(reasonUnreached, "edge-2 does not answer"),
		reasonQuorum:                  notAllowed(reasonQuorum, "too few would be left"),
		reasonLastNode:                notAllowed(reasonLastNode, "nobody would be left"),
		reasonSocket:                  permissionDenied(reasonSocket, "by the socket alone"),
		reasonJoinToken:               permissionDenied(reasonJoinToken, "it is for another node"),
		reasonRejected:                permissionDenied(reasonRejected, "it was turned away"),
		reasonOutcomeUnknown:          cluster.ErrOutcomeUnknown,
		reasonRole:                    roleTooLow(editor, lbdv1.Role_ROLE_ADMIN),
		reasonOwner:                   boundTooTight(shop),
		reasonBounds:                  &deniedError{[]*lbdv1.Violation{violation("routes[\"x\"]", "is not yours")}},
		reasonNoCredential:            mustFail(callerOf(t.Context())),
		reasonBadCredential:           withDetails(codes.Unauthenticated, reasonBadCredential, "no such token"),
		reasonExpired:                 withDetails(codes.Unauthenticated, reasonExpired, "it has expired"),
		reasonLimited:                 tooManyFailures(),
		reasonLastAdmin:               state.ErrLastAdmin,
		reasonSealKey:                 &SealKeyError{},
		reasonDisk:                    &SealDiskError{Err: errors.New("write seal.key: no space left on device")},
		reasonSealSource:              &SealSourceError{Text: "bring a key"},
		reasonTooLarge:                &state.FullError{Text: "too large"},
		reasonBusy:                    status.Error(codes.Unavailable, "another profile is being taken"),
		reasonStopping:                cluster.ErrClosed,
		reasonPrecondition:            status.Error(codes.FailedPrecondition, "make the table of revision 3"),
		reasonDeadline:                context.DeadlineExceeded,
		reasonCanceled:                context.Canceled,
		reasonInternal:                errors.New("write state.db: no space left on device"),
		string(state.OwnedByOther):    conflict(state.OwnedByOther),
		string(state.RequestIDReused): conflict(state.RequestIDReused),
		string(state.RevisionMoved):   conflict(state.RevisionMoved),
		string(state.ResourceMoved):   conflict(state.ResourceMoved),
		string(state.ChangedSince):    conflict(state.ChangedSince),
		"INVALID of the data plane":   status.Error(codes.InvalidArgument, `url "x": want http://HOST`),
		"NOT_FOUND of the data plane": status.Error(codes.NotFound, "there is no listener named `x`"),
		"NOT_FOUND of the history":    state.ErrNotKept,
	}
	for _, reason := range reasonsInSource(t) {
		if examples[reason] == nil {
			t.Errorf("reason %s has no example here", reason)
		}
	}
	for reason, err := range examples {
		word, _, _ := strings.Cut(reason, " of the ")
		if problem := unfurnished(statusOf(err), word); problem != "" {
			t.Errorf("%s: %v: %s", reason, err, problem)
		}
	}
}

func tooManyFailures() error {
	f := &failures{sources: map[netip.Prefix]*failureCount{}}
	for {
		if err := f.refuse("192.0.2.1:1", now, errors.New("no")); status.Code(err) == codes.ResourceExhausted {
			return err
		}
	}
}

func mustFail(_ Caller, err error) error { return err }

// unfurnished says what a status lacks.
func unfurnished(err error, reason string) string {
	st, _ := status.FromError(err)
	has := map[string]bool{}
	for _, d := range st.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			has["reason"] = d.GetReason() == reason && d.GetDomain() == errorDomain
		case *errdetails.BadRequest:
			has["fields"] = len(d.GetFieldViolations()) > 0 && d.GetFieldViolations()[0].GetDescription() != ""
		case *errdetails.PreconditionFailure:
			has["preconditions"] = len(d.GetViolations()) > 0
			for _, v := range d.GetViolations() {
				has["preconditions"] = has["preconditions"] && v.GetType() == reason && v.GetSubject() != "" && v.GetDescription() != ""
			}
		case *errdetails.ResourceInfo:
			has["resource"] = true
		case *errdetails.RetryInfo:
			has["retry"] = d.GetRetryDelay().AsDuration() > 0
		}
	}
	want := map[codes.Code]string{
		codes.InvalidArgument: "fields", codes.NotFound: "resource", codes.AlreadyExists: "preconditions", codes.Aborted: "preconditions",
		codes.FailedPrecondition: "preconditions", codes.Unavailable: "retry", codes.ResourceExhausted: "retry",
	}[st.Code()]
	switch {
	case !has["reason"]:
		return fmt.Sprintf("no ErrorInfo with the reason: %v", st.Details())
	case want != "" && !has[want]:
		return fmt.Sprintf("no %s in a status of code %s", want, st.Code())
	case st.Message() == "":
		return "no message"
	}
	return ""
}

// reasonsInSource are the values of the constants whose names begin with "reason", and looks for statuses that are made without
// details on the way.
func reasonsInSource(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("*.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("no source: %v", err)
	}
	var reasons []string
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.ValueSpec:
				for i, name := range n.Names {
					if value, ok := valueAt(n, i); ok && strings.HasPrefix(name.Name, "reason") {
						reasons = append(reasons, value)
					}
				}
			case *ast.SelectorExpr:
				pkg, ok := n.X.(*ast.Ident)
				if ok && file != "errors.go" && pkg.Name == "status" && slices.Contains([]string{"Error", "Errorf", "New", "Newf"}, n.Sel.Name) {
					t.Errorf("%s makes a status of its own: the constructors in errors.go give it details", file)
				}
			}
			return true
		})
	}
	if len(reasons) < 10 {
		t.Fatalf("only %d reasons found: %v", len(reasons), reasons)
	}
	return reasons
}

func valueAt(spec *ast.ValueSpec, i int) (string, bool) {
	if i >= len(spec.Values) {
		return "", false
	}
	literal, ok := spec.Values[i].(*ast.BasicLit)
	if !ok || literal.Kind != token.STRING {
		return "", false
	}
	text, err := strconv.Unquote(literal.Value)
	return text, err == nil
}
