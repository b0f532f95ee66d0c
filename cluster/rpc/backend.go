package rpc

import (
	"context"

	"lbd/cluster/state"
	lbdv1 "lbd/proto/lbd/v1"
)

// backendService answers lbd.v1.BackendService.
type backendService struct {
	lbdv1.UnimplementedBackendServiceServer
	store    Store
	observer Observer
}

// GetStatus reads backends as this node sees them. A pool that is not stored is NOT_FOUND.
func (s *backendService) GetStatus(_ context.Context, req *lbdv1.BackendServiceGetStatusRequest) (*lbdv1.BackendServiceGetStatusResponse, error) {
	if name := req.GetPool(); name != "" {
		if _, ok := s.store.State().Get(state.Pools, name); !ok {
			return nil, notFound("there is no pool named `%s`", name)
		}
	}
	return &lbdv1.BackendServiceGetStatusResponse{Backends: s.observer.Backends(req.GetPool())}, nil
}
