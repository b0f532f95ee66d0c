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

// RunDoctor looks for what is wrong with this node without an error.
func (s *systemService) RunDoctor(ctx context.Context, _ *lbdv1.RunDoctorRequest) (*lbdv1.RunDoctorResponse, error) {
	findings := s.observer.Doctor(ctx)
	for _, f := range findings {
		f.Node = s.node
	}
	return &lbdv1.RunDoctorResponse{Findings: findings}, nil
}

// GetMetrics reads this node's metrics.
func (s *systemService) GetMetrics(context.Context, *lbdv1.GetMetricsRequest) (*lbdv1.GetMetricsResponse, error) {
	text, err := s.observer.Metrics()
	if err != nil {
		return nil, err
	}
	return &lbdv1.GetMetricsResponse{Text: text}, nil
}

// GetProfile takes a profile of this process.
func (s *systemService) GetProfile(ctx context.Context, req *lbdv1.GetProfileRequest) (*lbdv1.GetProfileResponse, error) {
	if _, known := lbdv1.ProfileKind_name[int32(req.GetKind())]; !known || req.GetKind() == lbdv1.ProfileKind_PROFILE_KIND_UNSPECIFIED {
		return nil, invalidField("kind", "is none: want CPU or HEAP")
	}
	d := profileDefault
	if req.GetDuration() != nil {
		d = req.GetDuration().AsDuration()
	}
	if d < profileMin || d > profileMax {
		return nil, invalidField("duration", "%s is out of range: %s to %s", d, profileMin, profileMax)
	}
	profile, err := s.observer.Profile(ctx, req.GetKind(), d)
	if err != nil {
		return nil, err
	}
	return &lbdv1.GetProfileResponse{Profile: profile}, nil
}
