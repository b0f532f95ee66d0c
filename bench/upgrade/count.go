package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
)

// client is one kind of clients. Its run makes them until ctx ends, and then brings to an end what is under way.
type client interface {
	what() string
	run(ctx context.Context, tally *count)
}

// count is what became of one kind of clients' doings.
type count struct {
	what string
	done atomic.Int64
	// late was not begun in time, because the machine was busy; cut met a deadline.
	late, cut                           atomic.Int64
	refused, reset, ended, timeout, odd atomic.Int64

	mu    sync.Mutex
	first string
}

func (c *count) lost() int64 {
	return c.refused.Load() + c.reset.Load() + c.ended.Load() + c.timeout.Load() + c.odd.Load()
}

// lose counts one by what went wrong.
func (c *count) lose(err error) {
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		c.refused.Add(1)
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		c.reset.Add(1)
	case errors.Is(err, os.ErrDeadlineExceeded):
		c.timeout.Add(1)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		c.ended.Add(1)
	default:
		c.odd.Add(1)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.first == "" {
		c.first = err.Error()
	}
}

func (c *count) String() string {
	return fmt.Sprintf("%-24s %8d done, %d lost (%d refused, %d reset, %d ended, %d timed out, %d otherwise), %d cut at the deadline, %d not begun in time",
		c.what, c.done.Load(), c.lost(), c.refused.Load(), c.reset.Load(), c.ended.Load(), c.timeout.Load(), c.odd.Load(), c.cut.Load(), c.late.Load())
}
