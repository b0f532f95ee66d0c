package main

import (
	"context"
	"io"

	"google.golang.org/grpc"

	lbdv1 "lbd/proto/lbd/v1"
)

// fakeDocuments is what the verbs of documents ask of a fakeNode.
type fakeDocuments struct {
	diff     func(*lbdv1.ApplyHeader, []*lbdv1.Resource) (*lbdv1.DiffResponse, error)
	validate func(*lbdv1.ValidateRequest) (*lbdv1.ValidateResponse, error)
	revision func(*lbdv1.GetRevisionRequest) (*lbdv1.GetRevisionResponse, error)
	rollback func(*lbdv1.RollbackRequest) (*lbdv1.RollbackResponse, error)
	watch    func(*lbdv1.WatchRequest, grpc.ServerStreamingServer[lbdv1.WatchResponse]) error
}

func (f *fakeConfig) Diff(stream grpc.ClientStreamingServer[lbdv1.DiffRequest, lbdv1.DiffResponse]) error {
	var header *lbdv1.ApplyHeader
	var resources []*lbdv1.Resource
	for {
		part, err := stream.Recv()
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		f.node.note(part)
		if h := part.GetPart().GetHeader(); h != nil {
			header = h
		}
		resources = append(resources, part.GetPart().GetResources().GetResources()...)
	}
	answer, err := f.node.diff(header, resources)
	if err != nil {
		return err
	}
	return stream.SendAndClose(answer)
}

func (f *fakeConfig) Validate(_ context.Context, r *lbdv1.ValidateRequest) (*lbdv1.ValidateResponse, error) {
	f.node.note(r)
	return f.node.validate(r)
}

func (f *fakeConfig) GetRevision(_ context.Context, r *lbdv1.GetRevisionRequest) (*lbdv1.GetRevisionResponse, error) {
	f.node.note(r)
	return f.node.revision(r)
}

func (f *fakeConfig) Rollback(_ context.Context, r *lbdv1.RollbackRequest) (*lbdv1.RollbackResponse, error) {
	f.node.note(r)
	return f.node.rollback(r)
}

func (f *fakeConfig) Watch(r *lbdv1.WatchRequest, stream grpc.ServerStreamingServer[lbdv1.WatchResponse]) error {
	f.node.note(r)
	return f.node.watch(r, stream)
}
