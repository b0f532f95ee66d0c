package main

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	lbdv1 "lbd/proto/lbd/v1"
)

// overlayFile is where a node keeps what was said on it alone: the digest of the second line, and that, as JSON.
const overlayFile = "node-overrides"

// overlay is what operators have said of backends on this node alone, while there was no leader to say it to all. It is laid over what is
// replicated, and is rpc.Overlay. What the disk does not take is in force all the same, until the node ends.
type overlay struct {
	path string
	log  *slog.Logger
	now  func() time.Time
	// moved has one slot, for run: something was said, or has ended.
	moved chan struct{}

	saving sync.Mutex // held while the file is written

	mu sync.Mutex
	// said is by pool, address and what it says; what has expired stays until something else is said.
	said []*lbdv1.Override
	// damage says what became of a file that could not be read, unkept why the next start will not know of said; empty: nothing is wrong.
	damage, unkept string
}

// openOverlay reads what the run before was told. A file that is damaged is put aside and told of: the node starts with nothing said, as it
// cannot know what was.
func openOverlay(dir string, log *slog.Logger) *overlay {
	o := &overlay{path: filepath.Join(dir, overlayFile), log: log, now: time.Now, moved: make(chan struct{}, 1)}
	data, err := os.ReadFile(o.path)
	if errors.Is(err, fs.ErrNotExist) {
		return o
	}
	if err == nil {
		o.said, err = parseOverlay(data)
	}
	if err != nil {
		aside := o.path + ".damaged"
		o.damage = fmt.Sprintf("what was said of backends on this node alone could not be read, and is not in force: %v; the file is kept as %s", err, aside)
		log.Error("node-local overrides cannot be read and are not in force", "file", o.path, "kept as", aside, "err", errors.Join(err, os.Rename(o.path, aside)))
	}
	return o
}

// again reads the file anew: another process may have been told more meanwhile. Without one there is nothing to read.
func (o *overlay) again() *overlay {
	o.saving.Lock()
	defer o.saving.Unlock()
	if o.unkept != "" { // the file knows less
		return o
	}
	return openOverlay(filepath.Dir(o.path), o.log)
}

func parseOverlay(data []byte) ([]*lbdv1.Override, error) {
	sum, text, _ := bytes.Cut(data, []byte("\n"))
	if digestText(text) != string(sum) {
		return nil, errors.New("its digest is wrong")
	}
	var all lbdv1.ListOverridesResponse
	if err := protojson.Unmarshal(text, &all); err != nil {
		return nil, err
	}
	return all.GetOverrides(), nil
}

func digestText(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// wake is for run: something was said, or has ended.
func (o *overlay) wake() <-chan struct{} {
	if o == nil {
		return nil
	}
	return o.moved
}

// Overrides implements rpc.Overlay.
func (o *overlay) Overrides(pool string) (in []*lbdv1.Override) {
	now := o.now()
	for _, set := range o.all() {
		if (pool == "" || set.GetPool() == pool) && set.GetExpireTime().AsTime().After(now) {
			in = append(in, set)
		}
	}
	return in
}

// all are those that have expired, too. They are not to be changed.
func (o *overlay) all() []*lbdv1.Override {
	if o == nil {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.said)
}

// Say implements rpc.Overlay.
func (o *overlay) Say(set *lbdv1.Override) {
	o.put(proto.CloneOf(set))
	o.keep()
}

func (o *overlay) put(set *lbdv1.Override) {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := o.now()
	o.said = slices.DeleteFunc(o.said, func(old *lbdv1.Override) bool {
		return !old.GetExpireTime().AsTime().After(now) || compareOverrides(old, set) == 0
	})
	o.said = append(o.said, set)
	slices.SortFunc(o.said, compareOverrides)
}

// Unsay implements rpc.Overlay.
func (o *overlay) Unsay(pool, address string, stateOnly bool) (ended []*lbdv1.Override) {
	ended = o.take(func(old *lbdv1.Override) bool {
		return old.GetPool() == pool && (address == "" || old.GetAddress() == address) && (!stateOnly || isState(old))
	})
	o.keep()
	return ended
}

// take ends what is meant. What has expired goes, too.
func (o *overlay) take(meant func(*lbdv1.Override) bool) (ended []*lbdv1.Override) {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := o.now()
	o.said = slices.DeleteFunc(o.said, func(old *lbdv1.Override) bool {
		if !old.GetExpireTime().AsTime().After(now) {
			return true
		}
		if meant(old) {
			ended = append(ended, old)
			return true
		}
		return false
	})
	return ended
}

// keep wakes run, and puts what is said on disk. The disk is not waited for with the lock: run reads what is said.
func (o *overlay) keep() {
	select {
	case o.moved <- struct{}{}:
	default:
	}
	o.saving.Lock()
	defer o.saving.Unlock()
	err := o.write(o.all())
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.unkept = ""; err != nil {
		o.unkept = fmt.Sprintf("what was said of backends on this node alone is in force, but a restart will not know it: %v", err)
		o.log.Warn("node-local overrides are in force, but cannot be kept for the next start", "err", err)
	}
}

func (o *overlay) write(all []*lbdv1.Override) error {
	if len(all) == 0 {
		err := os.Remove(o.path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		return syncFolder(filepath.Dir(o.path))
	}
	text, err := protojson.Marshal(&lbdv1.ListOverridesResponse{Overrides: all})
	if err != nil {
		return err
	}
	return replaceFile(o.path, slices.Concat([]byte(digestText(text)+"\n"), text))
}

// problems are what an operator has to look at.
func (o *overlay) problems() (all []string) {
	if o == nil {
		return nil
	}
	for _, set := range o.Overrides("") {
		all = append(all, fmt.Sprintf("node-local override: pools/%s %s: %s until %s; `lbctl --node-local override clear %s/%s` ends it",
			set.GetPool(), set.GetAddress(), saying(set), set.GetExpireTime().AsTime().Format(time.RFC3339), set.GetPool(), set.GetAddress()))
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, fault := range []string{o.damage, o.unkept} {
		if fault != "" {
			all = append(all, fault)
		}
	}
	return all
}

// saying is what an override says: "drain", "weight 3".
func saying(o *lbdv1.Override) string {
	if isState(o) {
		return strings.ToLower(strings.TrimPrefix(o.GetState().String(), "BACKEND_STATE_"))
	}
	return fmt.Sprintf("weight %d", o.GetWeight())
}

func isState(o *lbdv1.Override) bool {
	_, is := o.GetWhat().(*lbdv1.Override_State)
	return is
}

// compareOverrides orders by pool, address and what is said: the state first.
func compareOverrides(a, b *lbdv1.Override) int {
	what := func(o *lbdv1.Override) int {
		if isState(o) {
			return 0
		}
		return 1
	}
	return cmp.Or(cmp.Compare(a.GetPool(), b.GetPool()), cmp.Compare(a.GetAddress(), b.GetAddress()), cmp.Compare(what(a), what(b)))
}
