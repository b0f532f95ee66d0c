package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"lbd/cluster/state"
	lbdv1 "lbd/proto/lbd/v1"
)

// boundRig is the services' state with callers of whatever rights, without a connection.
type boundRig struct {
	*rig
	config *configService
	certs  *certificateService
}

func newBoundRig(t *testing.T) *boundRig {
	t.Helper()
	r := newRig(t)
	w := newWriter(r.serverConfig(), t.Context())
	return &boundRig{
		rig:    r,
		config: &configService{writer: w, node: "n1", store: r.store, observer: r.observer, inbox: newInbox()},
		certs:  &certificateService{writer: w, store: r.store, observer: r.observer},
	}
}

var (
	admin  = Caller{Author: "token admin", Kind: kindToken, Role: lbdv1.Role_ROLE_ADMIN}
	editor = Caller{Author: "token editor", Kind: kindToken, Role: lbdv1.Role_ROLE_EDITOR}
	shop   = Caller{Author: "token ci-shop", Kind: kindToken, Role: lbdv1.Role_ROLE_EDITOR, Owners: []string{"shop"}}
	both   = Caller{Author: "token ci-both", Kind: kindToken, Role: lbdv1.Role_ROLE_EDITOR, Owners: []string{"shop", "blog"}}
)

// callOf is a call of Apply or Diff by some caller.
type callOf struct {
	applyStream
	ctx      context.Context
	requests []*lbdv1.ApplyRequest
	answer   *lbdv1.ApplyResponse
}

func (c *callOf) Context() context.Context { return c.ctx }

func (c *callOf) Recv() (*lbdv1.ApplyRequest, error) {
	if len(c.requests) == 0 {
		return nil, io.EOF
	}
	next := c.requests[0]
	c.requests = c.requests[1:]
	return next, nil
}

func (c *callOf) SendAndClose(answer *lbdv1.ApplyResponse) error {
	c.answer = answer
	return nil
}

// diffCallOf is one of Diff.
type diffCallOf struct {
	diffStream
	*callOf
	answer *lbdv1.DiffResponse
}

func (c *diffCallOf) Context() context.Context { return c.ctx }

func (c *diffCallOf) Recv() (*lbdv1.DiffRequest, error) {
	part, err := c.callOf.Recv()
	return &lbdv1.DiffRequest{Part: part}, err
}

func (c *diffCallOf) SendAndClose(answer *lbdv1.DiffResponse) error {
	c.answer = answer
	return nil
}

func (r *boundRig) by(c Caller) context.Context { return withCaller(r.ctx(), c) }

func (r *boundRig) applyAs(c Caller, head *lbdv1.ApplyHeader, specs ...proto.Message) (*lbdv1.ApplyResponse, error) {
	r.t.Helper()
	call := &callOf{ctx: r.by(c), requests: r.request(head, specs...)}
	err := r.config.Apply(call)
	return call.answer, asStatus(err)
}

func (r *boundRig) diffAs(c Caller, head *lbdv1.ApplyHeader, specs ...proto.Message) (*lbdv1.DiffResponse, error) {
	r.t.Helper()
	call := &diffCallOf{callOf: &callOf{ctx: r.by(c), requests: r.request(head, specs...)}}
	err := r.config.Diff(call)
	return call.answer, asStatus(err)
}

func asStatus(err error) error {
	if err == nil {
		return nil
	}
	return statusOf(err)
}

func (r *boundRig) must(answer *lbdv1.ApplyResponse, err error) *lbdv1.ApplyResponse {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
	return answer
}

// refusedFields holds that a call was refused with a code, and for these fields alone.
func refusedFields(t *testing.T, err error, code codes.Code, fields ...string) failure {
	t.Helper()
	f := failureOf(t, err)
	got := slices.Sorted(maps.Keys(f.fields))
	slices.Sort(fields)
	if f.code != code || !slices.Equal(got, fields) {
		t.Errorf("refused as %s for\n  %s\nwant %s for\n  %s\n(%v)", f.code, strings.Join(got, "\n  "), code, strings.Join(fields, "\n  "), f.fields)
	}
	return f
}

