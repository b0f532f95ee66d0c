package rpc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// caller is who holds the other end of a connection, as the kernel says.
type caller struct {
	credentials.CommonAuthInfo
	uid uint32
}

// AuthType names the way in which the caller was identified.
func (caller) AuthType() string { return "unix-peer-credentials" }

// author is who a revision made by this call is recorded for: "node/NAME uid=N".
func author(ctx context.Context, node string) (string, error) {
	if p, ok := peer.FromContext(ctx); ok {
		if c, ok := p.AuthInfo.(caller); ok {
			return fmt.Sprintf("node/%s uid=%d", node, c.uid), nil
		}
	}
	return "", status.Error(codes.Unauthenticated, "the caller is not known: this call did not come by the control socket")
}

// peerCredentials identifies callers of the unix socket. The file's mode keeps others out already; this is where it is
// proven, and where the author of a revision comes from.
type peerCredentials struct{}

// ServerHandshake lets in root and the user that lbd runs as.
func (peerCredentials) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	sc, ok := conn.(syscall.Conn)
	if !ok {
		return nil, nil, fmt.Errorf("control socket: %T has no peer credentials", conn)
	}
	uid, err := peerUID(sc)
	if err != nil {
		return nil, nil, fmt.Errorf("control socket: read peer credentials: %w", err)
	}
	if uid != 0 && uid != uint32(os.Geteuid()) {
		return nil, nil, fmt.Errorf("control socket: uid %d may not use it", uid)
	}
	level := credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}
	return conn, caller{CommonAuthInfo: level, uid: uid}, nil
}

// ClientHandshake is refused: these credentials are a listener's.
func (peerCredentials) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("control socket: peer credentials are for listeners only")
}

// Info describes the protocol to gRPC.
func (peerCredentials) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "unix-peer-credentials"}
}

// Clone returns the credentials, which hold no state.
func (c peerCredentials) Clone() credentials.TransportCredentials { return c }

// OverrideServerName does nothing: a unix socket has no server name.
func (peerCredentials) OverrideServerName(string) error { return nil }
