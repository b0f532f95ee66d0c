package rpc

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"google.golang.org/protobuf/encoding/protojson"

	raftv1 "lbd/proto/lbd/raft/v1"
)

// SeedFile, in the data directory, holds the answer to a join, without the keys. Its members count until the applied state has the node itself.
const SeedFile = "members"

// WriteSeed keeps what a node was told when it was let in, whole or not at all, and durably. Sealing keys are not among it.
func WriteSeed(dir string, answer *raftv1.JoinResponse) error {
	text, err := protojson.Marshal(&raftv1.JoinResponse{
		ClusterId: answer.GetClusterId(), Epoch: answer.GetEpoch(), Gate: answer.GetGate(), Members: answer.GetMembers(),
	})
	if err != nil {
		return err
	}
	temp, err := os.CreateTemp(dir, SeedFile+".*")
	if err != nil {
		return err
	}
	_, err = temp.Write(text)
	err = errors.Join(err, temp.Sync(), temp.Close())
	if err == nil {
		err = os.Rename(temp.Name(), filepath.Join(dir, SeedFile))
	}
	if err != nil {
		return errors.Join(err, os.Remove(temp.Name()))
	}
	return syncDir(dir)
}

// ReadSeed reads what WriteSeed has written; nil where there is no such file.
func ReadSeed(dir string) (*raftv1.JoinResponse, error) {
	text, err := os.ReadFile(filepath.Join(dir, SeedFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var seed raftv1.JoinResponse
	if err := protojson.Unmarshal(text, &seed); err != nil {
		return nil, fmt.Errorf("read %s: %w: it is not what `lbd join` has written; put it back from a copy, or join anew on an empty directory", filepath.Join(dir, SeedFile), err)
	}
	return &seed, nil
}

// syncDir makes the names in a directory durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
