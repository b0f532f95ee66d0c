package state

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

// A change that does not fit one entry travels as parts and a commit. Parts are named by the digest of the whole, so
// that sending one twice is harmless. Uploads that were begun first are dropped first when there is no room.

// part keeps a part. A part that is there already changes nothing.
func (s *State) part(e *edit, part *raftv1.PartCommand) (*State, Result) {
	res := Result{Revision: s.revision}
	if err := checkPart(part); err != nil {
		res.Err = err
		return s, res
	}
	upload, begun := s.index.Get([]byte(uploadIndex(string(part.GetDigest()))))
	if !begun {
		upload = s.newestUpload() + 1
	}
	key := partKey(upload, part.GetIndex())
	if _, there := s.records.Get([]byte(key)); there {
		return s, res
	}
	e.put(key, proto.CloneOf(part))
	e.forgetStaleUploads(part.GetTime(), upload)
	e.forgetUploads(upload)
	return e.state(), res
}

func checkPart(part *raftv1.PartCommand) error {
	const partsMax = 2 * ChangeBytesMax / PartBytesMax // the sender may cut smaller
	if len(part.GetDigest()) != sha256.Size || part.GetIndex() < 0 || part.GetIndex() >= partsMax ||
		len(part.GetData()) == 0 || len(part.GetData()) > PartBytesMax {
		return invalid("part", "a part needs a digest of %d bytes, an index of 0 to %d and 1 to %d bytes", sha256.Size, partsMax-1, PartBytesMax)
	}
	return nil
}

// commit puts an upload's parts together and applies the change. Whatever comes of it, the parts are gone.
func (s *State) commit(e *edit, commit *raftv1.CommitCommand) (*State, Result) {
	upload, begun := s.index.Get([]byte(uploadIndex(string(commit.GetDigest()))))
	if !begun {
		return s, Result{Revision: s.revision, Err: ErrPartsMissing}
	}
	data, complete := s.assemble(upload, commit)
	if !complete {
		return s, Result{Revision: s.revision, Err: ErrPartsMissing}
	}
	change, restore := new(raftv1.ChangeCommand), new(raftv1.RestoreCommand)
	var whole proto.Message = change
	if commit.GetRestore() {
		whole = restore
	}
	sum := sha256.Sum256(data)
	sound := bytes.Equal(sum[:], commit.GetDigest())
	if sound {
		err := Parse(data, whole)
		if errors.Is(err, ErrFormat) {
			return s, Result{Revision: s.revision, Err: err}
		}
		sound = err == nil
	}
	e.dropUpload(upload)
	if !sound {
		return e.state(), Result{Revision: s.revision, Err: invalid("change", "the parts are not the whole that their digest names")}
	}
	without := e.state()
	if commit.GetRestore() {
		return without.restore(e.again(without), restore)
	}
	return without.change(e.again(without), change)
}

// again goes on with an edit from the state that it made so far, keeping what was touched.
func (e *edit) again(from *State) *edit {
	e.records, e.index = from.records.Txn(), from.index.Txn()
	return e
}

func (s *State) assemble(upload int64, commit *raftv1.CommitCommand) ([]byte, bool) {
	var data []byte
	var next int32
	for _, m := range s.prefix(uploadKey(upload)) {
		part := m.(*raftv1.PartCommand)
		if part.GetIndex() != next {
			return nil, false
		}
		next++
		data = append(data, part.GetData()...)
	}
	return data, next == commit.GetParts()
}

// forgetUploads drops the uploads begun first until the limits hold, but never the given one unless it is too large
// by itself.
func (e *edit) forgetUploads(current int64) {
	for {
		view := e.view()
		uploads := view.uploads()
		if len(uploads) <= uploadsMax && view.counter(bytesIndex) <= uploadsBytesMax {
			return
		}
		oldest := uploads[0]
		if oldest == current && len(uploads) > 1 {
			oldest = uploads[1]
		}
		e.dropUpload(oldest)
	}
}

// forgetStaleUploads drops the uploads that were begun too long before now, but never the given one: whoever sent them died on
// the way.
func (e *edit) forgetStaleUploads(now *timestamppb.Timestamp, current int64) {
	if !e.hasPrefix(uploadPrefix) {
		return
	}
	view := e.view()
	for _, upload := range view.uploads() {
		for _, m := range view.prefix(uploadKey(upload)) {
			begun := m.(*raftv1.PartCommand).GetTime()
			if upload != current && begun != nil && begun.AsTime().Add(uploadsKeptFor).Before(now.AsTime()) {
				e.dropUpload(upload)
			}
			break // the first part is enough
		}
	}
}

func (e *edit) dropUpload(upload int64) {
	for key := range e.view().prefix(uploadKey(upload)) {
		e.remove(key)
	}
}

// uploads are the numbers of those under way, oldest first. There are few.
func (s *State) uploads() []int64 {
	var all []int64
	for key := range s.prefix(uploadPrefix) {
		if n := uploadOf(key); len(all) == 0 || all[len(all)-1] != n {
			all = append(all, n)
		}
	}
	return all
}

func (s *State) newestUpload() int64 {
	if all := s.uploads(); len(all) > 0 {
		return all[len(all)-1]
	}
	return 0
}

// uploadOf is the upload that a part's key names.
func uploadOf(key string) int64 {
	rest := key[len(uploadPrefix):]
	if len(rest) < 8 {
		return 0
	}
	return int64(binary.BigEndian.Uint64([]byte(rest[:8])))
}

func invalid(field, format string, args ...any) *InvalidError {
	return &InvalidError{[]*lbdv1.Violation{{
		Severity:    lbdv1.Severity_SEVERITY_ERROR,
		Field:       field,
		Description: fmt.Sprintf(format, args...),
	}}}
}