// world is what others have: a listener for everybody, one for nobody, a certificate, a pool.
func (r *boundRig) world() {
	r.t.Helper()
	open, closed := listener("https", "127.0.0.1:8443"), listener("private", "127.0.0.1:8444")
	open.AllowedOwners = []string{"shop"}
	r.must(r.applyAs(admin, owner("platform"), open, closed, selfSigned("wild", "www.example.com"), pool("internal", "10.9.0.1:80"),
		&lbdv1.Owner{Name: "shop", AllowedHosts: []string{"*.shop.example.com", "shop.example.com"}, AllowedBackendCidrs: []string{"10.1.0.0/16"}}))
}

func hosted(r *lbdv1.Route, hosts ...string) *lbdv1.Route {
	r.Hosts = hosts
	return r
}

// TestBoundListenersNameCertificates: by a label, or by naming none, a listener would serve other owners' certificates.
func TestBoundListenersNameCertificates(t *testing.T) {
	r := newBoundRig(t)
	r.must(r.applyAs(admin, owner("platform"), selfSigned("default", "www.example.com")))
	https := func(tls *lbdv1.ListenerTls) *lbdv1.Listener {
		l := listener("mine", "127.0.0.1:9443")
		l.Protocol, l.Tls = lbdv1.Protocol_PROTOCOL_HTTPS, tls
		return l
	}
	own := selfSigned("own", "shop.example.com")
	for _, c := range []struct {
		tls    *lbdv1.ListenerTls
		fields []string
	}{
		{nil, []string{"tls.certificates", "tls.default_certificate"}},
		{&lbdv1.ListenerTls{DefaultCertificate: "own"}, []string{"tls.certificates"}},
		{&lbdv1.ListenerTls{DefaultCertificate: "own", Certificates: []string{"own", "team=infra"}}, []string{"tls.certificates[1]"}},
		{&lbdv1.ListenerTls{Certificates: []string{"own"}}, []string{"tls.default_certificate"}},
	} {
		_, err := r.applyAs(shop, owner("shop"), own, https(c.tls))
		var want []string
		for _, field := range c.fields {
			want = append(want, `listeners["mine"].`+field)
		}
		refusedFields(t, err, codes.PermissionDenied, want...)
	}
	r.must(r.applyAs(shop, owner("shop"), own, https(&lbdv1.ListenerTls{DefaultCertificate: "own", Certificates: []string{"own"}})))
	r.must(r.applyAs(admin, owner("shop"), https(&lbdv1.ListenerTls{Certificates: []string{"team=infra"}})))
}

