package rpc

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	lbdv1 "lbd/proto/lbd/v1"
)

// inbox receives applies within bounds of bytes for all of them together, and for those of each caller.
type inbox struct {
	held *shares
}

func newInbox() inbox {
	return inbox{newShares(receivedBytesMax, applyBytesMax, receivedBytesReserved)}
}

// parcel is an apply as it came in. Its owner calls release.
type parcel struct {
	head      *lbdv1.ApplyHeader
	resources []*lbdv1.Resource
	deletes   []string
	bytes     int64
	inbox     *inbox
	by        Caller
}

type (
	applyStream = grpc.ClientStreamingServer[lbdv1.ApplyRequest, lbdv1.ApplyResponse]
	diffStream  = grpc.ClientStreamingServer[lbdv1.DiffRequest, lbdv1.DiffResponse]
)

// applyParts are the parts of an apply, whichever call they came with.
type applyParts interface {
	Context() context.Context
	Recv() (*lbdv1.ApplyRequest, error)
}

// partsOfDiff are those that a call of Diff wraps.
type partsOfDiff struct{ diffStream }

func (p partsOfDiff) Recv() (*lbdv1.ApplyRequest, error) {
	request, err := p.diffStream.Recv()
	return request.GetPart(), err
}

// receive reads a header and then parts, until the client has sent everything.
func (in *inbox) receive(stream applyParts) (*parcel, error) {
	by, err := callerOf(stream.Context())
	if err != nil {
		return nil, err
	}
	p := &parcel{inbox: in, by: by}
	if err := p.fill(stream); err != nil {
		p.release()
		return nil, err
	}
	return p, nil
}

func (p *parcel) fill(stream applyParts) error {
	first, err := stream.Recv()
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if p.head = first.GetHeader(); p.head == nil {
		return invalidField("header", "the first message of an apply has to be its header")
	}
	for {
		next, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if next.GetResources() == nil {
			return invalidField("resources", "every message after the header has to be a part with resources")
		}
		if err := p.add(next.GetResources()); err != nil {
			return err
		}
	}
}

func (p *parcel) add(part *lbdv1.ApplyResources) error {
	for _, r := range part.GetResources() {
		size := int64(proto.Size(r))
		if size > resourceBytesMax {
			return invalidField("resources", "a resource of %d bytes is too large: at most %d", size, resourceBytesMax)
		}
		if err := p.hold(size); err != nil {
			return err
		}
		p.resources = append(p.resources, r)
	}
	for _, key := range part.GetDeletes() {
		if err := p.hold(int64(len(key))); err != nil {
			return err
		}
		p.deletes = append(p.deletes, key)
	}
	return nil
}

// hold counts bytes against the bounds of one apply and of all together.
func (p *parcel) hold(size int64) error {
	size += entryBytes
	if p.bytes+size > applyBytesMax {
		return invalidField("resources", "more than %d bytes are too much for one apply", applyBytesMax)
	}
	if _, ok := p.inbox.held.take(p.by, size); !ok {
		return unavailable(reasonBusy, "too many large applies are under way")
	}
	p.bytes += size
	return nil
}

// release gives the bytes back.
func (p *parcel) release() { p.inbox.held.give(p.by, p.bytes) }
