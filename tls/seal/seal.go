// Package seal keeps secrets at rest: envelope encryption under the cluster's sealing key.
//
// A secret is sealed before it enters the replicated log and opened only where it is served. What lies in the log, in
// snapshots, exports and backups is the sealed form.
package seal

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
)

const (
	keyBytes   = 32 // AES-256
	keyIDBytes = 8  // enough to tell a cluster's few keys apart
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

// Sealer seals and opens under one sealing key. It is safe for concurrent use.
type Sealer struct {
	id   [keyIDBytes]byte
	wrap cipher.AEAD
}

// NewSealer takes the sealing key's 32 bytes.
func NewSealer(key []byte) (*Sealer, error) {
	if len(key) != keyBytes {
		return nil, fmt.Errorf("sealing key of %d bytes, want %d", len(key), keyBytes)
	}
	return &Sealer{id: idOf(key), wrap: newAEAD(key)}, nil
}

// KeyID names the sealing key, in hexadecimal. It tells nothing about it.
func (s *Sealer) KeyID() string { return hex.EncodeToString(s.id[:]) }

// Seal encrypts a secret under a fresh data key and that under the sealing key. The blob is
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

	blob := make([]byte, 0, blobMin+len(secret))
	blob = append(blob, format)
	blob = append(blob, s.id[:]...)
	blob = s.wrap.Seal(blob, nil, dataKey, append(blob[:headBytes:headBytes], bound...))
	return newAEAD(dataKey).Seal(blob, nil, secret, bound)
}

// Open decrypts what Seal made with the same binding. Errors name the sealing keys by id and hold no secret.
func (s *Sealer) Open(binding Binding, blob []byte) ([]byte, error) {
	if len(blob) < blobMin || blob[0] != format {
		return nil, fmt.Errorf("open %s: %w", binding, ErrFormat)
	}
	head, wrapped, body := blob[:headBytes], blob[headBytes:headBytes+wrapBytes], blob[headBytes+wrapBytes:]
	if id := head[1:]; [keyIDBytes]byte(id) != s.id {
		return nil, fmt.Errorf("open %s: %w: %x; this node has %s", binding, ErrUnknownKey, id, s.KeyID())
	}
	bound := binding.encode()
	dataKey, err := s.wrap.Open(nil, nil, wrapped, append(head[:headBytes:headBytes], bound...))
	if err != nil {
		return nil, fmt.Errorf("open %s under key %s: %w", binding, s.KeyID(), ErrDamaged)
	}
	defer clear(dataKey)
	secret, err := newAEAD(dataKey).Open(nil, nil, body, bound)
	if err != nil {
		return nil, fmt.Errorf("open %s under key %s: %w", binding, s.KeyID(), ErrDamaged)
	}
	return secret, nil
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
