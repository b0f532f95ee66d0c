//go:build linux

package load

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
)

// Why a request failed. The name is what the report says.
var (
	errConnect   = errors.New("connect")
	errHandshake = errors.New("handshake")
	errTimeout   = errors.New("timeout")
	errNoClient  = errors.New("no free client")
	errClosed    = errors.New("closed before the answer was whole")
	errHead      = errors.New("malformed head")
	errLength    = errors.New("wrong length")
	errBody      = errors.New("wrong body")
)

// statusError is an answer other than 200.
type statusError int

func (e statusError) Error() string { return "status " + strconv.Itoa(int(e)) }

// reason maps an error to one of few names, for counting.
func reason(err error) string {
	if status := statusError(0); errors.As(err, &status) {
		return status.Error()
	}
	// Timeout first: a handshake that timed out is both.
	for _, known := range []error{errTimeout, errNoClient, errConnect, errHandshake, errHead, errLength, errBody} {
		if errors.Is(err, known) {
			return known.Error()
		}
	}
	return errClosed.Error()
}

const answerHeadBytesMax = 16 << 10

// buffer is what the client may read into until it parks. A TLS client has its own.
func (c *client) buffer() []byte {
	if c.flow.TLS == nil {
		return c.loop.buf[:]
	}
	return c.tlsBuf
}

// checkAnswer reads one answer and compares its status, length and every byte of its body.
func (c *client) checkAnswer() error {
	body, head, err := c.readHead(c.buffer())
	if err != nil {
		return err
	}
	length, err := parseHead(head)
	if err != nil {
		return err
	}
	if length != len(c.flow.body) {
		return fmt.Errorf("%w: %d", errLength, length)
	}
	return c.compare(body, c.flow.body)
}

// compare reads as much as is wanted, beginning with what has been read already.
func (c *client) compare(got, want []byte) error {
	for {
		if len(got) > len(want) || !bytes.Equal(got, want[:len(got)]) {
			return errBody
		}
		want = want[len(got):]
		if len(want) == 0 {
			return nil
		}
		buf := c.buffer()
		n, err := c.stream.Read(buf)
		if n == 0 && err != nil {
			return err
		}
		got = buf[:n]
	}
}

// readHead reads an answer's head and returns it, and what of the body came with it; both may lie in buf. The usual head comes in one
// read; one that does not is put together aside, because buf is other clients' as well.
func (c *client) readHead(buf []byte) (body, head []byte, err error) {
	var aside []byte
	for {
		n, err := c.stream.Read(buf)
		if n == 0 && err != nil {
			return nil, nil, err
		}
		in := buf[:n]
		if aside != nil {
			aside = append(aside, in...)
			in = aside
		}
		if end := bytes.Index(in, []byte("\r\n\r\n")); end >= 0 {
			return in[end+4:], in[:end+2], nil
		}
		if len(in) > answerHeadBytesMax {
			return nil, nil, errHead
		}
		if aside == nil {
			aside = append(make([]byte, 0, 1024), in...)
		}
	}
}

// parseHead returns the Content-Length of a 200 answer. The head ends with the line end of its last field. An answer in chunks has no
// length and is a wrong one: nothing between the backend and here has a reason to reframe it.
func parseHead(head []byte) (int, error) {
	status, err := parseStatus(head)
	if err != nil {
		return 0, err
	}
	if status != 200 {
		return 0, statusError(status)
	}
	for line := range bytes.Lines(head) {
		const field = "content-length:"
		if len(line) > len(field) && line[0]|0x20 == 'c' && bytes.EqualFold(line[:len(field)], []byte(field)) {
			length, err := strconv.Atoi(string(bytes.TrimSpace(line[len(field):])))
			if err != nil {
				return 0, errHead
			}
			return length, nil
		}
	}
	return 0, fmt.Errorf("%w: none announced", errLength)
}

func parseStatus(head []byte) (int, error) {
	const prefix = len("HTTP/1.1 ")
	if len(head) < prefix+3 || string(head[:7]) != "HTTP/1." {
		return 0, errHead
	}
	status, err := strconv.Atoi(string(head[prefix : prefix+3]))
	if err != nil {
		return 0, errHead
	}
	return status, nil
}
