package main

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"lbd/cluster"
	"lbd/cluster/rpc"
	"lbd/cluster/state"
	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// logged is what a node has said.
type logged struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.Write(p)
}

func (l *logged) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.all.String(), text)
}

// rig is an appliance over a real store, whose steps the test takes itself in place of run.
type rig struct {
	*appliance
	t       *testing.T
	said    *logged
	request int
}

// newRig is a dev node with listeners on free ports, after its first publish.
func newRig(t *testing.T) *rig {
	t.Helper()
	return newRigWith(t, nil)
}

// newRigWith is one that was left listening sockets.
func newRigWith(t *testing.T, sockets *inherited) *rig {
	t.Helper()
	t.Setenv("LBD_ENGINE", "goroutine") // idle loops that wait raw slow down everything else in one process
	said := &logged{}
	log := slog.New(slog.NewTextHandler(said, nil))
	cfg := config{
		dataDir: t.TempDir(), node: "n1", dev: true, metrics: "off", accessLog: "off",
		listen: map[string]string{"http": "127.0.0.1:0", "https": "127.0.0.1:0"},
	}
	node, k, err := openState(t.Context(), cfg, cluster.Config{Dir: cfg.dataDir, Node: cfg.node, Logger: log}, log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := node.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := startState(t.Context(), cfg, true, node, k); err != nil {
		t.Fatal(err)
	}
	a, err := newAppliance(cfg, log, node, k)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.close)
	a.sockets = sockets
	a.publish()
	if err := a.startError(); err != nil {
		t.Fatal(err)
	}
	return &rig{appliance: a, t: t, said: said}
}

// propose stores resources as one revision, and does not publish it.
func (r *rig) propose(specs ...proto.Message) int64 {
	r.t.Helper()
	r.request++
	change := &raftv1.ChangeCommand{Owner: "web", Author: "test", TakeOver: true, RequestId: fmt.Sprint("request-", r.request)}
	for _, spec := range specs {
		up, ok := state.Wrap("web", spec)
		if !ok {
			r.t.Fatalf("no kind for %T", spec)
		}
		s := &raftv1.StoredResource{Resource: up}
		if c := up.GetCertificate(); c != nil {
			m, err := r.keys.selfSignedMaterial(r.node.State().ClusterID(), c)
			if err != nil {
				r.t.Fatal(err)
			}
			s.Material = m
		}
		change.Upserts = append(change.Upserts, s)
	}
	return r.commit(change)
}

func (r *rig) commit(change *raftv1.ChangeCommand) int64 {
	r.t.Helper()
	result, err := r.node.Propose(r.t.Context(), change)
	if err != nil {
		r.t.Fatal(err)
	}
	return result.Revision
}

func (r *rig) delete(keys ...string) int64 {
	r.t.Helper()
	return r.commit(&raftv1.ChangeCommand{Owner: "web", Author: "test", TakeOver: true, Deletes: keys})
}

// override stores what operators say of backends, and does not publish it.
func (r *rig) override(sets ...*lbdv1.Override) {
	r.t.Helper()
	if _, err := r.node.ProposeOverride(r.t.Context(), &raftv1.OverrideCommand{Author: "test", Sets: sets}); err != nil {
		r.t.Fatal(err)
	}
}

// again is another run of the node over the same store, before its first publish.
func (r *rig) again(change func(*config)) (*rig, error) {
	r.t.Helper()
	cfg, said := r.cfg, &logged{}
	if change != nil {
		change(&cfg)
	}
	a, err := newAppliance(cfg, slog.New(slog.NewTextHandler(said, nil)), r.node, r.keys)
	if err != nil {
		return nil, err
	}
	r.t.Cleanup(a.close)
	return &rig{appliance: a, t: r.t, said: said}, nil
}

func (r *rig) address(listener string) string {
	r.t.Helper()
	all := r.server.Addresses(listener)
	if len(all) != 1 {
		r.t.Fatalf("listener %s is on %v", listener, all)
	}
	return all[0].String()
}

