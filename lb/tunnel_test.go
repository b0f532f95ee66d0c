package lb

import (
	"io"
	"strings"
	"testing"
	"time"

	"lbd/lb/lbtest"
)

const (
	upgrade  = "GET /chat HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
	switched = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
)

func TestTunnel(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		const size = 4 << 20
		b := lbtest.New(t, func(c *lbtest.Conn) {
			c.ReadHead()
			c.Say(switched + "first")
			io.Copy(c.Conn, c) // echo, until the client's side ends
			c.Say("last")
		})
		n := start(t, setup{kind: kind, backends: addrs(b)})
		c := n.dial()
		c.say(upgrade + "early")
		for {
			line, err := c.r.ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			if line == "\r\n" {
				break
			}
		}
		c.expectText("firstearly")
		go func() {
			io.Copy(c.Conn, io.LimitReader(repeat('x'), size))
			c.Conn.(interface{ CloseWrite() error }).CloseWrite()
		}()
		all, err := io.ReadAll(c.r)
		if err != nil || len(all) != size+4 || !strings.HasSuffix(string(all), "xlast") {
			t.Errorf("%d bytes, %v", len(all), err)
		}
		n.want(101, OK)
		eventually(t, "connections gone", func() bool { s := n.Stats(); return s.Connections == 0 && n.backend(0).Idle == 0 })
	})
}

func TestTunnelIdle(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		ended := make(chan struct{})
		b := lbtest.New(t, func(c *lbtest.Conn) {
			c.ReadHead()
			c.Say(switched)
			io.Copy(io.Discard, c)
			close(ended)
		})
		n := start(t, setup{kind: kind, backends: addrs(b), forward: RouteTimeouts{Tunnel: 30 * time.Millisecond}})
		c := n.dial()
		c.say(upgrade)
		io.Copy(io.Discard, c.r)
		<-ended
		if r := n.want(101, ClientTimeout); r.Detail != "tunnel_idle" {
			t.Errorf("detail %q", r.Detail)
		}
	})
}

// TestUpgradeRefused: an answer that is no 101 is an ordinary one.
func TestUpgradeRefused(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		n := start(t, setup{kind: kind, backends: addrs(lbtest.New(t, lbtest.OK("no")))})
		c := n.dial()
		for range 2 {
			c.say(upgrade)
			c.expect("GET", 200, "no")
		}
	})
}
