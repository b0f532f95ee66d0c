package rpc

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"

	"lbd/cluster/state"
	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

// fuzzSeconds is how long TestFuzz goes on, unless LBD_FUZZ_SECONDS says otherwise.
const fuzzSeconds = 5

// TestFuzz sends what no client of ours sends, well-formed and raw, to every method. No call panics, hangs or is answered as a
// fault of ours; no command changes the state without an entry in the audit; and afterwards the server answers as before.
func TestFuzz(t *testing.T) {
	seconds := fuzzSeconds
	if text := os.Getenv("LBD_FUZZ_SECONDS"); text != "" {
		var err error
		if seconds, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	f := newFuzz(t)
	until := time.Now().Add(time.Duration(seconds) * time.Second)
	var done sync.WaitGroup
	for i := range uint64(3) {
		random := &chance{rand.New(rand.NewPCG(seed, i))}
		done.Go(func() { f.talk(random, until) })
	}
	garbled := &chance{rand.New(rand.NewPCG(seed, 3))}
	done.Go(func() { f.garble(garbled, until) })
	done.Wait()
	f.alive()
	t.Logf("%d calls, %d of them accepted; %d commands changed the state; %d connections with garbage", f.calls.Load(), f.accepted.Load(), f.store.changes.Load(), f.connections.Load())
	if f.accepted.Load() == 0 || f.store.changes.Load() == 0 || f.connections.Load() == 0 {
		t.Error("nothing came through: the fuzzer reaches no handler")
	}
	if text := f.rig.log.String(); strings.Contains(text, "panicked") {
		t.Errorf("a call panicked:\n%s", text)
	}
}

// auditedStore holds each accepted command to its entry in the audit.
type auditedStore struct {
	*memoryStore
	t       *testing.T
	changes atomic.Int64
}

func (s *auditedStore) Propose(ctx context.Context, change *raftv1.ChangeCommand) (state.Result, error) {
	res, err := s.memoryStore.Propose(ctx, change)
	return s.audited(res, err)
}

func (s *auditedStore) ProposeOverride(ctx context.Context, override *raftv1.OverrideCommand) (state.Result, error) {
	res, err := s.memoryStore.ProposeOverride(ctx, override)
	return s.audited(res, err)
}

func (s *auditedStore) ProposeCommand(ctx context.Context, cmd *raftv1.Command) (state.Result, error) {
	res, err := s.memoryStore.ProposeCommand(ctx, cmd)
	return s.audited(res, err)
}

// audited looks at the records that a command touched: remembered requests alone are no change.
func (s *auditedStore) audited(res state.Result, err error) (state.Result, error) {
	changed := slices.ContainsFunc(res.Touched, func(key string) bool { return !strings.HasPrefix(key, "q/") && !strings.HasPrefix(key, "l/") })
	if changed {
		s.changes.Add(1)
	}
	if told := slices.ContainsFunc(res.Touched, func(key string) bool { return strings.HasPrefix(key, "l/") }); changed && !told {
		s.t.Errorf("a command changed %q and left no entry in the audit", res.Touched)
	}
	return res, err
}

// fuzz is a server under odd clients.
type fuzz struct {
	t       *testing.T
	rig     *rig
	store   *auditedStore
	socket  string
	conn    *grpc.ClientConn
	methods []protoreflect.MethodDescriptor

	calls, accepted, connections atomic.Int64
}

func newFuzz(t *testing.T) *fuzz {
	t.Helper()
	r := newRig(t)
	cfg := r.serverConfig()
	f := &fuzz{t: t, rig: r, socket: filepath.Join(r.dir, "fuzz.sock"), store: &auditedStore{memoryStore: r.store, t: t}}
	cfg.Socket, cfg.Store = f.socket, f.store
	server, err := Serve(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	f.conn, err = grpc.NewClient("unix:"+f.socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.conn.Close() })
	for name := range server.grpc.GetServiceInfo() {
		d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(name))
		if err != nil {
			t.Fatal(err)
		}
		methods := d.(protoreflect.ServiceDescriptor).Methods()
		for i := range methods.Len() {
			f.methods = append(f.methods, methods.Get(i))
		}
	}
	slices.SortFunc(f.methods, func(a, b protoreflect.MethodDescriptor) int {
		return strings.Compare(string(a.FullName()), string(b.FullName()))
	})
	return f
}

// alive is whether the server still answers what it should.
func (f *fuzz) alive() {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), 30*time.Second)
	defer cancel()
	answer, err := lbdv1.NewSystemServiceClient(f.conn).GetVersion(ctx, &lbdv1.GetVersionRequest{})
	if err != nil || answer.GetVersion() != "1.2.3" {
		f.t.Errorf("afterwards: %v, %v", answer, err)
	}
}