// get makes one request on a new connection; the status is 0 if there is no answer.
func (r *rig) get(url string) (status int, body string) {
	r.t.Helper()
	transport := &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	answer, err := (&http.Client{Transport: transport}).Get(url)
	if err != nil {
		return 0, err.Error()
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return answer.StatusCode, string(text)
}

func (r *rig) serves(url string, status int) {
	r.t.Helper()
	if got, body := r.get(url); got != status {
		r.t.Errorf("GET %s: %d %s, want %d", url, got, body, status)
	}
}

// refusals are those that the control plane is told of, by resource; "" is a whole revision.
func (r *rig) refusals() map[string]rpc.Refusal {
	all := map[string]rpc.Refusal{}
	for _, f := range r.Progress().Refused {
		all[strings.Trim(f.Kind+"/"+f.Name, "/")] = f
	}
	return all
}

func (r *rig) wantServed(revision int64) {
	r.t.Helper()
	if p := r.Progress(); !p.Serving || p.Revision != revision || len(p.Refused) > 0 {
		r.t.Errorf("progress %+v, want revision %d served whole", p, revision)
	}
}

func httpListener(name string, addresses ...string) *lbdv1.Listener {
	return &lbdv1.Listener{Name: name, Addresses: addresses, Protocol: lbdv1.Protocol_PROTOCOL_HTTP}
}

func respondRoute(name string, status int32, listeners ...string) *lbdv1.Route {
	return &lbdv1.Route{Name: name, Listeners: listeners, Action: &lbdv1.Route_Respond{Respond: &lbdv1.Respond{Status: status}}}
}

// held is a port of 127.0.0.1 that somebody else listens on.
func held(t *testing.T) (net.Listener, string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l, l.Addr().String()
}

// free is a port of 127.0.0.1 that nobody listens on.
func free(t *testing.T) string {
	t.Helper()
	l, address := held(t)
	l.Close()
	return address
}

func TestPublishDev(t *testing.T) {
	r := newRig(t)
	r.wantServed(1)
	for _, url := range []string{"http://" + r.address("http"), "https://" + r.address("https")} {
		if status, body := r.get(url); status != http.StatusOK || body != devPage {
			t.Errorf("GET %s: %d %q", url, status, body)
		}
	}
	before := r.view.Load()
	r.publish()
	if r.view.Load() != before {
		t.Error("a publish without a change makes a new form")
	}
}

func TestPublishDeletes(t *testing.T) {
	r := newRig(t)
	address := free(t)
	r.propose(httpListener("extra", address), respondRoute("extra", 204, "extra"))
	r.publish()
	r.serves("http://"+address, 204)
	revision := r.delete("routes/extra", "listeners/extra")
	r.publish()
	r.wantServed(revision)
	if status, _ := r.get("http://" + address); status != 0 {
		t.Errorf("a listener that is gone answers %d", status)
	}
	r.serves("http://"+r.address("http"), 200)
}

func TestListenerInUse(t *testing.T) {
	r := newRig(t)
	other, address := held(t)
	revision := r.propose(httpListener("extra", address), respondRoute("extra", 204, "extra"), respondRoute("default", 203, "http"))
	r.publish()
	refusal := r.refusals()["listeners/extra"]
	if refusal.Revision != revision || !strings.Contains(refusal.Reason, address) || strings.Contains(refusal.Reason, "\n") {
		t.Errorf("refusal %+v", refusal)
	}
	r.serves("http://"+r.address("http"), 203) // the rest of the revision is served
	i := slices.IndexFunc(r.Status().GetListeners(), func(l *lbdv1.ListenerStatus) bool { return l.GetName() == "extra" })
	if s := r.Status().GetListeners()[i]; s.GetProgrammed() || s.GetReason() != "ADDRESS_IN_USE" {
		t.Errorf("status %v", s)
	}

	r.retryListeners()
	r.propose(respondRoute("default", 201, "http"))
	r.publish()
	if n := r.said.count("not served as it is stored"); n != 1 {
		t.Errorf("one refusal is logged %d times", n)
	}
	other.Close()
	r.retryListeners()
	r.wantServed(revision + 1)
	r.serves("http://"+address, 204)
}

// A retry concerns the form that it tries: it must not fail the wait for a revision that has not been looked at yet.
func TestRetryKeepsTheRefusalsRevision(t *testing.T) {
	r := newRig(t)
	_, address := held(t)
	refused := r.propose(httpListener("extra", address))
	r.publish()
	mended := r.propose(httpListener("extra", free(t)))
	r.retryListeners()
	if got := r.refusals()["listeners/extra"].Revision; got != refused {
		t.Errorf("the retry refuses revision %d, want %d", got, refused)
	}
	r.publish()
	r.wantServed(mended)
}

// A listener that is refused keeps its previous form, addresses and TLS policy both.
func TestListenerKeepsItsPreviousForm(t *testing.T) {
	r := newRig(t)
	address := free(t)
	r.propose(
		httpListener("extra", address), respondRoute("extra", 204, "extra", "tls"),
		&lbdv1.Listener{Name: "tls", Addresses: []string{free(t)}, Protocol: lbdv1.Protocol_PROTOCOL_HTTPS},
	)
	r.publish()
	secure := r.address("tls")
	_, taken := held(t)
	_, taken2 := held(t)
	r.propose(httpListener("extra", taken), &lbdv1.Listener{
		Name: "tls", Addresses: []string{taken2}, Protocol: lbdv1.Protocol_PROTOCOL_HTTPS,
		Tls: &lbdv1.ListenerTls{MinVersion: lbdv1.TlsVersion_TLS_VERSION_TLS13},
	})
	r.publish()
	if got := r.refusals(); len(got) != 2 {
		t.Errorf("refusals %v", got)
	}
	r.serves("http://"+address, 204)
	c, err := tls.Dial("tcp", secure, &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12})
	if err != nil {
		t.Fatalf("the policy of a refused form is in force: %v", err)
	}
	c.Close()
}

