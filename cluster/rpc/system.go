package rpc

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc"

	lbdv1 "lbd/proto/lbd/v1"
)

// systemService answers lbd.v1.SystemService.
type systemService struct {
	lbdv1.UnimplementedSystemServiceServer
	node     string
	build    *lbdv1.GetVersionResponse
	store    Store
	observer Observer
	journal  Journal
	overlay  Overlay
	now      func() time.Time
	fleet    *fleet
	// collecting has room for one archive at a time; workers are the goroutines that make its files.
	collecting chan struct{}
	workers    *sync.WaitGroup
}

func newSystemService(cfg Config, f *fleet, workers *sync.WaitGroup) *systemService {
	return &systemService{
		node: cfg.Node, build: cfg.Build, store: cfg.Store, observer: cfg.Observer, journal: cfg.Journal, overlay: cfg.Overlay, now: cfg.Now, fleet: f,
		collecting: make(chan struct{}, 1), workers: workers,
	}
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
	answer.NodeId, answer.Version = s.fleet.id, s.build.GetVersion()
	if s.fleet.seat != nil {
		answer.AppliedIndex = s.fleet.seat.Applied()
		answer.Leader = s.fleet.leader()
	}
	return answer, nil
}

// RunDoctor looks for what is wrong with this node, or with each, without an error.
func (s *systemService) RunDoctor(ctx context.Context, req *lbdv1.RunDoctorRequest) (*lbdv1.RunDoctorResponse, error) {
	here := func(ctx context.Context) (*lbdv1.RunDoctorResponse, error) {
		findings := s.observer.Doctor(ctx)
		for _, f := range findings {
			f.Node = s.node
		}
		return &lbdv1.RunDoctorResponse{Findings: findings}, nil
	}
	if req.GetNode() != everyNode {
		return here(ctx)
	}
	answers, unreached, err := answered(s.fleet, ask(ctx, s.fleet, here,
		func(ctx context.Context, conn grpc.ClientConnInterface) (*lbdv1.RunDoctorResponse, error) {
			return lbdv1.NewSystemServiceClient(conn).RunDoctor(ctx, req)
		}))
	if err != nil {
		return nil, err
	}
	out := &lbdv1.RunDoctorResponse{Unreached: unreached}
	for _, a := range answers {
		out.Findings = append(out.Findings, a.answer.GetFindings()...)
	}
	return out, nil
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
	if _, err := profileRange("duration", d); err != nil {
		return nil, err
	}
	profile, err := s.observer.Profile(ctx, req.GetKind(), d)
	if err != nil {
		return nil, err
	}
	return &lbdv1.GetProfileResponse{Profile: profile}, nil
}

// logLevels are the levels of package slog by their names in the API.
var logLevels = map[lbdv1.LogLevel]slog.Level{
	lbdv1.LogLevel_LOG_LEVEL_DEBUG: slog.LevelDebug,
	lbdv1.LogLevel_LOG_LEVEL_INFO:  slog.LevelInfo,
	lbdv1.LogLevel_LOG_LEVEL_WARN:  slog.LevelWarn,
	lbdv1.LogLevel_LOG_LEVEL_ERROR: slog.LevelError,
}

func logLevelName(level slog.Level) lbdv1.LogLevel {
	for name, l := range logLevels {
		if l == level {
			return name
		}
	}
	return lbdv1.LogLevel_LOG_LEVEL_UNSPECIFIED
}

// SetLogLevel sets how much this node's own log says, until the node ends. Without a level it only tells.
func (s *systemService) SetLogLevel(ctx context.Context, req *lbdv1.SetLogLevelRequest) (*lbdv1.SetLogLevelResponse, error) {
	if req.GetLevel() == lbdv1.LogLevel_LOG_LEVEL_UNSPECIFIED {
		now := logLevelName(s.observer.LogLevel())
		return &lbdv1.SetLogLevelResponse{Level: now, Before: now}, nil
	}
	level, known := logLevels[req.GetLevel()]
	if !known {
		return nil, invalidField("level", "is none: want DEBUG, INFO, WARN or ERROR")
	}
	by, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	before := s.observer.SetLogLevel(level, by.Author)
	return &lbdv1.SetLogLevelResponse{Level: req.GetLevel(), Before: logLevelName(before)}, nil
}
