package backup

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"filippo.io/age"
	"filippo.io/age/armor"
)

const keyText = "lbd-sealing-key-1 0011223344556677 c2VjcmV0\n"

func identity(t *testing.T) *age.X25519Identity {
	t.Helper()
	i, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	return i
}

func TestKeysForRecipients(t *testing.T) {
	mine, theirs, stranger := identity(t), identity(t), identity(t)
	block, err := EncryptKeys([]byte(keyText), []string{mine.Recipient().String(), theirs.Recipient().String()}, "")
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(block, []byte("c2VjcmV0")) {
		t.Error("the keys are in the clear")
	}
	for _, who := range []*age.X25519Identity{mine, theirs} {
		// As age-keygen writes it, with comments.
		if got, err := DecryptKeys(block, "# created: today\n"+who.String()+"\n", ""); err != nil || string(got) != keyText {
			t.Errorf("%q, %v", got, err)
		}
	}
	if _, err := DecryptKeys(block, stranger.String(), ""); !errors.Is(err, ErrNotForThis) {
		t.Errorf("a stranger: %v", err)
	}
	if _, err := DecryptKeys(block, "", "some passphrase"); !errors.Is(err, ErrNotForThis) {
		t.Errorf("a passphrase: %v", err)
	}
	if _, err := DecryptKeys(block, "", ""); err == nil || !strings.Contains(err.Error(), "an identity or a passphrase is missing") {
		t.Errorf("nothing: %v", err)
	}
	if _, err := DecryptKeys(block, "AGE-SECRET-KEY-1NOPE", ""); err == nil || strings.Contains(err.Error(), "NOPE") {
		t.Errorf("no identity: %v", err)
	}
	for i := range block {
		bad := bytes.Clone(block)
		bad[i] ^= 1
		if got, err := DecryptKeys(bad, mine.String(), ""); err == nil && string(got) != keyText {
			t.Errorf("byte %d changed: %q", i, got)
		}
	}
}

func TestKeysUnderAPassphrase(t *testing.T) {
	block, err := EncryptKeys([]byte(keyText), nil, "correct horse battery")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := DecryptKeys(block, "", "correct horse battery"); err != nil || string(got) != keyText {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := DecryptKeys(block, "", "correct horse batterx"); !errors.Is(err, ErrNotForThis) {
		t.Errorf("another passphrase: %v", err)
	}
	if _, err := DecryptKeys(block, identity(t).String(), ""); !errors.Is(err, ErrNotForThis) {
		t.Errorf("an identity: %v", err)
	}
}

func TestArmour(t *testing.T) {
	mine := identity(t)
	text, err := ArmourKeys([]byte(keyText), []string{mine.Recipient().String()})
	if err != nil || !strings.HasPrefix(text, armor.Header+"\n") || !strings.HasSuffix(text, armor.Footer+"\n") {
		t.Fatalf("%q, %v", text, err)
	}
	r, err := age.Decrypt(armor.NewReader(strings.NewReader(text)), mine)
	if err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	if _, err := got.ReadFrom(r); err != nil || got.String() != keyText {
		t.Errorf("%q, %v", got.String(), err)
	}
}

func TestWhatKeysAreNotEncryptedFor(t *testing.T) {
	mine := identity(t).Recipient().String()
	for _, test := range []struct {
		recipients []string
		passphrase string
		want       string
	}{
		{nil, "", "a recipient (age1…) or a passphrase is missing"},
		{[]string{mine}, "correct horse battery", "not both"},
		{nil, "short", "at least 12"},
		{[]string{"age1nope"}, "", "is no recipient of age"},
		{make([]string, 21), "", "at most 20"},
	} {
		if _, err := EncryptKeys([]byte(keyText), test.recipients, test.passphrase); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%q, %q: %v", test.recipients, test.passphrase, err)
		}
	}
	last := "q" // of the alphabet of bech32, and another one than there is
	if strings.HasSuffix(mine, last) {
		last = "p"
	}
	if CheckRecipient(mine) != nil || CheckRecipient(mine[:len(mine)-1]+last) == nil {
		t.Error("CheckRecipient is wrong")
	}
}