func TestListenersPassAddressesOn(t *testing.T) {
	r := newRig(t)
	one, two := free(t), free(t)
	r.propose(httpListener("a", one), httpListener("b", two), respondRoute("a", 201, "a"), respondRoute("b", 202, "b"))
	r.publish()
	r.serves("http://"+one, 201)
	r.serves("http://"+two, 202)

	revision := r.propose(httpListener("a", two), httpListener("b", one))
	r.publish()
	r.wantServed(revision)
	r.serves("http://"+one, 202)
	r.serves("http://"+two, 201)

	three := free(t)
	revision = r.propose(httpListener("a", one), httpListener("b", three), httpListener("c", two), respondRoute("c", 203, "c"))
	r.publish()
	r.wantServed(revision)
	r.serves("http://"+one, 201)
	r.serves("http://"+three, 202)
	r.serves("http://"+two, 203)
}

// ":443" that becomes "10.0.0.1:443" stands in its own way.
func TestListenerNarrows(t *testing.T) {
	r := newRig(t)
	address := free(t)
	_, port, _ := net.SplitHostPort(address)
	r.propose(httpListener("extra", ":"+port), respondRoute("extra", 204, "extra"))
	r.publish()
	r.serves("http://"+address, 204)
	revision := r.propose(httpListener("extra", address))
	r.publish()
	r.wantServed(revision)
	r.serves("http://"+address, 204)

	// Where the other address is not to be had, what was let go of comes back.
	_, taken := held(t)
	r.propose(httpListener("extra", ":"+port, taken))
	r.publish()
	if _, refused := r.refusals()["listeners/extra"]; !refused {
		t.Error("nothing is refused")
	}
	r.serves("http://"+address, 204)
}

// A key that cannot be opened holds up only its certificate.
func TestCertificateThatCannotBeOpened(t *testing.T) {
	r := newRig(t)
	serial := r.ServedSerial("default")
	mine := r.keys.ring
	r.keys.ring = mustRing(t)
	cert := &lbdv1.Certificate{Name: "default", Source: &lbdv1.Certificate_SelfSigned{SelfSigned: &lbdv1.CertificateSelfSigned{Hosts: []string{"localhost"}}}}
	revision := r.propose(cert, respondRoute("default", 203, "https"))
	r.keys.ring = mine
	r.publish()
	if got := r.refusals()["certificates/default"]; got.Revision != revision {
		t.Errorf("refusals %v", r.refusals())
	}
	if r.ServedSerial("default") != serial {
		t.Error("the certificate before is no longer served")
	}
	r.serves("https://"+r.address("https"), 203)

	revision = r.propose(cert)
	r.publish()
	r.wantServed(revision)
	if r.ServedSerial("default") == serial {
		t.Error("the new certificate is not served")
	}
}

