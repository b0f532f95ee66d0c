package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// forward is a call on its way to the leader, in the name of its caller:
//
//  1. a connection that can take it: one that cannot has sent nothing
//  2. the messages, both ways, for as long as that node leads
//  3. what was written there has to be here, too, before the caller gets the answer
type forward struct {
	guard  *guard
	leader string
	conn   *grpc.ClientConn // ready a moment ago
	method string
}

// errLeaderGone ends a call on its way to a node that leads no more.
var errLeaderGone = unavailable(reasonOutcomeUnknown, "another node has become the leader meanwhile: what was asked may be done or not; repeat it with the same request id")

// begin is the call's context there, which ends when the node leads no more.
func (f *forward) begin(ctx context.Context) (context.Context, context.CancelCauseFunc) {
	there, cancel := context.WithCancelCause(relayed(ctx))
	f.guard.receivers.Go(func() { f.watch(there, cancel) })
	return there, cancel
}

// watch ends the call when another node leads.
func (f *forward) watch(ctx context.Context, cancel context.CancelCauseFunc) {
	look := time.NewTicker(leaderLook)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
			if now := f.guard.seat.Leader(); now != f.leader && now != "" {
				cancel(errLeaderGone)
				return
			}
		}
	}
}

// unary passes on a call with one message each way.
func (f *forward) unary(ctx context.Context, req any) (any, error) {
	answer, err := emptyAnswer(f.method)
	if err != nil {
		return nil, err
	}
	there, cancel := f.begin(ctx)
	defer cancel(nil)
	var trailer metadata.MD
	if err := f.conn.Invoke(there, f.method, req, answer, grpc.Trailer(&trailer)); err != nil {
		return nil, f.failed(ctx, there, err)
	}
	f.await(ctx, trailer)
	return answer, nil
}

// stream passes on a call with any number of messages.
func (f *forward) stream(ctx context.Context, here grpc.ServerStream) error {
	m, err := methodOf(f.method)
	if err != nil {
		return err
	}
	there, cancel := f.begin(ctx)
	defer cancel(nil)
	stream, err := f.conn.NewStream(there, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, f.method)
	if err != nil {
		return f.failed(ctx, there, err)
	}
	f.guard.receivers.Go(func() {
		if err := pump(m.Input(), here.RecvMsg, stream.SendMsg); errors.Is(err, io.EOF) {
			_ = stream.CloseSend()
		} else if err != nil {
			cancel(err)
		}
	})
	if err := pump(m.Output(), stream.RecvMsg, here.SendMsg); !errors.Is(err, io.EOF) {
		return f.failed(ctx, there, err)
	}
	f.await(ctx, stream.Trailer())
	return nil
}

// pump moves messages until one side ends: io.EOF is the end of those that come in. Where the other side takes no more, its answer says
// why, and that is no error here.
func pump(kind protoreflect.MessageDescriptor, receive, send func(any) error) error {
	t, err := protoregistry.GlobalTypes.FindMessageByName(kind.FullName())
	if err != nil {
		return err
	}
	for {
		message := t.New().Interface()
		if err := receive(message); err != nil {
			return err
		}
		if err := send(message); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// failed is what the caller is told of a call that did not end well.
func (f *forward) failed(ctx, there context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if cause := context.Cause(there); cause != nil {
		return cause
	}
	return lost(err)
}

// await waits until this node has what the leader has written for the call.
func (f *forward) await(ctx context.Context, trailer metadata.MD) {
	values := trailer.Get(headerApplied)
	if len(values) != 1 {
		return
	}
	index, err := strconv.ParseUint(values[0], 10, 64)
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, forwardedWait)
	defer cancel()
	_ = f.guard.seat.WaitApplied(ctx, index) // it is done in any case
}

// methodOf finds a method by its full name.
func methodOf(full string) (protoreflect.MethodDescriptor, error) {
	name := strings.Replace(strings.TrimPrefix(full, "/"), "/", ".", 1)
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(name))
	if err != nil {
		return nil, err
	}
	m, ok := d.(protoreflect.MethodDescriptor)
	if !ok {
		return nil, fmt.Errorf("%s is no method", full)
	}
	return m, nil
}

// emptyAnswer is an answer of a method, to be filled.
func emptyAnswer(method string) (proto.Message, error) {
	m, err := methodOf(method)
	if err != nil {
		return nil, err
	}
	t, err := protoregistry.GlobalTypes.FindMessageByName(m.Output().FullName())
	if err != nil {
		return nil, err
	}
	return t.New().Interface(), nil
}
