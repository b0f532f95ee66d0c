package http1

import "bytes"

// head is the part of Request and Response that reads lines. It keeps its place between
// calls, so that a head which comes one octet at a time costs no more than one that comes whole.
type head struct {
	Fields Fields
	start  int  // of the first line
	firstN int  // length of the first line
	line   int  // offset of the line being read; fields follow the first line
	scan   int  // no line feed between line and here
	pieces bool // an earlier call was given less
}

// next returns the next whole line of b without its CRLF. A line feed that has no carriage
// return before it ends nothing (RFC 9112 2.2 allows a recipient to take it as a line end;
// two recipients that differ in this are how requests get smuggled).
func (h *head) next(b []byte) ([]byte, fault) {
	i := bytes.IndexByte(b[h.scan:], '\n')
	if i < 0 {
		h.scan = len(b)
		return nil, incomplete
	}
	end := h.scan + i
	if end == h.line || b[end-1] != '\r' {
		return nil, badLineEnd
	}
	line := b[h.line : end-1]
	h.line, h.scan = end+1, end+1
	return line, noFault
}

// fields reads field lines up to and with the empty one. An error is the same whether b has
// the whole head or ends anywhere behind the fault.
func (h *head) fields(b []byte, lim *Limits, answer bool) fault {
	for {
		at := h.line
		line, f := h.next(b)
		if f != noFault {
			return f
		}
		if len(line) == 0 {
			return noFault
		}
		if len(h.Fields.list) >= lim.Fields {
			return tooManyFields
		}
		if f := h.Fields.add(line, at, answer); f != noFault {
			return f
		}
	}
}

// take is the part of b that the head may use.
func (h *head) take(b []byte, lim *Limits) []byte {
	if len(b) > lim.HeadBytes {
		b = b[:lim.HeadBytes]
	}
	h.Fields.buf = b
	return b
}
