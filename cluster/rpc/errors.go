package rpc

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"lbd/cluster"
	"lbd/cluster/state"
	lbdv1 "lbd/proto/lbd/v1"
)

// errorDomain is the domain of every ErrorInfo.
const errorDomain = "lbd"

// Reasons of ErrorInfo beside those of state.ConflictError. Clients may rely on them.
const (
	reasonInvalid  = "INVALID"
	reasonNotFound = "NOT_FOUND"
	reasonExists   = "ALREADY_EXISTS"
	// reasonMassDelete and reasonOlderCertificate: the call has to allow what it asks for.
	reasonMassDelete       = "MASS_DELETE"
	reasonOlderCertificate = "OLDER_CERTIFICATE"
	// reasonNoLeader and reasonOutcomeUnknown: repeat the call with the same request id.
	reasonNoLeader       = "NO_LEADER"
	reasonOutcomeUnknown = "OUTCOME_UNKNOWN"
	// reasonRole and reasonOwner: the caller may not do this, or not to what another owner has.
	reasonRole  = "ROLE"
	reasonOwner = "OWNER"
	// reasonRemoved: the node that calls, or is called, is no member of the cluster any more.
	reasonRemoved = "NODE_REMOVED"
	// reasonLeftBehind: likewise, since the cluster has begun anew without it.
	reasonLeftBehind = "NODE_LEFT_BEHIND"
	// reasonCopied: the node that calls has another one's data directory, which runs, too.
	reasonCopied = "NODE_COPIED"
	// reasonStale: this node has been without a leader for so long that it takes only what needs no cluster: its socket.
	reasonStale = "STALE"
	// reasonUnreached: another node does not answer.
	reasonUnreached = "NODE_UNREACHED"
	// reasonQuorum: the voters that are left could not go on; reasonLastNode: nobody would be left who takes traffic.
	reasonQuorum   = "QUORUM"
	reasonLastNode = "LAST_NODE"
	// reasonSocket: this is for the control socket of the node itself.
	reasonSocket = "SOCKET_ONLY"
	// reasonJoinToken: the join token is not for this node; reasonRejected: the node was turned away.
	reasonJoinToken = "JOIN_TOKEN"
	reasonRejected  = "NODE_REJECTED"
	// reasonPast: what is asked for is too long ago.
	reasonPast = "PAST"
	// reasonBounds: a field says what the caller may not write.
	reasonBounds = "OUT_OF_BOUNDS"
	// reasonNoCredential, reasonBadCredential, reasonExpired: who calls is not known; reasonLimited: and has tried too often.
	reasonNoCredential  = "NO_CREDENTIAL"
	reasonBadCredential = "BAD_CREDENTIAL"
	reasonExpired       = "CREDENTIAL_EXPIRED"
	reasonLimited       = "TOO_MANY_FAILURES"
	// reasonLastAdmin: nobody would be left who may administer the cluster.
	reasonLastAdmin = "LAST_ADMIN"
	// reasonSealKey: a sealing key is in use, or one that is needed is not there; reasonSealSource: an operator has to bring a new one.
	reasonSealKey    = "SEAL_KEY"
	reasonSealSource = "SEAL_SOURCE"
	// reasonTooLarge: what there is does not fit.
	reasonTooLarge = "TOO_LARGE"
	// reasonBusy: too much is under way.
	reasonBusy = "BUSY"
	// reasonDisk: this node's disk does not take it. Nothing was changed.
	reasonDisk = "DISK"
	// reasonStopping: this node is going.
	reasonStopping = "STOPPING"
	// reasonPrecondition: something else has to be so first; the text says what.
	reasonPrecondition = "FAILED_PRECONDITION"
	// reasonDeadline and reasonCanceled: the caller does not wait any more. What was asked for may be done all the same.
	reasonDeadline = "DEADLINE_EXCEEDED"
	reasonCanceled = "CANCELED"
	// reasonInternal: a fault of lbd. The node's log says more.
	reasonInternal = "INTERNAL"
)

// errRemovedNode tells a node that it is a member no more.
func errRemovedNode(err error) error {
	if errors.Is(err, cluster.ErrLeftBehind) {
		return permissionDenied(reasonLeftBehind, "%v", err)
	}
	return permissionDenied(reasonRemoved, "%v", err)
}

