package rpc

import (
	"context"
	"encoding/hex"
	"errors"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"lbd/cluster/state"
	lbdv1 "lbd/proto/lbd/v1"
)

// fakeObserver answers what a test has set.
type fakeObserver struct {
	mu       sync.Mutex
	progress Progress
	changed  chan struct{}
	serials  map[string]string
	backends []*lbdv1.BackendStatus
	panics   bool
	events   []*lbdv1.WatchEventsResponse
	more     chan struct{}
	// asked is the last request that was passed on.
	asked any
	level slog.Level
	// levelBy is who has set the level last.
	levelBy string
	// files are what the process adds to a debug archive.
	files []DebugFile
	// restored are the backends whose ejection was ended, "pool/address".
	restored []string
	// store is what it serves ticket keys of.
	store Store
}

func newObserver() *fakeObserver {
	changed := make(chan struct{})
	return &fakeObserver{progress: Progress{Serving: true, Changed: changed}, changed: changed, serials: map[string]string{}, more: make(chan struct{})}
}

func (o *fakeObserver) Progress() Progress {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.progress
}

// set changes the observation and wakes who waits.
func (o *fakeObserver) set(change func(*Progress)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	change(&o.progress)
	close(o.changed)
	o.changed = make(chan struct{})
	o.progress.Changed = o.changed
}

func (o *fakeObserver) ServedSerial(certificate string) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.serials[certificate]
}

func (o *fakeObserver) Backends(pool string) []*lbdv1.BackendStatus {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.panics {
		panic("a fault in the data plane")
	}
	var out []*lbdv1.BackendStatus
	for _, b := range o.backends {
		if pool == "" || b.GetPool() == pool {
			out = append(out, b)
		}
	}
	return out
}

func (o *fakeObserver) Status() *lbdv1.SystemServiceGetStatusResponse {
	o.mu.Lock()
	defer o.mu.Unlock()
	return &lbdv1.SystemServiceGetStatusResponse{ServedRevision: o.progress.Revision, Engine: "epoll", RaftRole: "leader"}
}

func (o *fakeObserver) CertificateUse(name string) (listeners, shadowedBy []string) {
	return []string{"https"}, []string{"a.example.com: not " + name}
}

func (o *fakeObserver) Conditions(kind, name string) []*lbdv1.Condition {
	return []*lbdv1.Condition{{Type: "Programmed", Status: true, Reason: "SERVED", Message: kind + "/" + name}}
}

func (o *fakeObserver) TestRoute(_ context.Context, req *lbdv1.TestRouteRequest) (*lbdv1.TestRouteResponse, error) {
	return &lbdv1.TestRouteResponse{Route: "route of " + req.GetUrl()}, nil
}

func (o *fakeObserver) Stats() *lbdv1.WatchStatsResponse {
	return &lbdv1.WatchStatsResponse{Connections: 7}
}

func (o *fakeObserver) Events(since time.Time) ([]*lbdv1.WatchEventsResponse, <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	var past []*lbdv1.WatchEventsResponse
	for _, e := range o.events {
		if e.GetTime().AsTime().After(since) {
			past = append(past, e)
		}
	}
	return past, o.more
}

// happen adds an event and wakes who waits.
func (o *fakeObserver) happen(at time.Time, message string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.events = append(o.events, &lbdv1.WatchEventsResponse{Time: timestamppb.New(at), Type: "backend_down", Message: message})
	close(o.more)
	o.more = make(chan struct{})
}

func (o *fakeObserver) Connections(req *lbdv1.ListConnectionsRequest) (*lbdv1.ListConnectionsResponse, error) {
	o.note(req)
	return &lbdv1.ListConnectionsResponse{Connections: []*lbdv1.Connection{{Id: 3}}}, nil
}

func (o *fakeObserver) EndEjection(pool, address string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.restored = append(o.restored, pool+"/"+address)
	return true
}

func (o *fakeObserver) KillConnections(req *lbdv1.KillConnectionsRequest) (int64, error) {
	o.note(req)
	return 2, nil
}

func (o *fakeObserver) note(req any) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.asked = req
}

func (o *fakeObserver) last() any {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.asked
}

func (o *fakeObserver) Doctor(context.Context) []*lbdv1.Finding {
	return []*lbdv1.Finding{{Check: "clock", Level: lbdv1.FindingLevel_FINDING_LEVEL_OK}}
}

func (o *fakeObserver) Metrics() (string, error) { return "lbd_revision 1\n", nil }

func (o *fakeObserver) Profile(_ context.Context, kind lbdv1.ProfileKind, d time.Duration) ([]byte, error) {
	if d == profileMax {
		return nil, errors.New("another profile is being taken")
	}
	return []byte(kind.String() + " " + d.String()), nil
}

func (o *fakeObserver) LogLevel() slog.Level {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.level
}

func (o *fakeObserver) SetLogLevel(level slog.Level, by string) (before slog.Level) {
	o.mu.Lock()
	defer o.mu.Unlock()
	before, o.level, o.levelBy = o.level, level, by
	return before
}

func (o *fakeObserver) DebugFiles() []DebugFile {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.files
}

func (o *fakeObserver) TicketKeys() *lbdv1.TicketKeysOnNode {
	if o.store == nil {
		return &lbdv1.TicketKeysOnNode{}
	}
	current := o.store.State()
	return &lbdv1.TicketKeysOnNode{
		Epoch:  current.TicketKeyIn(lbdv1.TicketKeyState_TICKET_KEY_STATE_ACTIVE).GetEpoch(),
		Digest: state.TicketKeysDigest(current.TicketKeys()), Results: map[string]uint64{"hit_peer": 2},
	}
}

func (o *fakeObserver) InspectTicket(ticket []byte) *lbdv1.InspectTicketResponse {
	return &lbdv1.InspectTicketResponse{KeyName: hex.EncodeToString(ticket[:min(16, len(ticket))]), Result: "miss_unknown_key"}
}
