package loop

import (
	"bytes"
	"io"
	"testing"
	"time"
)

// TestCorked: what is written meanwhile comes together, and before an end.
func TestCorked(t *testing.T) {
	e := start(t, KindEpoll, 1)
	next := make(chan bool)
	l := listen(t, e, ListenOptions{Handler: func(_ *Task, c *Conn) {
		c.SetCorked(true)
		send(t, c, "one, ")
		send(t, c, "two")
		if n := c.Pending(); n != len("one, two") {
			t.Errorf("%d bytes pending", n)
		}
		c.SetCorked(false)
		if n := c.Pending(); n != 0 {
			t.Errorf("%d bytes pending without the cork", n)
		}
		<-next
		c.SetCorked(true)
		send(t, c, "the end")
	}})
	c := dial(t, l)
	buf := make([]byte, 100)
	if n, err := c.Read(buf); err != nil || string(buf[:n]) != "one, two" {
		t.Errorf("first %q, %v", buf[:n], err)
	}
	close(next)
	expect(t, c, "the end")
	expectEOF(t, c)
}

// TestCorkedBehindFullSocket: it keeps its place behind what the kernel has not taken.
func TestCorkedBehindFullSocket(t *testing.T) {
	e := start(t, KindEpoll, 1)
	block := bytes.Repeat([]byte("0123456789abcdef"), BufferBytes/16)
	blocks, flushed := make(chan int, 1), make(chan error, 1)
	l := listen(t, e, ListenOptions{Handler: func(_ *Task, c *Conn) {
		c.SetQueued(BulkBytes)
		c.SetWriteDeadline(time.Now().Add(patience))
		n := 0
		for ; c.Pending() == 0; n++ {
			c.Write(block)
		}
		c.SetCorked(true)
		send(t, c, "the ")
		send(t, c, "end")
		c.SetCorked(false)
		if c.Pending() == 0 {
			t.Error("the full socket took more")
		}
		blocks <- n
		flushed <- c.Flush()
	}})
	c := dial(t, l)
	for range within(t, blocks, "full socket") {
		expect(t, c, string(block))
	}
	expect(t, c, "the end")
	if n, err := io.Copy(io.Discard, c); n != 0 || err != nil {
		t.Errorf("%d more bytes, %v", n, err)
	}
	if err := within(t, flushed, "flush"); err != nil {
		t.Error(err)
	}
}
