package state

import (
	"crypto/tls"
	"slices"
	"strings"
	"testing"
)

// TestCipherSuitesAreThoseOfGo compares the table with what crypto/tls has and does not call insecure.
func TestCipherSuitesAreThoseOfGo(t *testing.T) {
	var want []string
	for _, suite := range tls.CipherSuites() {
		if slices.Contains(suite.SupportedVersions, tls.VersionTLS12) {
			want = append(want, suite.Name)
		}
	}
	got := slices.Sorted(slices.Values(cipherSuites))
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("table %v\ncrypto/tls %v", got, want)
	}
}

// TestGroupsAreThoseOfGo compares names: crypto/tls calls P256 CurveP256.
func TestGroupsAreThoseOfGo(t *testing.T) {
	var want []string
	for _, id := range []tls.CurveID{tls.X25519MLKEM768, tls.SecP256r1MLKEM768, tls.SecP384r1MLKEM1024, tls.X25519, tls.CurveP256, tls.CurveP384, tls.CurveP521} {
		want = append(want, strings.TrimPrefix(id.String(), "Curve"))
	}
	if !slices.Equal(groups, want) {
		t.Errorf("table %v\ncrypto/tls %v", groups, want)
	}
}
