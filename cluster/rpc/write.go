package rpc

import (
	"context"
	"slices"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lbd/cluster/state"
	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

// writer takes changes into the log, one at a time: what a change leaves out ("the stored key stays") is filled in from
// the state that it is applied to, so no other change may come between.
type writer struct {
	node   string
	places Places
	// backupFault may be nil.
	backupFault func(directory string) error
	store       Store
	overlay     Overlay
	keys        Keys
	now         func() time.Time
	turn        chan struct{}
	// life ends when proposals are to be given up, at the end of Close.
	life context.Context
}

func newWriter(cfg Config, life context.Context) *writer {
	return &writer{node: cfg.Node, places: cfg.Places, backupFault: cfg.BackupFault, store: cfg.Store, overlay: cfg.Overlay, keys: cfg.Keys, now: cfg.Now, turn: make(chan struct{}, 1), life: life}
}

// draft is a change before anything secret is made for it.
type draft struct {
	// current is the newest state, which the change is tried on.
	current *state.State
	// base is the state that a change's blanks are filled in from: the current one or, for a retry, the one that the first
	// call found, so that both ask for the same.
	base      *state.State
	materials materials
	change    *raftv1.ChangeCommand
	// contents are those of the certificates among the change's upserts.
	contents   map[*raftv1.StoredResource]content
	violations []*lbdv1.Violation
	// denied is what the caller may not write.
	denied []*lbdv1.Violation
	// answers are those of DNS, as far as it was asked before the turn.
	answers lookups
	// byKey are the change's resources, once they are looked for.
	byKey map[state.Key]*lbdv1.Resource
	// chainField is where a certificate's chain was said, if not in a document.
	chainField string
	// refusal, if set, is the answer unless the change turns out to be a retry.
	refusal error
	// replaces is true where nothing stays but the change's resources.
	replaces bool
}

// write is the way of every change:
//
//  1. wait for the turn
//  2. draft: fill in what is left out, check the PEM, judge what the caller may write
//  3. try it on the immutable state: what is wrong, what would change, whether it is a retry
//  4. stop here if it was refused, if it is a retry, or if only that was asked
//  5. make and seal keys
//  6. propose
func (w *writer) write(ctx context.Context, head *lbdv1.ApplyHeader, fill func(*draft) error) (*lbdv1.ApplyResponse, error) {
	by, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	if head.GetOwner() != "" {
		if err := requireOwner(ctx, head.GetOwner()); err != nil {
			return nil, err
		}
	}
	select {
	case w.turn <- struct{}{}:
		defer func() { <-w.turn }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	d := w.draft(head, by.Author)
	d.change.Origin = origin(ctx)
	if err := fill(d); err != nil {
		return nil, err
	}
	if err := requireOwner(ctx, d.change.GetOwner()); err != nil {
		return nil, err
	}
	d.judge(ctx, w, by, true)
	next, result, err := d.try()
	if err != nil {
		return nil, err
	}
	if head.GetValidateOnly() {
		result.Changes = withFields(d.current, next, result.Changes)
	}
	if !head.GetValidateOnly() && !result.Replayed {
		if err := d.finish(); err != nil {
			return nil, err
		}
		if result, err = w.propose(d.change); err != nil {
			return nil, err
		}
	}
	_, warnings := split(append(d.violations, result.Warnings...))
	return &lbdv1.ApplyResponse{Revision: result.Revision, Changes: result.Changes, Warnings: warnings}, nil
}

// propose does not end with the caller: a change that is in the log will be applied whether or not its caller still
// listens, and the next one must be drafted on the state that it leaves.
func (w *writer) propose(change *raftv1.ChangeCommand) (state.Result, error) {
	ctx, cancel := context.WithTimeout(w.life, proposeTimeoutMax)
	defer cancel()
	result, err := w.store.Propose(ctx, change)
	if err == nil {
		err = result.Err
	}
	return result, err
}

// draft begins a change on the newest state.
func (w *writer) draft(head *lbdv1.ApplyHeader, by string) *draft {
	now, current := w.now(), w.store.State()
	return &draft{
		current:   current,
		base:      current.Requested(head.GetRequestId()),
		materials: materials{keys: w.keys, now: now},
		contents:  map[*raftv1.StoredResource]content{},
		change: &raftv1.ChangeCommand{
			Owner:      head.GetOwner(),
			Author:     by,
			Time:       timestamppb.New(now),
			Message:    head.GetMessage(),
			RequestId:  head.GetRequestId(),
			TakeOver:   head.GetTakeOver(),
			IfRevision: head.IfRevision,
		},
	}
}

// try applies the draft to the immutable state and says what would become of it. What is wrong with the PEM and what is
// wrong otherwise are reported together. A retry is answered as the first time, whatever else has changed since.
func (d *draft) try() (*state.State, state.Result, error) {
	next, result := d.current.Apply(&raftv1.Command{Kind: &raftv1.Command_Change{Change: d.rehearsal()}})
	if result.Replayed {
		return next, result, nil
	}
	if d.refusal != nil {
		return next, result, d.refusal
	}
	if err := d.refusals(result); err != nil {
		return next, result, err
	}
	return next, result, result.Err
}

// rehearsal is the change with a stand-in for all that only finish makes: enough to be judged, never to be proposed.
// It shares the rest with the draft.
func (d *draft) rehearsal() *raftv1.ChangeCommand {
	change := new(raftv1.ChangeCommand)
	d.change.ProtoReflect().Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		change.ProtoReflect().Set(field, value)
		return true
	})
	change.Upserts = slices.Clone(d.change.GetUpserts())
	for i, stored := range change.GetUpserts() {
		if stored.GetResource().GetCertificate() == nil || len(stored.GetMaterial().GetSealedKey()) > 0 {
			continue
		}
		standIn := &raftv1.CertificateMaterial{Chain: [][]byte{{}}, PublicKeySha256: []byte{0}, SealedKey: []byte{0}}
		if m := stored.GetMaterial(); m != nil {
			standIn.Chain, standIn.PublicKeySha256 = m.GetChain(), m.GetPublicKeySha256()
		}
		change.Upserts[i] = &raftv1.StoredResource{Resource: stored.GetResource(), Material: standIn}
	}
	return change
}

// finish gives every certificate what it still lacks.
func (d *draft) finish() error {
	for stored, c := range d.contents {
		var err error
		name := stored.GetResource().GetCertificate().GetName()
		if stored.Material, err = d.materials.finish(d.base.ClusterID(), name, c); err != nil {
			return err
		}
	}
	return nil
}
