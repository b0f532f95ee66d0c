package rpc

import (
	"crypto/ecdsa"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	lbdv1 "lbd/proto/lbd/v1"
)

func TestTokenLogin(t *testing.T) {
	p := newPortRig(t)
	token, secret := p.makeToken(lbdv1.Role_ROLE_EDITOR, "web")
	if !strings.HasPrefix(secret, "lbt_"+token.GetId()+"_") || len(secret) < 60 {
		t.Fatalf("secret %q of token %v", secret, token)
	}
	conn := p.dialPort(nil, withToken(secret))
	me, err := p.whoAmI(conn)
	if err != nil {
		t.Fatal(err)
	}
	if me.GetAuthor() != "token ci ("+token.GetId()+")" || me.GetKind() != "token" || me.GetTokenId() != token.GetId() || me.GetNode() != "n1" ||
		me.GetRole() != lbdv1.Role_ROLE_EDITOR || !slices.Equal(me.GetOwners(), []string{"web"}) || !strings.HasPrefix(me.GetSource(), "127.0.0.1:") {
		t.Errorf("who am I: %v", me)
	}
	r := p.as(conn)
	if _, err := r.apply(owner("web"), web()...); err != nil {
		t.Fatal(err)
	}
	revision, _ := p.store.State().RevisionAt(1)
	if revision.GetAuthor() != me.GetAuthor() {
		t.Errorf("author of the revision: %q", revision.GetAuthor())
	}
	var last *lbdv1.ListAuditResponse
	for e := range p.store.State().Audit(time.Time{}) {
		last = e
	}
	if last.GetAuthor() != me.GetAuthor() || last.GetSource() != "127.0.0.1" || last.GetMethod() != "ConfigService/Apply" || last.GetRevision() != 1 {
		t.Errorf("audit: %v", last)
	}
	list, err := p.auth.ListTokens(p.ctx(), &lbdv1.ListTokensRequest{})
	if err != nil || len(list.GetTokens()) != 1 || !list.GetTokens()[0].GetLastUseTime().AsTime().Equal(now) {
		t.Errorf("list: %v, %v", list, err)
	}
	if text := fmt.Sprint(list, p.log.String(), p.store.State()); strings.Contains(text, secret[len(secret)-20:]) {
		t.Error("the secret is told again")
	}
}

func TestTokenIsMadeOnce(t *testing.T) {
	p := newPortRig(t)
	ask := &lbdv1.CreateTokenRequest{Role: lbdv1.Role_ROLE_VIEWER, Owners: []string{"shop"}, RequestId: "r1"}
	first, err := p.auth.CreateToken(p.ctx(), ask)
	if err != nil {
		t.Fatal(err)
	}
	if first.GetEndpoint() != "n1.example:7443" || !strings.HasPrefix(first.GetCaPin(), "sha256:") || len(first.GetWarnings()) != 1 || !strings.Contains(first.GetWarnings()[0], "owners/shop") {
		t.Errorf("answer %v", first)
	}
	again, err := p.auth.CreateToken(p.ctx(), ask)
	if err != nil || again.GetSecret() != "" || !proto.Equal(again.GetToken(), first.GetToken()) {
		t.Errorf("repeated: %v, %v", again, err)
	}
	gone, err := p.auth.RevokeToken(p.ctx(), &lbdv1.RevokeTokenRequest{Id: first.GetToken().GetId(), RequestId: "r2"})
	if err != nil || gone.GetToken().GetId() != first.GetToken().GetId() {
		t.Errorf("revoked: %v, %v", gone, err)
	}
	if _, err := p.auth.RevokeToken(p.ctx(), &lbdv1.RevokeTokenRequest{Id: first.GetToken().GetId(), RequestId: "r2"}); err != nil {
		t.Errorf("revoked again by the same request: %v", err)
	}
	if _, err := p.auth.RevokeToken(p.ctx(), &lbdv1.RevokeTokenRequest{Id: first.GetToken().GetId()}); failureOf(t, err).code != codes.NotFound {
		t.Errorf("revoked again: %v", err)
	}
	if _, err := p.auth.CreateToken(p.ctx(), ask); failureOf(t, err).code != codes.NotFound {
		t.Errorf("made again after it was revoked: %v", err)
	}
}

