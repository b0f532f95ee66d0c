package rpc

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	lbdv1 "lbd/proto/lbd/v1"
)

// everyMethod is a call of every method, on what owner `web` has where the method touches what somebody owns. A method that is not here
// fails the test: whoever adds one says what of an owner's it touches.
func everyMethod() map[string][]proto.Message {
	head := &lbdv1.ApplyRequest{Part: &lbdv1.ApplyRequest_Header{Header: &lbdv1.ApplyHeader{Owner: "web", ValidateOnly: true}}}
	return map[string][]proto.Message{
		"AuthService/CreateToken": {&lbdv1.CreateTokenRequest{}}, // without a role: nothing is made
		"AuthService/ListTokens":  {&lbdv1.ListTokensRequest{}},
		"AuthService/RevokeToken": {&lbdv1.RevokeTokenRequest{Id: "none"}},
		"AuthService/WhoAmI":      {&lbdv1.WhoAmIRequest{}},
		"AuthService/ListAudit":   {&lbdv1.ListAuditRequest{}},

		"BackendService/GetStatus":      {&lbdv1.BackendServiceGetStatusRequest{}},
		"BackendService/WatchStatus":    {&lbdv1.WatchStatusRequest{}},
		"BackendService/SetState":       {&lbdv1.SetStateRequest{Pool: "shop", Address: "192.0.2.1:80", State: lbdv1.BackendState_BACKEND_STATE_READY}},
		"BackendService/SetWeight":      {&lbdv1.SetWeightRequest{Pool: "shop", Address: "192.0.2.1:80", Weight: 1}},
		"BackendService/ListOverrides":  {&lbdv1.ListOverridesRequest{}},
		"BackendService/ClearOverrides": {&lbdv1.ClearOverridesRequest{Pool: "shop"}},

		"BackupService/CreateBackup":  {&lbdv1.CreateBackupRequest{}},
		"BackupService/InspectBackup": {&lbdv1.InspectBackupRequest{Data: []byte("none")}},
		"BackupService/RestoreBackup": {&lbdv1.RestoreBackupRequest{Part: &lbdv1.RestoreBackupRequest_Data{Data: []byte("none")}}},

		"CertificateService/Rotate":    {&lbdv1.RotateRequest{Name: "s", ValidateOnly: true}},
		"CertificateService/GetStatus": {&lbdv1.CertificateServiceGetStatusRequest{}},
		"CertificateService/Delete":    {&lbdv1.DeleteRequest{Name: "s"}}, // in use: it stays
		"CertificateService/Purge":     {&lbdv1.PurgeRequest{Name: "s"}},

		"ClusterService/GetStatus":       {&lbdv1.ClusterServiceGetStatusRequest{}},
		"ClusterService/VerifyCluster":   {&lbdv1.VerifyClusterRequest{}},
		"ClusterService/CreateJoinToken": {&lbdv1.CreateJoinTokenRequest{}},
		"ClusterService/ListJoinTokens":  {&lbdv1.ListJoinTokensRequest{}},
		"ClusterService/RevokeJoinToken": {&lbdv1.RevokeJoinTokenRequest{Id: "none"}},
		"ClusterService/ApproveNode":     {&lbdv1.ApproveNodeRequest{Node: "none"}},
		"ClusterService/RemoveNode":      {&lbdv1.RemoveNodeRequest{Node: "none"}},
		"ClusterService/ReplaceNode":     {&lbdv1.ReplaceNodeRequest{}},
		"ClusterService/TransferLeader":  {&lbdv1.TransferLeaderRequest{}},
		"ClusterService/SetNodeRole":     {&lbdv1.SetNodeRoleRequest{Node: "none"}},
		"ClusterService/DrainNode":       {&lbdv1.DrainNodeRequest{Node: "none"}},
		"ClusterService/UndrainNode":     {&lbdv1.UndrainNodeRequest{Node: "none"}},
		"ClusterService/RecoverCluster":  {&lbdv1.RecoverClusterRequest{}},
		"ClusterService/RotateAuthority": {&lbdv1.RotateAuthorityRequest{}},
		"ClusterService/RetireAuthority": {&lbdv1.RetireAuthorityRequest{}},

		"ClusterService/GetSealStatus": {&lbdv1.GetSealStatusRequest{}},
		"ClusterService/RotateSeal":    {&lbdv1.RotateSealRequest{}},
		"ClusterService/RetireSeal":    {&lbdv1.RetireSealRequest{Id: "none"}},
		"ClusterService/ExportSealKey": {&lbdv1.ExportSealKeyRequest{}},

		"ConfigService/Apply":           {head},
		"ConfigService/Diff":            {&lbdv1.DiffRequest{Part: head}},
		"ConfigService/Validate":        {&lbdv1.ValidateRequest{Document: &lbdv1.Document{ApiVersion: "lbd/v1", Owner: "web"}}},
		"ConfigService/Export":          {&lbdv1.ExportRequest{}},
		"ConfigService/Get":             {&lbdv1.GetRequest{Kind: "pools", Name: "shop"}},
		"ConfigService/List":            {&lbdv1.ListRequest{Kind: "pools"}},
		"ConfigService/ListRevisions":   {&lbdv1.ListRevisionsRequest{}},
		"ConfigService/GetRevision":     {&lbdv1.GetRevisionRequest{Number: 1}},
		"ConfigService/Rollback":        {&lbdv1.RollbackRequest{Owner: "web", ValidateOnly: true}},
		"ConfigService/Watch":           {&lbdv1.WatchRequest{Kind: "pools"}},
		"ConfigService/WaitForRevision": {&lbdv1.WaitForRevisionRequest{Revision: 1}},

		"SessionTicketService/GetStatus":        {&lbdv1.SessionTicketServiceGetStatusRequest{}},
		"SessionTicketService/RotateTicketKeys": {&lbdv1.RotateTicketKeysRequest{}},
		"SessionTicketService/InspectTicket":    {&lbdv1.InspectTicketRequest{}},
		"SessionTicketService/ImportTicketKeys": {&lbdv1.ImportTicketKeysRequest{}},

		"SystemService/GetVersion":   {&lbdv1.GetVersionRequest{}},
		"SystemService/GetStatus":    {&lbdv1.SystemServiceGetStatusRequest{}},
		"SystemService/RunDoctor":    {&lbdv1.RunDoctorRequest{}},
		"SystemService/GetMetrics":   {&lbdv1.GetMetricsRequest{}},
		"SystemService/GetProfile":   {&lbdv1.GetProfileRequest{}}, // of no kind
		"SystemService/SetLogLevel":  {&lbdv1.SetLogLevelRequest{}},
		"SystemService/CollectDebug": {&lbdv1.CollectDebugRequest{}},

		"TrafficService/TestRoute":       {&lbdv1.TestRouteRequest{}},
		"TrafficService/WatchStats":      {&lbdv1.WatchStatsRequest{}},
		"TrafficService/WatchEvents":     {&lbdv1.WatchEventsRequest{}},
		"TrafficService/ListConnections": {&lbdv1.ListConnectionsRequest{}},
		"TrafficService/KillConnections": {&lbdv1.KillConnectionsRequest{Pool: "shop"}},
	}
}

