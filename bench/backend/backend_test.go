//go:build linux

package backend

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start runs a backend for one test and returns its address.
func start(t *testing.T, delay time.Duration) string {
	t.Helper()
	return startWith(t, Config{Delay: delay})
}

// startWith is start with other settings than the delay.
func startWith(t *testing.T, c Config) string {
	t.Helper()
	address := freeAddress(t)
	stop, ready, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	c.Listen, c.Stop, c.Ready = []string{address}, stop, func() { close(ready) }
	go func() { done <- Run(c) }()
	select {
	case <-ready:
	case err := <-done:
		t.Fatal(err)
	}
	t.Cleanup(func() {
		close(stop)
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return address
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func dial(t *testing.T, address string) (net.Conn, *bufio.Reader) {
	t.Helper()
	conn, err := net.Dial("tcp4", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return conn, bufio.NewReader(conn)
}

func expect(t *testing.T, r *bufio.Reader, size int) {
	t.Helper()
	response, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != 200 || !bytes.Equal(body, Body(size)) {
		t.Fatalf("status %d, %d bytes (want %d), error %v", response.StatusCode, len(body), size, err)
	}
}

func TestSizesOnOneConnection(t *testing.T) {
	conn, r := dial(t, start(t, 0))
	for _, size := range []int{0, 1, 1024, 100 << 10, 8 << 20, 3} {
		fmt.Fprintf(conn, "GET /%d HTTP/1.1\r\nHost: x\r\n\r\n", size)
		expect(t, r, size)
	}
}

func TestHeadCutAnywhere(t *testing.T) {
	address := start(t, 0)
	head := "GET /10 HTTP/1.1\r\nHost: x\r\n\r\n"
	for cut := 1; cut < len(head); cut++ {
		conn, r := dial(t, address)
		io.WriteString(conn, head[:cut])
		io.WriteString(conn, head[cut:])
		expect(t, r, 10)
		conn.Close()
	}
}

func TestPipelinedWithBodies(t *testing.T) {
	conn, r := dial(t, start(t, 0))
	post := "POST /7 HTTP/1.1\r\nhost: x\r\nCONTENT-LENGTH: 40000\r\n\r\n" + strings.Repeat("GET /1 HTTP/1.1\r\n\r\n", 40000/19+1)[:40000]
	io.WriteString(conn, "GET /2000000 HTTP/1.1\r\n\r\n"+post+"GET /5 HTTP/1.1\r\n\r\n")
	expect(t, r, 2000000)
	expect(t, r, 7)
	expect(t, r, 5)
}

func TestAnswerComesAfterTheBody(t *testing.T) {
	conn, r := dial(t, start(t, 0))
	io.WriteString(conn, "POST /3 HTTP/1.1\r\nContent-Length: 10\r\n\r\n12345")
	if err := conn.SetReadDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Peek(1); err == nil {
		t.Fatal("answered before the body's end")
	}
	if err := conn.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	io.WriteString(conn, "67890")
	expect(t, r, 3)
}

func TestTunnel(t *testing.T) {
	conn, r := dial(t, start(t, 0))
	// The key and its answer are those of RFC 6455, section 1.3.
	io.WriteString(conn, "GET /chat HTTP/1.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\nearly")
	response, err := http.ReadResponse(r, nil)
	if err != nil || response.StatusCode != 101 || response.Header.Get("Sec-WebSocket-Accept") != "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" {
		t.Fatalf("%+v, %v", response, err)
	}
	late := strings.Repeat("GET / HTTP/1.1\r\n\r\n", 10_000)
	go io.WriteString(conn, late)
	got := make([]byte, len("early")+len(late))
	if _, err := io.ReadFull(r, got); err != nil || string(got) != "early"+late {
		t.Fatalf("the echo differs, %v", err)
	}
}

func TestCloseWhenAsked(t *testing.T) {
	conn, r := dial(t, start(t, 0))
	io.WriteString(conn, "GET /1000000 HTTP/1.1\r\nconnection: Close\r\n\r\n")
	expect(t, r, 1000000)
	if _, err := r.ReadByte(); err != io.EOF {
		t.Fatalf("after the last answer: %v, want EOF", err)
	}
}

func TestDelay(t *testing.T) {
	const delay = 50 * time.Millisecond
	conn, r := dial(t, start(t, delay))
	begin := time.Now()
	io.WriteString(conn, "GET /1 HTTP/1.1\r\n\r\nGET /2 HTTP/1.1\r\n\r\n")
	expect(t, r, 1)
	if took := time.Since(begin); took < delay {
		t.Fatalf("answered after %v, the delay is %v", took, delay)
	}
	expect(t, r, 2)
}

func TestDelayedClientGone(t *testing.T) {
	address := start(t, 50*time.Millisecond)
	gone, _ := dial(t, address)
	io.WriteString(gone, "GET /1 HTTP/1.1\r\n\r\n")
	gone.Close()
	conn, r := dial(t, address) // takes the descriptor that the other one left
	io.WriteString(conn, "GET /9 HTTP/1.1\r\n\r\n")
	expect(t, r, 9)
}

func TestConnectionsAreCounted(t *testing.T) {
	var accepted atomic.Int64
	first, second := freeAddress(t), freeAddress(t)
	stop, ready, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		done <- Run(Config{Listen: []string{first, second}, Accepted: &accepted, Stop: stop, Ready: func() { close(ready) }})
	}()
	<-ready
	for _, address := range []string{first, second, second} {
		conn, r := dial(t, address)
		for range 3 {
			io.WriteString(conn, "GET /1 HTTP/1.1\r\n\r\n")
			expect(t, r, 1)
		}
	}
	if n := accepted.Load(); n != 3 {
		t.Errorf("%d connections counted of 3", n)
	}
	close(stop)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestAddressInUse(t *testing.T) {
	address := start(t, 0)
	if err := Run(Config{Listen: []string{address}}); err == nil || !strings.Contains(err.Error(), address) {
		t.Fatalf("a second backend on %s: %v", address, err)
	}
}

func TestParse(t *testing.T) {
	for _, c := range []struct {
		head string
		want asked
	}{
		{"GET / HTTP/1.1\r\n\r\n", asked{}},
		{"GET /1024?x=1 HTTP/1.1\r\nX-Content-Length: 4\r\n\r\n", asked{size: 1024}},
		{"GET /99999999999999999999 HTTP/1.1\r\n\r\n", asked{size: bodyBytesMax}},
		{"PUT /x HTTP/1.1\r\ncontent-Length:12\r\n\r\n", asked{bodyBytes: 12}},
		{"GET /3 HTTP/1.1\r\nConnection: close\r\n\r\n", asked{size: 3, last: true}},
		{"nonsense\r\n\r\n", asked{}},
		{"GET / HTTP/1.1\r\nSec-WebSocket-Key: abc==\r\nX: y\r\n\r\n", asked{key: []byte("abc==")}},
	} {
		if got := parse([]byte(c.head)); !reflect.DeepEqual(got, c.want) {
			t.Errorf("parse(%q) = %+v, want %+v", c.head, got, c.want)
		}
	}
}

func TestBlocksOfABodyDiffer(t *testing.T) {
	const block = 4 << 10
	body := Body(4 << 20)
	seen := map[string]bool{}
	for i := 0; i+block <= len(body); i += block {
		seen[string(body[i:i+block])] = true
	}
	if len(seen) != len(body)/block {
		t.Fatalf("%d different blocks of %d", len(seen), len(body)/block)
	}
}

func TestDelayQueueKeepsOrder(t *testing.T) {
	var q delayQueue
	pushed, popped := 0, 0
	epoch := time.Unix(0, 0)
	for round := range 100 {
		for range round % 7 {
			q.push(delayedAnswer{at: epoch.Add(time.Duration(pushed))})
			pushed++
		}
		for range round % 5 {
			if popped == pushed {
				break
			}
			if d := q.pop(); !d.at.Equal(epoch.Add(time.Duration(popped))) {
				t.Fatalf("pop %d gave %v", popped, d.at)
			}
			popped++
		}
	}
	if at, ok := q.next(); !ok || !at.Equal(epoch.Add(time.Duration(popped))) {
		t.Fatalf("next is %v, %v after %d of %d", at, ok, popped, pushed)
	}
}

func TestIdleConnectionsAreClosed(t *testing.T) {
	const idle = 300 * time.Millisecond
	address, stop, ready, done := freeAddress(t), make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		done <- Run(Config{Listen: []string{address}, Idle: idle, Stop: stop, Ready: func() { close(ready) }})
	}()
	<-ready
	defer func() {
		close(stop)
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	conn, in := dial(t, address)
	if _, err := io.WriteString(conn, "GET /3 HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	asked := time.Now()
	response, err := http.ReadResponse(in, nil)
	if err != nil {
		t.Fatal(err)
	}
	if body, err := io.ReadAll(response.Body); err != nil || len(body) != 3 {
		t.Fatalf("%q, %v", body, err)
	}
	if _, err := in.ReadByte(); err != io.EOF {
		t.Fatalf("error %v, want the end", err)
	}
	if took := time.Since(asked); took < idle/2 {
		t.Errorf("closed after %v", took)
	}
}
