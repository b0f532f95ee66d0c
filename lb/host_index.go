package lb

import (
	"encoding/binary"
	"hash/maphash"
	"math/bits"
)

// hostIndex leads from names of hosts to what the table knows of them. Among many hosts a lookup is as fast as the memory that it waits
// for, so everything is small and lies close together: a slot says nearly always whether a name is there, and leads to its entry; entries,
// with their names, lie one behind the other. No pointers, so the collector has nothing to look at.
type hostIndex struct {
	// A slot has, in its low bits, where in text its entry begins, in units of entryUnit; above, as much of the name's hash as there is
	// room for. 0: empty. A name is in the slot that its hash leads to, or in those behind it up to the first that is empty.
	slots []uint32
	place uint32 // the low bits of a slot
	text  []byte // entries: length of the name, name, form, route; numbers as varints
}

// hostEntry is who serves a host: the places in Table.forms, of which those that itsRoute takes are the route's.
type hostEntry struct{ form, route uint32 }

const (
	entryUnit       = 8
	entryNumbersMax = 3 * binary.MaxVarintLen32
	slotsPerName    = 2
)

// hostSeed makes it impossible to choose names that fall into one place.
var hostSeed = maphash.MakeSeed()

// newHostIndex makes room for so many names with so many octets together.
func newHostIndex(names, octets int) hostIndex {
	const usual = 6 // octets of an entry's numbers: length and form below 128, route below 2 million
	units := (octets+names*(entryNumbersMax+entryUnit))/entryUnit + 1
	return hostIndex{
		slots: make([]uint32, names*slotsPerName+1),
		place: 1<<bits.Len(uint(units)) - 1,
		text:  make([]byte, entryUnit, entryUnit+octets+names*(usual+entryUnit/2)),
	}
}

// find returns the entry of a name.
func (x *hostIndex) find(name []byte) (hostEntry, bool) {
	at, _ := x.seek(name)
	slot := x.slots[at]
	if slot == 0 {
		return hostEntry{}, false
	}
	length, rest := number(x.entry(slot))
	form, rest := number(rest[length:])
	route, _ := number(rest)
	return hostEntry{form, route}, true
}

// seek returns the slot of a name, or the empty one where it belongs, and what is above the place in it.
func (x *hostIndex) seek(name []byte) (at int, tag uint32) {
	hash := maphash.Bytes(hostSeed, name)
	high, _ := bits.Mul64(hash, uint64(len(x.slots)))
	at, tag = int(high), uint32(hash)&^x.place
	for {
		slot := x.slots[at]
		if slot == 0 || slot&^x.place == tag && x.has(slot, name) {
			return at, tag
		}
		if at++; at == len(x.slots) {
			at = 0
		}
	}
}

func (x *hostIndex) entry(slot uint32) []byte { return x.text[int(slot&x.place)*entryUnit:] }

func (x *hostIndex) has(slot uint32, name []byte) bool {
	length, rest := number(x.entry(slot))
	return int(length) == len(name) && string(rest[:len(name)]) == string(name)
}

// number reads a varint and returns what is behind it.
func number(text []byte) (uint32, []byte) {
	if text[0] < 0x80 {
		return uint32(text[0]), text[1:]
	}
	value, n := binary.Uvarint(text)
	return uint32(value), text[n:]
}

// put adds a name for which there is room, or gives it another entry.
func (x *hostIndex) put(name string, e hostEntry) {
	at, tag := x.seek([]byte(name))
	x.slots[at] = uint32(len(x.text)/entryUnit) | tag
	x.text = binary.AppendUvarint(x.text, uint64(len(name)))
	x.text = append(x.text, name...)
	x.text = binary.AppendUvarint(x.text, uint64(e.form))
	x.text = binary.AppendUvarint(x.text, uint64(e.route))
	x.text = append(x.text, make([]byte, -len(x.text)&(entryUnit-1))...)
}
