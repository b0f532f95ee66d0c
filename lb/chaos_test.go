package lb

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"lbd/lb/lbtest"
)

// TestNoAnswerToAnother: clients and backends break off at every point; still no client gets a byte of another's answer,
// and every count comes back to zero (node.stop checks that).
func TestNoAnswerToAnother(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		backends := addrs(lbtest.New(t, moody(seed)), lbtest.New(t, moody(seed+1)), lbtest.New(t, lbtest.Echo))
		n := start(t, setup{kind: kind, loops: 2, backends: backends, unlogged: true})
		var right atomic.Int64
		var group sync.WaitGroup
		for i := range 16 {
			group.Go(func() {
				dice := rand.New(rand.NewPCG(seed, uint64(i)))
				for j := range 15 {
					c, err := net.Dial("tcp", n.addr())
					if err != nil {
						t.Error(err)
						return
					}
					right.Add(visit(t, c, dice, fmt.Sprintf("<%d-%d>", i, j)))
					c.Close()
				}
			})
		}
		group.Wait()
		if right.Load() < 16*15 {
			t.Errorf("only %d right answers", right.Load())
		}
		eventually(t, "all clients gone", func() bool { return n.Stats().Connections == 0 && n.inFlight() == 0 })
	})
}

// visit sends some requests on c, pipelined, and checks that each whole answer is its own. It returns how many were.
func visit(t *testing.T, c net.Conn, dice *rand.Rand, mark string) (right int64) {
	c.SetDeadline(time.Now().Add(patience))
	var sent []string
	for k := range 1 + dice.IntN(4) {
		body := fmt.Sprint(mark, k, strings.Repeat("x", dice.IntN(3)*dice.IntN(20_000)))
		request := post("/", body)
		if dice.IntN(2) == 0 {
			request = fmt.Sprintf("PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(body), body)
		}
		if dice.IntN(20) == 0 {
			request = request[:dice.IntN(len(request))]
			io.WriteString(c, request)
			return right // break off
		}
		if _, err := io.WriteString(c, request); err != nil {
			break
		}
		sent = append(sent, body)
	}
	r := bufio.NewReader(c)
	for _, body := range sent {
		resp, err := http.ReadResponse(r, &http.Request{Method: "POST"})
		for err == nil && resp.StatusCode == 103 {
			resp, err = http.ReadResponse(r, &http.Request{Method: "POST"})
		}
		if err != nil {
			return right
		}
		got, err := io.ReadAll(resp.Body)
		if err != nil || resp.Close && resp.StatusCode != 200 {
			return right
		}
		if resp.StatusCode == 502 {
			continue
		}
		if resp.StatusCode != 200 || string(got) != body {
			t.Errorf("%d %.60q, want %.60q", resp.StatusCode, got, body)
			return right
		}
		right++
	}
	return right
}

// moody echoes, but now and then dies, stops half-way, says too much or sends in pieces.
func moody(seed uint64) lbtest.Script {
	return func(c *lbtest.Conn) {
		dice := rand.New(rand.NewPCG(seed, uint64(c.Index())))
		for {
			r, err := c.ReadRequest()
			if err != nil {
				return
			}
			answer := fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(r.Body), r.Body)
			switch dice.IntN(12) {
			case 0:
				c.Reset()
				return
			case 1:
				return
			case 2:
				c.Say(answer[:dice.IntN(len(answer))])
				return
			case 3:
				c.Say(answer + "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison")
			case 4:
				c.Say(fmt.Sprintf("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n", len(r.Body)))
				c.Say(r.Body + "\r\n")
				c.Say("0\r\n\r\n")
			case 5:
				c.Say("HTTP/1.1 200 OK\r\n\r\n" + r.Body)
				return
			case 6:
				c.Say("HTTP/1.1 103 Early Hints\r\n\r\n" + answer)
				c.Reset()
				return
			default:
				c.Say(answer)
			}
		}
	}
}
