package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"lbd/cluster/rpc"
	"lbd/cluster/state"
	"lbd/tls/seal"
)

// sealKeyFile is where the sealing keys are unless --seal-key says otherwise.
const sealKeyFile = "seal.key"

// openKeys reads the sealing keys. It makes one only where nothing is sealed yet: with another key the stored secrets could never be
// opened again. A node whose keys do not open what it has to serve does not start; what only the history has is told.
func openKeys(ctx context.Context, cfg config, s *state.State, log *slog.Logger) (keys, error) {
	source, err := seal.ParseSource(cfg.sealKey, filepath.Join(cfg.dataDir, sealKeyFile))
	if err != nil {
		return keys{}, err
	}
	needed := neededKeys(s)
	ring, err := seal.OpenRing(ctx, source, len(needed) == 0)
	if errors.Is(err, fs.ErrNotExist) && source.Writable() {
		return keys{}, fmt.Errorf("%w: the certificates' keys cannot be opened without it: put it back from a copy", err)
	}
	if err != nil {
		return keys{}, err
	}
	k := keys{ring: ring, now: time.Now}
	has := ring.Sealer().KeyIDs()
	for id, present := range needed {
		switch {
		case slices.Contains(has, id):
		case hasOthers(s): // they are asked for it
			log.Warn("secrets are under a sealing key that is not here: another node may have it, and is asked; what it opens is not served until then", "key", id, "source", source.String())
		case present:
			return keys{}, fmt.Errorf("%s has no sealing key %s, under which stored secrets are: add its line from a copy (it has %v)", source, id, has)
		default:
			log.Warn("the history has secrets under a sealing key that is not there: they cannot be rolled back to", "key", id, "source", source.String())
		}
	}
	return k, nil
}

// neededKeys are the ids of the sealing keys under which something is, and whether that is of the present.
func neededKeys(s *state.State) map[string]bool {
	needed := map[string]bool{}
	for secret := range s.Secrets() {
		if id, err := seal.KeyOf(secret.Sealed); err == nil {
			needed[id] = needed[id] || !secret.History
		}
	}
	return needed
}

func bindingOf(clusterID string, s state.Secret) seal.Binding {
	return seal.Binding{ClusterID: clusterID, Kind: string(s.Kind), Name: s.Name, Version: s.Version}
}

// SealKeys implements rpc.Sealing.
func (k keys) SealKeys() (ids []string, source string) {
	return k.ring.Sealer().KeyIDs(), k.ring.Source().String()
}

// SealKeyOf implements rpc.Sealing.
func (k keys) SealKeyOf(sealed []byte) (string, error) { return seal.KeyOf(sealed) }

// Rewrap implements rpc.Sealing.
func (k keys) Rewrap(clusterID string, s state.Secret, key string) ([]byte, error) {
	sealer, err := k.ring.Sealer().Under(key)
	if err != nil {
		return nil, err
	}
	return sealer.Rewrap(bindingOf(clusterID, s), s.Sealed)
}

// StageSealKey implements rpc.Sealing.
func (k keys) StageSealKey(ctx context.Context) (id string, err error) {
	id, err = k.ring.Stage(ctx)
	return id, sealFault(err)
}

// AddSealKeys implements rpc.Sealing.
func (k keys) AddSealKeys(ctx context.Context, text []byte) error {
	others, err := seal.ParseKeys(text)
	if err != nil {
		return err
	}
	return sealFault(k.ring.Add(ctx, others))
}

// ActivateSealKey implements rpc.Sealing.
func (k keys) ActivateSealKey(id string) error { return sealFault(k.ring.Activate(id)) }

// RetireSealKey implements rpc.Sealing.
func (k keys) RetireSealKey(id string) error { return sealFault(k.ring.Retire(id)) }

// sealFault says whose fault it is that the sealing keys cannot be changed.
func sealFault(err error) error {
	var file *fs.PathError
	var rename *os.LinkError
	switch {
	case errors.Is(err, seal.ErrNotWritable):
		return &rpc.SealSourceError{Text: err.Error()}
	case errors.Is(err, seal.ErrFull):
		return &rpc.SealFullError{}
	case errors.As(err, &file) || errors.As(err, &rename):
		return &rpc.SealDiskError{Err: err}
	}
	return err
}

// SealKeyText implements rpc.Sealing.
func (k keys) SealKeyText(ids []string) []byte { return k.ring.Sealer().KeyText(ids...) }

// Resealer implements rpc.Sealing.
func (k keys) Resealer(text []byte) (rpc.Reseal, error) {
	openers := []*seal.Sealer{k.ring.Sealer()}
	if len(text) > 0 {
		s, err := seal.ParseKeys(text)
		if err != nil {
			return nil, err
		}
		openers = append(openers, s)
	}
	return func(from, to string, s state.Secret) ([]byte, error) {
		var err error
		for _, opener := range openers {
			var plain []byte
			if plain, err = opener.Open(bindingOf(from, s), s.Sealed); err == nil {
				defer clear(plain)
				return k.ring.Sealer().Seal(bindingOf(to, s), plain), nil
			}
			if !errors.Is(err, seal.ErrUnknownKey) {
				return nil, err
			}
		}
		id, _ := seal.KeyOf(s.Sealed)
		return nil, &rpc.SealKeyError{ID: id}
	}, nil
}
