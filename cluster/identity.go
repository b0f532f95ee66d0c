package cluster

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

var (
	idForm = regexp.MustCompile(`^[a-z]-[0-9a-f]{16}$`)

	errLost     = errors.New("it is gone or empty, though this node has run before")
	errNoNodeID = errors.New("it does not hold a node id")
	errStranger = errors.New("it belongs to another node")
)

// newID is a random name: "n-" and 16 hex digits for a node, "c-" for a cluster.
func newID(kind string) string {
	var b [8]byte
	rand.Read(b[:]) // never fails
	return kind + "-" + hex.EncodeToString(b[:])
}

// readNodeID reads the file that outlives the databases: with it, a database that is not there was lost; without it,
// this is a first start. Empty: no such file.
func readNodeID(path string) (string, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", &OpenError{path, err, remedyAccess}
	}
	id := strings.TrimSpace(string(b))
	if !idForm.MatchString(id) {
		return "", &OpenError{path, errNoNodeID, remedyDamaged}
	}
	return id, nil
}

// writeNodeID makes the file whole or not at all, and durable.
func writeNodeID(path, id string) error { return writeWhole(path, []byte(id+"\n")) }

// writeWhole makes a file, or puts it in the place of another, whole or not at all, and durable.
func writeWhole(path string, content []byte) error {
	temp, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	_, err = temp.Write(content)
	err = errors.Join(err, temp.Sync(), temp.Close())
	if err == nil {
		err = os.Rename(temp.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(temp.Name()))
	}
	return syncDir(filepath.Dir(path))
}

// syncDir makes the names in a directory durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
