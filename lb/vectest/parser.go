package vectest

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// personality is one way of reading requests. Each lenient one makes a single mistake that
// was found in some server.
type personality struct {
	name         string
	strict       bool
	bareLF       bool // takes LF as a line end
	lengthFirst  bool // obeys Content-Length beside Transfer-Encoding
	looseCoding  bool // takes any Transfer-Encoding with "chunked" in it, and "_" for "-"
	lastLength   bool // takes the last of several Content-Length
	noCodingIn10 bool // ignores Transfer-Encoding in HTTP/1.0
}

var strict = personality{name: "strict", strict: true}

var lenient = []personality{
	{name: "lf", bareLF: true},
	{name: "cl-first", lengthFirst: true},
	{name: "te-loose", looseCoding: true},
	{name: "last-cl", lastLength: true},
	{name: "no-te-in-1.0", noCodingIn10: true},
}

// request is what a personality reads.
type request struct {
	method, target, version string
	fields                  []string // lines
	bodyLen                 int64
	lengths, codings        []string
	expect                  bool
}

// malformed is why the strict personality reads no further.
type malformed string

func (m malformed) Error() string { return string(m) }

// requests reads all requests in raw. The error is io.ErrUnexpectedEOF if the last is not whole.
func (p *personality) requests(raw []byte) (all []*request, err error) {
	r := bufio.NewReader(bytes.NewReader(raw))
	for {
		q, err := p.read(r, nil)
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return all, err
		}
		all = append(all, q)
	}
}

// read reads one request with its body. Where that is waited for it calls cont first. The error is
// io.EOF if there is not even an octet.
func (p *personality) read(r *bufio.Reader, cont func()) (*request, error) {
	line, err := p.line(r)
	if err != nil {
		return nil, err
	}
	q, err := p.requestLine(line)
	if err != nil {
		return nil, err
	}
	if err := p.readFields(r, q); err != nil {
		return nil, whole(err)
	}
	chunked, err := p.isChunked(q)
	if err != nil {
		return nil, err
	}
	length, err := p.length(q)
	if err != nil {
		return nil, err
	}
	if p.lengthFirst && len(q.lengths) > 0 {
		chunked = false
	}
	if q.expect && cont != nil && (chunked || length > 0) {
		cont()
	}
	if chunked {
		return q, whole(p.readChunks(r, q))
	}
	q.bodyLen = length
	_, err = io.CopyN(io.Discard, r, length)
	return q, whole(err)
}