func TestBoundsRefuseAllAtOnce(t *testing.T) {
	r := newBoundRig(t)
	r.world()
	bought := newIdentity(t, "evil.example", "shop.example.com")
	tls := listener("mine", "127.0.0.1:9443")
	tls.Protocol = lbdv1.Protocol_PROTOCOL_HTTPS
	tls.Tls = &lbdv1.ListenerTls{DefaultCertificate: "wild", Certificates: []string{"own", "wild"}}
	mtls := pool("mtls", "10.1.0.1:443")
	mtls.Tls = &lbdv1.BackendTls{ClientCertificate: "wild"}
	specs := []proto.Message{
		tls,
		selfSigned("own", "shop.example.com", "a.example.com"),
		pemCertificate("bought", bought.chain, bought.key),
		pool("shop", "10.1.0.1:80", "10.2.0.1:80", "[::ffff:10.2.0.2]:80"),
		mtls,
		hosted(route("shop", "https", "shop"), "shop.example.com", "a.shop.example.com", "evil.example"),
		hosted(route("any", "https", "shop")),
		hosted(route("private", "private", "internal"), "shop.example.com"),
	}
	want := []string{
		`listeners["mine"].addresses[0]`, `listeners["mine"].tls.default_certificate`, `listeners["mine"].tls.certificates[1]`,
		`certificates["own"].self_signed.hosts[1]`, `certificates["bought"].pem.chain`,
		`pools["shop"].backends[1].address`, `pools["shop"].backends[2].address`, `pools["mtls"].tls.client_certificate`,
		`routes["shop"].hosts[2]`, `routes["any"].hosts`, `routes["private"].listeners[0]`, `routes["private"].forward.pools[0].pool`,
	}
	before := r.store.State().Revision()
	_, err := r.applyAs(shop, owner("shop"), specs...)
	f := refusedFields(t, err, codes.PermissionDenied, slices.Clone(want)...)
	if f.reason != reasonBounds || !strings.Contains(f.fields[`certificates["bought"].pem.chain`], "evil.example") || !strings.Contains(f.message, "(and 11 more)") {
		t.Errorf("%+v", f)
	}
	_, err = r.applyAs(shop, &lbdv1.ApplyHeader{Owner: "shop", ValidateOnly: true}, specs...)
	refusedFields(t, err, codes.PermissionDenied, slices.Clone(want)...)
	_, err = r.diffAs(shop, owner("shop"), specs...)
	refusedFields(t, err, codes.PermissionDenied, slices.Clone(want)...)
	var resources []*lbdv1.Resource
	for _, spec := range specs {
		one, _ := state.Wrap("shop", proto.Clone(spec))
		resources = append(resources, one)
	}
	_, err = r.config.Validate(r.by(shop), &lbdv1.ValidateRequest{Document: state.DocumentOf("shop", resources)})
	refusedFields(t, asStatus(err), codes.PermissionDenied, slices.Clone(want)...)
	if now := r.store.State().Revision(); now != before {
		t.Errorf("revision %d after refusals alone, want %d", now, before)
	}
	// Nobody else is bound by that: what is wrong for an editor is wrong for everybody.
	_, err = r.applyAs(editor, owner("shop"), specs...)
	refusedFields(t, err, codes.InvalidArgument, `routes["private"].listeners[0]`)
}

func TestBoundsAllowWhatIsInside(t *testing.T) {
	r := newBoundRig(t)
	r.world()
	good := []proto.Message{
		pool("shop", "10.1.0.1:80"), selfSigned("own", "shop.example.com", "*.shop.example.com"),
		hosted(route("shop", "https", "shop"), "Shop.Example.com", "*.a.shop.example.com"),
		&lbdv1.Route{Name: "elsewhere", Listeners: []string{"https"}, Hosts: []string{"old.shop.example.com"},
			Action: &lbdv1.Route_Redirect{Redirect: &lbdv1.Redirect{Host: "elsewhere.example"}}},
	}
	r.must(r.applyAs(shop, owner("shop"), good...))

	// What is stored just so is not judged, so that narrower bounds stop no pipeline that changes nothing.
	r.must(r.applyAs(admin, owner("platform"), &lbdv1.Owner{Name: "shop"}))
	r.must(r.applyAs(shop, owner("shop"), good...))
	moved := pool("shop", "10.1.0.1:80", "10.1.0.2:80")
	_, err := r.applyAs(shop, owner("shop"), append([]proto.Message{moved}, good[1:]...)...)
	refusedFields(t, err, codes.PermissionDenied, `pools["shop"].backends[0].address`, `pools["shop"].backends[1].address`)

	// Without bounds it may use anything but what others have.
	call := &callOf{ctx: r.by(admin), requests: append(r.request(owner("platform")), deletes("owners/shop"))}
	if err := r.config.Apply(call); err != nil {
		t.Fatal(err)
	}
	r.must(r.applyAs(shop, owner("shop"), pool("shop", "10.7.0.1:80"), route("any", "https", "shop"), route("theirs", "https", "internal")))
	_, err = r.applyAs(shop, owner("shop"), route("any", "private", "shop"))
	refusedFields(t, err, codes.PermissionDenied, `routes["any"].listeners[0]`)
}

