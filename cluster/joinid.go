package cluster

import (
	"os"
	"path/filepath"
)

// joinIDFile holds the id of a node that asks to be let into a cluster, before it has a seat there.
const joinIDFile = "join-id"

// NodeID is the id of the node that a directory belongs to; empty: none has ever run there.
func NodeID(dir string) (string, error) { return readNodeID(filepath.Join(dir, "node-id")) }

// MakeNodeID is the id by which a node asks to be let into a cluster. The directory keeps it, and is made if it is not there: at each call it is
// the same. Open takes it over with a [Seed].
func MakeNodeID(dir string) (string, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", &OpenError{dir, err, remedyAccess}
	}
	path := filepath.Join(dir, joinIDFile)
	id, err := readNodeID(path)
	if err != nil || id != "" {
		return id, err
	}
	id = newID("n")
	if err := writeNodeID(path, id); err != nil {
		return "", &OpenError{dir, err, remedyAccess}
	}
	return id, nil
}
