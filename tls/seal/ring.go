package seal

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
)

// Ring holds a running node's sealing keys, and changes them. It is safe for concurrent use.
//
// A key comes in as the active one and pushes those before it back, under which secrets can still be opened. It leaves when
// nothing is sealed under it any more:
//
//	made -> active -> opens only -> gone
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

// Stage makes a new key active. From a file's source it is a fresh one, and on disk before anything is sealed under it. From
// another source the keys are read again, and ErrNotWritable says that they do not begin with another key yet. A key that this
// node has and the source has no more stays until the node ends: secrets may be under it.
func (r *Ring) Stage(ctx context.Context) error {
	r.changing.Lock()
	defer r.changing.Unlock()
	now := r.Sealer()
	if !r.source.Writable() {
		return r.readAgain(ctx, now)
	}
	if err := r.unchanged(now); err != nil {
		return fmt.Errorf("stage sealing key: %w", err)
	}
	key := newKey()
	defer clear(key)
	next, err := NewSealer(append([][]byte{key}, now.raw()...)...)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrFull, err)
	}
	return r.replace(next)
}

// readAgain takes over what the source says now.
func (r *Ring) readAgain(ctx context.Context, now *Sealer) error {
	read, err := r.source.load(ctx, false)
	if err != nil {
		return err
	}
	if read.KeyID() == now.KeyID() {
		return fmt.Errorf("%w: %s still begins with key %s: make a new key its first line (`lbctl cluster seal-key new`), keep the others behind it, and call again",
			ErrNotWritable, r.source, now.KeyID())
	}
	keys := read.raw()
	for _, k := range now.keys {
		if _, has := read.find(k.id); !has {
			keys = append(keys, k.raw)
		}
	}
	next, err := NewSealer(keys...)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrFull, err)
	}
	r.sealer.Store(next)
	return nil
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
	if !r.source.Writable() {
		r.sealer.Store(next)
		return nil
	}
	if err := r.unchanged(now); err != nil {
		return fmt.Errorf("retire sealing key: %w", err)
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

func (s *Sealer) raw() [][]byte {
	keys := make([][]byte, len(s.keys))
	for i, k := range s.keys {
		keys[i] = k.raw
	}
	return keys
}