func TestPublishContainsPanics(t *testing.T) {
	r := newRig(t)
	cert := &lbdv1.Certificate{Name: "default", Source: &lbdv1.Certificate_SelfSigned{SelfSigned: &lbdv1.CertificateSelfSigned{Hosts: []string{"localhost"}}}}
	_, taken := held(t)
	r.propose(httpListener("extra", taken))
	r.publish()
	revision := r.propose(cert, respondRoute("default", 203, "http"))
	mine := r.keys.ring
	r.keys.ring = nil
	r.publish()
	r.keys.ring = mine
	whole := r.refusals()[""]
	if whole.Revision != revision || !strings.Contains(whole.Reason, "panic") || r.Progress().Revision != revision-1 {
		t.Errorf("progress %+v", r.Progress())
	}
	if _, ok := r.refusals()["listeners/extra"]; !ok {
		t.Error("a refusal from before is forgotten")
	}
	if !slices.ContainsFunc(r.Status().GetProblems(), func(p string) bool { return strings.Contains(p, "panic") }) {
		t.Errorf("problems %q", r.Status().GetProblems())
	}
	r.serves("http://"+r.address("http"), 200)

	// The same build does not try it again, nor would it after a restart; the next revision is tried.
	r.publish()
	if p := r.Progress(); p.Revision != revision-1 || r.choice.Refused != revision {
		t.Errorf("progress %+v, choice %+v", p, r.choice)
	}
	if kept, err := readChoice(r.cfg.dataDir, readBuild().id()); err != nil || kept != r.choice {
		t.Errorf("the next start would find %+v, %v", kept, err)
	}
	if other, err := readChoice(r.cfg.dataDir, "another build"); err != nil || other.Refused != 0 {
		t.Errorf("another build would find %+v, %v", other, err)
	}
	revision = r.propose(&lbdv1.Pool{Name: "more", Backends: []*lbdv1.Backend{{Address: "127.0.0.1:1"}}})
	r.publish()
	if p := r.Progress(); p.Revision != revision || r.choice.Refused != 0 {
		t.Errorf("progress %+v after the cause is gone", p)
	}
	r.serves("http://"+r.address("http"), 203)
	if kept, err := readChoice(r.cfg.dataDir, readBuild().id()); err != nil || kept.Refused != 0 {
		t.Errorf("still kept: %+v, %v", kept, err)
	}
}

// A revision whose table cannot be made is refused whole; what was served stays, and the next good one is served.
func TestPublishRefusesABadTable(t *testing.T) {
	r := newRig(t)
	r.current.routes["ghost"] = compiledRoute(t, stored(t, 1, &lbdv1.Route{
		Name: "ghost", Listeners: []string{"http"}, Action: &lbdv1.Route_Forward{Forward: &lbdv1.Forward{Pools: []*lbdv1.ForwardPool{{Pool: "none"}}}},
	}))
	revision := r.propose(respondRoute("default", 203, "http"))
	r.publish()
	if got := r.refusals()[""]; got.Revision != revision || !strings.Contains(got.Reason, "ghost") {
		t.Errorf("refusals %v", r.refusals())
	}
	r.serves("http://"+r.address("http"), 200)
	delete(r.current.routes, "ghost")
	revision = r.propose(&lbdv1.Pool{Name: "more", Backends: []*lbdv1.Backend{{Address: "127.0.0.1:1"}}})
	r.publish()
	r.wantServed(revision)
	r.serves("http://"+r.address("http"), 203)
}

