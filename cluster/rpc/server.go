package rpc

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	lbdv1 "lbd/proto/lbd/v1"
)

// Server answers on the control socket, and on the control port if there is one, until Close.
//
// Its goroutines: gRPC's (accept, and those of connections and calls), one that keeps the health service's answer, one that ends the
// calls of revoked credentials, one per message that a stream waits for, and one per file of a debug archive.
type Server struct {
	grpc   *grpc.Server
	health *health.Server
	guard  *guard
	log    *slog.Logger
	// stop ends what waits; abandon also ends proposals.
	stop, abandon context.CancelFunc
	grace         time.Duration
	done          sync.WaitGroup
	once          sync.Once
}

// Serve starts to answer on the control socket and on the port. It fails where the socket cannot be made, and where another
// process answers on it.
func Serve(cfg Config) (*Server, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	l, err := listen(cfg.Socket, connectionsMax, cfg.SocketGroup)
	if err != nil {
		return nil, err
	}
	stopping, stop := context.WithCancel(context.Background())
	life, abandon := context.WithCancel(context.Background())
	guard := newGuard(cfg, stopping)
	s := &Server{
		grpc: grpc.NewServer(
			grpc.Creds(credentialsOf(cfg)),
			grpc.InTapHandle(guard.admit),
			grpc.UnaryInterceptor(guard.unary),
			grpc.StreamInterceptor(guard.stream),
			grpc.MaxRecvMsgSize(messageBytesMax),
			grpc.MaxSendMsgSize(answerBytesMax),
			grpc.MaxConcurrentStreams(streamsMax),
			grpc.MaxHeaderListSize(headerBytesMax),
			grpc.ConnectionTimeout(handshakeTimeout),
			grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: idleTimeout}),
			grpc.WaitForHandlers(true),
		),
		health:  health.NewServer(),
		guard:   guard,
		log:     cfg.Logger,
		stop:    stop,
		abandon: abandon,
		grace:   closeTimeout,
	}
	s.register(cfg, life)
	guard.rules = readRules(s.grpc.GetServiceInfo())
	s.done.Go(func() { s.watchHealth(stopping, cfg.Observer) })
	s.done.Go(func() { guard.sessions.watch(stopping) })
	s.done.Go(func() { s.serve(l, "control socket") })
	if cfg.Port != nil {
		s.done.Go(func() { s.serve(&portListener{Listener: cfg.Port.Listener}, "control port") })
	}
	return s, nil
}

func credentialsOf(cfg Config) credentials.TransportCredentials {
	c := serverCredentials{peerCredentials: peerCredentials{group: cfg.SocketGroup}}
	if cfg.Port != nil {
		c.port = credentials.NewTLS(cfg.Port.tlsConfig())
	}
	return c
}

func (s *Server) register(cfg Config, life context.Context) {
	writer := newWriter(cfg, life)
	lbdv1.RegisterConfigServiceServer(s.grpc, &configService{writer: writer, node: cfg.Node, store: cfg.Store, observer: cfg.Observer, inbox: newInbox()})
	lbdv1.RegisterCertificateServiceServer(s.grpc, &certificateService{writer: writer, store: cfg.Store, observer: cfg.Observer})
	lbdv1.RegisterBackendServiceServer(s.grpc, &backendService{writer: writer, store: cfg.Store, observer: cfg.Observer})
	lbdv1.RegisterTrafficServiceServer(s.grpc, &trafficService{node: cfg.Node, store: cfg.Store, observer: cfg.Observer})
	lbdv1.RegisterSystemServiceServer(s.grpc, newSystemService(cfg, &s.done))
	lbdv1.RegisterAuthServiceServer(s.grpc, newAuthService(cfg, writer))
	lbdv1.RegisterClusterServiceServer(s.grpc, &clusterService{writer: writer, store: cfg.Store, keys: cfg.Keys})
	lbdv1.RegisterBackupServiceServer(s.grpc, newBackupService(cfg, writer))
	healthpb.RegisterHealthServer(s.grpc, s.health)
	reflection.Register(s.grpc)
}

func (s *Server) serve(l net.Listener, what string) {
	if err := s.grpc.Serve(l); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		s.log.Error("the "+what+" no longer takes calls", "error", err)
	}
}

// watchHealth keeps the health service's answer, for the whole server and for each service alike, in step with what
// the node does.
func (s *Server) watchHealth(stopping context.Context, observer Observer) {
	for {
		p := observer.Progress()
		status := healthpb.HealthCheckResponse_NOT_SERVING
		if p.Serving {
			status = healthpb.HealthCheckResponse_SERVING
		}
		s.health.SetServingStatus("", status)
		for name := range s.grpc.GetServiceInfo() {
			s.health.SetServingStatus(name, status)
		}
		select {
		case <-p.Changed:
		case <-stopping.Done():
			s.health.Shutdown()
			return
		}
	}
}

// Close takes no more calls, ends streams that wait, gives the others closeTimeout to finish, and returns when every
// goroutine has ended.
func (s *Server) Close() error {
	s.once.Do(func() {
		s.stop()
		hurry := time.AfterFunc(s.grace, func() {
			s.abandon()
			s.grpc.Stop()
		})
		s.grpc.GracefulStop()
		hurry.Stop()
		s.abandon()
		s.guard.receivers.Wait()
		s.done.Wait()
	})
	return nil
}
