package seal

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// keyFileTag opens a line of a key file: tag, key id, key in base64. The id finds a damaged or mistyped key. The first line is
// the active key.
const keyFileTag = "lbd-sealing-key-1"

// keyFileBytesMax is more than a key file ever has.
const keyFileBytesMax = 4 << 10

// Load reads sealing keys from a file that no one but its owner can read. A missing file is an error that wraps
// fs.ErrNotExist: a node that has sealed secrets must not go on with a new key.
func Load(path string) (*Sealer, error) {
	text, err := readPrivate(path)
	if err != nil {
		return nil, fmt.Errorf("load sealing key: %w", err)
	}
	defer clear(text)
	s, err := ParseKeys(text)
	if err != nil {
		return nil, fmt.Errorf("load sealing key: %s: %w", path, err)
	}
	return s, nil
}

// LoadOrCreate is Load, but makes a key where there is no file. It is for the first start of a first node. The file is
// complete and on disk, or not there at all, whenever the machine stops; an existing file is never written to.
func LoadOrCreate(path string) (*Sealer, error) {
	s, err := Load(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return s, err
	}
	key := newKey()
	defer clear(key)
	text := keyLine(key)
	defer clear(text)
	if err := writeKeyFile(path, text, os.Link); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("create sealing key: %w", err)
	}
	return Load(path) // what is on disk counts, also if another process was first
}

// NewKeyLine makes a sealing key, as a line of a key file: for keys that lbd does not keep itself.
func NewKeyLine() []byte {
	key := newKey()
	defer clear(key)
	return keyLine(key)
}

// newKey makes a sealing key.
func newKey() []byte {
	key := make([]byte, keyBytes)
	_, _ = rand.Read(key) // never fails
	return key
}

// readPrivate reads a small file after a look at its permissions.
func readPrivate(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return nil, fmt.Errorf("%s: mode %04o lets others use it: chmod 600 %s, and take the key as known to them", path, mode, path)
	}
	if info.Size() > keyFileBytesMax {
		return nil, fmt.Errorf("%s: %d bytes are no sealing key", path, info.Size())
	}
	text := make([]byte, info.Size())
	n, err := f.ReadAt(text, 0)
	if n < len(text) {
		return nil, err
	}
	return text, nil
}

// ParseKeys reads the content of a key file: a key a line, the active one first. Errors do not show a key.
func ParseKeys(text []byte) (*Sealer, error) {
	var keys [][]byte
	defer func() {
		for _, key := range keys {
			clear(key)
		}
	}()
	for line := range strings.Lines(strings.TrimSpace(string(text))) {
		key, err := parseKeyLine(line)
		if err != nil {
			return nil, err
		}
		keys = append(keys, key)
	}
	if len(keys) == 0 {
		return nil, errNoKey
	}
	return NewSealer(keys...)
}

var errNoKey = fmt.Errorf("not a sealing key: want a line %q, key id and key", keyFileTag)

func parseKeyLine(line string) ([]byte, error) {
	fields := strings.Fields(line)
	if len(fields) != 3 || fields[0] != keyFileTag {
		return nil, errNoKey
	}
	key, err := base64.StdEncoding.DecodeString(fields[2])
	if err != nil || len(key) != keyBytes {
		return nil, errors.New("the key is damaged: restore the file from where you keep its copy")
	}
	if id := idOf(key); hex.EncodeToString(id[:]) != fields[1] {
		return nil, fmt.Errorf("the key is not the one named %s: restore the file from where you keep its copy", fields[1])
	}
	return key, nil
}

// KeyText is the content of a key file with the keys of these ids, as far as they are there, in the sealer's order. The
// caller clears it.
func (s *Sealer) KeyText(ids ...string) []byte {
	var text []byte
	for i, id := range s.KeyIDs() {
		for _, wanted := range ids {
			if wanted == id {
				text = append(text, keyLine(s.keys[i].raw)...)
				break
			}
		}
	}
	return text
}

func keyLine(key []byte) []byte {
	return fmt.Appendf(nil, "%s %x %s\n", keyFileTag, idOf(key), base64.StdEncoding.EncodeToString(key))
}

// writeKeyFile writes beside path, then gives the complete file its name: by os.Link, which fails if the name is taken, or by
// os.Rename, which replaces. It is on disk when this returns nil.
func writeKeyFile(path string, text []byte, give func(from, to string) error) error {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, "."+filepath.Base(path)+"-*") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	if _, err := f.Write(text); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := give(f.Name(), path); err != nil {
		return err
	}
	return syncDir(dir)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// Import puts another node's keys, the content of a key file, where a source of files keeps them: as they are where there is none yet, else
// behind those that are there.
func Import(ctx context.Context, source Source, text []byte) error {
	others, err := ParseKeys(text)
	if err != nil {
		return err
	}
	if err := writeKeyFile(source.what, text, os.Link); !errors.Is(err, fs.ErrExist) {
		return err
	}
	ring, err := OpenRing(ctx, source, false)
	if err != nil {
		return err
	}
	return ring.Add(ctx, others)
}
