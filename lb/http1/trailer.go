package http1

// takeTrailer reads one line of the trailer section. Fields that may not come there are
// dropped (RFC 9110 6.5.1); the empty line ends the body.
func (d *Body) takeTrailer(line []byte) fault {
	if len(line) == 0 {
		d.state = bodyDone
		return noFault
	}
	if d.fields++; d.fields > trailerFieldsMax {
		return trailerTooLarge
	}
	fs := &d.one
	*fs = Fields{buf: line, list: fs.list[:0]}
	if fs.add(line, 0, false) != noFault {
		return badTrailer
	}
	if fs.list[0].id != nameOther || isHeadOnly(fs.Name(0)) {
		return noFault
	}
	d.trailer = append(d.trailer, fs.Name(0)...)
	d.trailer = append(d.trailer, ": "...)
	d.trailer = append(d.trailer, fs.Value(0)...)
	d.trailer = append(d.trailer, "\r\n"...)
	return noFault
}

// headOnly are fields that route, authenticate, modify a request or describe the content.
// One that comes after the body was checked by nobody. All names that we know ourselves count
// among them.
var headOnly = [...]string{
	"age", "authorization", "cache-control", "content-encoding", "content-range", "content-type",
	"cookie", "expires", "if-match", "if-modified-since", "if-none-match", "if-range",
	"if-unmodified-since", "location", "max-forwards", "pragma", "range", "retry-after",
	"set-cookie", "vary", "www-authenticate",
}

func isHeadOnly(name []byte) bool {
	for _, h := range headOnly {
		if sameName(name, h) != different {
			return true
		}
	}
	return false
}
