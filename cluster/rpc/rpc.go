// Package rpc answers the control API: the gRPC services of lbd.v1 on a unix socket and on a port with TLS.
//
// Nobody reaches a handler unknown: [guard.admit] finds out who calls and holds the method's rule (the option lbd.v1.access in the
// proto) against it before a byte of the message is read. What belongs to which owner a handler asks of [requireOwner].
//
// A write walks through one function, [configService.Apply], and its steps are the same for every verb that changes
// something: receive, normalise (check the PEM, keep what is unchanged), validate, seal, propose, answer. A read is
// answered from the immutable state that the store holds at that moment.
//
// The package knows the replicated state through [Store], certificates' keys through [Keys] and the data plane through
// [Observer]. It holds no state of its own but the calls in flight.
package rpc

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"time"

	"lbd/cluster/state"
	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

// Config is what a [Server] works with. All fields but SocketListener, SocketGroup, LocalAdmin, Port, Seat, Peers,
// Authorities, Journal, Overlay, BackupFault, Logger and Now are required.
type Config struct {
	// Socket is the path of the unix socket. Its directory is made (0700, of a shared one 0755) if it is missing; the file has
	// mode 0600.
	Socket string
	// SocketListener is the socket itself, where another process has left it to this one: see Server.LeaveSocket. nil: it is made. The server closes it.
	SocketListener *net.UnixListener
	// SocketGroup shares the socket with the members of a group: it has mode 0660 then, and the user that lbd runs as is no admin
	// there. 0: it is private to root and that user.
	SocketGroup uint32
	// LocalAdmin makes admins of the socket's administrators whatever cluster_settings.local_admin says: the way back in.
	LocalAdmin bool
	// Port is the control port; nil: there is none.
	Port *Port
	// Seat is this node among the others; nil: it is alone, and answers everything itself.
	Seat Seat
	// Peers are how the others are reached; nil: they are not.
	Peers *Peers
	// Authorities makes certificate authorities; nil: there are none, as without a control port.
	Authorities Authorities
	// Journal is what this node keeps of its callers; nil: nothing.
	Journal Journal
	// Overlay is what is said of backends on this node alone; nil: nothing can be.
	Overlay Overlay
	// Node is this node's name, as it appears in authors and in progress.
	Node string
	// Build is what GetVersion answers.
	Build    *lbdv1.GetVersionResponse
	Store    Store
	Keys     Keys
	Observer Observer
	Places   Places
	// BackupFault says why no backup can be written to a directory of this node, and writes nothing that stays; nil: nobody knows.
	BackupFault func(directory string) error
	// Logger defaults to slog.Default().
	Logger *slog.Logger
	// Now defaults to time.Now. It dates revisions and judges certificates' validity.
	Now func() time.Time
}

// Store is the replicated state.
type Store interface {
	// State is the last applied state. It is immutable.
	State() *state.State
	// Propose makes a change durable and applied, as one revision, or says why not with one of package cluster's
	// errors. A change whose request id is known already is answered as it was the first time.
	Propose(ctx context.Context, change *raftv1.ChangeCommand) (state.Result, error)
	// ProposeOverride makes an override command durable and applied; its errors are those of Propose.
	ProposeOverride(ctx context.Context, override *raftv1.OverrideCommand) (state.Result, error)
	// ProposeCommand makes any other command durable and applied; its errors are those of Propose.
	ProposeCommand(ctx context.Context, cmd *raftv1.Command) (state.Result, error)
	// Scrub makes this node's disk forget what is no longer in the state.
	Scrub(ctx context.Context) error
	// Next is closed when there is a state other than the one at the time of the call.
	Next() <-chan struct{}
}

// Journal is what this node keeps of its callers beside the replicated state, where a stranger must not write. Its methods may be
// called from any goroutine and do not wait for the disk.
type Journal interface {
	// Refuse notes a call that was refused. The entry has a time and a count of 1.
	Refuse(entry *lbdv1.ListAuditResponse)
	// Note notes a call that was accepted and is in no log but this node's.
	Note(entry *lbdv1.ListAuditResponse)
	// Refusals are the notes later than a time (zero: all that are kept), oldest first; those of the same source, method and reason
	// are summed. Node is filled in by this package.
	Refusals(since time.Time) []*lbdv1.ListAuditResponse
	// Use notes that a credential was used.
	Use(token string, at time.Time)
	// LastUse is when a credential was used last on this node; zero: not as far as it knows.
	LastUse(token string) time.Time
}

// noJournal keeps nothing.
type noJournal struct{}

func (noJournal) Refuse(*lbdv1.ListAuditResponse)               {}
func (noJournal) Note(*lbdv1.ListAuditResponse)                 {}
func (noJournal) Refusals(time.Time) []*lbdv1.ListAuditResponse { return nil }
func (noJournal) Use(string, time.Time)                         {}
func (noJournal) LastUse(string) time.Time                      { return time.Time{} }

// Keys makes, checks and seals key pairs.
type Keys interface {
	// ParsePEM reads a chain, leaf first, and the leaf's private key, and checks that they belong together and that
	// the chain is in order. With an empty key it reads the chain alone. It does not judge validity periods. Errors
	// are for operators; a [*PEMError] says which of the two is at fault.
	ParsePEM(chain, key []byte) (KeyPair, error)
	// SelfSigned makes a key and a certificate for hosts that it signs itself.
	SelfSigned(hosts []string, keyType lbdv1.KeyType) (KeyPair, error)
	// Seal encrypts a private key (PKCS #8) so that it can be opened only as that of this certificate in this cluster.
	// It must not be bound to more than these arguments: a new chain for the same key keeps the sealed key.
	Seal(clusterID, certificate string, publicKeySHA256, key []byte) ([]byte, error)
	Sealing
	TicketSealing
}