// methods are all of lbd.v1, as the protos have them.
func methods() []protoreflect.MethodDescriptor {
	var all []protoreflect.MethodDescriptor
	protoregistry.GlobalFiles.RangeFilesByPackage("lbd.v1", func(file protoreflect.FileDescriptor) bool {
		for i := range file.Services().Len() {
			service := file.Services().Get(i)
			for j := range service.Methods().Len() {
				all = append(all, service.Methods().Get(j))
			}
		}
		return true
	})
	slices.SortFunc(all, func(a, b protoreflect.MethodDescriptor) int {
		return strings.Compare(string(a.FullName()), string(b.FullName()))
	})
	return all
}

func fullMethod(m protoreflect.MethodDescriptor) string {
	return "/" + string(m.Parent().FullName()) + "/" + string(m.Name())
}

// contender is a caller of the matrix.
type contender struct {
	what  string
	conn  *grpc.ClientConn
	known bool
	role  lbdv1.Role
	owner string // that it is bound to; empty: none
}

// may is what the rule of a method says of a caller.
func (c contender) may(rule *lbdv1.Access) codes.Code {
	switch {
	case !c.known:
		return codes.Unauthenticated
	case c.role < rule.GetRole(),
		c.owner != "" && rule.GetScope() == lbdv1.Scope_SCOPE_CLUSTER,
		c.owner != "" && c.owner != "web" && rule.GetScope() == lbdv1.Scope_SCOPE_OWNER:
		return codes.PermissionDenied
	}
	return codes.OK
}

