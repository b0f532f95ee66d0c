//go:build linux

package main

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// How long the mortal backend lives, and is dead.
const (
	mortalLives = 3 * time.Second
	mortalDead  = 2 * time.Second
)

// killer is an observer that kills a backend and starts it again, during the window.
type killer struct {
	stop context.CancelFunc // nil before open
	done chan struct{}
	err  error // until done is closed the goroutine's
}

func (k *killer) open(b *bed) error {
	ctx, stop := context.WithCancel(context.Background())
	k.stop, k.done = stop, make(chan struct{})
	go func() {
		defer close(k.done)
		for {
			pass(ctx, mortalLives)
			if ctx.Err() != nil {
				return
			}
			b.endMortal()
			pass(ctx, mortalDead)
			if k.err = b.startMortal(); k.err != nil {
				return
			}
		}
	}()
	return nil
}

func pass(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

func (k *killer) close(*record) error {
	k.end()
	return k.err
}

func (k *killer) end() {
	if k.stop != nil {
		k.stop()
		<-k.done
	}
}

// loopWatch is an observer that asks lbd's metrics how many of the clients' connections each loop has: when the window opens, for at its end the clients go.
type loopWatch struct{ connections []float64 }

func (w *loopWatch) open(b *bed) error {
	response, err := http.Get("http://" + b.setup.Metrics + "/metrics")
	if err != nil {
		return fmt.Errorf("ask for connections per loop: %w", err)
	}
	defer response.Body.Close()
	for lines := bufio.NewScanner(response.Body); lines.Scan(); {
		if rest, ok := strings.CutPrefix(lines.Text(), "lbd_loop_client_connections{"); ok {
			_, value, _ := strings.Cut(rest, "} ")
			n, err := strconv.ParseFloat(value, 64)
			if err != nil {
				return fmt.Errorf("connections per loop: %w", err)
			}
			w.connections = append(w.connections, n)
		}
	}
	return nil
}

func (w *loopWatch) close(r *record) error {
	r.LoopConnections = w.connections
	return nil
}
