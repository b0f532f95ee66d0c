package loop

// buffers are a loop's free ones. They belong to the loop, like all of its state.
type buffers struct {
	free     [][]byte
	made     int
	freeBulk [][]byte
	bulk     int // bulk buffers in use
}

func (p *buffers) get() []byte {
	if n := len(p.free); n > 0 {
		b := p.free[n-1]
		p.free = p.free[:n-1]
		return b
	}
	// The front of a buffer is what most messages use. At a multiple of its size it would lie in the same few places of the
	// processor's caches as that of every other.
	at := p.made * cacheLine % bufferSpread
	p.made++
	return make([]byte, BufferBytes+bufferSpread)[at : at+BufferBytes : at+BufferBytes]
}

func (p *buffers) put(b []byte) {
	if len(p.free) < buffersFreeMax {
		p.free = append(p.free, b[:BufferBytes])
	}
}

// getBulk returns nil if too many are in use.
func (p *buffers) getBulk() []byte {
	if p.bulk >= bulkMax {
		return nil
	}
	p.bulk++
	if n := len(p.freeBulk); n > 0 {
		b := p.freeBulk[n-1]
		p.freeBulk = p.freeBulk[:n-1]
		return b
	}
	return make([]byte, BulkBytes)
}

func (p *buffers) putBulk(b []byte) {
	p.bulk--
	p.freeBulk = append(p.freeBulk, b[:BulkBytes])
}
