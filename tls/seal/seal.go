// Package seal keeps secrets at rest: envelope encryption under the cluster's sealing key.
//
// A secret is sealed before it enters the replicated log and opened only where it is served. What lies in the log, in
// snapshots, exports and backups is the sealed form.
package seal

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
)

const (
	keyBytes   = 32 // AES-256
	keyIDBytes = 8  // enough to tell a cluster's few keys apart
	keysMax    = 16 // of a cluster at a time: one, and those that old backups need
	format     = 1  // first byte of a blob
	gcmExtra   = 12 + 16
	wrapBytes  = keyBytes + gcmExtra
	headBytes  = 1 + keyIDBytes
	blobMin    = headBytes + wrapBytes + gcmExtra
)

// Binding says what a secret is. It is authenticated with the blob: a sealed secret opens only as what it was sealed as, so
// whoever can write the log cannot exchange two of them.
type Binding struct {
	ClusterID string
	Kind      string // "certificates"
	Name      string
	// Version tells this content from others of the same name. For a private key it is the SHA-256 of its public key: the
	// pair cannot be torn apart, and the blob stays good when a resource is stored again unchanged.
	Version string
}

// Errors of Open; match with errors.Is. None is worth a retry with the same key.
var (
	ErrFormat     = errors.New("not a sealed secret that this version knows")
	ErrUnknownKey = errors.New("sealed under another key")
	ErrDamaged    = errors.New("damaged, or sealed as something else")
)

// Sealer seals and opens under a cluster's sealing keys: it seals under the first, the active one, and opens under each.
// It is immutable.
type Sealer struct {
	keys []sealingKey // at least one
}

// sealingKey is one key: what names it, what it is, and what it does.
type sealingKey struct {
	id   [keyIDBytes]byte
	raw  []byte
	wrap cipher.AEAD
}

// NewSealer takes sealing keys of 32 bytes, the active one first. None may be there twice.
func NewSealer(keys ...[]byte) (*Sealer, error) {
	if len(keys) == 0 || len(keys) > keysMax {
		return nil, fmt.Errorf("%d sealing keys, want 1 to %d", len(keys), keysMax)
	}
	s := &Sealer{}
	for _, key := range keys {
		if len(key) != keyBytes {
			return nil, fmt.Errorf("sealing key of %d bytes, want %d", len(key), keyBytes)
		}
		id := idOf(key)
		if _, twice := s.find(id); twice {
			return nil, fmt.Errorf("sealing key %x is there twice", id)
		}
		s.keys = append(s.keys, sealingKey{id, bytes.Clone(key), newAEAD(key)})
	}
	return s, nil
}

// KeyID names the active key, in hexadecimal. It tells nothing about it.
func (s *Sealer) KeyID() string { return hex.EncodeToString(s.keys[0].id[:]) }

// KeyIDs names all keys, the active one first.
func (s *Sealer) KeyIDs() []string {
	ids := make([]string, len(s.keys))
	for i, k := range s.keys {
		ids[i] = hex.EncodeToString(k.id[:])
	}
	return ids
}

// Under is the sealer with another one of its keys as the active one.
func (s *Sealer) Under(id string) (*Sealer, error) {
	at := slices.Index(s.KeyIDs(), id)
	switch {
	case at < 0:
		return nil, fmt.Errorf("%w: %s; this node has %s", ErrUnknownKey, id, strings.Join(s.KeyIDs(), ", "))
	case at == 0:
		return s, nil
	}
	keys := slices.Delete(slices.Clone(s.keys), at, at+1)
	return &Sealer{keys: slices.Insert(keys, 0, s.keys[at])}, nil
}

func (s *Sealer) find(id [keyIDBytes]byte) (sealingKey, bool) {
	for _, k := range s.keys {
		if k.id == id {
			return k, true
		}
	}
	return sealingKey{}, false
}

// KeyOf names the sealing key under which a blob is; ErrFormat if it is none.
func KeyOf(blob []byte) (string, error) {
	if len(blob) < blobMin || blob[0] != format {
		return "", ErrFormat
	}
	return hex.EncodeToString(blob[1:headBytes]), nil
}

