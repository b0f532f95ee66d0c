package seal

import (
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

// keyFileTag opens the one line of a key file: tag, key id, key in base64. The id finds a damaged or mistyped key.
const keyFileTag = "lbd-sealing-key-1"

// keyFileBytesMax is more than a key file ever has.
const keyFileBytesMax = 256

// Load reads a sealing key from a file that no one but its owner can read. A missing file is an error that wraps
// fs.ErrNotExist: a node that has sealed secrets must not go on with a new key.
func Load(path string) (*Sealer, error) {
	text, err := readPrivate(path)
	if err != nil {
		return nil, fmt.Errorf("load sealing key: %w", err)
	}
	defer clear(text)
	key, err := parseKeyFile(text)
	if err != nil {
		return nil, fmt.Errorf("load sealing key: %s: %w", path, err)
	}
	defer clear(key)
	return NewSealer(key)
}

// LoadOrCreate is Load, but makes a key where there is no file. It is for the first start of a first node. The file is
// complete and on disk, or not there at all, whenever the machine stops; an existing file is never written to.
func LoadOrCreate(path string) (*Sealer, error) {
	s, err := Load(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return s, err
	}
	key := make([]byte, keyBytes)
	defer clear(key)
	_, _ = rand.Read(key) // never fails
	if err := createKeyFile(path, key); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("create sealing key: %w", err)
	}
	return Load(path) // what is on disk counts, also if another process was first
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

func parseKeyFile(text []byte) ([]byte, error) {
	fields := strings.Fields(string(text))
	if len(fields) != 3 || fields[0] != keyFileTag {
		return nil, fmt.Errorf("not a sealing key: want one line %q, key id and key", keyFileTag)
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

// createKeyFile writes beside path, then gives the complete file its name, which fails if the name is taken.
func createKeyFile(path string, key []byte) error {
	id := idOf(key)
	line := fmt.Appendf(nil, "%s %x %s\n", keyFileTag, id, base64.StdEncoding.EncodeToString(key))
	defer clear(line)
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, "."+filepath.Base(path)+"-*") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	if _, err := f.Write(line); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := os.Link(f.Name(), path); err != nil {
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
