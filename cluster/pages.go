package cluster

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"

	"lbd/cluster/state"
)

// bbolt trusts its pages: only its first two have a checksum, and what the others say of positions and counts is
// followed through unsafe pointers. A flipped bit can so write over this process's memory. Before bbolt opens a file,
// verifyPages therefore walks it as bbolt would, reading bytes only: the newer whole meta page, the tree of pages from
// its root, and the list of free pages.
//
// A page is: id (8 bytes, little endian like all numbers), flags (2), count (2), overflow (4: further pages that belong
// to it), then count elements of 16 bytes and what they point at.
const (
	pageHeaderBytes = 16
	elementBytes    = 16

	branchPage   = 0x01
	leafPage     = 0x02
	freelistPage = 0x10

	bucketElement  = 0x01
	bucketBytes    = 16
	boltMagic      = 0xED0CDAED
	metaBytes      = 64 // with the checksum in the last 8
	pageBytesMin   = 1 << 10
	pageBytesMax   = 1 << 16
	freelistInMeta = ^uint64(0) // no list of free pages is kept
)

// boltMeta is what a meta page says.
type boltMeta struct {
	pageBytes uint32
	root      uint64
	freelist  uint64
	pages     uint64 // all pages have lower ids
	sequence  uint64
}

// pageWalk is one walk over a file.
type pageWalk struct {
	file io.ReaderAt
	boltMeta
	seen map[uint64]bool
}

// verifyPages checks the structure of a bbolt file; one that is empty or not there is well.
func verifyPages(path string) error {
	file, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil || info.Size() == 0 {
		return err
	}
	meta, err := newestMeta(file, info.Size())
	if err != nil {
		return err
	}
	if meta.pages > uint64(info.Size())/uint64(meta.pageBytes) {
		return fmt.Errorf("%w: the file is cut off", state.ErrDamaged)
	}
	w := &pageWalk{file, meta, map[uint64]bool{0: true, 1: true}}
	if err := w.tree(meta.root); err != nil {
		return err
	}
	return w.free()
}

// newestMeta finds the newer of two meta pages; the second is a page behind the first, whose size may be lost.
func newestMeta(file io.ReaderAt, size int64) (best boltMeta, err error) {
	found := false
	take := func(at int64) {
		b := make([]byte, metaBytes)
		if _, err := file.ReadAt(b, at+pageHeaderBytes); err != nil {
			return
		}
		meta, ok := decodeMeta(b)
		if ok && (at == 0 || at == int64(meta.pageBytes)) && (!found || meta.sequence > best.sequence) {
			best, found = meta, true
		}
	}
	take(0)
	for at := int64(pageBytesMin); at <= pageBytesMax && at < size; at *= 2 {
		take(at)
	}
	if !found {
		return boltMeta{}, fmt.Errorf("%w: neither of its first pages is whole", state.ErrDamaged)
	}
	return best, nil
}

// decodeMeta reads magic, version, page size, flags, the root bucket (page and sequence), the page of the free list,
// the number of pages, the transaction and the checksum.
func decodeMeta(b []byte) (boltMeta, bool) {
	h := fnv.New64a()
	h.Write(b[:metaBytes-8])
	if binary.LittleEndian.Uint32(b) != boltMagic || binary.LittleEndian.Uint64(b[metaBytes-8:]) != h.Sum64() {
		return boltMeta{}, false
	}
	size := binary.LittleEndian.Uint32(b[8:])
	return boltMeta{
		pageBytes: size,
		root:      binary.LittleEndian.Uint64(b[16:]),
		freelist:  binary.LittleEndian.Uint64(b[32:]),
		pages:     binary.LittleEndian.Uint64(b[40:]),
		sequence:  binary.LittleEndian.Uint64(b[48:]),
	}, size >= pageBytesMin && size <= pageBytesMax
}

func pageDamage(id uint64, what string) error {
	return fmt.Errorf("%w: page %d: %s", state.ErrDamaged, id, what)
}