// Seal encrypts a secret under a fresh data key and that under the active sealing key. The blob is
//
//	1 byte   format
//	8 bytes  id of the sealing key
//	60 bytes data key: nonce, ciphertext, tag; authenticated with all before it and the binding
//	rest     secret: nonce, ciphertext, tag; authenticated with the binding
//
// The secret's own part does not depend on the sealing key: to change that key is to write 60 bytes anew.
func (s *Sealer) Seal(binding Binding, secret []byte) []byte {
	dataKey := make([]byte, keyBytes)
	defer clear(dataKey)
	_, _ = rand.Read(dataKey) // never fails
	bound := binding.encode()
	return newAEAD(dataKey).Seal(s.wrapKey(dataKey, bound, len(secret)), nil, secret, bound)
}

// wrapKey begins a blob: its head, and the data key under the active sealing key.
func (s *Sealer) wrapKey(dataKey, bound []byte, secretBytes int) []byte {
	active := s.keys[0]
	blob := make([]byte, 0, blobMin+secretBytes)
	blob = append(blob, format)
	blob = append(blob, active.id[:]...)
	return active.wrap.Seal(blob, nil, dataKey, append(blob[:headBytes:headBytes], bound...))
}

// Open decrypts what Seal made with the same binding. Errors name the sealing keys by id and hold no secret.
func (s *Sealer) Open(binding Binding, blob []byte) ([]byte, error) {
	dataKey, key, err := s.unwrap(binding, blob)
	if err != nil {
		return nil, err
	}
	defer clear(dataKey)
	secret, err := newAEAD(dataKey).Open(nil, nil, blob[headBytes+wrapBytes:], binding.encode())
	if err != nil {
		return nil, fmt.Errorf("open %s under key %x: %w", binding, key.id, ErrDamaged)
	}
	return secret, nil
}

// Rewrap is the blob under the active key: the data key's wrap is new, the secret's part is what it was and is not looked at.
// A blob that is under the active key already comes back as it is. Errors are those of Open.
func (s *Sealer) Rewrap(binding Binding, blob []byte) ([]byte, error) {
	dataKey, key, err := s.unwrap(binding, blob)
	if err != nil {
		return nil, err
	}
	defer clear(dataKey)
	if key.id == s.keys[0].id {
		return blob, nil
	}
	body := blob[headBytes+wrapBytes:]
	return append(s.wrapKey(dataKey, binding.encode(), len(body)), body...), nil
}

// unwrap opens a blob's data key.
func (s *Sealer) unwrap(binding Binding, blob []byte) (dataKey []byte, key sealingKey, err error) {
	if len(blob) < blobMin || blob[0] != format {
		return nil, key, fmt.Errorf("open %s: %w", binding, ErrFormat)
	}
	head, wrapped := blob[:headBytes], blob[headBytes:headBytes+wrapBytes]
	key, known := s.find([keyIDBytes]byte(head[1:]))
	if !known {
		return nil, key, fmt.Errorf("open %s: %w: %x; this node has %s", binding, ErrUnknownKey, head[1:], strings.Join(s.KeyIDs(), ", "))
	}
	dataKey, err = key.wrap.Open(nil, nil, wrapped, append(head[:headBytes:headBytes], binding.encode()...))
	if err != nil {
		return nil, key, fmt.Errorf("open %s under key %x: %w", binding, key.id, ErrDamaged)
	}
	return dataKey, key, nil
}

// String names the secret in errors.
func (b Binding) String() string { return b.Kind + "/" + b.Name }

// encode writes each field with its length, so that no two bindings have one encoding.
func (b Binding) encode() []byte {
	out := []byte("lbd sealed secret")
	for _, field := range [...]string{b.ClusterID, b.Kind, b.Name, b.Version} {
		out = binary.AppendUvarint(out, uint64(len(field)))
		out = append(out, field...)
	}
	return out
}

// idOf is a one-way name of a key.
func idOf(key []byte) [keyIDBytes]byte {
	sum := sha256.Sum256(append([]byte("lbd sealing key id"), key...))
	return [keyIDBytes]byte(sum[:keyIDBytes])
}

// newAEAD is AES-256-GCM with a random nonce before each ciphertext. It panics on a key of another length, which no
// input can cause.
func newAEAD(key []byte) cipher.AEAD {
	block, err := aes.NewCipher(key)
	if err != nil {
		panic(err)
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		panic(err)
	}
	return aead
}