func TestStartErrorNamesEveryListener(t *testing.T) {
	r := newRig(t)
	clear(r.bound)
	for _, name := range []string{"http", "https"} {
		r.refuse(state.Key{Kind: state.Listeners, Name: name}, 1, fmt.Errorf("listener %s: taken", name))
	}
	if err := r.startError(); err == nil || !strings.Contains(err.Error(), "listener http: taken; listener https: taken") || !strings.Contains(err.Error(), "--listen") {
		t.Errorf("error %v", err)
	}
}

func TestAdviceForAFlagThatNamesNothing(t *testing.T) {
	r := newRig(t)
	r.cfg.listen["htps"] = "127.0.0.1:8443"
	r.advise()
	if r.said.count("listener=htps") != 1 || r.said.count("listener=https ") != 0 {
		t.Errorf("said %s", r.said.all.String())
	}
}

// TestMetrics holds the names that dashboards rely on.
func TestMetrics(t *testing.T) {
	r := newRig(t)
	r.propose(
		&lbdv1.Pool{Name: "p", Backends: []*lbdv1.Backend{{Address: free(t)}, {Address: "never.invalid:80"}}},
		&lbdv1.Route{Name: "p", Listeners: []string{"http"}, Hosts: []string{"p.test"}, Action: &lbdv1.Route_Forward{Forward: &lbdv1.Forward{Pools: []*lbdv1.ForwardPool{{Pool: "p"}}}}},
	)
	r.publish()
	r.serves("https://"+r.address("https"), 200)
	m, err := openMetrics(nil, "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer m.close()
	m.serve(r.appliance, nil, nil)
	var text string
	deadline := time.Now().Add(10 * time.Second)
	for counted := false; !counted; { // an exchange is counted when it has ended, which its client does not wait for
		if time.Now().After(deadline) {
			t.Fatalf("no request is counted:\n%s", text)
		}
		var status int
		if status, text = r.get("http://" + m.listener.Addr().String() + "/metrics"); status != http.StatusOK {
			t.Fatalf("%d %s", status, text)
		}
		counted = strings.Contains(text, "\nlbd_requests_total{")
	}
	for _, want := range []string{
		`lbd_requests_total{backend="",code="2xx",listener="https",pool="",route="default"} 1`,
		`lbd_request_seconds_count{listener="https",route="default"} 1`,
		`lbd_refused_total{listener="http",reason="no_route"} 0`,
		`lbd_client_connections{listener="http"} 0`,
		`lbd_backend_up{backend="never.invalid:80",pool="p"} 0`,
		`lbd_backend_inflight{backend="never.invalid:80"} 0`,
		`lbd_backend_connections_total{backend="never.invalid:80",kind="new"} 0`,
		`lbd_backend_connections_total{backend="never.invalid:80",kind="reused"} 0`,
		`lbd_tls_resumption_total{result="miss_no_ticket"} `,
		`lbd_publish_seconds_count{phase="compile"} 2`,
		`lbd_loop_stall_seconds{loop="0"} 0`,
		`lbd_raft_leader 1`,
		`lbd_retries_total 0`,
		`lbd_handshakes_total{`,
		`lbd_certificate_not_after_seconds{certificate="default"} `,
		`lbd_revision{kind="stored"} 2`,
		`lbd_revision{kind="served"} 2`,
		`lbd_loop_connections{loop="0"} `,
		`lbd_loop_busy_ratio{loop="0"} `,
		`lbd_build_info{`,
		`go_goroutines `,
	} {
		if !strings.Contains(text, "\n"+want) {
			t.Errorf("no line begins with %s", want)
		}
	}
	if status, _ := r.get("http://" + m.listener.Addr().String() + "/"); status != http.StatusNotFound {
		t.Errorf("another path: %d", status)
	}
}

func TestMetricsAddressInUse(t *testing.T) {
	_, address := held(t)
	if _, err := openMetrics(nil, address); err == nil || !strings.Contains(err.Error(), "--metrics HOST:PORT, or off") {
		t.Errorf("error %v", err)
	}
	off, err := openMetrics(nil, "off")
	if err != nil {
		t.Fatal(err)
	}
	off.serve(nil, nil, nil)
	off.close()
}