// errStopping ends what waits when the server closes.
var errStopping = unavailable(reasonStopping, "this node is stopping")

// withDetails makes a status with an ErrorInfo and further details.
func withDetails(code codes.Code, reason, message string, details ...protoadapt.MessageV1) error {
	info := &errdetails.ErrorInfo{Reason: reason, Domain: errorDomain}
	message = clip(message) // it travels in a header, too
	st, err := status.New(code, message).WithDetails(append([]protoadapt.MessageV1{info}, details...)...)
	if err != nil {
		return status.Error(code, message)
	}
	return st.Err()
}

// invalid refuses what a client sent, with every error among the violations, as far as they fit in a status. The message is
// for clients that do not read details: it names the first cause and counts the rest.
func invalid(violations []*lbdv1.Violation) error {
	errs, _ := split(violations)
	return badRequest(codes.InvalidArgument, reasonInvalid, errs)
}

// badRequest refuses for what fields say.
func badRequest(code codes.Code, reason string, errs []*lbdv1.Violation) error {
	bad := &errdetails.BadRequest{}
	size := 0
	for _, v := range errs {
		detail := &errdetails.BadRequest_FieldViolation{Field: clip(v.GetField()), Description: clip(v.GetDescription())}
		if size += proto.Size(detail); size > detailsBytesMax {
			break
		}
		bad.FieldViolations = append(bad.FieldViolations, detail)
	}
	first := bad.GetFieldViolations()[0]
	message := first.GetDescription()
	if first.GetField() != "" {
		message = first.GetField() + ": " + message
	}
	if more := len(errs) - 1; more > 0 {
		message += fmt.Sprintf(" (and %d more)", more)
	}
	return withDetails(code, reason, message, bad)
}

// clip shortens what a client made longer than anyone reads.
func clip(text string) string {
	if len(text) <= detailBytesMax {
		return text
	}
	return strings.ToValidUTF8(text[:detailBytesMax], "") + "…"
}

// invalidField refuses one field of a request.
func invalidField(field, format string, args ...any) error {
	return invalid([]*lbdv1.Violation{violation(field, format, args...)})
}

func violation(field, format string, args ...any) *lbdv1.Violation {
	return &lbdv1.Violation{
		Severity:    lbdv1.Severity_SEVERITY_ERROR,
		Field:       field,
		Description: fmt.Sprintf(format, args...),
	}
}

func warning(field, format string, args ...any) *lbdv1.Violation {
	v := violation(field, format, args...)
	v.Severity = lbdv1.Severity_SEVERITY_WARNING
	return v
}

// split parts violations into errors and warnings.
func split(violations []*lbdv1.Violation) (errs, warnings []*lbdv1.Violation) {
	for _, v := range violations {
		if v.GetSeverity() == lbdv1.Severity_SEVERITY_ERROR {
			errs = append(errs, v)
		} else {
			warnings = append(warnings, v)
		}
	}
	return errs, warnings
}

// notFound says what is not there: "pools/shop", "revisions/7".
func notFound(what, format string, args ...any) error {
	return withDetails(codes.NotFound, reasonNotFound, fmt.Sprintf(format, args...), resourceInfo(what))
}

func resourceInfo(what string) *errdetails.ResourceInfo {
	kind, name, _ := strings.Cut(what, "/")
	return &errdetails.ResourceInfo{ResourceType: clip(kind), ResourceName: clip(name)}
}

// unavailable refuses for now: the same call may succeed after retryDelay.
func unavailable(reason, message string) error {
	return withDetails(codes.Unavailable, reason, message,
		&errdetails.RetryInfo{RetryDelay: durationpb.New(retryDelay)})
}

// notAllowed refuses what the caller has to allow in so many words.
func notAllowed(reason, format string, args ...any) error {
	message := clip(fmt.Sprintf(format, args...))
	return withDetails(codes.FailedPrecondition, reason, message, &errdetails.PreconditionFailure{
		Violations: []*errdetails.PreconditionFailure_Violation{{Type: reason, Subject: "request", Description: message}},
	})
}

