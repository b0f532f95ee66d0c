package rpc

import (
	"context"

	lbdv1 "lbd/proto/lbd/v1"
)

// systemService answers lbd.v1.SystemService.
type systemService struct {
	lbdv1.UnimplementedSystemServiceServer
	node     string
	build    *lbdv1.GetVersionResponse
	store    Store
	observer Observer
}

// GetVersion reads the build.
func (s *systemService) GetVersion(context.Context, *lbdv1.GetVersionRequest) (*lbdv1.GetVersionResponse, error) {
	return s.build, nil
}

// GetStatus reads this node's condition.
func (s *systemService) GetStatus(context.Context, *lbdv1.SystemServiceGetStatusRequest) (*lbdv1.SystemServiceGetStatusResponse, error) {
	answer := s.observer.Status()
	answer.Node = s.node
	answer.StoredRevision = s.store.State().Revision()
	return answer, nil
}
