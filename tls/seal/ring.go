package seal

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
)

// Ring holds a running node's sealing keys, and changes them. It is safe for concurrent use.
//
// A key comes in behind the active one, so that every node of a cluster can have it before anything is sealed under it. Then it becomes the
// active one and pushes those before it back, under which secrets can still be opened. It leaves when nothing is sealed under it any more:
//
//	made -> staged -> active -> opens only -> gone
type Ring struct {
	source Source
	sealer atomic.Pointer[Sealer] // written under changing

	changing sync.Mutex
}

// ErrNotWritable: the keys come from where only an operator can put another.
var ErrNotWritable = errors.New("the sealing keys come from where lbd cannot write")

// ErrFull: there are as many sealing keys as there may be.
var ErrFull = errors.New("there are too many sealing keys: retire one first")

// OpenRing reads the keys from their source. With create a file that is not there is made, with a new key: only for a node that
// has nothing sealed yet. A missing file is an error that wraps fs.ErrNotExist otherwise.
func OpenRing(ctx context.Context, source Source, create bool) (*Ring, error) {
	s, err := source.load(ctx, create)
	if err != nil {
		return nil, err
	}
	r := &Ring{source: source}
	r.sealer.Store(s)
	return r, nil
}

// Sealer has the keys of this moment.
func (r *Ring) Sealer() *Sealer { return r.sealer.Load() }

// Source is where the keys are from.
func (r *Ring) Source() Source { return r.source }

// Stage brings a new key in, without making it the active one, and returns its id. From a file's source it is a fresh one, and on disk when
// this returns. From another source the keys are read again: the one that it begins with is the new one, and ErrNotWritable says that this is
// the active one still. A key that this node has and the source has no more stays until the node ends: secrets may be under it.
func (r *Ring) Stage(ctx context.Context) (id string, err error) {
	r.changing.Lock()
	defer r.changing.Unlock()
	now := r.Sealer()
	if !r.source.Writable() {
		return r.readAgain(ctx, now)
	}
	key := newKey()
	defer clear(key)
	next, err := now.with(key)
	if err != nil {
		return "", err
	}
	raw := idOf(key)
	return hex.EncodeToString(raw[:]), r.write(now, next)
}

// Add takes keys in that another node has, behind those that are here; what is here already is left alone. Where lbd cannot write, the source
// has to have them: it is read again, and ErrNotWritable says which one it lacks.
func (r *Ring) Add(ctx context.Context, others *Sealer) error {
	r.changing.Lock()
	defer r.changing.Unlock()
	now := r.Sealer()
	if !r.source.Writable() && !now.hasAll(others) {
		if _, err := r.readAgain(ctx, now); err != nil && !errors.Is(err, ErrNotWritable) {
			return err
		}
		now = r.Sealer()
		for _, k := range others.keys {
			if _, has := now.find(k.id); !has {
				return fmt.Errorf("%w: %s has no key %x, which the cluster's other nodes have: bring it there first", ErrNotWritable, r.source, k.id)
			}
		}
	}
	if now.hasAll(others) {
		return nil
	}
	next, err := now.withMissing(others)
	if err != nil {
		return err
	}
	return r.write(now, next)
}

// Hold takes keys in as Add does, until the process ends, wherever the others are from.
func (r *Ring) Hold(others *Sealer) error {
	r.changing.Lock()
	defer r.changing.Unlock()
	next, err := r.Sealer().withMissing(others)
	if err == nil {
		r.sealer.Store(next)
	}
	return err
}

// Activate makes a key that is here the active one. Where lbd cannot write, the order is kept until the node ends.
func (r *Ring) Activate(id string) error {
	r.changing.Lock()
	defer r.changing.Unlock()
	now := r.Sealer()
	next, err := now.Under(id)
	if err != nil || next == now {
		return err
	}
	return r.write(now, next)
}

// readAgain takes over what the source says now, behind the active key, and returns the key that it begins with.
func (r *Ring) readAgain(ctx context.Context, now *Sealer) (string, error) {
	read, err := r.source.load(ctx, false)
	if err != nil {
		return "", err
	}
	next, err := now.withMissing(read)
	if err != nil {
		return "", err
	}
	r.sealer.Store(next)
	if read.KeyID() == now.KeyID() {
		return "", fmt.Errorf("%w: %s still begins with key %s: make a new key its first line (`lbctl cluster seal-key new`), keep the others behind it, and call again",
			ErrNotWritable, r.source, now.KeyID())
	}
	return read.KeyID(), nil
}

// Retire forgets a key that is not the active one. The caller has made sure that nothing is sealed under it. Where lbd cannot
// write it forgets the key by itself, until the source brings it back.
func (r *Ring) Retire(id string) error {
	r.changing.Lock()
	defer r.changing.Unlock()
	now := r.Sealer()
	at := slices.Index(now.KeyIDs(), id)
	switch {
	case at < 0:
		return fmt.Errorf("there is no sealing key %s", id)
	case at == 0:
		return fmt.Errorf("sealing key %s is the active one", id)
	}
	next, err := NewSealer(slices.Delete(now.raw(), at, at+1)...)
	if err != nil {
		return err
	}
	return r.write(now, next)
}

// write puts keys in the place of those of now; where lbd cannot write, in this process alone.
func (r *Ring) write(now, next *Sealer) error {
	if !r.source.Writable() {
		r.sealer.Store(next)
		return nil
	}
	if err := r.unchanged(now); err != nil {
		return fmt.Errorf("change sealing keys: %w", err)
	}
	return r.replace(next)
}

// unchanged refuses to write over a file that is not what was read: an operator has put something there.
func (r *Ring) unchanged(now *Sealer) error {
	onDisk, err := Load(r.source.what)
	if err != nil {
		return err
	}
	if !slices.Equal(onDisk.KeyIDs(), now.KeyIDs()) {
		return fmt.Errorf("%s has changed since lbd read it: restart lbd with the keys that it is to have", r.source.what)
	}
	return nil
}

// replace brings keys to disk, and then into use.
func (r *Ring) replace(next *Sealer) error {
	text := next.KeyText(next.KeyIDs()...)
	defer clear(text)
	if err := writeKeyFile(r.source.what, text, os.Rename); err != nil {
		return fmt.Errorf("write sealing keys: %w", err)
	}
	r.sealer.Store(next)
	return nil
}

// with is the sealer with more keys, behind those that it has.
func (s *Sealer) with(keys ...[]byte) (*Sealer, error) {
	next, err := NewSealer(append(s.raw(), keys...)...)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFull, err)
	}
	return next, nil
}

// withMissing is the sealer with what it lacks of another one's keys.
func (s *Sealer) withMissing(others *Sealer) (*Sealer, error) {
	var fresh [][]byte
	for _, k := range others.keys {
		if _, has := s.find(k.id); !has {
			fresh = append(fresh, k.raw)
		}
	}
	return s.with(fresh...)
}

func (s *Sealer) hasAll(others *Sealer) bool {
	return !slices.ContainsFunc(others.keys, func(k sealingKey) bool { _, has := s.find(k.id); return !has })
}

func (s *Sealer) raw() [][]byte {
	keys := make([][]byte, len(s.keys))
	for i, k := range s.keys {
		keys[i] = k.raw
	}
	return keys
}