// whole says of an end inside a message that it is unexpected.
func whole(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// line reads one line without its end.
func (p *personality) line(r *bufio.Reader) (string, error) {
	line, err := r.ReadString('\n')
	if err != nil {
		if len(line) > 0 {
			err = whole(err)
		}
		return "", err
	}
	line = line[:len(line)-1]
	if cut, found := strings.CutSuffix(line, "\r"); found {
		return cut, nil
	}
	if p.bareLF {
		return line, nil
	}
	return "", malformed("bare LF")
}

func (p *personality) requestLine(line string) (*request, error) {
	parts := strings.Split(line, " ")
	good := len(parts) == 3 && parts[1] != "" && strings.HasPrefix(parts[2], "HTTP/1.")
	if len(parts) < 3 || p.strict && !good {
		return nil, malformed("request line " + quote(line))
	}
	q := &request{method: parts[0], target: parts[1], version: parts[len(parts)-1]}
	if p.strict && (!isToken(q.method) || strings.ContainsFunc(q.target, func(c rune) bool { return c <= ' ' || c == 0x7f })) {
		return nil, malformed("request line " + quote(line))
	}
	return q, nil
}

// readFields reads the field lines and the empty one.
func (p *personality) readFields(r *bufio.Reader, q *request) error {
	hosts := 0
	for {
		line, err := p.line(r)
		if err != nil {
			return err
		}
		if line == "" {
			break
		}
		q.fields = append(q.fields, line)
		name, value, found := strings.Cut(line, ":")
		if p.strict && (!found || !isToken(name) || hasControl(value)) {
			return malformed("field " + quote(line))
		}
		name = strings.ToLower(name)
		if p.looseCoding {
			name = strings.ReplaceAll(strings.TrimSpace(name), "_", "-")
		}
		value = strings.Trim(value, " \t")
		switch name {
		case "host":
			hosts++
		case "content-length":
			q.lengths = append(q.lengths, value)
		case "transfer-encoding":
			q.codings = append(q.codings, strings.ToLower(value))
		case "expect":
			q.expect = strings.EqualFold(value, "100-continue")
		}
	}
	if p.strict && hosts != 1 && q.version == "HTTP/1.1" {
		return malformed(fmt.Sprintf("%d Host lines", hosts))
	}
	return nil
}

func (p *personality) isChunked(q *request) (bool, error) {
	coding := strings.Join(q.codings, ",")
	switch {
	case len(q.codings) == 0, p.noCodingIn10 && q.version == "HTTP/1.0":
		return false, nil
	case p.strict && coding != "chunked":
		return false, malformed("transfer-encoding " + quote(coding))
	case p.strict && len(q.lengths) > 0:
		return false, malformed("both content-length and transfer-encoding")
	case p.looseCoding:
		return strings.Contains(coding, "chunked"), nil
	}
	return strings.HasSuffix(coding, "chunked"), nil
}

func (p *personality) length(q *request) (int64, error) {
	if len(q.lengths) == 0 {
		return 0, nil
	}
	text := q.lengths[0]
	if p.lastLength {
		text = q.lengths[len(q.lengths)-1]
	}
	if p.strict && (len(q.lengths) > 1 || text == "" || strings.Trim(text, "0123456789") != "") {
		return 0, malformed("content-length " + quote(strings.Join(q.lengths, ", ")))
	}
	n, err := strconv.ParseInt(strings.TrimLeft(text, "+"), 10, 64)
	if err != nil || n < 0 {
		if p.strict {
			return 0, malformed("content-length " + quote(text))
		}
		return 0, nil
	}
	return n, nil
}

// readChunks reads a chunked body and its trailers.
func (p *personality) readChunks(r *bufio.Reader, q *request) error {
	for {
		line, err := p.line(r)
		if err != nil {
			return err
		}
		digits, _, extended := strings.Cut(line, ";")
		if p.strict && (extended || digits == "" || strings.Trim(digits, "0123456789abcdefABCDEF") != "") {
			return malformed("chunk size " + quote(line))
		}
		size, err := strconv.ParseInt(strings.TrimSpace(digits), 16, 64)
		if err != nil || size < 0 {
			return malformed("chunk size " + quote(line))
		}
		if size == 0 {
			return p.readTrailers(r)
		}
		if _, err := io.CopyN(io.Discard, r, size); err != nil {
			return err
		}
		q.bodyLen += size
		end, err := p.line(r)
		if err != nil {
			return err
		}
		if end != "" {
			return malformed("no line end behind a chunk")
		}
	}
}

func (p *personality) readTrailers(r *bufio.Reader) error {
	for {
		line, err := p.line(r)
		if err != nil || line == "" {
			return err
		}
		name, value, found := strings.Cut(line, ":")
		if !p.strict {
			continue
		}
		if !found || !isToken(name) || hasControl(value) {
			return malformed("trailer " + quote(line))
		}
		switch strings.ToLower(name) {
		case "content-length", "transfer-encoding", "host", "authorization":
			return malformed("forbidden trailer " + quote(line))
		}
	}
}

func isToken(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(c rune) bool {
		letter := c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		return !letter && !strings.ContainsRune("!#$%&'*+-.^_`|~", c)
	})
}

func hasControl(s string) bool {
	return strings.ContainsFunc(s, func(c rune) bool { return c < ' ' && c != '\t' || c == 0x7f })
}

func quote(s string) string {
	if len(s) > 80 {
		s = s[:80] + "…"
	}
	return strconv.Quote(s)
}
