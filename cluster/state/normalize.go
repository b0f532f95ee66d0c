package state

import (
	"net"
	"net/netip"
	"strings"

	"google.golang.org/protobuf/proto"

	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

// Normalize is a copy of a resource in the one form in which it is stored: what has two spellings gets one, and what
// only the cluster says (revision, update_time, etag) is gone. Defaults are not written in. Order and number of list
// elements stay, so that a field's path names the same element before and after. Applying what was exported is
// therefore no change.
func Normalize(r *lbdv1.Resource) *lbdv1.Resource {
	n := proto.CloneOf(r)
	if n == nil {
		return &lbdv1.Resource{}
	}
	n.Revision, n.UpdateTime, n.Etag = 0, nil, ""
	key, ok := KeyOf(n)
	if ok && key.Kind.Single() {
		n.Owner = ""
	}
	if ok && key.Kind.info().normalize != nil {
		key.Kind.info().normalize(Spec(n))
	}
	return n
}

// normalizeChange is the change with every resource normalised and owned by the change's owner.
func normalizeChange(change *raftv1.ChangeCommand) *raftv1.ChangeCommand {
	n := proto.CloneOf(change)
	for _, up := range n.GetUpserts() {
		up.Resource = Normalize(up.GetResource())
		if key, ok := KeyOf(up.Resource); ok && !key.Kind.Single() {
			up.Resource.Owner = n.GetOwner()
		}
	}
	return n
}

// normalHost is a host name in lower case or an IP address in its canonical form.
func normalHost(host string) string {
	if ip, err := netip.ParseAddr(host); err == nil {
		return ip.Unmap().String()
	}
	return strings.ToLower(host)
}

// NormalAddress is "host:port" with a normal host. What is no address stays as it is, for Validate to refuse.
func NormalAddress(address string) string {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}
	return net.JoinHostPort(normalHost(host), port)
}