func TestBoundsOfOtherOwners(t *testing.T) {
	r := newBoundRig(t)
	r.world()
	r.must(r.applyAs(admin, owner("blog"), pool("blog", "10.1.0.9:80")))
	_, err := r.applyAs(shop, owner("shop"), pool("blog", "10.1.0.1:80"))
	refusedFields(t, err, codes.PermissionDenied, `pools["blog"]`)
	_, err = r.applyAs(shop, &lbdv1.ApplyHeader{Owner: "shop", TakeOver: true}, pool("blog", "10.1.0.1:80"))
	refusedFields(t, err, codes.PermissionDenied, `pools["blog"]`)
	call := &callOf{ctx: r.by(shop), requests: append(r.request(owner("shop")), deletes("pools/blog"))}
	refusedFields(t, asStatus(r.config.Apply(call)), codes.PermissionDenied, `pools["blog"]`)

	// Who may touch it, and does not take it over, meets a conflict.
	_, err = r.applyAs(both, owner("shop"), pool("blog", "10.1.0.1:80"))
	if f := failureOf(t, err); f.code != codes.Aborted {
		t.Errorf("another owner's of the same caller: %+v", f)
	}

	// What the first start made gives way.
	r.must(r.applyAs(admin, owner(state.OwnerDev), pool("default", "10.3.0.1:80")))
	r.must(r.applyAs(shop, owner("shop"), pool("default", "10.1.0.1:80")))
}

func TestBoundsKeepTheClusterToAdmins(t *testing.T) {
	r := newBoundRig(t)
	bound := admin
	bound.Owners = []string{"shop"}
	for _, c := range []Caller{editor, shop, bound} {
		_, err := r.applyAs(c, owner("shop"), &lbdv1.ClusterSettings{AllowLoopbackBackends: proto.Bool(true)}, &lbdv1.Owner{Name: "shop", AllowedHosts: []string{"*"}})
		refusedFields(t, err, codes.PermissionDenied, `cluster_settings`, `owners["shop"]`)
	}
	r.must(r.applyAs(admin, owner("shop"), &lbdv1.ClusterSettings{AllowLoopbackBackends: proto.Bool(true)}, &lbdv1.Owner{Name: "shop", AllowedHosts: []string{"*"}}))
	call := &callOf{ctx: r.by(editor), requests: append(r.request(owner("shop")), deletes("owners/shop"))}
	refusedFields(t, asStatus(r.config.Apply(call)), codes.PermissionDenied, `owners["shop"]`)
	// A document that holds what is so already changes nothing of it.
	r.must(r.applyAs(editor, owner("shop"), &lbdv1.ClusterSettings{AllowLoopbackBackends: proto.Bool(true)}, &lbdv1.Owner{Name: "shop", AllowedHosts: []string{"*"}}))
	// An editor who only asks is shown the difference.
	if answer, err := r.diffAs(editor, owner("shop"), &lbdv1.Owner{Name: "shop"}); err != nil || len(answer.GetChanges()) != 1 {
		t.Errorf("diff by an editor: %v, %v", answer, err)
	}
	// Neither does a rollback bring it back for others.
	_, err := r.config.Rollback(r.by(editor), &lbdv1.RollbackRequest{Owner: "shop", To: proto.Int64(0)})
	refusedFields(t, asStatus(err), codes.PermissionDenied, `cluster_settings`, `owners["shop"]`)
}

func TestBoundsOfARotation(t *testing.T) {
	r := newBoundRig(t)
	r.world()
	first, second := newIdentity(t, "shop.example.com"), newIdentity(t, "shop.example.com", "evil.example")
	r.must(r.applyAs(shop, owner("shop"), pemCertificate("shop", first.chain, first.key)))
	_, err := r.certs.Rotate(r.by(shop), &lbdv1.RotateRequest{Name: "shop", ChainPem: second.chain, KeyPem: second.key})
	refusedFields(t, asStatus(err), codes.PermissionDenied, "chain_pem")
	if _, err := r.certs.Rotate(r.by(editor), &lbdv1.RotateRequest{Name: "shop", ChainPem: second.chain, KeyPem: second.key}); err != nil {
		t.Errorf("who is not bound: %v", err)
	}
}

