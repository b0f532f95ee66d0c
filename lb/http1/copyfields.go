package http1

// appendKept appends the fields that go on as they are: all but those in drop, those that
// Connection named, and those that the rules replace. Adjacent lines that were sent in plain
// form are copied in one piece, which is most of a head.
func (f *Fields) appendKept(dst []byte, drop nameSet, rules *Rules, allowTwins bool) []byte {
	from, to := uint32(0), uint32(0)
	for i := range f.list {
		l := &f.list[i]
		if drop.has(l.id) || l.named || rules.drops(f.Name(i), l.hash, allowTwins) {
			continue
		}
		if !l.plain {
			dst = append(dst, f.buf[from:to]...)
			from, to = 0, 0
			dst = appendLine(dst, f.Name(i), f.Value(i))
			continue
		}
		if l.name != to {
			dst = append(dst, f.buf[from:to]...)
			from = l.name
		}
		to = l.value + l.valueLen + 2
	}
	return append(dst, f.buf[from:to]...)
}

// appendList appends the values of all lines with this name that are not for this hop only,
// joined by commas, with one behind the last.
func (f *Fields) appendList(dst []byte, id nameID) []byte {
	if !f.seen.has(id) {
		return dst
	}
	for i := range f.list {
		if l := &f.list[i]; l.id == id && !l.named && l.valueLen > 0 {
			dst = append(dst, f.Value(i)...)
			dst = append(dst, ", "...)
		}
	}
	return dst
}

func appendLine[N, V string | []byte](dst []byte, name N, value V) []byte {
	dst = append(dst, name...)
	dst = append(dst, ": "...)
	dst = append(dst, value...)
	return append(dst, "\r\n"...)
}
