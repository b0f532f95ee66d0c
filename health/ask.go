package health

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"time"
)

// DialFunc opens a connection, as net.Dialer.DialContext does.
type DialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// ask runs one check: connect; send a GET; read the status line; judge it. The error is what an operator reads: it names the
// phase and what was wanted. The check must be complete.
func ask(ctx context.Context, dial DialFunc, c Check) error {
	deadline := time.Now().Add(c.Timeout)
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	conn, err := dial(ctx, "tcp", c.Address)
	if err != nil {
		return c.explain(err, "connecting", "connect")
	}
	defer conn.Close()
	if c.HTTP == nil {
		return nil
	}
	_ = conn.SetDeadline(deadline)
	// A prober that is closed does not wait for slow backends.
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()

	if _, err := io.WriteString(conn, c.HTTP.request()); err != nil {
		return c.explain(err, "sending the request", "send request")
	}
	answer := bufio.NewReaderSize(conn, statusLineBytesMax)
	code, err := readStatus(answer)
	if err != nil {
		return c.explain(err, "waiting for the status line", "read status line")
	}
	drain(conn, answer, deadline)
	return c.HTTP.judge(code)
}

func (h *HTTP) request() string {
	return "GET " + h.Path + " HTTP/1.1\r\nHost: " + h.Host + "\r\nUser-Agent: lbd-health\r\nAccept: */*\r\nConnection: close\r\n\r\n"
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
		return "", judgement(fmt.Sprintf("a line of over %d bytes where the status line should be", statusLineBytesMax))
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

// drain reads the rest of a small answer, so that closing does not reset the connection under the backend's feet.
func drain(conn net.Conn, answer *bufio.Reader, deadline time.Time) {
	if soon := time.Now().Add(drainTimeout); soon.Before(deadline) {
		_ = conn.SetReadDeadline(soon)
	}
	_, _ = io.CopyN(io.Discard, answer, drainBytesMax)
}

// judgement is an error that is already in an operator's words.
type judgement string

func (j judgement) Error() string { return string(j) }

// explain puts an error of the network into words: phase is for "timeout after 1s …", verb for anything else.
func (c Check) explain(err error, phase, verb string) error {
	var (
		said    judgement
		timeout net.Error
		number  syscall.Errno
		name    *net.DNSError
	)
	switch {
	case errors.As(err, &said):
		return said
	case errors.As(err, &name) && name.IsNotFound:
		return fmt.Errorf("resolve: no such host %s", name.Name)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return fmt.Errorf("timeout after %s %s", c.Timeout, phase)
	case errors.Is(err, io.EOF):
		return errors.New("connection closed before the status line")
	case errors.As(err, &number):
		return fmt.Errorf("%s: %w", verb, number)
	}
	return fmt.Errorf("%s: %w", verb, err)
}
