package rpc

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	lbdv1 "lbd/proto/lbd/v1"
)

// TestApplyChecksTrustBundles: each fault is said once, whoever finds it, and what is exported applies as no change.
func TestApplyChecksTrustBundles(t *testing.T) {
	r := newRig(t)
	id := newIdentity(t, "ca.example")
	bundle := func(text string) *lbdv1.TrustBundle { return &lbdv1.TrustBundle{Name: "ca", Ca: inline(text)} }
	for text, want := range map[string]string{
		"no PEM":          "holds no certificate",
		id.chain + id.key: "holds a private key",
		"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n": "certificate 1: x509: ",
	} {
		_, err := r.apply(owner("web"), bundle(text))
		f := failureOf(t, err)
		if got := f.fields[`trust_bundles["ca"].ca.inline`]; f.code != codes.InvalidArgument || len(f.fields) != 1 || !strings.Contains(got, want) {
			t.Errorf("%v, want %q", f, want)
		}
	}
	r.mustApply(owner("web"), bundle("# ours\n"+id.chain))
	exported := r.export("web")
	if len(exported) != 1 || exported[0].GetTrustBundle().GetCa().GetInline() != id.chain {
		t.Fatalf("exported %v", exported)
	}
	if answer := r.mustApply(owner("web"), exported[0].GetTrustBundle()); len(answer.GetChanges()) > 0 {
		t.Errorf("what was exported applies as %s", changesOf(answer.GetChanges()))
	}
}
