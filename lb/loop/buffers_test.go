package loop

import (
	"testing"
	"unsafe"
)

func TestBulkIsBounded(t *testing.T) {
	var p buffers
	var out [][]byte
	for b := p.getBulk(); b != nil; b = p.getBulk() {
		if len(b) != BulkBytes {
			t.Fatalf("%d bytes", len(b))
		}
		out = append(out, b)
	}
	if len(out) != bulkMax {
		t.Fatalf("%d bulk buffers, want %d", len(out), bulkMax)
	}
	first := &out[0][0]
	p.putBulk(out[0][:10])
	if b := p.getBulk(); len(b) != BulkBytes || &b[0] != first {
		t.Error("a buffer that was given back is not the next one, whole")
	}
	if p.getBulk() != nil {
		t.Error("one too many")
	}
	for _, b := range out {
		p.putBulk(b)
	}
	if p.bulk != 0 || len(p.freeBulk) != bulkMax {
		t.Errorf("%d in use, %d free", p.bulk, len(p.freeBulk))
	}
}

// The fronts of buffers that are in use together lie in different places of the processor's caches.
func TestBuffersBeginApart(t *testing.T) {
	var p buffers
	var held [][]byte
	places := map[uintptr]bool{}
	for range bufferSpread / cacheLine {
		b := p.get()
		if len(b) != BufferBytes || cap(b) != BufferBytes {
			t.Fatalf("%d bytes of %d", len(b), cap(b))
		}
		held = append(held, b)
		places[uintptr(unsafe.Pointer(&b[0]))%bufferSpread] = true
	}
	if len(places) != len(held) {
		t.Errorf("%d buffers begin at %d places", len(held), len(places))
	}
	p.put(held[0])
	if b := p.get(); &b[0] != &held[0][0] || len(b) != BufferBytes {
		t.Error("a buffer that was given back is not the next one, whole")
	}
}
