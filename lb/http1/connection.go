package http1

// options are what the Connection fields say.
type options struct {
	close, keepAlive, upgrade bool
}

// connection reads the Connection fields and marks the fields that they name, which belong to
// this hop (RFC 9110 7.6.1). What is no token names nothing.
func (f *Fields) connection() (options, fault) {
	var o options
	if !f.seen.has(nameConnection) {
		return o, noFault
	}
	count := 0
	for i := range f.list {
		if f.list[i].id != nameConnection {
			continue
		}
		for rest := f.Value(i); rest != nil; {
			var option []byte
			option, rest = nextElement(rest)
			switch {
			case len(option) == 0:
			case equalFold(option, "close"):
				o.close = true
			case equalFold(option, "keep-alive"):
				o.keepAlive = true
			case equalFold(option, "upgrade"):
				o.upgrade = true
			default:
				f.markNamed(option)
			}
			if count++; count > connectionOptionsMax {
				return o, tooManyOptions
			}
		}
	}
	return o, noFault
}

// markNamed marks the fields with this name, in either spelling.
func (f *Fields) markNamed(name []byte) {
	hash := hashName(name)
	for i := range f.list {
		l := &f.list[i]
		if l.hash == hash && !unnamed.has(l.id) && sameName(f.Name(i), name) != different {
			l.named = true
		}
	}
}

// findConnection settles keep-alive (RFC 9112 9.3), upgrade and trailers.
func (r *Request) findConnection() fault {
	o, f := r.Fields.connection()
	if f != noFault {
		return f
	}
	r.KeepAlive = !o.close && (r.Minor > 0 || o.keepAlive)
	r.Upgrade = o.upgrade && r.Minor > 0 && r.Framing == NoBody && string(r.Method) == "GET" &&
		r.Fields.lists(nameUpgrade, "websocket")
	r.Trailers = r.Minor > 0 && r.Fields.lists(nameTE, "trailers")
	return noFault
}

// findExpectation: RFC 9110 10.1.1. From HTTP/1.0, and without a body, it is ignored.
func (r *Request) findExpectation() fault {
	if r.Minor == 0 || !r.Fields.seen.has(nameExpect) {
		return noFault
	}
	for i := range r.Fields.list {
		if r.Fields.list[i].id == nameExpect && !equalFold(r.Fields.Value(i), "100-continue") {
			return unknownExpectation
		}
	}
	r.ExpectContinue = r.Framing == Chunked || r.Length > 0
	return noFault
}

// lists reports whether a field with a list as its value has the given element, in lower case.
func (f *Fields) lists(id nameID, element string) bool {
	if !f.seen.has(id) {
		return false
	}
	for i := range f.list {
		if f.list[i].id != id {
			continue
		}
		for rest := f.Value(i); rest != nil; {
			var e []byte
			e, rest = nextElement(rest)
			if equalFold(e, element) {
				return true
			}
		}
	}
	return false
}
