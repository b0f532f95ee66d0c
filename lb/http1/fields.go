package http1

import (
	"iter"
	"math/bits"
)

// Fields are the field lines of one head, in their order. They refer to the octets that were
// parsed, so those must stay as they are for as long as the Fields are used.
type Fields struct {
	buf  []byte
	list []field
	seen nameSet
}

// field is one line. Offsets, not slices: a head that comes in pieces may be moved between
// two calls of Parse, and a fifth of the memory does.
type field struct {
	name, nameLen   uint32
	value, valueLen uint32
	hash            uint32
	id              nameID
	plain           bool // the line is exactly "name: value" CRLF
	named           bool // Connection names it, so it is for this hop only
}

// Len is the number of field lines.
func (f *Fields) Len() int { return len(f.list) }

// Name returns the name of line i as it was sent: a token, never empty.
func (f *Fields) Name(i int) []byte {
	l := &f.list[i]
	return f.buf[l.name : l.name+l.nameLen : l.name+l.nameLen]
}

// Value returns the value of line i without surrounding whitespace. It holds no control but tab.
func (f *Fields) Value(i int) []byte {
	l := &f.list[i]
	return f.buf[l.value : l.value+l.valueLen : l.value+l.valueLen]
}

// All iterates over the names and values of all lines.
func (f *Fields) All() iter.Seq2[[]byte, []byte] {
	return func(yield func(name, value []byte) bool) {
		for i := range f.list {
			if !yield(f.Name(i), f.Value(i)) {
				return
			}
		}
	}
}

// Get returns the value of the first line with the given name in any case. A name spelled
// with "_" for "-" is another name.
func (f *Fields) Get(name string) ([]byte, bool) {
	h := hashName(name)
	for i := range f.list {
		if f.list[i].hash == h && sameName(f.Name(i), name) == sameSpelling {
			return f.Value(i), true
		}
	}
	return nil, false
}

// first returns the value of the first line with a known name.
func (f *Fields) first(id nameID) []byte {
	for i := range f.list {
		if f.list[i].id == id {
			return f.Value(i)
		}
	}
	return nil
}

// add takes one line without its CRLF; at is its offset in the head. Whitespace before the
// colon is refused in requests and dropped from answers (RFC 9112 5.1).
func (f *Fields) add(line []byte, at int, answer bool) fault {
	hash := uint32(0)
	n := 0
	for ; n < len(line); n++ {
		c := fold[line[n]]
		if c == 0 {
			break
		}
		hash = bits.RotateLeft32(hash, 5) ^ uint32(c)
	}
	colon := n
	for answer && n > 0 && colon < len(line) && isSpace(line[colon]) {
		colon++
	}
	if n == 0 || colon == len(line) || line[colon] != ':' {
		return nameFault(line, n)
	}
	value := trimSpace(line[colon+1:])
	if i := forbiddenOctet(value); i >= 0 {
		if value[i] == '\r' {
			return bareCR
		}
		return controlInValue
	}
	start := cap(line) - cap(value)
	plain := colon == n && start == n+2 && line[n+1] == ' ' && start+len(value) == len(line)
	id := lookupName(line[:n], hash)
	f.seen |= 1 << id
	f.list = append(f.list, field{
		name: uint32(at), nameLen: uint32(n),
		value: uint32(at + start), valueLen: uint32(len(value)),
		hash: hash, id: id, plain: plain,
	})
	return noFault
}

// nameFault tells what is wrong with a line whose name ends at n without a colon.
func nameFault(line []byte, n int) fault {
	switch {
	case n == 0 && isSpace(line[0]):
		return obsFold
	case n > 0 && n < len(line) && isSpace(line[n]):
		return spaceBeforeColon
	case n < len(line) && line[n] == '\r':
		return bareCR
	}
	return badFieldName
}
