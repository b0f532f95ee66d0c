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
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	lbdv1 "lbd/proto/lbd/v1"
)

// oddly fills a message with what no client of ours sends; of a oneof the turn's member, and nothing below a depth.
type oddly struct {
	text   string
	number int64
	enum   protoreflect.EnumNumber
	turn   int
	depth  int
}

func (o oddly) fill(m protoreflect.Message) {
	if o.depth == 0 {
		return
	}
	o.depth--
	for i := range m.Descriptor().Fields().Len() {
		f := m.Descriptor().Fields().Get(i)
		if one := f.ContainingOneof(); one != nil && one.Fields().Get(o.turn%one.Fields().Len()) != f {
			continue
		}
		switch {
		case f.IsMap():
			m.Mutable(f).Map().Set(protoreflect.ValueOfString("k").MapKey(), o.value(f.MapValue(), m.Mutable(f).Map().NewValue()))
		case f.IsList():
			m.Mutable(f).List().Append(o.value(f, m.Mutable(f).List().NewElement()))
		case f.Message() != nil:
			o.fill(m.Mutable(f).Message())
		default:
			m.Set(f, o.value(f, m.NewField(f)))
		}
	}
}

func (o oddly) value(f protoreflect.FieldDescriptor, empty protoreflect.Value) protoreflect.Value {
	switch f.Kind() {
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(o.text)
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte(o.text))
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(int32(o.number))
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(o.number)
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(o.enum)
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(true)
	case protoreflect.MessageKind:
		o.fill(empty.Message())
	}
	return empty
}

// TestOddRequests: whatever comes in the right wire format, every call answers, blames the client if anyone, and says so in words
// that fit into a header.
func TestOddRequests(t *testing.T) {
	r := newRig(t)
	r.mustApply(owner("web"), pool("shop", "192.0.2.1:80"))
	odd := []oddly{{}}
	for turn := range 8 {
		odd = append(odd,
			oddly{text: "x", number: -1, enum: 99, turn: turn, depth: 6},
			oddly{text: strings.Repeat("ä/", 15_000), number: 1 << 62, enum: -5, turn: turn, depth: 4},
			oddly{depth: 6, turn: turn},
			oddly{text: "shop", number: 1, enum: 1, turn: turn, depth: 6})
	}
	calls := 0
	protoregistry.GlobalFiles.RangeFilesByPackage(lbdv1.File_lbd_v1_config_service_proto.Package(), func(file protoreflect.FileDescriptor) bool {
		for i := range file.Services().Len() {
			methods := file.Services().Get(i).Methods()
			for j := range methods.Len() {
				for _, o := range odd {
					calls++
					r.askOddly(methods.Get(j), o)
				}
			}
		}
		return true
	})
	if calls < 20*len(odd) {
		t.Errorf("only %d calls", calls)
	}
	if n := strings.Count(r.log.String(), "panicked"); n > 0 {
		t.Errorf("%d calls panicked", n)
	}
}

// askOddly makes one call, of as many messages as it takes, and reads the first answer.
func (r *rig) askOddly(method protoreflect.MethodDescriptor, o oddly) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), time.Minute)
	defer cancel()
	desc := &grpc.StreamDesc{ClientStreams: method.IsStreamingClient(), ServerStreams: method.IsStreamingServer()}
	name := fmt.Sprintf("/%s/%s", method.Parent().FullName(), method.Name())
	if waitsForEver[string(method.Name())] {
		ctx, cancel = context.WithTimeout(ctx, 50*time.Millisecond)
		defer cancel()
	}
	stream, err := r.conn.NewStream(ctx, desc, name)
	if err != nil {
		r.t.Fatal(err)
	}
	for turn := range 3 {
		o.turn += turn
		request := message(r.t, method.Input())
		o.fill(request.ProtoReflect())
		if err := stream.SendMsg(request); err != nil {
			break // the answer says why
		}
		if !method.IsStreamingClient() {
			break
		}
	}
	_ = stream.CloseSend()
	err = stream.RecvMsg(message(r.t, method.Output()))
	if err == nil || errors.Is(err, io.EOF) {
		return
	}
	st := status.Convert(err)
	if st.Code() == codes.Internal || st.Code() == codes.Unknown || st.Code() == codes.ResourceExhausted || len(st.Message()) > 2*detailBytesMax+100 {
		r.t.Errorf("%s, turn %d, text of %d bytes: %s, %d bytes: %.300s", name, o.turn, len(o.text), st.Code(), len(st.Message()), st.Message())
	}
}

// waitsForEver are calls that may have nothing to say.
var waitsForEver = map[string]bool{"WaitForRevision": true, "Watch": true, "WatchEvents": true, "WatchStatus": true}

func message(t *testing.T, d protoreflect.MessageDescriptor) proto.Message {
	t.Helper()
	kind, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName())
	if err != nil {
		t.Fatal(err)
	}
	return kind.New().Interface()
}

// TestEmptyEntriesAreCounted: millions of entries without a byte take memory like any others.
func TestEmptyEntriesAreCounted(t *testing.T) {
	in := newInbox()
	p := &parcel{inbox: &in}
	part := &lbdv1.ApplyResources{Deletes: make([]string, 1<<20)}
	refused := false
	for range applyBytesMax / (entryBytes << 20) * 2 {
		if err := p.add(part); err != nil {
			refused = true
			break
		}
	}
	if !refused {
		t.Errorf("%d empty keys are taken", len(p.deletes))
	}
	p.release()
	if held := in.held.used; held != 0 {
		t.Errorf("%d bytes are held after the release", held)
	}
}
