package rpc

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

// Server answers on the control socket, and on the control port if there is one, until Close.
//
// Its goroutines: gRPC's (accept, and those of connections and calls), those of the port, one that keeps the health service's answer, one that
// ends the calls of revoked credentials, one that keeps everything sealed under the active key, one per message that a stream waits for, and one per file of a debug archive.
type Server struct {
	grpc   *grpc.Server
	socket *socket
	health *health.Server
	guard  *guard
	log    *slog.Logger
	// stop ends what waits; abandon also ends proposals.
	stop, abandon context.CancelFunc
	grace         time.Duration
	port          *Port // nil: there is none
	done          sync.WaitGroup
	once          sync.Once
}

// Serve starts to answer on the control socket and on the port. It fails where the socket cannot be made, and where another
// process answers on it.
func Serve(cfg Config) (*Server, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	l, err := openSocket(cfg)
	if err != nil {
		return nil, err
	}
	stopping, stop := context.WithCancel(context.Background())
	life, abandon := context.WithCancel(context.Background())
	guard := newGuard(cfg, stopping)
	s := &Server{
		socket: l,
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
			grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: idleTimeout, MaxConnectionAge: connectionAgeMax}),
			grpc.WaitForHandlers(true),
		),
		health:  health.NewServer(),
		guard:   guard,
		log:     cfg.Logger,
		stop:    stop,
		abandon: abandon,
		grace:   closeTimeout,
		port:    cfg.Port,
	}
	s.register(cfg, stopping, life)
	guard.rules = readRules(s.grpc.GetServiceInfo())
	s.done.Go(func() { s.watchHealth(stopping, cfg.Observer) })
	s.done.Go(func() { guard.sessions.watch(stopping, guard.stale) })
	s.done.Go(func() { s.serve(l, "control socket") })
	if cfg.Port != nil {
		s.takePort(cfg.Port)
	}
	return s, nil
}

// takePort answers on the port, also where other nodes have been let in before.
func (s *Server) takePort(p *Port) {
	if !p.begun {
		p.open()
	}
	s.done.Go(func() { s.serve(p.listener(), "control port") })
}

func credentialsOf(cfg Config) credentials.TransportCredentials {
	return serverCredentials{peerCredentials{group: cfg.SocketGroup}}
}

func (s *Server) register(cfg Config, stopping, life context.Context) {
	writer, fleet := newWriter(cfg, life), s.guard.fleet
	lbdv1.RegisterConfigServiceServer(s.grpc, &configService{writer: writer, node: cfg.Node, store: cfg.Store, observer: cfg.Observer, fleet: fleet, inbox: newInbox()})
	lbdv1.RegisterCertificateServiceServer(s.grpc, &certificateService{seat: cfg.Seat, peers: cfg.Peers, writer: writer, store: cfg.Store, observer: cfg.Observer, fleet: fleet})
	lbdv1.RegisterBackendServiceServer(s.grpc, &backendService{
		node: cfg.Node, writer: writer, store: cfg.Store, observer: cfg.Observer, overlay: cfg.Overlay, journal: cfg.Journal, fleet: fleet,
	})
	lbdv1.RegisterTrafficServiceServer(s.grpc, &trafficService{node: cfg.Node, store: cfg.Store, observer: cfg.Observer, fleet: fleet})
	system := newSystemService(cfg, fleet, &s.done)
	lbdv1.RegisterSystemServiceServer(s.grpc, system)
	lbdv1.RegisterAuthServiceServer(s.grpc, newAuthService(cfg, fleet, writer))
	cluster := newClusterService(cfg, fleet, system, writer)
	lbdv1.RegisterClusterServiceServer(s.grpc, cluster)
	s.done.Go(func() { cluster.keepSealed(stopping, cfg.Logger) })
	tickets := &ticketService{store: cfg.Store, seat: cfg.Seat, fleet: fleet, observer: cfg.Observer, cluster: cluster}
	lbdv1.RegisterSessionTicketServiceServer(s.grpc, tickets)
	s.done.Go(func() { tickets.keep(stopping, cfg.Logger) })
	raftv1.RegisterPeerServiceServer(s.grpc, newPeerService(cfg, writer, s.guard))
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

// LeaveSocket duplicates the control socket for a process that takes this one's place: who calls when this server has closed waits for that. The
// file stays where it is. The caller closes the duplicate; it must not be asked for its Fd, which would change how this server accepts.
func (s *Server) LeaveSocket() (*os.File, error) {
	file, err := s.socket.File()
	if err == nil {
		s.socket.left.Store(true)
	}
	return file, err
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
		if s.port != nil {
			_ = s.port.Close()
		}
		s.guard.receivers.Wait()
		s.done.Wait()
	})
	return nil
}