func TestBoundsOfARollback(t *testing.T) {
	r := newBoundRig(t)
	r.world()
	r.must(r.applyAs(admin, owner("shop"), pool("shop", "10.2.0.1:80")))
	r.must(r.applyAs(shop, owner("shop"), pool("shop", "10.1.0.1:80")))
	_, err := r.config.Rollback(r.by(shop), &lbdv1.RollbackRequest{Owner: "shop"})
	refusedFields(t, asStatus(err), codes.PermissionDenied, `pools["shop"].backends[0].address`)
	if _, err := r.config.Rollback(r.by(admin), &lbdv1.RollbackRequest{Owner: "shop"}); err != nil {
		t.Errorf("who is not bound: %v", err)
	}
}

// TestForbiddenForEveryCaller: an address where no backend may be is invalid for everybody, also for those that it is out of bounds for.
func TestForbiddenForEveryCaller(t *testing.T) {
	r := newBoundRig(t)
	r.world()
	r.places.names = map[string][]string{
		"loop.test": {"127.0.0.1"}, "mapped.test": {"::ffff:127.0.0.1"}, "link.test": {"10.1.0.1", "169.254.169.254"}, "none.test": {"0.0.0.0"},
		"all.test": {"255.255.255.255"}, "good.test": {"10.1.0.1"}, "control.test": {"10.1.0.5"}, "_http._tcp.srv.test": {"fe80::1"},
	}
	r.places.taken = map[string]string{"10.1.0.5:7443": "the control port", "10.1.0.5:9090": "the metrics port"}
	checked := pool("checked", "10.1.0.5:80")
	checked.HealthCheck = &lbdv1.HealthCheck{Check: &lbdv1.HealthCheck_Tcp{Tcp: &lbdv1.TcpCheck{}}, Port: 9090}
	specs := []proto.Message{
		pool("a", "loop.test:80", "mapped.test:80", "link.test:80", "none.test:80", "all.test:80", "good.test:80"),
		pool("b", "10.1.0.5:7443", "control.test:7443", "control.test:80", "127.0.0.1:80", "[fe80::1%eth0]:80", "[::ffff:10.1.0.5]:7443"),
		&lbdv1.Pool{Name: "c", Discovery: &lbdv1.Discovery{Srv: "_http._tcp.srv.test"}},
		&lbdv1.Pool{Name: "d", Discovery: &lbdv1.Discovery{Host: "control.test", Port: 9090}},
		checked,
	}
	for _, c := range []Caller{admin, editor, shop} {
		_, err := r.applyAs(c, owner("shop"), specs...)
		f := refusedFields(t, err, codes.InvalidArgument,
			`pools["a"].backends[0].address`, `pools["a"].backends[1].address`, `pools["a"].backends[2].address`, `pools["a"].backends[3].address`,
			`pools["a"].backends[4].address`, `pools["b"].backends[0].address`, `pools["b"].backends[1].address`, `pools["b"].backends[3].address`,
			`pools["b"].backends[4].address`, `pools["b"].backends[5].address`, `pools["c"].discovery.srv`, `pools["d"].discovery.host`,
			`pools["checked"].health_check.port`)
		if text := f.fields[`pools["b"].backends[1].address`]; !strings.Contains(text, "leads to 10.1.0.5") || !strings.Contains(text, "the control port") {
			t.Errorf("the reason is %q", text)
		}
	}
	// A listener that the change moves or deletes is no obstacle.
	r.must(r.applyAs(admin, owner("platform"), listener("far", "10.1.0.6:80")))
	_, err := r.applyAs(admin, owner("platform"), pool("near", "10.1.0.6:80"))
	refusedFields(t, err, codes.InvalidArgument, `pools["near"].backends[0].address`)
	r.must(r.applyAs(admin, owner("platform"), pool("near", "10.1.0.6:80"), listener("far", "10.1.0.6:81")))
	// The settings of the same change count, but not for a node's own ports.
	_, err = r.applyAs(admin, owner("shop"), &lbdv1.ClusterSettings{AllowLoopbackBackends: proto.Bool(true)}, pool("a", "loop.test:80"), pool("b", "control.test:7443"))
	refusedFields(t, err, codes.InvalidArgument, `pools["b"].backends[0].address`)
}