func TestTokenRequestsRefused(t *testing.T) {
	p := newPortRig(t)
	_, err := p.auth.CreateToken(p.ctx(), &lbdv1.CreateTokenRequest{
		Owners: []string{"no owner"}, ExpireTime: timestamppb.New(now), CertificatePem: "nonsense", Description: "a\x00b",
	})
	f := failureOf(t, err)
	for _, field := range []string{"role", "owners[0]", "expire_time", "certificate_pem", "description"} {
		if f.fields[field] == "" {
			t.Errorf("nothing about %s: %v", field, f.fields)
		}
	}
	if f.code != codes.InvalidArgument || len(slices.Collect(p.store.State().Tokens())) > 0 {
		t.Errorf("%v", f)
	}
	if _, err := p.auth.RevokeToken(p.ctx(), &lbdv1.RevokeTokenRequest{}); failureOf(t, err).fields["id"] == "" {
		t.Errorf("revoke nothing: %v", err)
	}
}

func TestCertificateLogin(t *testing.T) {
	p := newPortRig(t)
	certificate := keyPair(t, "ci")
	token := p.register(certificate, lbdv1.Role_ROLE_VIEWER)
	me, err := p.whoAmI(p.dialPort(certificate))
	if err != nil || me.GetKind() != "certificate" || me.GetAuthor() != "certificate "+token.GetId() || me.GetExpireTime() == nil {
		t.Errorf("who am I: %v, %v", me, err)
	}
	// The key is the credential: another certificate for it is as good, and one that is not valid yet is not.
	pair, err := signPair(certificate.PrivateKey.(*ecdsa.PrivateKey), []string{"other"}, now.Add(time.Hour), now.Add(2*time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	later := p.dialPort(tlsPair(t, pair))
	if _, err := p.whoAmI(later); failureOf(t, err).code != codes.Unauthenticated || !strings.Contains(err.Error(), "not valid before") {
		t.Errorf("before its time: %v", err)
	}
	p.advance(90 * time.Minute)
	if me, err := p.whoAmI(later); err != nil || me.GetTokenId() != token.GetId() {
		t.Errorf("another certificate of the same key: %v, %v", me, err)
	}
	// With both, the token counts.
	_, secret := p.makeToken(lbdv1.Role_ROLE_EDITOR)
	if me, err := p.whoAmI(p.dialPort(certificate, withToken(secret))); err != nil || me.GetRole() != lbdv1.Role_ROLE_EDITOR {
		t.Errorf("with a token: %v, %v", me, err)
	}
	_, err = p.auth.CreateToken(p.ctx(), &lbdv1.CreateTokenRequest{Role: lbdv1.Role_ROLE_ADMIN, CertificatePem: pemOf(certificate)})
	if failureOf(t, err).fields["certificate_pem"] == "" {
		t.Errorf("a key for two credentials: %v", err)
	}
}

func TestLoginFailures(t *testing.T) {
	p := newPortRig(t)
	_, secret := p.makeToken(lbdv1.Role_ROLE_VIEWER)
	stranger := p.dialPort(nil, withToken("lbt_nobody_knows"))
	var limited int
	for range failuresBurst + 5 {
		_, err := p.whoAmI(stranger)
		switch f := failureOf(t, err); f.code {
		case codes.Unauthenticated:
			if f.reason != reasonBadCredential || limited > 0 {
				t.Errorf("%v after %d that were limited", f, limited)
			}
		case codes.ResourceExhausted:
			if limited++; f.reason != reasonLimited || !f.retry {
				t.Errorf("limited: %v", f)
			}
		default:
			t.Fatalf("%v", err)
		}
	}
	if limited != 5 {
		t.Errorf("%d failures were limited, want 5", limited)
	}
	if _, err := p.whoAmI(p.dialPort(nil, withToken(secret))); err != nil {
		t.Errorf("a token from the same address: %v", err)
	}
	if last := p.journal.last(); last.GetResult() != "limited" || last.GetSource() != "127.0.0.1" || last.GetMethod() != "AuthService/WhoAmI" {
		t.Errorf("journal: %v", last)
	}
	p.advance(failuresInterval)
	if _, err := p.whoAmI(stranger); failureOf(t, err).code != codes.Unauthenticated {
		t.Errorf("after a while: %v", err)
	}
	for what, header := range map[string][]string{
		"another scheme": {"Basic abc"}, "no scheme": {secret}, "two": {"Bearer " + secret, "Bearer " + secret}, "empty": {""},
		"no secret": {"Bearer lbt_abc_"}, "no id": {"Bearer lbt__x"}, "another prefix": {"Bearer lbj_abc_x"},
	} {
		if _, err := p.server.guard.auth.bearer("10.0.0.1:1", header); status.Code(err) != codes.Unauthenticated {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := p.server.guard.auth.bearer("10.0.0.1:1", []string{"bearer " + secret}); err != nil {
		t.Errorf("the scheme in lower case: %v", err)
	}
}

// The table of failures stays small whoever fails, and addresses of one network count as one.
// A stranger cannot fill the journal with names of methods that there are not, nor with what is no text.
func TestUnknownMethodsAreNoted(t *testing.T) {
	p := newPortRig(t)
	conn := p.dialPort(nil)
	for _, method := range []string{"/lbd.v1.AuthService/a\xff\xfe", "/made.Up/Name"} {
		if err := conn.Invoke(p.ctx(), method, &lbdv1.WhoAmIRequest{}, &lbdv1.WhoAmIResponse{}); status.Code(err) != codes.Unauthenticated {
			t.Errorf("%q: %v", method, err)
		}
		if got := p.journal.last().GetMethod(); got != "unknown method" {
			t.Errorf("%q is noted as %q", method, got)
		}
	}
}

func TestFailuresAreBounded(t *testing.T) {
	f := failures{sources: map[netip.Prefix]*failureCount{}}
	failure := errors.New("failed")
	for i := range 3 * failureSourcesMax {
		if err := f.refuse(fmt.Sprintf("10.%d.%d.%d:1", i>>16, i>>8&255, i&255), now, failure); err != failure {
			t.Fatal(err)
		}
	}
	if len(f.sources) > failureSourcesMax {
		t.Errorf("%d sources are kept", len(f.sources))
	}
	limited := 0
	for i := range failuresBurst + 3 {
		if f.refuse(fmt.Sprintf("[2001:db8::%x]:%d", i+1, i+1), now, failure) != failure {
			limited++
		}
	}
	if limited != 3 {
		t.Errorf("%d of a /64 were limited, want 3", limited)
	}
	if f.refuse("[2001:db8:0:1::1]:1", now, failure) != failure {
		t.Error("another /64 is limited")
	}
	if sourceNetwork("[::ffff:10.0.0.9]:5") != sourceNetwork("10.0.0.9:6") {
		t.Error("an IPv4 address in IPv6 form is another source")
	}
}

// A stream ends when the credential that it was opened with does.
func TestStreamsEndWithTheirCredential(t *testing.T) {
	p := newPortRig(t)
	open := func(conn *grpc.ClientConn) grpc.ServerStreamingClient[lbdv1.WatchResponse] {
		stream, err := lbdv1.NewConfigServiceClient(conn).Watch(p.ctx(), &lbdv1.WatchRequest{Kind: "pools"})
		if err != nil {
			t.Fatal(err)
		}
		return stream
	}
	p.mustApply(owner("web"), web()...)
	token, secret := p.makeToken(lbdv1.Role_ROLE_VIEWER)
	revoked := open(p.dialPort(nil, withToken(secret)))
	_, other := p.makeToken(lbdv1.Role_ROLE_VIEWER)
	stays := open(p.dialPort(nil, withToken(other)))
	soon, err := p.auth.CreateToken(p.ctx(), &lbdv1.CreateTokenRequest{Role: lbdv1.Role_ROLE_VIEWER, ExpireTime: timestamppb.New(now.Add(time.Second))})
	if err != nil {
		t.Fatal(err)
	}
	expires := open(p.dialPort(nil, withToken(soon.GetSecret())))
	for _, stream := range []grpc.ServerStreamingClient[lbdv1.WatchResponse]{revoked, stays, expires} {
		if _, err := stream.Recv(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := p.auth.RevokeToken(p.ctx(), &lbdv1.RevokeTokenRequest{Id: token.GetId()}); err != nil {
		t.Fatal(err)
	}
	if _, err := revoked.Recv(); failureOf(t, err).reason != reasonBadCredential {
		t.Errorf("the revoked token's stream: %v", err)
	}
	if _, err := expires.Recv(); failureOf(t, err).reason != reasonExpired {
		t.Errorf("the expired token's stream: %v", err)
	}
	p.mustApply(owner("web"), pool("shop", "192.0.2.9:80"))
	if next, err := stays.Recv(); err != nil || next.GetName() != "shop" {
		t.Errorf("the other token's stream: %v, %v", next, err)
	}
	if n := len(p.server.guard.sessions.open); n > 1 {
		t.Errorf("%d credentials have calls in flight, want 1", n)
	}
}

// Who may only touch what some owners have is told so, whatever the way.
func TestOwnersBoundary(t *testing.T) {
	p := newPortRig(t)
	p.mustApply(owner("web"), web()...)
	_, secret := p.makeToken(lbdv1.Role_ROLE_ADMIN, "other")
	conn := p.dialPort(nil, withToken(secret))
	r := p.as(conn)
	_, err := r.apply(owner("web"), pool("shop", "192.0.2.9:80"))
	if f := failureOf(t, err); f.code != codes.PermissionDenied || f.reason != reasonOwner || !strings.Contains(f.message, "owner `other`") {
		t.Errorf("apply for another owner: %v", f)
	}
	_, err = r.apply(&lbdv1.ApplyHeader{Owner: "other", TakeOver: true}, pool("shop", "192.0.2.9:80"))
	if failureOf(t, err).code != codes.PermissionDenied {
		t.Errorf("taking over: %v", err)
	}
	_, err = r.apply(owner("other"), &lbdv1.ClusterSettings{AllowLoopbackBackends: proto.Bool(true)})
	if failureOf(t, err).code != codes.PermissionDenied {
		t.Errorf("cluster settings: %v", err)
	}
	if last := p.journal.last(); last.GetResult() != "forbidden" || !strings.HasPrefix(last.GetAuthor(), "token ci (") {
		t.Errorf("journal: %v", last)
	}
	traffic := lbdv1.NewTrafficServiceClient(conn)
	for what, ask := range map[string]*lbdv1.KillConnectionsRequest{
		"by ids": {Ids: []int64{1}}, "by client": {Client: "10.0.0.0/8"}, "another owner's pool": {Pool: "shop"},
		"another owner's listener": {Listener: "http"},
	} {
		if _, err := traffic.KillConnections(p.ctx(), ask); failureOf(t, err).code != codes.PermissionDenied {
			t.Errorf("kill %s: %v", what, err)
		}
	}
	if p.store.State().Revision() != 1 {
		t.Error("something was changed")
	}
	if answer, err := r.apply(owner("other"), pool("mine", "192.0.2.9:80")); err != nil || answer.GetRevision() != 2 {
		t.Errorf("its own: %v, %v", answer, err)
	}
	if _, err := traffic.KillConnections(p.ctx(), &lbdv1.KillConnectionsRequest{Pool: "mine"}); err != nil {
		t.Errorf("kill its own: %v", err)
	}
}

func TestLocalAdmin(t *testing.T) {
	p := newPortRig(t)
	set := func(r *rig, yes bool) error {
		_, err := r.apply(owner("ops"), &lbdv1.ClusterSettings{LocalAdmin: proto.Bool(yes)})
		return err
	}
	if err := set(p.rig, false); failureOf(t, err).fields["cluster_settings.local_admin"] == "" {
		t.Errorf("without another admin: %v", err)
	}
	token, secret := p.makeToken(lbdv1.Role_ROLE_ADMIN)
	if err := set(p.rig, false); err != nil {
		t.Fatal(err)
	}
	if me, err := p.whoAmI(p.conn); err != nil || me.GetRole() != lbdv1.Role_ROLE_OPERATOR || me.GetKind() != "socket" || me.GetSource() != "unix" ||
		me.GetAuthor() != fmt.Sprintf("node/n1 uid=%d", os.Getuid()) {
		t.Errorf("the socket: %v, %v", me, err)
	}
	if err := set(p.rig, true); failureOf(t, err).reason != reasonRole {
		t.Errorf("an operator sets local_admin: %v", err)
	}
	conn := p.dialSocket(withToken(secret)) // the way back, also without a port
	if _, err := lbdv1.NewAuthServiceClient(conn).RevokeToken(p.ctx(), &lbdv1.RevokeTokenRequest{Id: token.GetId()}); failureOf(t, err).reason != reasonLastAdmin {
		t.Errorf("the last admin's token: %v", err)
	}
	r := p.as(conn)
	if err := set(r, true); err != nil {
		t.Errorf("the admin's token sets it back: %v", err)
	}
}

// TestNobodyAdministers: when the last admin's token has expired, or nobody has it, this machine's root is not kept out for ever.
func TestNobodyAdministers(t *testing.T) {
	p := newPortRig(t)
	role := func(conn *grpc.ClientConn) lbdv1.Role {
		t.Helper()
		me, err := p.whoAmI(conn)
		if err != nil {
			t.Fatal(err)
		}
		return me.GetRole()
	}
	_, err := p.auth.CreateToken(p.ctx(), &lbdv1.CreateTokenRequest{Role: lbdv1.Role_ROLE_ADMIN, ExpireTime: timestamppb.New(p.clock().Add(time.Hour))})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.apply(owner("ops"), &lbdv1.ClusterSettings{LocalAdmin: proto.Bool(false)}); err != nil {
		t.Fatal(err)
	}
	if got := role(p.conn); got != lbdv1.Role_ROLE_OPERATOR {
		t.Errorf("while a token is good: %v", got)
	}
	forced := p.server.guard.auth
	forced.rescue = true
	if got := role(p.conn); got != lbdv1.Role_ROLE_ADMIN {
		t.Errorf("by the flag: %v", got)
	}
	forced.rescue = false
	p.advance(2 * time.Hour)
	if got := role(p.conn); got != lbdv1.Role_ROLE_ADMIN {
		t.Errorf("when the last one has expired: %v", got)
	}
	if got := (&authenticator{node: "n1", store: p.store, now: p.clock}).local(user{uid: 4711, role: lbdv1.Role_ROLE_ADMIN}); got.Role != lbdv1.Role_ROLE_OPERATOR {
		t.Errorf("another user of a shared socket: %v", got.Role)
	}
}

func TestSocketRoles(t *testing.T) {
	const service, group = 1000, 50
	private, shared := peerCredentials{}, peerCredentials{group: group}
	for _, c := range []struct {
		rules peerCredentials
		uid   uint32
		group []uint32
		want  lbdv1.Role
	}{
		{private, 0, nil, lbdv1.Role_ROLE_ADMIN},
		{private, service, nil, lbdv1.Role_ROLE_ADMIN},
		{private, 2000, []uint32{group}, lbdv1.Role_ROLE_UNSPECIFIED},
		{shared, 0, nil, lbdv1.Role_ROLE_ADMIN},
		{shared, service, []uint32{group}, lbdv1.Role_ROLE_VIEWER},
		{shared, 2000, []uint32{7, group}, lbdv1.Role_ROLE_ADMIN},
		{shared, 2000, []uint32{7}, lbdv1.Role_ROLE_UNSPECIFIED},
	} {
		if got := c.rules.roleOf(user{uid: c.uid, groups: c.group}, service); got != c.want {
			t.Errorf("%+v uid %d groups %v: %v, want %v", c.rules, c.uid, c.group, got, c.want)
		}
	}
}

// TestSharedSocket asks as several users, where this one may become them, from processes of their own.
func TestSharedSocket(t *testing.T) {
	const group = 23451
	p := newPortRig(t, func(c *Config) {
		if os.Geteuid() == 0 {
			c.SocketGroup = group
		}
	})
	if me, err := p.whoAmI(p.conn); err != nil || me.GetRole() != lbdv1.Role_ROLE_ADMIN {
		t.Errorf("root, or of a private socket the user of the service: %v, %v", me, err)
	}
	if os.Geteuid() != 0 {
		return // what the others get is in TestSocketRoles
	}
	if info, err := os.Lstat(p.socket()); err != nil || info.Mode().Perm() != 0o660 {
		t.Errorf("%v, %v", info, err)
	}
	if err := os.Chmod(p.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	self := filepath.Join(p.dir, "self")
	binary, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(self, binary, 0o755); err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct {
		credential syscall.Credential
		want       string
	}{
		"a member by its primary group": {syscall.Credential{Uid: 23452, Gid: group}, "admin by node/n1 uid=23452"},
		"a member by another group":     {syscall.Credential{Uid: 23452, Gid: 23453, Groups: []uint32{23454, group}}, "admin by node/n1 uid=23452"},
		"nobody of the group":           {syscall.Credential{Uid: 23452, Gid: 23453}, "Unavailable"},
	} {
		cmd := exec.Command(self, "-test.run", "^TestAskedAsAnotherUser$")
		cmd.Env = append(os.Environ(), askedSocket+"="+p.socket())
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &c.credential}
		cmd.Dir = "/"
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "answer: "+c.want+"\n") {
			t.Errorf("%s: %s, %v; want %s", what, out, err, c.want)
		}
	}
}

const askedSocket = "LBD_TEST_ASKED_SOCKET"

// TestAskedAsAnotherUser is what TestSharedSocket runs as others: it prints who the server takes it for.
func TestAskedAsAnotherUser(t *testing.T) {
	socket := os.Getenv(askedSocket)
	if socket == "" {
		return
	}
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	me, err := lbdv1.NewAuthServiceClient(conn).WhoAmI(t.Context(), &lbdv1.WhoAmIRequest{})
	if err != nil {
		fmt.Printf("answer: %v\n", status.Code(err))
		return
	}
	fmt.Printf("answer: %s by %s\n", roleWord(me.GetRole()), me.GetAuthor())
}

func TestPeerGroups(t *testing.T) {
	l, err := net.Listen("unix", t.TempDir()+"/s")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	accepted, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer accepted.Close()
	u, err := peerUser(accepted.(*net.UnixConn))
	want, _ := os.Getgroups()
	if err != nil || u.uid != uint32(os.Getuid()) || len(u.groups) < len(want) || u.groups[len(u.groups)-1] != uint32(os.Getgid()) {
		t.Errorf("%+v, %v; groups of this process %v", u, err, want)
	}
}

// Strangers make room: for each other, and for who has a credential.
func TestPortConnectionsAreBounded(t *testing.T) {
	l := &portListener{}
	conn := func(source string) *portConn {
		a, b := net.Pipe()
		t.Cleanup(func() { _, _ = a.Close(), b.Close() })
		return &portConn{Conn: a, source: sourceNetwork(source), port: l}
	}
	first := conn("10.0.0.1:1")
	for i := range strangersPerSourceMax {
		c := first
		if i > 0 {
			c = conn("10.0.0.1:1")
		}
		if victim := l.admit(c); victim != nil {
			t.Fatalf("connection %d was not let in by itself", i)
		}
	}
	if victim := l.admit(conn("10.0.0.1:1")); victim != first {
		t.Error("one too many of a source does not end its oldest")
	}
	_ = first.Close()
	trusted := conn("10.0.0.1:1")
	l.admit(trusted)
	trusted.trust("a")
	for i := 0; l.open < portConnectionsMax; i++ {
		l.admit(conn(fmt.Sprintf("10.1.%d.%d:1", i>>8, i&255)))
	}
	oldest := l.strangers[0]
	if victim := l.admit(conn("10.9.9.9:1")); victim != oldest || victim == trusted {
		t.Error("one too many of all does not end the oldest stranger's")
	}
	// Of credentials that fill the port the one with the most makes room, and none has more than its share.
	theirs := slices.Clone(l.strangers)
	for i, c := range theirs[:connectionsEachMax] {
		if victim := l.trust(c, "b"); victim != nil {
			t.Fatalf("connection %d of a credential ends another", i)
		}
	}
	over := l.strangers[0]
	if victim := l.trust(over, "b"); victim != theirs[0] {
		t.Error("one too many of a credential does not end its oldest")
	}
	for i := 0; len(l.strangers) > 0; i++ {
		l.trust(l.strangers[0], fmt.Sprint("c", i%10))
	}
	if victim := l.admit(conn("10.9.9.8:1")); victim != theirs[1] {
		t.Error("where everybody is known, who has the most makes no room")
	}
	_ = theirs[1].Close()
	_ = trusted.Close()
	_ = trusted.Close()
	if l.open != portConnectionsMax {
		t.Errorf("%d are open after one was closed twice", l.open)
	}
}

// The port speaks TLS 1.3 and HTTP/2, and a client that says nothing does not stay.
func TestPortHandshake(t *testing.T) {
	p := newPortRig(t)
	for what, config := range map[string]*tls.Config{
		"TLS 1.2":  {MaxVersion: tls.VersionTLS12, NextProtos: []string{"h2"}},
		"HTTP/1.1": {NextProtos: []string{"http/1.1"}},
	} {
		config.InsecureSkipVerify = true
		c, err := tls.Dial("tcp", p.address, config)
		if err != nil {
			continue
		}
		if err := c.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if n, err := c.Read(make([]byte, 100)); n > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s was let in", what)
		}
		c.Close()
	}
	c, err := net.Dial("tcp", p.address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if err := c.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, c); err != nil && errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("a client without TLS is kept")
	}
}

func TestListAuditMerges(t *testing.T) {
	p := newPortRig(t)
	p.mustApply(owner("web"), web()...)
	p.advance(time.Minute)
	if _, err := p.whoAmI(p.dialPort(nil)); status.Code(err) != codes.Unauthenticated {
		t.Fatal(err)
	}
	p.advance(time.Minute)
	p.mustApply(owner("web"), pool("shop", "192.0.2.9:80"))
	read := func(ask *lbdv1.ListAuditRequest) (lines []string) {
		stream, err := p.auth.ListAudit(p.ctx(), ask)
		if err != nil {
			t.Fatal(err)
		}
		for {
			e, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				return lines
			}
			if err != nil {
				t.Fatal(err)
			}
			lines = append(lines, fmt.Sprintf("%s %s %s %d", e.GetNode(), e.GetMethod(), e.GetResult(), e.GetRevision()))
		}
	}
	for _, c := range []struct {
		ask  *lbdv1.ListAuditRequest
		want []string
	}{
		{&lbdv1.ListAuditRequest{}, []string{" start accepted 0", " ConfigService/Apply accepted 1", "n1 AuthService/WhoAmI unauthenticated 0", " ConfigService/Apply accepted 2"}},
		{&lbdv1.ListAuditRequest{RefusedOnly: true}, []string{"n1 AuthService/WhoAmI unauthenticated 0"}},
		{&lbdv1.ListAuditRequest{Since: timestamppb.New(now.Add(90 * time.Second))}, []string{" ConfigService/Apply accepted 2"}},
	} {
		if got := read(c.ask); !slices.Equal(got, c.want) {
			t.Errorf("%v: %q", c.ask, got)
		}
	}
}

// What is no call of gRPC, as a scrape, is let in by the same credentials.
func TestAdmit(t *testing.T) {
	p := newPortRig(t)
	token, secret := p.makeToken(lbdv1.Role_ROLE_VIEWER)
	ask := Ask{Method: "metrics", Source: "10.0.0.9:5", Authorization: []string{"Bearer " + secret}, Least: lbdv1.Role_ROLE_VIEWER}
	if err := p.server.Admit(ask); err != nil || p.journal.LastUse(token.GetId()).IsZero() {
		t.Errorf("a viewer: %v", err)
	}
	ask.Least = lbdv1.Role_ROLE_ADMIN
	if err := p.server.Admit(ask); status.Code(err) != codes.PermissionDenied {
		t.Errorf("too low a role: %v", err)
	}
	ask.Authorization = nil
	if err := p.server.Admit(ask); status.Code(err) != codes.Unauthenticated || p.journal.last().GetMethod() != "metrics" {
		t.Errorf("nobody: %v", err)
	}
}

func TestCallFromNowhere(t *testing.T) {
	p := newPortRig(t)
	if _, err := p.server.guard.auth.caller(t.Context(), nil); status.Code(err) != codes.Unauthenticated {
		t.Errorf("a call from nowhere: %v", err)
	}
}