// contenders are every kind of caller with every role and scope, and everybody whom nobody may let in.
func contenders(p *portRig) []contender {
	all := []contender{
		{what: "the socket", conn: p.conn, known: true, role: lbdv1.Role_ROLE_ADMIN},
		{what: "nobody", conn: p.dialPort(nil)},
		{what: "a token without its secret", conn: p.dialPort(nil, withToken("lbt_none_"))},
		{what: "a certificate that nobody knows", conn: p.dialPort(keyPair(p.t, "unknown"))},
	}
	for role := lbdv1.Role_ROLE_VIEWER; role <= lbdv1.Role_ROLE_ADMIN; role++ {
		for _, owner := range []string{"", "web", "other"} {
			var owners []string
			if owner != "" {
				owners = []string{owner}
			}
			name := fmt.Sprintf("%s of %q", roleWord(role), owner)
			_, secret := p.makeToken(role, owners...)
			certificate := keyPair(p.t, "client")
			p.register(certificate, role, owners...)
			all = append(all,
				contender{"token: " + name, p.dialPort(nil, withToken(secret)), true, role, owner},
				contender{"token by the socket: " + name, p.dialSocket(withToken(secret)), true, role, owner},
				contender{"certificate: " + name, p.dialPort(certificate), true, role, owner},
			)
		}
	}
	revoked, secret := p.makeToken(lbdv1.Role_ROLE_ADMIN)
	if _, err := p.auth.RevokeToken(p.ctx(), &lbdv1.RevokeTokenRequest{Id: revoked.GetId()}); err != nil {
		p.t.Fatal(err)
	}
	all = append(all, contender{what: "a revoked token", conn: p.dialPort(nil, withToken(secret))})
	admin, secret := p.makeToken(lbdv1.Role_ROLE_ADMIN)
	all = append(all, contender{what: "a wrong secret", conn: p.dialPort(nil, withToken(secret[:len(secret)-1]+"!"))},
		contender{what: "a wrong secret by the socket", conn: p.dialSocket(withToken("lbt_" + admin.GetId() + "_x"))})
	return append(all, expired(p)...)
}

// expired are credentials whose time has passed, and a certificate that is too old itself.
func expired(p *portRig) []contender {
	p.t.Helper()
	soon := timestamppb.New(p.clock().Add(time.Second))
	token, err := p.auth.CreateToken(p.ctx(), &lbdv1.CreateTokenRequest{Role: lbdv1.Role_ROLE_ADMIN, ExpireTime: soon})
	if err != nil {
		p.t.Fatal(err)
	}
	pair, err := newPair([]string{"client"}, now.Add(-time.Hour), p.clock().Add(time.Second))
	if err != nil {
		p.t.Fatal(err)
	}
	old := tlsPair(p.t, pair)
	p.register(old, lbdv1.Role_ROLE_ADMIN)
	p.advance(time.Minute)
	return []contender{
		{what: "an expired token", conn: p.dialPort(nil, withToken(token.GetSecret()))},
		{what: "an expired certificate", conn: p.dialPort(old)},
	}
}

// TestMatrix holds every method's rule against every caller. What it expects is computed from the proto alone.
func TestMatrix(t *testing.T) {
	p := newPortRig(t)
	p.mustApply(owner("web"), append(web(), selfSigned("s", "s.example"), &lbdv1.Listener{
		Name: "https", Addresses: []string{":8443"}, Protocol: lbdv1.Protocol_PROTOCOL_HTTPS, Tls: &lbdv1.ListenerTls{DefaultCertificate: "s"},
	})...)
	callers := contenders(p)
	requests := everyMethod()
	for _, m := range methods() {
		method := fullMethod(m)
		rule := ruleOf(string(m.Parent().FullName()), string(m.Name()))
		if rule == nil {
			t.Errorf("%s has no option lbd.v1.access: it is refused to everybody", method)
			continue
		}
		if rule.GetAnswered() == lbdv1.Answered_ANSWERED_UNSPECIFIED {
			t.Errorf("%s does not say which node answers it", method)
		}
		messages, ok := requests[shortMethod(method)]
		if !ok {
			t.Errorf("%s has no case in this test", method)
			continue
		}
		delete(requests, shortMethod(method))
		for _, c := range callers {
			p.advance(time.Minute) // so that failures are answered as such
			before := p.store.State()
			got := p.call(c.conn, m, messages)
			want := c.may(rule)
			switch {
			case want == codes.OK && (got == codes.Unauthenticated || got == codes.PermissionDenied || got == codes.ResourceExhausted):
				t.Errorf("%s by %s: %v, want it let in", method, c.what, got)
			case want != codes.OK && got != want:
				t.Errorf("%s by %s: %v, want %v", method, c.what, got, want)
			case want != codes.OK && p.store.State() != before:
				t.Errorf("%s by %s was refused and has changed the state", method, c.what)
			}
		}
	}
	for method := range requests {
		t.Errorf("there is no method %s any more", method)
	}
}