// TestListenerWhereAPoolSends: whichever of the two comes first, or both at once, and whatever else of the listener changes.
func TestListenerWhereAPoolSends(t *testing.T) {
	r := newBoundRig(t)
	r.world()
	r.places.everywhere = map[string]string{"10.1.0.7:85": "0.0.0.0:85"}
	_, err := r.applyAs(admin, owner("platform"), pool("own", "10.1.0.7:85"), listener("wide", "0.0.0.0:85"))
	refusedFields(t, err, codes.InvalidArgument, `pools["own"].backends[0].address`)

	r.must(r.applyAs(admin, owner("platform"), pool("own", "10.1.0.7:85")))
	_, err = r.applyAs(admin, owner("platform"), listener("wide", "0.0.0.0:85"))
	f := refusedFields(t, err, codes.InvalidArgument, `listeners["wide"].addresses[0]`)
	if text := f.fields[`listeners["wide"].addresses[0]`]; !strings.Contains(text, "`10.1.0.7:85` of pool `own`") {
		t.Errorf("the reason is %q", text)
	}
	_, err = r.applyAs(admin, owner("platform"), pool("own", "10.1.0.7:85"), listener("wide", "0.0.0.0:85")) // the pool is stored just so
	refusedFields(t, err, codes.InvalidArgument, `listeners["wide"].addresses[0]`)
	answer := r.must(r.applyAs(admin, &lbdv1.ApplyHeader{Owner: "infra", ValidateOnly: true}, listener("wide", "0.0.0.0:85"))) // another owner's pool is no obstacle
	if told := fmt.Sprint(answer.GetWarnings()); !strings.Contains(told, "of pool `own` (owner `platform`) is then the listener itself") {
		t.Errorf("warnings %s", told)
	}
	r.must(r.applyAs(admin, owner("platform"), pool("own", "10.1.0.8:85"), listener("wide", "0.0.0.0:85")))

	touched := listener("wide", "0.0.0.0:85")
	touched.HealthPath = "/alive"
	_, err = r.applyAs(admin, owner("platform"), touched, pool("own", "10.1.0.7:85"))
	refusedFields(t, err, codes.InvalidArgument, `pools["own"].backends[0].address`)
}

func TestNamesOfBackends(t *testing.T) {
	r := newBoundRig(t)
	r.world()
	r.places.names = map[string][]string{"in.test": {"10.1.0.1", "10.1.0.2"}, "out.test": {"10.1.0.1", "10.2.0.1"}, "gone.test": {}}
	// A caller that is bound needs names that lead inside, all of their addresses.
	_, err := r.applyAs(shop, owner("shop"), pool("shop", "in.test:80", "out.test:80", "gone.test:80"))
	f := refusedFields(t, err, codes.PermissionDenied, `pools["shop"].backends[1].address`, `pools["shop"].backends[2].address`)
	if !strings.Contains(f.fields[`pools["shop"].backends[1].address`], "10.2.0.1") || !strings.Contains(f.fields[`pools["shop"].backends[2].address`], "no such name") {
		t.Errorf("%v", f.fields)
	}
	r.must(r.applyAs(shop, owner("shop"), pool("shop", "in.test:80")))
	// Others are only warned.
	answer := r.must(r.applyAs(admin, owner("shop"), pool("shop", "in.test:80", "out.test:80", "gone.test:80")))
	var warned []string
	for _, w := range answer.GetWarnings() {
		warned = append(warned, w.GetField())
	}
	if !slices.Equal(warned, []string{`pools["shop"].backends[1].address`, `pools["shop"].backends[2].address`}) {
		t.Errorf("warnings at %v", warned)
	}
	// What is stored just so is not asked for again, neither by its owner nor by a retry of others.
	asked := len(r.places.asked)
	r.must(r.applyAs(shop, owner("shop"), pool("shop", "in.test:80", "out.test:80", "gone.test:80")))
	if len(r.places.asked) != asked {
		t.Errorf("asked again for %v", r.places.asked[asked:])
	}
}

