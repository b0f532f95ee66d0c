package http1

// takeSize reads a chunk-size line: 1*HEXDIG and extensions (RFC 9112 7.1). The size has at
// most 16 digits, of which the first bit is zero.
func (d *Body) takeSize(line []byte) fault {
	size, digits := int64(0), 0
	for ; digits < len(line); digits++ {
		v, ok := hexValue(line[digits])
		if !ok {
			break
		}
		if size>>59 != 0 || digits == 16 {
			return badChunkSize
		}
		size = size<<4 | int64(v)
	}
	if digits == 0 {
		return badChunkSize
	}
	if extension := line[digits:]; len(extension) > 0 {
		if extension[0] != ';' && !isSpace(extension[0]) {
			return badChunkSize
		}
		if !isExtension(extension) {
			return badChunkExtension
		}
		if d.excess += int64(len(extension)); d.excess > extensionBytesMax {
			return extensionTooLarge
		}
	}
	d.excess = max(d.excess-size, -1<<40) // no more credit than an int64 can bear
	d.left = size
	d.state = chunkData
	if size == 0 {
		d.state = trailerLine
	}
	return noFault
}

// isExtension checks the syntax of chunk extensions, which are then dropped: *( BWS ";" BWS
// name [ BWS "=" BWS value ] ), RFC 9112 7.1.1.
func isExtension(e []byte) bool {
	for len(e) > 0 {
		e = skipSpace(e)
		if len(e) == 0 || e[0] != ';' {
			return false
		}
		n := 0
		if e, n = skipToken(skipSpace(e[1:])); n == 0 {
			return false
		}
		value := skipSpace(e)
		if len(value) == 0 || value[0] != '=' {
			continue
		}
		value = skipSpace(value[1:])
		if len(value) > 0 && value[0] == '"' {
			n = quotedLen(value)
			e = value[n:]
		} else {
			e, n = skipToken(value)
		}
		if n == 0 {
			return false
		}
	}
	return true
}

func skipSpace(b []byte) []byte {
	for len(b) > 0 && isSpace(b[0]) {
		b = b[1:]
	}
	return b
}

func skipToken(b []byte) (rest []byte, n int) {
	for n < len(b) && fold[b[n]] != 0 {
		n++
	}
	return b[n:], n
}

// quotedLen is the length of the quoted-string at the front of b, 0 if it is none
// (RFC 9110 5.6.4).
func quotedLen(b []byte) int {
	for i := 1; i < len(b); i++ {
		switch {
		case b[i] == '"':
			return i + 1
		case isForbidden(b[i]):
			return 0
		case b[i] == '\\':
			if i++; i < len(b) && isForbidden(b[i]) {
				return 0
			}
		}
	}
	return 0
}

// AppendChunkSize appends the line before a chunk of n octets, n > 0. The chunk is followed
// by CRLF.
func AppendChunkSize(dst []byte, n int) []byte {
	shift := 0
	for n>>shift > 15 {
		shift += 4
	}
	for ; shift >= 0; shift -= 4 {
		dst = append(dst, "0123456789abcdef"[n>>shift&15])
	}
	return append(dst, '\r', '\n')
}

// AppendLastChunk appends the end of a chunked body with the trailer lines that Body.Trailer
// gave, or none.
func AppendLastChunk(dst, trailer []byte) []byte {
	dst = append(dst, '0', '\r', '\n')
	dst = append(dst, trailer...)
	return append(dst, '\r', '\n')
}
