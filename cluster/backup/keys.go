package backup

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"filippo.io/age"
	"filippo.io/age/armor"
)

const (
	// recipientsMax bounds for whom sealing keys are encrypted at a time.
	recipientsMax = 20
	// passphraseBytesMin refuses what is guessed in an afternoon: a backup may lie about for years.
	passphraseBytesMin = 12
	// workFactor makes a guess at a passphrase cost 128 MiB and some tenths of a second (scrypt, N = 2^17). The node that makes the
	// backup pays it, too.
	workFactor = 17
	// workFactorMax is what a file may demand of those who open it, so that a forged one cannot take all memory: 256 MiB.
	workFactorMax = 18
	keysBytesMax  = 64 << 10
)

// hashing lets one passphrase at a time be tried: each takes that memory.
var hashing sync.Mutex

// ErrNotForThis: sealing keys that neither the identity nor the passphrase at hand opens.
var ErrNotForThis = errors.New("the sealing keys in the backup are for another identity or passphrase")

// CheckRecipient says what is wrong with a recipient ("age1…"); nil: nothing.
func CheckRecipient(text string) error {
	_, err := age.ParseX25519Recipient(text)
	if err != nil {
		return fmt.Errorf("`%s` is no recipient of age: want age1…, as age-keygen prints it", text)
	}
	return nil
}

// EncryptKeys encrypts sealing keys for recipients, or under a passphrase; one of them has to be given.
func EncryptKeys(text []byte, recipients []string, passphrase string) ([]byte, error) {
	var out bytes.Buffer
	if err := encrypt(&out, text, recipients, passphrase); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// ArmourKeys is EncryptKeys as text, for files of their own.
func ArmourKeys(text []byte, recipients []string) (string, error) {
	var out strings.Builder
	w := armor.NewWriter(&out)
	if err := encrypt(w, text, recipients, ""); err != nil {
		return "", err
	}
	err := w.Close()
	return out.String(), err
}

func encrypt(out io.Writer, text []byte, recipients []string, passphrase string) error {
	to, err := recipientsOf(recipients, passphrase)
	if err != nil {
		return err
	}
	if passphrase != "" {
		hashing.Lock()
		defer hashing.Unlock()
	}
	w, err := age.Encrypt(out, to...)
	if err != nil {
		return fmt.Errorf("encrypt sealing keys: %w", err)
	}
	if _, err := w.Write(text); err != nil {
		return fmt.Errorf("encrypt sealing keys: %w", err)
	}
	return w.Close()
}

func recipientsOf(texts []string, passphrase string) ([]age.Recipient, error) {
	switch {
	case passphrase != "" && len(texts) > 0:
		return nil, errors.New("sealing keys are either for recipients or under a passphrase, not both")
	case passphrase == "" && len(texts) == 0:
		return nil, errors.New("a recipient (age1…) or a passphrase is missing")
	case len(texts) > recipientsMax:
		return nil, fmt.Errorf("%d recipients: at most %d", len(texts), recipientsMax)
	case passphrase != "" && len(passphrase) < passphraseBytesMin:
		return nil, fmt.Errorf("the passphrase has %d bytes: at least %d", len(passphrase), passphraseBytesMin)
	case passphrase != "":
		r, err := age.NewScryptRecipient(passphrase)
		if err != nil {
			return nil, err
		}
		r.SetWorkFactor(workFactor)
		return []age.Recipient{r}, nil
	}
	var all []age.Recipient
	for _, text := range texts {
		r, err := age.ParseX25519Recipient(text)
		if err != nil {
			return nil, CheckRecipient(text)
		}
		all = append(all, r)
	}
	return all, nil
}

// DecryptKeys opens what EncryptKeys made, with identities ("AGE-SECRET-KEY-1…", a line each; lines that begin with # are left
// out) or the passphrase. ErrNotForThis: they do not fit. The caller clears the result.
func DecryptKeys(block []byte, identity, passphrase string) ([]byte, error) {
	var identities []age.Identity
	if identity != "" {
		parsed, err := age.ParseIdentities(strings.NewReader(identity))
		if err != nil {
			return nil, errors.New("this is no identity of age: want AGE-SECRET-KEY-1…, as age-keygen writes it") // age's own words may show a part of it
		}
		identities = append(identities, parsed...)
	}
	if passphrase != "" {
		i, err := age.NewScryptIdentity(passphrase)
		if err != nil {
			return nil, err
		}
		i.SetMaxWorkFactor(workFactorMax)
		identities = append(identities, i)
	}
	if len(identities) == 0 {
		return nil, errors.New("an identity or a passphrase is missing: the sealing keys in the backup are encrypted")
	}
	if passphrase != "" {
		hashing.Lock()
		defer hashing.Unlock()
	}
	r, err := age.Decrypt(bytes.NewReader(block), identities...)
	var none *age.NoIdentityMatchError
	switch {
	case errors.As(err, &none):
		return nil, ErrNotForThis
	case err != nil:
		return nil, fmt.Errorf("%w: its sealing keys: %v", ErrDamaged, err)
	}
	text, err := io.ReadAll(io.LimitReader(r, keysBytesMax))
	if err != nil {
		return nil, fmt.Errorf("%w: its sealing keys: %v", ErrDamaged, err)
	}
	return text, nil
}