// TestSlowNames: a resolver that does not answer holds up a change for a bounded time, and no other change at all.
func TestSlowNames(t *testing.T) {
	r := newBoundRig(t)
	r.world()
	r.places.slow = map[string]bool{"slow.test": true}
	slow := make(chan error, 1)
	began := time.Now()
	go func() {
		_, err := r.applyAs(admin, owner("shop"), pool("slow", "slow.test:80"))
		slow <- err
	}()
	for len(r.askedNames()) == 0 {
		if time.Since(began) > 20*time.Second {
			t.Fatal("the name is not asked for")
		}
		time.Sleep(time.Millisecond)
	}
	r.must(r.applyAs(admin, owner("shop"), pool("quick", "10.1.0.1:80")))
	select {
	case err := <-slow:
		t.Errorf("the change with the slow name was not waited for: %v", err)
	default:
	}
	if err := <-slow; err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > 10*lookupTimeout {
		t.Errorf("it took %s", took)
	}
}

func (r *boundRig) askedNames() []string {
	r.places.mu.Lock()
	defer r.places.mu.Unlock()
	return slices.Clone(r.places.asked)
}

// TestBackupDirectoryIsTried: when it is set, for who may set it, and for nobody else.
func TestBackupDirectoryIsTried(t *testing.T) {
	r := newBoundRig(t)
	var tried []string
	r.config.writer.backupFault = func(directory string) error {
		tried = append(tried, directory)
		return errors.New("read-only file system")
	}
	settings := &lbdv1.ClusterSettings{Backup: &lbdv1.BackupSettings{Schedule: "6h", Directory: "/srv/backups", Recipients: []string{"age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p"}}}
	for _, c := range []Caller{editor, shop} {
		if _, err := r.applyAs(c, owner("shop"), settings); err == nil {
			t.Errorf("%s may set it", c.Author)
		}
	}
	if len(tried) > 0 {
		t.Errorf("tried for who may not set it: %q", tried)
	}
	answer := r.must(r.applyAs(admin, owner("platform"), settings))
	if got := fmt.Sprint(answer.GetWarnings()); !strings.Contains(got, "cluster_settings.backup.directory") || !strings.Contains(got, "on node n1: read-only file system") {
		t.Errorf("warnings %s", got)
	}
	r.must(r.applyAs(admin, owner("platform"), settings)) // stored just so
	if !slices.Equal(tried, []string{"/srv/backups"}) {
		t.Errorf("tried %q", tried)
	}
}

// TestPurgeKeepsTheCertificate: of one whose key was replaced the old key goes, for who is bound to all that had it.
func TestPurgeKeepsTheCertificate(t *testing.T) {
	r := newBoundRig(t)
	first, second := newIdentity(t, "shop.example.com"), newIdentity(t, "shop.example.com")
	r.must(r.applyAs(admin, owner("blog"), pemCertificate("shop", first.chain, first.key)))
	r.must(r.applyAs(admin, &lbdv1.ApplyHeader{Owner: "shop", TakeOver: true}, pemCertificate("shop", second.chain, second.key)))
	if _, err := r.certs.Purge(r.by(shop), &lbdv1.PurgeRequest{Name: "shop"}); status.Code(asStatus(err)) != codes.PermissionDenied {
		t.Errorf("by who is not bound to a former owner: %v", err)
	}
	for i, want := range []int64{1, 0} {
		answer, err := r.certs.Purge(r.by(both), &lbdv1.PurgeRequest{Name: "shop"})
		if err != nil || answer.GetPurged() != want || answer.GetKept() != 0 {
			t.Errorf("purge %d: %v, %v", i, answer, err)
		}
	}
	if stored, ok := r.store.State().Get(state.Certificates, "shop"); !ok || len(stored.GetMaterial().GetSealedKey()) == 0 {
		t.Error("the certificate has lost its key")
	}
	if _, err := r.certs.Purge(r.by(admin), &lbdv1.PurgeRequest{Name: "none"}); status.Code(asStatus(err)) != codes.NotFound {
		t.Errorf("of none: %v", err)
	}
}
