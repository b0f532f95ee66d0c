package http1

import "bytes"

// Body finds the end of a message body in a stream of octets and takes the framing off. The
// zero Body has ended; StartBody of a Request or Response begins one.
//
// For a chunked body it goes round like this:
//
//	size line -> data -> CRLF -> size line -> ... -> size line of zero -> trailer lines -> done
type Body struct {
	state   bodyState
	answer  bool
	left    int64  // of the data, or of the chunk
	excess  int64  // octets of extensions beyond those of payload; may be negative
	line    []byte // a line that began in an earlier piece
	trailer []byte
	fields  int    // trailer fields so far
	one     Fields // the one being read
}

type bodyState uint8

const (
	bodyDone bodyState = iota
	bodyLength
	bodyUntilClose
	chunkSize
	chunkData
	chunkCR
	chunkLF
	trailerLine
	bodyFailed
)

// StartBody makes d ready for the body that follows r.
func (r *Request) StartBody(d *Body) { d.start(r.Framing, r.Length, false) }

// StartBody makes d ready for the body that follows r.
func (r *Response) StartBody(d *Body) { d.start(r.Framing, r.Length, true) }

func (d *Body) start(f Framing, length int64, answer bool) {
	d.state, d.answer, d.left, d.excess, d.fields = bodyDone, answer, 0, 0, 0
	d.line, d.trailer = d.line[:0], d.trailer[:0]
	switch f {
	case Length:
		d.left = length
		if length > 0 {
			d.state = bodyLength
		}
	case Chunked:
		d.state = chunkSize
	case UntilClose:
		d.state = bodyUntilClose
	}
}

// Done reports whether the whole body has been decoded.
func (d *Body) Done() bool { return d.state == bodyDone }

// Decode takes the next octets of the stream. It uses n of them, all unless the body ends
// before: what is left belongs to the next message. The payload among them is data, which lies
// in src; where src holds several chunks their payloads are moved together there. After an
// *Error the body cannot be continued.
func (d *Body) Decode(src []byte) (data []byte, n int, err error) {
	switch d.state {
	case bodyDone:
		return nil, 0, nil
	case bodyUntilClose:
		return src, len(src), nil
	case bodyLength:
		n = int(min(d.left, int64(len(src))))
		if d.left -= int64(n); d.left == 0 {
			d.state = bodyDone
		}
		return src[:n], n, nil
	}
	data, n, f := d.decodeChunks(src)
	if f != noFault {
		d.state = bodyFailed
		return nil, n, d.error(f)
	}
	return data, n, nil
}

// EOF tells the body that the stream has ended. It is an *Error unless the body had, too.
func (d *Body) EOF() error {
	switch d.state {
	case bodyUntilClose:
		d.state = bodyDone
	case bodyDone:
	default:
		return d.error(truncatedBody)
	}
	return nil
}

// Trailer returns the trailer fields that may be passed on, each as a line with CRLF; empty
// until the body is Done.
func (d *Body) Trailer() []byte {
	if d.state != bodyDone {
		return nil
	}
	return d.trailer
}

func (d *Body) error(f fault) error {
	if d.answer {
		return responseError(f)
	}
	return requestError(f)
}

// decodeChunks runs the states of a chunked body over src. Payload is src[start:end].
func (d *Body) decodeChunks(src []byte) (data []byte, i int, f fault) {
	start, end := 0, 0
	for i < len(src) && d.state != bodyDone {
		switch d.state {
		case chunkData:
			n := int(min(d.left, int64(len(src)-i)))
			if start == end {
				start, end = i, i
			}
			if end != i {
				copy(src[end:], src[i:i+n])
			}
			end += n
			i += n
			if d.left -= int64(n); d.left == 0 {
				d.state = chunkCR
			}
		case chunkCR:
			if src[i] != '\r' {
				return nil, i, badChunkEnd
			}
			d.state = chunkLF
			i++
		case chunkLF:
			if src[i] != '\n' {
				return nil, i, badChunkEnd
			}
			d.state = chunkSize
			i++
		case chunkSize, trailerLine:
			var line []byte
			if line, i, f = d.nextLine(src, i); f == noFault {
				f = d.takeLine(line)
			}
			if f == incomplete {
				return src[start:end], i, noFault
			}
			if f != noFault {
				return nil, i, f
			}
		default: // bodyFailed: whoever goes on after an error gets it again
			return nil, i, badChunkEnd
		}
	}
	return src[start:end], i, noFault
}

// nextLine returns the line at src[i:] without its CRLF, with what earlier pieces had of it.
func (d *Body) nextLine(src []byte, i int) (line []byte, next int, f fault) {
	limit, long := chunkLineBytesMax, extensionTooLarge
	if d.state == trailerLine {
		limit, long = trailerBytesMax-len(d.trailer), trailerTooLarge
	}
	j := bytes.IndexByte(src[i:], '\n')
	if j < 0 {
		if len(d.line)+len(src)-i >= limit {
			return nil, i, long
		}
		d.line = append(d.line, src[i:]...)
		return nil, len(src), incomplete
	}
	next = i + j + 1
	line = src[i:next]
	if len(d.line) > 0 {
		d.line = append(d.line, line...)
		line = d.line
		d.line = d.line[:0]
	}
	if len(line) > limit {
		return nil, i, long
	}
	if len(line) < 2 || line[len(line)-2] != '\r' {
		return nil, i, badLineEnd
	}
	return line[:len(line)-2], next, noFault
}

func (d *Body) takeLine(line []byte) fault {
	if d.state == trailerLine {
		return d.takeTrailer(line)
	}
	return d.takeSize(line)
}