// talk calls one method after the other.
func (f *fuzz) talk(random *chance, until time.Time) {
	for time.Now().Before(until) && !f.t.Failed() {
		method := f.methods[random.IntN(len(f.methods))]
		began := time.Now()
		err := f.call(random, method)
		if took := time.Since(began); took > 30*time.Second {
			f.t.Errorf("%s took %v", method.FullName(), took)
		}
		f.calls.Add(1)
		switch code := status.Code(err); {
		case code == codes.OK:
			f.accepted.Add(1)
		case code == codes.Internal || code == codes.Unknown || code == codes.DataLoss:
			f.t.Errorf("%s: %v", method.FullName(), err)
		}
	}
}

// call sends one to four messages and reads up to three.
func (f *fuzz) call(random *chance, method protoreflect.MethodDescriptor) error {
	ctx, cancel := context.WithTimeout(random.metadata(f.t.Context()), time.Duration(random.IntN(100)+1)*time.Millisecond)
	defer cancel()
	name := fmt.Sprintf("/%s/%s", method.Parent().FullName(), method.Name())
	stream, err := f.conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, name)
	if err != nil {
		return err
	}
	for _, message := range random.requests(method) {
		if stream.SendMsg(message) != nil {
			break // the answer says why
		}
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	for range 3 {
		if err := stream.RecvMsg(dynamicpb.NewMessage(method.Output())); err != nil {
			if err.Error() == "EOF" {
				return nil
			}
			return err
		}
	}
	return nil
}

// chance makes messages and bytes.
type chance struct{ *rand.Rand }

// words are what makes a request likely to reach beyond the first check.
var words = []string{
	"", "web", "shop", "default", "http", "pools", "routes", "pools/shop", "listeners", "10.0.0.1:80", "127.0.0.1:1", ":8080", "a.example.com", "*.example.com",
	"https://a.example.com/x", "GET", "/", "r1", "60s", "lbt_x_y", "sha256:0", "nobody", "ü", "a\x00b", "../../etc/passwd", strings.Repeat("long", 500),
}

// requests are what a call sends. Some are whole, so that there is something to change.
func (c *chance) requests(method protoreflect.MethodDescriptor) []proto.Message {
	switch {
	case method.Name() == "Apply" && c.IntN(2) == 0:
		return c.apply()
	case method.Name() == "SetState" && c.IntN(2) == 0:
		return []proto.Message{&lbdv1.SetStateRequest{Pool: c.pick("shop", "web"), Address: "10.0.0.1:80", State: lbdv1.BackendState(c.IntN(4))}}
	case !method.IsStreamingClient():
		return []proto.Message{c.request(method.Input())}
	}
	var all []proto.Message
	for range c.IntN(4) {
		all = append(all, c.request(method.Input()))
	}
	return all
}

// request is a message of random fields.
func (c *chance) request(d protoreflect.MessageDescriptor) proto.Message {
	m := dynamicpb.NewMessage(d)
	c.fill(m, 6)
	if c.IntN(20) == 0 {
		m.SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 4000, protowire.VarintType), 1))
	}
	return m
}

// apply is a header and a part with a pool, in that order or not, and perhaps something else.
func (c *chance) apply() []proto.Message {
	head := &lbdv1.ApplyHeader{Owner: "web", Prune: c.IntN(4) == 0, AllowMassDelete: c.IntN(2) == 0, ValidateOnly: c.IntN(4) == 0}
	pool := &lbdv1.Pool{Name: c.pick("shop", "web", "default"), Backends: []*lbdv1.Backend{{Address: "10.0.0.1:80"}, {Address: fmt.Sprintf("10.0.1.%d:80", c.IntN(256))}}}
	part := &lbdv1.ApplyResources{Resources: []*lbdv1.Resource{{Spec: &lbdv1.Resource_Pool{Pool: pool}}}}
	all := []proto.Message{&lbdv1.ApplyRequest{Part: &lbdv1.ApplyRequest_Header{Header: head}}, &lbdv1.ApplyRequest{Part: &lbdv1.ApplyRequest_Resources{Resources: part}}}
	switch c.IntN(6) {
	case 0:
		slices.Reverse(all)
	case 1:
		all = append(all, c.request((&lbdv1.ApplyRequest{}).ProtoReflect().Descriptor()))
	}
	return all
}

func (c *chance) pick(from ...string) string { return from[c.IntN(len(from))] }

func (c *chance) fill(m protoreflect.Message, depth int) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if depth == 0 || c.IntN(3) == 0 {
			continue
		}
		switch {
		case f.IsMap():
			for range c.IntN(3) {
				m.Mutable(f).Map().Set(c.value(f.MapKey(), protoreflect.Value{}, 0).MapKey(), c.value(f.MapValue(), m.Mutable(f).Map().NewValue(), depth-1))
			}
		case f.IsList():
			for range c.IntN(4) {
				m.Mutable(f).List().Append(c.value(f, m.Mutable(f).List().NewElement(), depth-1))
			}
		case f.Message() != nil:
			c.fill(m.Mutable(f).Message(), depth-1)
		default:
			m.Set(f, c.value(f, protoreflect.Value{}, depth))
		}
	}
}

