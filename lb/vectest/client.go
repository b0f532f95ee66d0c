package vectest

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

// Target is how to reach the proxy.
type Target struct {
	Address string
	TLS     *tls.Config // nil for plain HTTP
	// Cut sends each octet by itself (of long segments the first few thousand), so that every
	// place where a read could end is one.
	Cut bool
}

const (
	cutOctetsMax = 2000
	// segmentPause is what a vector's {{sleep}} takes: long enough for a proxy to act on what it has.
	segmentPause = 100 * time.Millisecond
	// patience is how long the proxy may be silent before the vector is judged by that.
	patience = 4 * time.Second
	// settle is how long to look for more behind the answers that were expected. Nothing rests
	// on it alone: after it comes a half-close, and all that the proxy still does until it closes.
	settle = 10 * time.Millisecond
)

// seen is what the client saw.
type seen struct {
	statuses []int
	closed   bool // the proxy closed, or said that it would
	octets   []byte
	note     string
	client   string // the address that it came from
}

func dial(target Target) (net.Conn, error) {
	d := net.Dialer{Timeout: patience}
	if target.TLS != nil {
		return tls.DialWithDialer(&d, "tcp", target.Address, target.TLS)
	}
	return d.Dial("tcp", target.Address)
}

// exchange sends segments and reads until the proxy closes or has nothing more to say. want is
// the number of answers after which it is not expected to say more.
func exchange(target Target, segments [][]byte, fin bool, want int, mustClose bool) (*seen, error) {
	c, err := dial(target)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		send(c, segments, target.Cut)
		if fin {
			closeWrite(c)
		}
	}()
	s := &seen{client: c.LocalAddr().String()}
	method, _, _ := strings.Cut(string(bytes.Join(segments, nil)), " ")
	s.read(c, method, want, mustClose, time.Duration(len(segments))*segmentPause)
	if !s.closed {
		closeWrite(c)
		s.rest(c)
	}
	c.Close() // ends the sender, if the proxy stopped reading
	<-sent
	s.parse(method)
	return s, nil
}

func send(c net.Conn, segments [][]byte, cut bool) {
	c.SetWriteDeadline(time.Now().Add(2*patience + time.Duration(len(segments))*segmentPause))
	for i, segment := range segments {
		if i > 0 {
			time.Sleep(segmentPause)
		}
		for n := 0; cut && len(segment) > 0 && n < cutOctetsMax; n++ {
			if _, err := c.Write(segment[:1]); err != nil {
				return
			}
			segment = segment[1:]
			time.Sleep(time.Microsecond) // lets the octet be read alone
		}
		if _, err := c.Write(segment); err != nil {
			return
		}
	}
}

func closeWrite(c net.Conn) {
	if w, ok := c.(interface{ CloseWrite() error }); ok {
		w.CloseWrite()
	}
}

// read reads until the connection closes, or settles with enough answers, or patience ends.
func (s *seen) read(c net.Conn, method string, want int, mustClose bool, more time.Duration) {
	deadline := time.Now().Add(patience + more)
	buf := make([]byte, 64<<10)
	for {
		until := deadline
		if s.parse(method); len(s.statuses) >= max(want, 1) && (!mustClose || s.saysClose()) {
			until = time.Now().Add(settle)
		}
		c.SetReadDeadline(until)
		n, err := c.Read(buf)
		s.octets = append(s.octets, buf[:n]...)
		if err != nil {
			var timeout net.Error
			s.closed = !errors.As(err, &timeout) || !timeout.Timeout()
			return
		}
	}
}

// rest reads what still comes until the proxy closes, which is no longer to its merit.
func (s *seen) rest(c net.Conn) {
	c.SetReadDeadline(time.Now().Add(patience))
	more, _ := io.ReadAll(c)
	s.octets = append(s.octets, more...)
	s.closed = s.saysClose()
}

func (s *seen) saysClose() bool {
	return strings.Contains(strings.ToLower(string(s.octets)), "connection: close")
}

// parse reads the answers as a client would.
func (s *seen) parse(method string) {
	s.statuses, s.note = nil, ""
	r := bufio.NewReader(bytes.NewReader(s.octets))
	for {
		a, err := http.ReadResponse(r, &http.Request{Method: method})
		if err != nil {
			if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
				s.note = fmt.Sprintf("no answer in %s: %v", quote(string(s.octets)), err)
			}
			return
		}
		_, err = io.Copy(io.Discard, a.Body)
		if err != nil {
			s.note = "answer cut short"
		}
		if a.StatusCode >= 200 || a.StatusCode == 101 {
			s.statuses = append(s.statuses, a.StatusCode)
		}
		if err != nil || a.StatusCode == 101 {
			return
		}
	}
}

// probe asks for a page of its own on a fresh connection and says what is wrong with the answer.
func probe(target Target, id string) string {
	target.Cut = false
	c, err := dial(target)
	if err != nil {
		return err.Error()
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(2 * patience))
	fmt.Fprintf(c, "GET /probe/%s HTTP/1.1\r\nHost: v.test\r\nConnection: close\r\n\r\n", id)
	a, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return err.Error()
	}
	body, err := io.ReadAll(a.Body)
	if err != nil || a.StatusCode != 200 || !strings.Contains(string(body), "T:/probe/"+id+"\n") {
		return fmt.Sprintf("%d %s %v", a.StatusCode, quote(string(body)), err)
	}
	return ""
}