// KeyPair is a certificate with its private key.
type KeyPair struct {
	// Chain is DER, leaf first.
	Chain [][]byte
	// Key is PKCS #8; nil where only a chain was read.
	Key []byte
}

// PEMError tells which part of a certificate's PEM is at fault.
type PEMError struct {
	// Field is "chain" or "key".
	Field string
	Err   error
}

func (e *PEMError) Error() string { return e.Field + ": " + e.Err.Error() }
func (e *PEMError) Unwrap() error { return e.Err }

// Observer is what this node's data plane does now. Its methods do not block, but for those that take a context. Messages
// that it returns belong to the caller, but for events.
type Observer interface {
	TrafficObserver
	SystemObserver
	TicketObserver
	// Progress says how far this node has come in serving revisions.
	Progress() Progress
	// ServedSerial is the serial (hex, lower case) of the certificate that this node serves under a name;
	// empty if none.
	ServedSerial(certificate string) string
	// CertificateUse names the listeners on which this node shows a certificate to some client, and "host: certificate" for
	// each host that another certificate serves in its place. Both are ordered.
	CertificateUse(name string) (listeners []string, shadowedBy []string)
	// Backends reads the status of a pool's backends, or of all pools' if the name is empty, by pool and address.
	Backends(pool string) []*lbdv1.BackendStatus
	// Conditions are Programmed and, of a pool, Healthy, as far as they can be told of a resource. Node is filled in by this
	// package.
	Conditions(kind, name string) []*lbdv1.Condition
}

// TrafficObserver is what this node does with requests and connections. Where an answer names the node, this package fills
// it in.
type TrafficObserver interface {
	// TestRoute says what would become of a request. The URL is not empty. Its error is a status, or one of package state's.
	TestRoute(ctx context.Context, req *lbdv1.TestRouteRequest) (*lbdv1.TestRouteResponse, error)
	// Stats reads the counters.
	Stats() *lbdv1.WatchStatsResponse
	// Events are the events that are still remembered and later than a time (zero: all), oldest first; no two have the same
	// time. next is closed when there is one more.
	Events(since time.Time) (past []*lbdv1.WatchEventsResponse, next <-chan struct{})
	// Connections lists what the request chooses, at most its limit, which is set.
	Connections(req *lbdv1.ListConnectionsRequest) (*lbdv1.ListConnectionsResponse, error)
	// KillConnections closes what the request chooses, and counts it. Something is set in the request.
	KillConnections(req *lbdv1.KillConnectionsRequest) (int64, error)
	// EndEjection gives a backend that has failed requests its place on this node back, and reports whether it had lost it. The address is
	// as stored.
	EndEjection(pool, address string) bool
}

// SystemObserver is the condition of this node's process.
type SystemObserver interface {
	// Status reads the node's condition. Node and stored_revision are filled in by this package.
	Status() *lbdv1.SystemServiceGetStatusResponse
	// Doctor looks for what makes the node slow, unsafe or about to fail. Node is filled in by this package.
	Doctor(ctx context.Context) []*lbdv1.Finding
	// Metrics is Prometheus' text format.
	Metrics() (string, error)
	// Profile takes a profile, gzipped; of the CPU for as long as d or until ctx ends.
	Profile(ctx context.Context, kind lbdv1.ProfileKind, d time.Duration) ([]byte, error)
	// LogLevel is the least severity that the node's own log has.
	LogLevel() slog.Level
	// SetLogLevel sets it until the process ends, and returns the one before. by is whose wish that is, for the event.
	SetLogLevel(level slog.Level, by string) (before slog.Level)
	// DebugFiles are what only the process knows of itself. The first ones take no lock of the data plane.
	DebugFiles() []DebugFile
}

// Progress is one observation of what a node serves.
type Progress struct {
	// Serving is whether the node takes traffic: false before the first publish and while it drains.
	Serving bool
	// Revision is the newest revision whose resources are all served but for the refused; certificates that it
	// changed have been proven.
	Revision int64
	// Refused lists what is not served as it is stored.
	Refused []Refusal
	// Changed is closed when a newer observation can be had.
	Changed <-chan struct{}
}

// Refusal is a resource, or a whole revision, that a node does not serve as it is stored.
type Refusal struct {
	// Revision is the one that is refused: for a resource, the one that brought it into the form that is refused.
	Revision int64
	// Kind and Name name the resource ("listeners", "http"); both empty if the whole revision is refused.
	Kind, Name string
	// Reason says why, in words.
	Reason string
}

func (c *Config) check() error {
	switch {
	case c.Socket == "":
		return errors.New("rpc: no socket path")
	case c.Node == "":
		return errors.New("rpc: no node name")
	case c.Build == nil, c.Store == nil, c.Keys == nil, c.Observer == nil, c.Places == nil:
		return errors.New("rpc: Build, Store, Keys, Observer and Places are all needed")
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.Journal == nil {
		c.Journal = noJournal{}
	}
	if c.Overlay == nil {
		c.Overlay = noOverlay{}
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return nil
}
