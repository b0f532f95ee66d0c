package vectest_test

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"

	"lbd/lb/http1"
	"lbd/lb/vectest"
)

// The judge is judged with two proxies: one that is right and one that is as wrong as can be.

// proxy serves connections on a loopback port until the test ends.
func proxy(t *testing.T, config *tls.Config, serve func(net.Conn)) (address string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if config != nil {
		l = tls.NewListener(l, config)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { defer c.Close(); serve(c) })
		}
	})
	t.Cleanup(func() { l.Close(); wg.Wait() })
	return l.Addr().String()
}

// pass hands the octets on as they are, both ways, and lets backend connections live on for
// the next client, as a naive proxy with a pool would.
func pass(backend string) func(net.Conn) {
	return func(client net.Conn) {
		c, err := net.Dial("tcp", backend)
		if err != nil {
			return
		}
		defer c.Close()
		var wg sync.WaitGroup
		wg.Go(func() {
			io.Copy(c, client)
			c.(*net.TCPConn).CloseWrite()
		})
		io.Copy(client, c)
		client.Close()
		wg.Wait()
	}
}

// forward reads and writes with http1, one backend connection per request.
func forward(backend string) func(net.Conn) {
	return func(client net.Conn) {
		in := &stream{conn: client}
		for {
			keep, err := forwardOne(in, backend)
			var refusal *http1.Error
			if errors.As(err, &refusal) {
				fmt.Fprintf(client, "HTTP/1.1 %d No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", refusal.Status)
				drain(client)
			}
			if err != nil || !keep {
				return
			}
		}
	}
}

// drain lets the client read the answer before its own octets cause a reset.
func drain(c net.Conn) {
	if w, ok := c.(interface{ CloseWrite() error }); ok {
		w.CloseWrite()
	}
	io.Copy(io.Discard, c)
}

// stream is a connection with what was read from it and not yet used.
type stream struct {
	conn net.Conn
	left []byte
}

// more reads once.
func (s *stream) more() error {
	buf := make([]byte, 16<<10)
	n, err := s.conn.Read(buf)
	s.left = append(s.left, buf[:n]...)
	if n > 0 {
		return nil
	}
	return err
}

// head calls parse until the head is whole, and takes it off.
func (s *stream) head(parse func([]byte) (int, error)) error {
	for {
		n, err := parse(s.left)
		if err == nil {
			s.left = append([]byte(nil), s.left[n:]...) // the head keeps the old array
			return nil
		}
		if !errors.Is(err, http1.ErrIncomplete) {
			return err
		}
		if err := s.more(); err != nil {
			return err
		}
	}
}

// body copies a body to w in the given framing.
func (s *stream) body(d *http1.Body, f http1.Framing, w io.Writer) error {
	for {
		data, n, err := d.Decode(s.left)
		if err != nil {
			return err
		}
		out := append([]byte(nil), data...)
		if f == http1.Chunked && len(data) > 0 {
			out = append(http1.AppendChunkSize(nil, len(data)), data...)
			out = append(out, "\r\n"...)
		}
		if s.left = s.left[n:]; d.Done() && f == http1.Chunked {
			out = http1.AppendLastChunk(out, d.Trailer())
		}
		if _, err := w.Write(out); err != nil || d.Done() {
			return err
		}
		if err := s.more(); err != nil {
			if d.EOF() != nil {
				return err
			}
		}
	}
}

func forwardOne(in *stream, address string) (keep bool, err error) {
	var r http1.Request
	if err := in.head(func(b []byte) (int, error) { return r.Parse(b, &http1.DefaultLimits) }); err != nil {
		return false, err
	}
	if r.EncodedSlash {
		return false, http1.ErrEncodedSlash
	}
	c, err := net.Dial("tcp", address)
	if err != nil {
		return false, err
	}
	defer c.Close()
	c.Write(r.Append(nil, &http1.RequestEdit{Via: "test", ClientAddress: "192.0.2.1"}))
	var d http1.Body
	r.StartBody(&d)
	if err := in.body(&d, r.Framing, c); err != nil {
		return false, err
	}
	return answerOne(&stream{conn: c}, &r, in.conn)
}

// TestCampaign: mutated requests find nothing wrong with the right proxy, and much with the other.
func TestCampaign(t *testing.T) {
	vectors := load(t)
	for _, c := range []struct {
		name  string
		serve func(backend string) func(net.Conn)
		right bool
	}{{"right", forward, true}, {"wrong", pass, false}} {
		campaign, err := vectest.NewCampaign(vectest.CampaignConfig{Vectors: vectors, Seed: 7, Requests: 1000, Clients: 4})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(campaign.Close)
		halfway := 0
		report := campaign.Run([]vectest.Target{{Address: proxy(t, nil, c.serve(campaign.Address()))}}, func() { halfway++ })
		if (report.Faults == 0) != c.right || report.Answers < 1000 || report.AtBackend < 300 || halfway != 1 {
			t.Errorf("%s: %d faults in %d answers, %d at the backend, half-way %d times: %q", c.name, report.Faults, report.Answers, report.AtBackend,
				halfway, report.Examples())
		}
	}
}

func answerOne(out *stream, r *http1.Request, client net.Conn) (keep bool, err error) {
	var a http1.Response
	for {
		err := out.head(func(b []byte) (int, error) { return a.Parse(b, &http1.DefaultLimits, r) })
		if err != nil {
			return false, &http1.Error{Status: 502, Reason: "bad answer"}
		}
		if !a.Interim() {
			break
		}
		if r.Minor > 0 {
			client.Write(a.Append(nil, &http1.ResponseEdit{}))
		}
		a.Reset()
	}
	f := a.ClientFraming(r.Minor)
	keep = r.KeepAlive && f != http1.UntilClose
	client.Write(a.Append(nil, &http1.ResponseEdit{Framing: f, Minor: r.Minor, Close: !keep}))
	var d http1.Body
	a.StartBody(&d)
	return keep, out.body(&d, f, client)
}
