package main

import (
	"slices"
	"strings"
	"testing"

	"lbd/lb"
	lbdv1 "lbd/proto/lbd/v1"
)

const (
	levelOK      = lbdv1.FindingLevel_FINDING_LEVEL_OK
	levelWarning = lbdv1.FindingLevel_FINDING_LEVEL_WARNING
	levelError   = lbdv1.FindingLevel_FINDING_LEVEL_ERROR
)

// says checks a finding: what is wrong has a remedy, what is not has none.
func says(t *testing.T, f *lbdv1.Finding, level lbdv1.FindingLevel, text string) {
	t.Helper()
	if f.GetLevel() != level || !strings.Contains(f.GetMessage(), text) || (f.GetRemedy() == "") != (level == levelOK) {
		t.Errorf("%v, want %s and %q", f, level, text)
	}
}

func TestDoctorWords(t *testing.T) {
	says(t, openFiles(1<<20, 100), levelOK, "100 of 1048576")
	says(t, openFiles(1024, 100), levelWarning, "at most 1024")
	says(t, openFiles(1<<20, 1<<20-5), levelError, "1048571 of 1048576")
	says(t, buildFinding(map[string]string{}), levelOK, "optimised")
	says(t, buildFinding(map[string]string{"-race": "true"}), levelWarning, "race detector")
	says(t, buildFinding(map[string]string{"-gcflags": "all=-N -l"}), levelWarning, "all=-N -l")
	says(t, clockFinding(""), levelOK, "synchronised")
	says(t, clockFinding("the clock is off"), levelWarning, "the clock is off")

	broken, _ := reuseCause(lb.BackendStats{NewConnections: 100, Failures: 90})
	closed, remedy := reuseCause(lb.BackendStats{NewConnections: 100})
	if !strings.Contains(broken, "error") || !strings.Contains(closed, "closes them") || !strings.Contains(remedy, "keep-alive") {
		t.Errorf("%q, %q, %q", broken, closed, remedy)
	}
	if got := some([]string{"a", "b", "c", "d", "e", "f", "g"}); got != "a, b, c, d, e and 2 more" {
		t.Errorf("some: %s", got)
	}
}

// finding is the doctor's only one of a check.
func (r *rig) finding(check string) *lbdv1.Finding {
	r.t.Helper()
	var is *lbdv1.Finding
	for _, f := range r.Doctor(r.t.Context()) {
		if f.GetCheck() != check {
			continue
		}
		if is != nil {
			r.t.Errorf("two findings of %s: %v, %v", check, is, f)
		}
		is = f
	}
	return is
}

func TestDoctor(t *testing.T) {
	r := newRig(t)
	says(t, r.finding("certificates"), levelOK, "cheap")
	says(t, r.finding("unused"), levelOK, "shown")
	says(t, r.finding("expiry"), levelOK, "30 days")
	says(t, r.finding("reuse"), levelOK, "reused")
	signed := func(name, host string, kind lbdv1.KeyType) *lbdv1.Certificate {
		return &lbdv1.Certificate{Name: name, Source: &lbdv1.Certificate_SelfSigned{SelfSigned: &lbdv1.CertificateSelfSigned{Hosts: []string{host}, KeyType: kind}}}
	}
	_, taken := held(t)
	r.propose(
		signed("old", "rsa.test", lbdv1.KeyType_KEY_TYPE_RSA_2048), signed("client", "client.test", lbdv1.KeyType_KEY_TYPE_ECDSA_P256),
		&lbdv1.Listener{Name: "https", Addresses: []string{":8443"}, Protocol: lbdv1.Protocol_PROTOCOL_HTTPS, Tls: &lbdv1.ListenerTls{Certificates: []string{"default"}}},
		httpListener("extra", taken),
	)
	r.publish()
	says(t, r.finding("certificates"), levelWarning, "rsa.test")
	says(t, r.finding("unused"), levelWarning, "2 certificates")
	refused := func() bool {
		return slices.ContainsFunc(r.Doctor(t.Context()), func(f *lbdv1.Finding) bool {
			return f.GetCheck() == "status" && f.GetLevel() == levelWarning && strings.Contains(f.GetMessage(), "listeners/extra")
		})
	}
	if !refused() {
		t.Error("a listener that cannot be bound is fine")
	}

	// One that is shown to backends is used.
	r.propose(&lbdv1.Pool{Name: "p", Backends: []*lbdv1.Backend{{Address: "10.0.0.1:443"}}, Tls: &lbdv1.BackendTls{ClientCertificate: "client"}}, httpListener("extra", free(t)))
	r.publish()
	says(t, r.finding("unused"), levelWarning, "1 certificates are shown to nobody: old")
	if refused() {
		t.Error("a listener that is bound is not fine")
	}
}

// A host of a route that no certificate of its listener names is told; a wildcard is for one label.
func TestDoctorNames(t *testing.T) {
	r := newRig(t)
	says(t, r.finding("names"), levelOK, "every host")
	certificate := func(name string, hosts ...string) *lbdv1.Certificate {
		return &lbdv1.Certificate{Name: name, Source: &lbdv1.Certificate_SelfSigned{SelfSigned: &lbdv1.CertificateSelfSigned{Hosts: hosts}}}
	}
	listener := func(name string, certificates ...string) *lbdv1.Listener {
		return &lbdv1.Listener{Name: name, Addresses: []string{free(t)}, Protocol: lbdv1.Protocol_PROTOCOL_HTTPS, Tls: &lbdv1.ListenerTls{Certificates: certificates}}
	}
	route := respondRoute("r", 200, "all", "some", "plain")
	route.Hosts = []string{"exact.test", "a.wild.test", "*.wild.test", "127.0.0.1"}
	r.propose(certificate("exact", "exact.test"), certificate("wild", "*.wild.test"), listener("all"), listener("some", "exact"), httpListener("plain", free(t)), route)
	r.publish()
	says(t, r.finding("names"), levelWarning, "2 hosts of routes are named by no certificate: clients get the default one or no handshake: "+
		"*.wild.test (listener some), a.wild.test (listener some)")

	route.Hosts, route.Listeners = []string{"exact.test", "a.b.wild.test", "wild.test"}, []string{"all"}
	r.propose(route)
	r.publish()
	says(t, r.finding("names"), levelWarning, "a.b.wild.test (listener all), wild.test (listener all)")

	route.Hosts = []string{"exact.test", "b.wild.test"}
	r.propose(route)
	r.publish()
	says(t, r.finding("names"), levelOK, "every host")
}
