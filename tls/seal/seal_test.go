package seal

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"testing"
)

var (
	testKey = bytes.Repeat([]byte{0x5a}, keyBytes)
	binding = Binding{ClusterID: "c1", Kind: "certificates", Name: "shop", Version: "ab12"}
	secret  = []byte("the private key of shop.example.com")
)

func sealer(t testing.TB, key []byte) *Sealer {
	t.Helper()
	s, err := NewSealer(key)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestSealOpen(t *testing.T) {
	s := sealer(t, testKey)
	for _, secret := range [][]byte{secret, {}, bytes.Repeat([]byte{1}, 100_000)} {
		blob := s.Seal(binding, secret)
		if got, err := s.Open(binding, blob); err != nil || !bytes.Equal(got, secret) {
			t.Errorf("%d bytes: got %d, %v", len(secret), len(got), err)
		}
		if len(blob) != blobMin+len(secret) {
			t.Errorf("a blob of %d bytes for %d", len(blob), len(secret))
		}
		if len(secret) > 8 && bytes.Contains(blob, secret[:8]) {
			t.Error("the blob has the secret in the clear")
		}
	}
	if bytes.Equal(s.Seal(binding, secret), s.Seal(binding, secret)) {
		t.Error("two blobs are alike: the data key or the nonce is not fresh")
	}
	if _, err := NewSealer(testKey[1:]); err == nil {
		t.Error("a short sealing key is taken")
	}
}

// TestOpenRefuses: another binding, any changed byte, any other length and another key.
func TestOpenRefuses(t *testing.T) {
	s := sealer(t, testKey)
	blob := s.Seal(binding, secret)
	for _, other := range []Binding{
		{"c2", "certificates", "shop", "ab12"},
		{"c1", "ticket_keys", "shop", "ab12"},
		{"c1", "certificates", "shap", "ab12"},
		{"c1", "certificates", "shop", "ab13"},
		{"c1", "certificatess", "hop", "ab12"},
		{"", "", "", ""},
	} {
		if _, err := s.Open(other, blob); !errors.Is(err, ErrDamaged) {
			t.Errorf("opened as %+v: %v", other, err)
		}
	}
	for i := range blob {
		changed := bytes.Clone(blob)
		changed[i] ^= 1
		want := ErrDamaged
		switch {
		case i == 0:
			want = ErrFormat
		case i < headBytes:
			want = ErrUnknownKey
		}
		if _, err := s.Open(binding, changed); !errors.Is(err, want) {
			t.Errorf("byte %d changed: %v, want %v", i, err, want)
		}
		if _, err := s.Open(binding, blob[:i]); err == nil {
			t.Errorf("opened the first %d bytes", i)
		}
	}
	if _, err := s.Open(binding, append(bytes.Clone(blob), 0)); !errors.Is(err, ErrDamaged) {
		t.Errorf("a byte more: %v", err)
	}
}

// TestSwappedParts: the two parts of a blob belong together, though both are good by themselves.
func TestSwappedParts(t *testing.T) {
	s := sealer(t, testKey)
	a, b := s.Seal(binding, secret), s.Seal(binding, []byte("another"))
	mixed := append(bytes.Clone(a[:headBytes+wrapBytes]), b[headBytes+wrapBytes:]...)
	if _, err := s.Open(binding, mixed); !errors.Is(err, ErrDamaged) {
		t.Errorf("got %v", err)
	}
}

func TestErrorsNameTheKey(t *testing.T) {
	s, other := sealer(t, testKey), sealer(t, bytes.Repeat([]byte{7}, keyBytes))
	blob := other.Seal(binding, secret)
	_, err := s.Open(binding, blob)
	want := fmt.Sprintf("open certificates/shop: sealed under another key: %s; this node has %s", other.KeyID(), s.KeyID())
	if !errors.Is(err, ErrUnknownKey) || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	_, err = s.Open(Binding{Kind: "certificates", Name: "shop"}, s.Seal(binding, secret))
	if want := "open certificates/shop under key " + s.KeyID() + ": damaged, or sealed as something else"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	if s.KeyID() == other.KeyID() || len(s.KeyID()) != 2*keyIDBytes {
		t.Errorf("ids %s and %s", s.KeyID(), other.KeyID())
	}
	if strings.Contains(hex.EncodeToString(testKey), s.KeyID()) || strings.Contains(fmt.Sprintf("%v %+v", s.KeyID(), err), base64.StdEncoding.EncodeToString(testKey)) {
		t.Error("an id or error shows the key")
	}
}

// TestBindingEncoding: no two bindings have one encoding, however their fields are cut.
func TestBindingEncoding(t *testing.T) {
	seen := map[string]Binding{}
	fields := []string{"", "a", "aa", "ab", "b", "\x01a", "\x01"}
	for _, c := range fields {
		for _, k := range fields {
			for _, n := range fields {
				for _, v := range fields {
					b := Binding{c, k, n, v}
					if other, taken := seen[string(b.encode())]; taken {
						t.Fatalf("%+v and %+v", b, other)
					}
					seen[string(b.encode())] = b
				}
			}
		}
	}
}

// TestFormatIsStable opens a blob of the first release: what is in a log today must open for ever.
func TestFormatIsStable(t *testing.T) {
	blob, err := base64.StdEncoding.DecodeString(blobOfFormat1)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := sealer(t, testKey).Open(binding, blob); err != nil || !bytes.Equal(got, secret) {
		t.Errorf("got %q, %v", got, err)
	}
}

const blobOfFormat1 = "AYTSRHRUmxhm8DrVZR06vJbfXEBOGlDdTj9iEtx3E948TtgFheF7tGrTDx21mN0Kfc0oIv1VqKNva5N+UfiiL5vN5W3J8/nit7dgQPtbo/rCOuH/e6lfWoIJ6pcOciC8pJJMH8XomIUW3AXE8YShStt1GrYFH2e4GoSSUbZr/cHDL2Rh"

// FuzzOpen: no bytes make it panic, and none but its own open.
func FuzzOpen(f *testing.F) {
	s := sealer(f, testKey)
	own, err := base64.StdEncoding.DecodeString(blobOfFormat1) // the same in each of the fuzzer's processes
	if err != nil {
		f.Fatal(err)
	}
	f.Add(own)
	f.Add(own[:blobMin])
	f.Add(append([]byte{2}, own[1:]...))
	f.Fuzz(func(t *testing.T, blob []byte) {
		got, err := s.Open(binding, blob)
		if err == nil && !bytes.Equal(blob, own) {
			t.Errorf("opened a forged blob: %q", got)
		}
	})
}