// call makes a call with the given messages and takes the first answer.
func (p *portRig) call(conn *grpc.ClientConn, m protoreflect.MethodDescriptor, messages []proto.Message) codes.Code {
	p.t.Helper()
	ctx, cancel := context.WithCancel(p.ctx())
	defer cancel()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, fullMethod(m))
	if err != nil {
		return status.Code(err)
	}
	for _, message := range messages {
		if err := stream.SendMsg(message); err != nil && !errors.Is(err, io.EOF) {
			p.t.Fatal(err)
		}
	}
	_ = stream.CloseSend()
	err = stream.RecvMsg(dynamicpb.NewMessage(m.Output()))
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return status.Code(err)
}

// TestMethodsWithoutARule: what nobody has thought of is refused to everybody, health is open to all, reflection is for viewers.
func TestMethodsWithoutARule(t *testing.T) {
	admin := Caller{Author: "a", Role: lbdv1.Role_ROLE_ADMIN}
	known := rules{"/lbd.v1.NewService/New": nil}
	if err := known.permit(admin, "/lbd.v1.NewService/New"); status.Code(err) != codes.PermissionDenied {
		t.Errorf("a method without a rule: %v", err)
	}
	p := newPortRig(t)
	for method, rule := range p.server.guard.rules {
		if rule == nil && !openToAll[method] {
			t.Errorf("%s is registered and has no rule", method)
		}
	}
	health, err := healthpb.NewHealthClient(p.dialPort(nil)).Check(p.ctx(), &healthpb.HealthCheckRequest{})
	if err != nil || health.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("health for a stranger: %v, %v", health, err)
	}
	_, viewer := p.makeToken(lbdv1.Role_ROLE_VIEWER)
	for what, c := range map[string]struct {
		conn *grpc.ClientConn
		want codes.Code
	}{
		"reflection for a stranger":  {p.dialPort(nil), codes.Unauthenticated},
		"reflection for a viewer":    {p.dialPort(nil, withToken(viewer)), codes.OK},
		"no method for a stranger":   {p.dialPort(nil), codes.Unauthenticated},
		"no method for a viewer":     {p.dialPort(nil, withToken(viewer)), codes.Unimplemented},
		"no service for a stranger":  {p.dialPort(nil), codes.Unauthenticated},
		"no service for the socket ": {p.conn, codes.Unimplemented},
	} {
		method := "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
		switch {
		case strings.HasPrefix(what, "no method"):
			method = "/lbd.v1.ConfigService/Frob"
		case strings.HasPrefix(what, "no service"):
			method = "/lbd.v1.FrobService/Frob"
		}
		stream, err := c.conn.NewStream(p.ctx(), &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method)
		if err == nil {
			_ = stream.CloseSend()
			if err = stream.RecvMsg(&lbdv1.GetResponse{}); errors.Is(err, io.EOF) {
				err = nil
			}
		}
		if status.Code(err) != c.want {
			t.Errorf("%s: %v, want %v", what, err, c.want)
		}
	}
}

var update = flag.Bool("update", false, "write docs/concepts.md")

// TestWhoMayDoWhat holds the table of the documentation to the protos.
func TestWhoMayDoWhat(t *testing.T) {
	path := filepath.Join("..", "..", "docs", "concepts.md")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	const begin, end = "<!-- who may do what: written by go test ./cluster/rpc -run TestWhoMayDoWhat -update -->\n", "<!-- end of who may do what -->\n"
	before, rest, ok := strings.Cut(string(text), begin)
	_, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatalf("%s has no place for the table", path)
	}
	want := before + begin + accessTable() + end + after
	switch {
	case string(text) == want:
	case *update:
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s does not say what the protos do: run this test with -update", path)
	}
}

// accessTable has a line for each role and scope.
func accessTable() string {
	type line struct {
		role  lbdv1.Role
		scope lbdv1.Scope
	}
	lines := map[line][]string{}
	for _, m := range methods() {
		rule := ruleOf(string(m.Parent().FullName()), string(m.Name()))
		at := line{rule.GetRole(), rule.GetScope()}
		lines[at] = append(lines[at], "`"+shortMethod(fullMethod(m))+"`")
	}
	bound := map[lbdv1.Scope]string{
		lbdv1.Scope_SCOPE_ANY: "may", lbdv1.Scope_SCOPE_OWNER: "may, on what its owners have", lbdv1.Scope_SCOPE_CLUSTER: "may not",
	}
	text := "\n| Role, and those above it | A caller bound to owners | Calls |\n| --- | --- | --- |\n"
	for _, at := range slices.SortedFunc(maps.Keys(lines), func(a, b line) int {
		return 10*int(a.role-b.role) + int(a.scope-b.scope)
	}) {
		text += fmt.Sprintf("| %s | %s | %s |\n", roleWord(at.role), bound[at.scope], strings.Join(lines[at], ", "))
	}
	return text + "\n"
}
