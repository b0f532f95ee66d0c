package loop

import "testing"

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