// page reads a page with those that belong to it, and sees each of them once.
func (w *pageWalk) page(id uint64) ([]byte, error) {
	head := make([]byte, pageHeaderBytes)
	if id >= w.pages {
		return nil, pageDamage(id, "is beyond the end")
	}
	if _, err := w.file.ReadAt(head, int64(id)*int64(w.pageBytes)); err != nil {
		return nil, err
	}
	overflow := uint64(binary.LittleEndian.Uint32(head[12:]))
	if binary.LittleEndian.Uint64(head) != id || overflow >= w.pages-id {
		return nil, pageDamage(id, "is not itself")
	}
	for i := id; i <= id+overflow; i++ {
		if w.seen[i] {
			return nil, pageDamage(i, "is used twice")
		}
		w.seen[i] = true
	}
	b := make([]byte, (overflow+1)*uint64(w.pageBytes))
	_, err := w.file.ReadAt(b, int64(id)*int64(w.pageBytes))
	return b, err
}

// tree checks the pages of a bucket from its root.
func (w *pageWalk) tree(id uint64) error {
	b, err := w.page(id)
	if err != nil {
		return err
	}
	return w.elements(id, b)
}

// elements checks a branch or leaf page, and what is below it.
func (w *pageWalk) elements(id uint64, b []byte) error {
	flags, count := binary.LittleEndian.Uint16(b[8:]), int(binary.LittleEndian.Uint16(b[10:]))
	if flags != leafPage && (flags != branchPage || count == 0) {
		return pageDamage(id, "is no branch and no leaf")
	}
	if pageHeaderBytes+count*elementBytes > len(b) {
		return pageDamage(id, "has more elements than room")
	}
	var before []byte
	for i := range count {
		at := pageHeaderBytes + i*elementBytes
		key, value, err := element(id, b, at, flags)
		if err != nil {
			return err
		}
		if i > 0 && bytes.Compare(before, key) >= 0 {
			return pageDamage(id, "has keys out of order")
		}
		before = key
		if flags == branchPage {
			err = w.tree(binary.LittleEndian.Uint64(b[at+8:]))
		} else if binary.LittleEndian.Uint32(b[at:])&bucketElement != 0 {
			err = w.bucket(id, value)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// element is an element's key and value. In a branch: position (4 bytes, from the element on), size of the key (4), page
// (8). In a leaf: flags (4), position (4), sizes of key and value (4 each).
func element(id uint64, b []byte, at int, flags uint16) (key, value []byte, err error) {
	field := func(i int) uint64 { return uint64(binary.LittleEndian.Uint32(b[at+4*i:])) }
	position, keySize, valueSize := field(0), field(1), uint64(0)
	if flags == leafPage {
		position, keySize, valueSize = field(1), field(2), field(3)
	}
	begin := uint64(at) + position
	if begin+keySize+valueSize > uint64(len(b)) {
		return nil, nil, pageDamage(id, "points beyond its end")
	}
	return b[begin : begin+keySize], b[begin+keySize : begin+keySize+valueSize], nil
}

// bucket checks a bucket within a bucket: a root page (0: the page is in the value itself) and a sequence.
func (w *pageWalk) bucket(id uint64, value []byte) error {
	if len(value) < bucketBytes {
		return pageDamage(id, "has half a bucket")
	}
	if root := binary.LittleEndian.Uint64(value); root != 0 {
		return w.tree(root)
	}
	if len(value) < bucketBytes+pageHeaderBytes {
		return pageDamage(id, "has half a bucket")
	}
	return w.elements(id, value[bucketBytes:])
}

// free checks that the free pages are counted right, in order, and used by nothing else.
func (w *pageWalk) free() error {
	if w.freelist == freelistInMeta {
		return nil
	}
	b, err := w.page(w.freelist)
	if err != nil {
		return err
	}
	count, ids := uint64(binary.LittleEndian.Uint16(b[10:])), b[pageHeaderBytes:]
	if count == 0xFFFF {
		count, ids = binary.LittleEndian.Uint64(ids), ids[8:]
	}
	if binary.LittleEndian.Uint16(b[8:]) != freelistPage || count > uint64(len(ids))/8 {
		return pageDamage(w.freelist, "is no list of free pages")
	}
	before := uint64(1)
	for i := range count {
		id := binary.LittleEndian.Uint64(ids[8*i:])
		if id <= before || id >= w.pages || w.seen[id] {
			return pageDamage(w.freelist, "lists a page that is not free")
		}
		before = id
	}
	return nil
}
