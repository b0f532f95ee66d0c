package rpc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"syscall"

	"google.golang.org/grpc/credentials"

	lbdv1 "lbd/proto/lbd/v1"
)

// user is who holds the other end of a unix socket, as the kernel says.
type user struct {
	credentials.CommonAuthInfo
	uid uint32
	// groups are the primary one and the others.
	groups []uint32
	// role is what the socket's rules make of the user.
	role lbdv1.Role
}

// AuthType names the way in which the caller was identified.
func (user) AuthType() string { return "unix-peer-credentials" }

// peerCredentials identifies callers of the unix socket. The file's mode keeps others out already; this is where it is
// proven, and where the author of a revision comes from.
type peerCredentials struct {
	// group is the one whose members may call; 0: the socket is private.
	group uint32
}

// ServerHandshake lets in root, and of a private socket the user that lbd runs as, of a shared one the members of its group.
func (p peerCredentials) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	sc, ok := conn.(syscall.Conn)
	if !ok {
		return nil, nil, fmt.Errorf("control socket: %T has no peer credentials", conn)
	}
	u, err := peerUser(sc)
	if err != nil {
		return nil, nil, fmt.Errorf("control socket: read peer credentials: %w", err)
	}
	if u.role = p.roleOf(u, uint32(os.Geteuid())); u.role == lbdv1.Role_ROLE_UNSPECIFIED {
		return nil, nil, fmt.Errorf("control socket: uid %d may not use it", u.uid)
	}
	u.CommonAuthInfo = credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}
	return conn, u, nil
}

// roleOf is what a user may do by this socket: unspecified, nothing. On a shared socket the service's own user administers
// nothing: whoever takes over the process gains no more than the process has.
func (p peerCredentials) roleOf(u user, service uint32) lbdv1.Role {
	switch {
	case u.uid == 0:
		return lbdv1.Role_ROLE_ADMIN
	case p.group == 0 && u.uid == service:
		return lbdv1.Role_ROLE_ADMIN
	case p.group == 0:
		return lbdv1.Role_ROLE_UNSPECIFIED
	case u.uid == service:
		return lbdv1.Role_ROLE_VIEWER
	case slices.Contains(u.groups, p.group):
		return lbdv1.Role_ROLE_ADMIN
	}
	return lbdv1.Role_ROLE_UNSPECIFIED
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
func (p peerCredentials) Clone() credentials.TransportCredentials { return p }

// OverrideServerName does nothing: a unix socket has no server name.
func (peerCredentials) OverrideServerName(string) error { return nil }