// alreadyExists says what is there: "certificates/shop".
func alreadyExists(what, format string, args ...any) error {
	message := fmt.Sprintf(format, args...)
	return withDetails(codes.AlreadyExists, reasonExists, message, resourceInfo(what), &errdetails.PreconditionFailure{
		Violations: []*errdetails.PreconditionFailure_Violation{{Type: reasonExists, Subject: clip(what), Description: clip(message)}},
	})
}

// conflicting refuses what was meant for another state than there is.
func conflicting(conflict *state.ConflictError) error {
	failure := &errdetails.PreconditionFailure{}
	size := 0
	conflict.Each(func(subject, text string) {
		v := &errdetails.PreconditionFailure_Violation{Type: string(conflict.Reason), Subject: clip(subject), Description: clip(text)}
		if size += proto.Size(v); size <= detailsBytesMax {
			failure.Violations = append(failure.Violations, v)
		}
	})
	return withDetails(codes.Aborted, string(conflict.Reason), conflict.Error(), failure)
}

// reasonOf is the reason of a status; empty: it has none.
func reasonOf(err error) string {
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok {
			return info.GetReason()
		}
	}
	return ""
}

// furnished gives a status of another package's, as the data plane's, the details that its code asks for.
func furnished(st *status.Status) error {
	for _, d := range st.Details() {
		if _, ok := d.(*errdetails.ErrorInfo); ok {
			return st.Err()
		}
	}
	field, rest, named := strings.Cut(st.Message(), ": ")
	switch st.Code() {
	case codes.InvalidArgument:
		if !named || strings.ContainsAny(field, " `") {
			field, rest = "", st.Message()
		}
		return badRequest(codes.InvalidArgument, reasonInvalid, []*lbdv1.Violation{violation(field, "%s", rest)})
	case codes.NotFound:
		return notFound("", "%s", st.Message())
	case codes.FailedPrecondition:
		return notAllowed(reasonPrecondition, "%s", st.Message())
	case codes.Unavailable:
		return unavailable(reasonBusy, st.Message())
	}
	return withDetails(st.Code(), reasonInternal, st.Message())
}

// statusOf turns any error into a status: whose fault it is, and whether trying again may help. What is not known here is
// our own fault.
func statusOf(err error) error {
	var (
		refused  *state.InvalidError
		denied   *deniedError
		conflict *state.ConflictError
		missing  *state.MissingError
		full     *state.FullError
	)
	switch {
	case errors.As(err, &denied):
		return badRequest(codes.PermissionDenied, reasonBounds, denied.violations)
	case errors.As(err, &refused):
		return invalid(refused.Violations)
	case errors.As(err, &conflict):
		return conflicting(conflict)
	case errors.As(err, &missing):
		return notFound(missing.Resource, "%s", missing.Text)
	case errors.As(err, &full):
		return notAllowed(reasonTooLarge, "%s", full.Text)
	case errors.Is(err, state.ErrLastAdmin):
		return notAllowed(reasonLastAdmin, "%v", err)
	case sealError(err) != nil:
		return sealError(err)
	case errors.Is(err, state.ErrNotKept):
		return notFound("revisions", "%s", err)
	case errors.Is(err, cluster.ErrRemoved):
		return errRemovedNode(err)
	case errors.Is(err, cluster.ErrCopied):
		return permissionDenied(reasonCopied, "%v", err)
	case errors.Is(err, cluster.ErrGate):
		return notAllowed(reasonPrecondition, "%v", err)
	case errors.Is(err, cluster.ErrNoLeader):
		return unavailable(reasonNoLeader, err.Error())
	case errors.Is(err, cluster.ErrOutcomeUnknown):
		return unavailable(reasonOutcomeUnknown, err.Error())
	case errors.Is(err, cluster.ErrPast):
		return withDetails(codes.OutOfRange, reasonPast, err.Error())
	case errors.Is(err, cluster.ErrClosed):
		return unavailable(reasonStopping, err.Error())
	case errors.Is(err, context.DeadlineExceeded):
		return withDetails(codes.DeadlineExceeded, reasonDeadline, err.Error())
	case errors.Is(err, context.Canceled):
		return withDetails(codes.Canceled, reasonCanceled, err.Error())
	}
	if st, ok := status.FromError(err); ok {
		return furnished(st)
	}
	return withDetails(codes.Internal, reasonInternal, err.Error())
}
