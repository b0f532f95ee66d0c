package health

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// request is what is sent: one write, no body.
func (h *HTTP) request() string {
	var b strings.Builder
	b.WriteString(h.Method + " " + h.Path + " HTTP/1.1\r\n")
	fields := map[string]string{"host": "Host: " + h.Host, "user-agent": "User-Agent: lbd-health", "accept": "Accept: */*"}
	for name, value := range h.Headers {
		switch lower := strings.ToLower(name); lower {
		case "connection", "content-length", "transfer-encoding":
		default:
			fields[lower] = name + ": " + value
		}
	}
	b.WriteString(fields["host"] + "\r\n")
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if name != "host" {
			b.WriteString(fields[name] + "\r\n")
		}
	}
	if h.Method == "POST" {
		b.WriteString("Content-Length: 0\r\n") // RFC 9110, section 8.6
	}
	b.WriteString("Connection: close\r\n\r\n")
	return b.String()
}

// judge compares a code with what is expected.
func (h *HTTP) judge(code string) error {
	for _, pattern := range h.Expect {
		if codeFits(pattern, code) {
			return nil
		}
	}
	return fmt.Errorf("status %s, want %s", code, strings.Join(h.Expect, ", "))
}

// codeFits compares digit by digit; an x fits any.
func codeFits(pattern, code string) bool {
	if len(pattern) != len(code) {
		return false
	}
	for i := range len(code) {
		if pattern[i] != code[i] && pattern[i] != 'x' {
			return false
		}
	}
	return true
}

// readStatus reads up to the final answer's code; interim answers (RFC 9110, section 15.2) are passed over.
func readStatus(r *bufio.Reader) (code string, err error) {
	for range interimMax + 1 {
		line, err := readLine(r)
		if err != nil {
			return "", err
		}
		if code, err = parseStatus(line); err != nil {
			return "", err
		}
		if code[0] != '1' || code == "101" {
			return code, nil
		}
		for line != "" {
			if line, err = readLine(r); err != nil {
				return "", err
			}
		}
	}
	return "", judgement("more than ten interim answers")
}

// readLine reads a line without its end, which may be a bare LF: a health check judges the application, not its grammar.
func readLine(r *bufio.Reader) (string, error) {
	line, err := r.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		return "", judgement(fmt.Sprintf("a line of over %d bytes where the status line should be", lineBytesMax))
	}
	if err != nil && len(line) > 0 && err == io.EOF {
		return "", judgement(fmt.Sprintf("connection closed within the status line: %q", short(line)))
	}
	if err != nil {
		return "", err
	}
	return strings.TrimRight(string(line), "\r\n"), nil
}

// parseStatus takes the code out of a status line (RFC 9112, section 4).
func parseStatus(line string) (code string, err error) {
	const version = "HTTP/1."
	code = strings.TrimPrefix(line, version)
	if len(code) == len(line) || len(code) < 5 || code[1] != ' ' || (len(code) > 5 && code[5] != ' ') {
		return "", judgement(fmt.Sprintf("not an HTTP/1 answer: %q", short([]byte(line))))
	}
	code = code[2:5]
	if code < "100" || code > "999" || strings.Trim(code, "0123456789") != "" {
		return "", judgement(fmt.Sprintf("not an HTTP/1 answer: %q", short([]byte(line))))
	}
	return code, nil
}

func short(b []byte) []byte { return b[:min(len(b), 40)] }

// judgeBody looks for the expected text, and reads no further than it has to. A body that ends early is judged by what there is
// of it; an error that is no judgement is the network's.
func (h *HTTP) judgeBody(code string, answer *bufio.Reader) error {
	lacks := judgement(fmt.Sprintf("the body lacks %q", short([]byte(h.ExpectBody))))
	if h.Method == "HEAD" || code == "204" || code == "304" {
		return lacks
	}
	body, err := openBody(answer)
	if err != nil {
		return err
	}
	buf, n := make([]byte, bodyBytesMax), 0
	for n < len(buf) {
		read, err := body.Read(buf[n:])
		if bytes.Contains(buf[max(0, n-len(h.ExpectBody)+1):n+read], []byte(h.ExpectBody)) {
			return nil
		}
		n += read
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return lacks
		}
		if err != nil {
			return err
		}
	}
	return lacks + " in its first 64 KiB"
}

// openBody reads the fields of a head and returns the body without its framing (RFC 9112, section 6.3).
func openBody(r *bufio.Reader) (io.Reader, error) {
	body := io.Reader(r)
	for size := 0; size < headBytesMax; {
		line, n, err := readField(r)
		if err != nil {
			return nil, ifClosed(err, "connection closed before the body")
		}
		if line == "" {
			return body, nil
		}
		size += n
		name, value, _ := strings.Cut(line, ":")
		value = strings.ToLower(strings.TrimSpace(value))
		switch strings.ToLower(name) {
		case "transfer-encoding":
			if strings.HasSuffix(value, "chunked") {
				body = &chunks{r: r}
			}
		case "content-length":
			if length, err := strconv.ParseInt(value, 10, 64); err == nil && body == io.Reader(r) {
				body = io.LimitReader(r, length)
			}
		}
	}
	return nil, judgement("a head of over 64 KiB")
}

// readField reads a line of a head and its length. Of a long one only the beginning is returned: no field that matters here is
// long.
func readField(r *bufio.Reader) (line string, n int, err error) {
	begin, isPrefix, err := r.ReadLine()
	line, n = string(begin), len(begin)
	for isPrefix && err == nil && n < headBytesMax {
		begin, isPrefix, err = r.ReadLine()
		n += len(begin)
	}
	return line, n, err
}

// chunks takes the framing of the chunked coding off (RFC 9112, section 7.1). It is lenient: what it cannot read is the body's end.
type chunks struct {
	r    *bufio.Reader
	left int64 // of the chunk that is being read
	used bool  // whether there was a chunk, and the end of its line is still to come
}

func (c *chunks) Read(b []byte) (int, error) {
	for c.left == 0 {
		if c.used {
			if _, _, err := readField(c.r); err != nil {
				return 0, err
			}
		}
		line, _, err := readField(c.r)
		if err != nil {
			return 0, err
		}
		size, _, _ := strings.Cut(line, ";")
		c.left, err = strconv.ParseInt(strings.TrimSpace(size), 16, 64)
		if err != nil || c.left <= 0 {
			c.left = 0
			return 0, io.EOF
		}
		c.used = true
	}
	n, err := c.r.Read(b[:min(int64(len(b)), c.left)])
	c.left -= int64(n)
	return n, err
}
