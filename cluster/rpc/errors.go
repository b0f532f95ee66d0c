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
	// reasonBusy: too much is under way.
	reasonBusy = "BUSY"
	// reasonStopping: this node is going.
	reasonStopping = "STOPPING"
)

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
	message := first.GetField() + ": " + first.GetDescription()
	if more := len(errs) - 1; more > 0 {
		message += fmt.Sprintf(" (and %d more)", more)
	}
	return withDetails(codes.InvalidArgument, reasonInvalid, message, bad)
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

func notFound(format string, args ...any) error {
	return withDetails(codes.NotFound, reasonNotFound, fmt.Sprintf(format, args...))
}

// unavailable refuses for now: the same call may succeed after retryDelay.
func unavailable(reason, message string) error {
	return withDetails(codes.Unavailable, reason, message,
		&errdetails.RetryInfo{RetryDelay: durationpb.New(retryDelay)})
}

// notAllowed refuses what the caller has to allow in so many words.
func notAllowed(reason, format string, args ...any) error {
	return withDetails(codes.FailedPrecondition, reason, clip(fmt.Sprintf(format, args...)))
}

func alreadyExists(format string, args ...any) error {
	return withDetails(codes.AlreadyExists, reasonExists, fmt.Sprintf(format, args...))
}

// statusOf turns any error into a status: whose fault it is, and whether trying again may help. What is not known here is
// our own fault.
func statusOf(err error) error {
	var (
		refused  *state.InvalidError
		conflict *state.ConflictError
		missing  *state.MissingError
	)
	switch {
	case errors.As(err, &refused):
		return invalid(refused.Violations)
	case errors.As(err, &conflict):
		return withDetails(codes.Aborted, string(conflict.Reason), clip(conflict.Error()))
	case errors.As(err, &missing):
		return notFound("%s", missing.Text)
	case errors.Is(err, state.ErrNotKept):
		return notFound("%s", clip(err.Error()))
	case errors.Is(err, cluster.ErrNoLeader):
		return unavailable(reasonNoLeader, err.Error())
	case errors.Is(err, cluster.ErrOutcomeUnknown):
		return unavailable(reasonOutcomeUnknown, err.Error())
	case errors.Is(err, cluster.ErrClosed):
		return unavailable(reasonStopping, err.Error())
	case errors.Is(err, context.DeadlineExceeded):
		return status.Error(codes.DeadlineExceeded, err.Error())
	case errors.Is(err, context.Canceled):
		return status.Error(codes.Canceled, err.Error())
	}
	if st, ok := status.FromError(err); ok {
		if clip(st.Message()) == st.Message() {
			return st.Err()
		}
		return status.Error(st.Code(), clip(st.Message()))
	}
	return status.Error(codes.Internal, clip(err.Error()))
}