func (c *chance) value(f protoreflect.FieldDescriptor, empty protoreflect.Value, depth int) protoreflect.Value {
	switch f.Kind() {
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(c.pick(words...))
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes(c.bytes(c.IntN(64)))
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(int32(c.number()))
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(c.number())
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(uint32(c.number()))
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(uint64(c.number()))
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(c.NormFloat64())
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(c.IntN(2) == 0)
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(protoreflect.EnumNumber(c.IntN(8) - 1))
	case protoreflect.MessageKind:
		c.fill(empty.Message(), depth)
		return empty
	}
	panic(fmt.Sprintf("no value for %s", f.FullName()))
}

// number is small, negative or at an edge.
func (c *chance) number() int64 {
	edges := []int64{0, 1, -1, 2, 100, 65535, 65536, 1<<31 - 1, -1 << 31, 1<<63 - 1, -1 << 63}
	return edges[c.IntN(len(edges))]
}

func (c *chance) bytes(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(c.Uint32())
	}
	return b
}

// metadata is what a client may put beside its request.
func (c *chance) metadata(ctx context.Context) context.Context {
	switch c.IntN(8) {
	case 0:
		return metadata.AppendToOutgoingContext(ctx, "authorization", c.pick("Bearer lbt_x_y", "Bearer", "Basic eDp5", "Bearer "+strings.Repeat("x", 4000), ""))
	case 1:
		return metadata.AppendToOutgoingContext(ctx, "x-lbd-author", "root", "x-forwarded-for", "127.0.0.1", "odd-bin", string(c.bytes(100)))
	}
	return ctx
}

// garble writes to the socket what may be no HTTP/2 at all.
func (f *fuzz) garble(random *chance, until time.Time) {
	for time.Now().Before(until) && !f.t.Failed() {
		conn, err := net.Dial("unix", f.socket)
		if err != nil {
			f.t.Error(err)
			return
		}
		_ = conn.SetDeadline(time.Now().Add(time.Second))
		_, _ = conn.Write(random.garbage(f.methods)) // the server may have hung up
		answer := make([]byte, 4096)
		_, _ = conn.Read(answer)
		conn.Close()
		f.connections.Add(1)
	}
}

const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// garbage is bytes, text, frames of odd content, or a call whose message is bytes.
func (c *chance) garbage(methods []protoreflect.MethodDescriptor) []byte {
	settings := frame(4, 0, 0, nil)
	switch c.IntN(5) {
	case 0:
		return c.bytes(c.IntN(2000))
	case 1:
		return []byte("POST /lbd.v1.ConfigService/Apply HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello")
	case 2:
		return append([]byte(preface), c.bytes(c.IntN(500))...)
	case 3:
		b := append([]byte(preface), settings...)
		for range c.IntN(20) {
			b = append(b, frame(byte(c.IntN(12)), byte(c.Uint32()), uint32(c.IntN(9)), c.bytes(c.IntN(60)))...)
		}
		return b
	}
	return c.callOfBytes(methods[c.IntN(len(methods))])
}

// callOfBytes is a call in HPACK literals, with a message that is bytes, or says to be longer than it is.
func (c *chance) callOfBytes(method protoreflect.MethodDescriptor) []byte {
	block := []byte{0x83, 0x86} // :method POST, :scheme http
	fields := []string{":path", fmt.Sprintf("/%s/%s", method.Parent().FullName(), method.Name()), ":authority", "x", "content-type", "application/grpc", "te", "trailers"}
	for i := 0; i < len(fields); i += 2 {
		block = append(append(append(block, 0), literal(fields[i])...), literal(fields[i+1])...)
	}
	body := c.bytes(c.IntN(100))
	size := len(body)
	if c.IntN(3) == 0 {
		size = c.IntN(1 << 30)
	}
	message := append(binary.BigEndian.AppendUint32([]byte{byte(c.IntN(3))}, uint32(size)), body...)
	b := append([]byte(preface), frame(4, 0, 0, nil)...)
	b = append(b, frame(1, 4, 1, block)...) // HEADERS, END_HEADERS
	return append(b, frame(0, byte(c.IntN(2)), 1, message)...)
}

// literal is a string of HPACK without Huffman's code (RFC 7541, section 5.2); none here is longer than its first byte can say.
func literal(text string) []byte { return append([]byte{byte(len(text))}, text...) }

// frame is a frame of HTTP/2 (RFC 9113, section 4.1).
func frame(kind, flags byte, stream uint32, payload []byte) []byte {
	b := append([]byte{byte(len(payload) >> 16), byte(len(payload) >> 8), byte(len(payload)), kind, flags}, 0, 0, 0, 0)
	binary.BigEndian.PutUint32(b[5:], stream)
	return append(b, payload...)
}
