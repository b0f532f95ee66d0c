package lb

import (
	"crypto/tls"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"lbd/lb/lbtest"
	"lbd/lb/loop"
)

// fill writes to c until nobody has taken a byte for a moment.
func fill(c net.Conn) {
	piece := make([]byte, 64<<10)
	for {
		c.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
		if n, err := c.Write(piece); err != nil && n == 0 {
			return
		}
	}
}

// clog is a backend that answers with head, sends until nobody takes more, reads nothing, and dies when told to.
func clog(head string, full chan<- struct{}, die <-chan struct{}) lbtest.Script {
	return func(c *lbtest.Conn) {
		c.ReadHead()
		c.Say(head)
		fill(c.Conn)
		full <- struct{}{}
		<-die
		c.Reset()
	}
}

// TestBackendDiesWhileBothAreStuck: the backend takes no more of the upload, the client none of the answer, and then the
// backend is gone. What is still queued for it must not keep the loop busy.
func TestBackendDiesWhileBothAreStuck(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		full, die := make(chan struct{}), make(chan struct{})
		b := lbtest.New(t, clog("HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n", full, die))
		n := start(t, setup{kind: kind, backends: addrs(b), listener: ListenerConfig{HealthPath: "/health"}})
		c := n.dialNarrow()
		c.say("POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 100000000\r\n\r\n")
		fill(c.Conn)
		<-full
		die <- struct{}{}
		other := n.dial()
		other.say(get("/health"))
		other.expect("GET", 200, "ready\n")
		n.want(200, OK)
		c.Conn.(*net.TCPConn).SetLinger(0)
		c.Close()
		n.want(200, ClientAborted)
	})
}

// TestTunnelClientDiesWhileBothAreStuck is the same for a tunnel, whose client goes.
func TestTunnelClientDiesWhileBothAreStuck(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		full, die := make(chan struct{}), make(chan struct{})
		n := start(t, setup{kind: kind, backends: addrs(lbtest.New(t, clog(switched, full, die))), listener: ListenerConfig{HealthPath: "/health"}})
		c := n.dialNarrow()
		c.say(upgrade)
		fill(c.Conn)
		<-full
		c.Conn.(*net.TCPConn).SetLinger(0)
		c.Close()
		n.want(101, ClientAborted)
		die <- struct{}{}
		other := n.dial()
		other.say(get("/health"))
		other.expect("GET", 200, "ready\n")
	})
}

// TestTunnelFarewellToOneWhoDoesNotRead: the end of the backend's side is passed on within the tunnel's time, or not at all.
func TestTunnelFarewellToOneWhoDoesNotRead(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		sizes := make(chan int, 64)
		b := lbtest.New(t, func(c *lbtest.Conn) {
			c.ReadHead()
			c.Say(switched + strings.Repeat("x", <-sizes))
			c.CloseWrite()
			io.Copy(io.Discard, c)
		})
		n := start(t, setup{kind: kind, tls: testTerminator(t), backends: addrs(b), forward: RouteTimeouts{Tunnel: stall}})
		for i := range cap(sizes) {
			sizes <- 100<<10 + i*3<<10
			c := n.dialNarrow()
			over := tls.Client(c.Conn, &tls.Config{InsecureSkipVerify: true})
			if _, err := io.WriteString(over, upgrade); err != nil {
				t.Fatal(err)
			}
		}
		eventually(t, "all tunnels have ended", func() bool { return n.Stats().Connections == 0 })
	})
}

// panics is a terminator with a bug.
type panics struct{}

func (panics) Handshake(net.Conn, string) (*tls.Conn, error) { panic("handshake") }

// TestPanicInHandshake: it costs one connection, and no count. node.stop checks that, too.
func TestPanicInHandshake(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		n := start(t, setup{kind: kind, tls: panics{}})
		n.dial().expectEnd()
		eventually(t, "no connection", func() bool { return n.Stats().Connections == 0 && n.Stats().Listeners[0].Connections == 0 })
		if ended := n.Stats().Listeners[0].Ended[Internal]; ended != 1 {
			t.Errorf("%d ended as internal, want 1", ended)
		}
	})
}

// TestAbandonGivesBack: an exchange that a panic ends gives its large buffer back, of which a loop has only so many.
func TestAbandonGivesBack(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		n := start(t, setup{kind: kind})
		before, after := make(chan int), make(chan int)
		n.engine.Go(func(task *loop.Task) {
			before <- bulkLeft(task)
			x := n.begin(task, &clientConn{})
			c, _ := task.Dial(netip.MustParseAddrPort(n.addr()), time.Time{})
			x.conn = &backendConn{backend: &Backend{}, c: c}
			x.conn.in.widen(task)
			x.abandon()
			after <- bulkLeft(task)
		})
		if b, a := <-before, <-after; a != b || b == 0 {
			t.Errorf("%d large buffers before, %d after", b, a)
		}
	})
}

func bulkLeft(t *loop.Task) int {
	var taken [][]byte
	for b := t.Bulk(); b != nil; b = t.Bulk() {
		taken = append(taken, b)
	}
	for _, b := range taken {
		t.ReleaseBulk(b)
	}
	return len(taken)
}

// TestFailedListen: a new listener of which one address cannot be bound keeps none of the connections that the others brought.
func TestFailedListen(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		n := start(t, setup{kind: kind, backends: []netip.AddrPort{lbtest.Closed(t)}})
		free := lbtest.Closed(t).String()
		if err := n.Listen(ListenerConfig{Name: "other", Addresses: []string{free, n.addr()}}); err == nil {
			t.Fatal("bound twice")
		}
		if err := n.Listen(ListenerConfig{Name: "other", Addresses: []string{free}}); err != nil {
			t.Fatal(err)
		}
	})
}

// TestOwnAnswersOverTLSUnread: answers of ours that fill the queue to its end do not hold the task of a client that reads none.
func TestOwnAnswersOverTLSUnread(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		large := RouteConfig{Name: "large", Listeners: []string{"main"}, Respond: &Respond{Status: 200, Body: strings.Repeat("x", 64<<10)}}
		n := start(t, setup{kind: kind, tls: testTerminator(t), routes: []RouteConfig{large}, listener: ListenerConfig{Timeouts: Timeouts{WriteStall: stall}}})
		c := n.dialNarrow()
		over := tls.Client(c.Conn, &tls.Config{InsecureSkipVerify: true})
		if _, err := io.WriteString(over, strings.Repeat(get("/"), 100)); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the client is given up", func() bool { return n.Stats().Connections == 0 })
	})
}
