//go:build linux

// Command cluster runs three nodes on this machine and prints what their Raft does to people who change something: how long writes stand
// still when the leader is killed, and whether a storm of handshakes on all nodes costs an election or delays a certificate.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"time"

	"lbd/bench/node"
)

func main() {
	kills := flag.Int("kills", 50, "how often the leader is killed; 0: never")
	storm := flag.Duration("storm", 5*time.Minute, "how long all nodes are stormed with new TLS connections; 0: not at all")
	bin := flag.String("bin", "", "folder with lbd and lbctl; by default they are built")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := measure(ctx, *bin, *kills, *storm); err != nil {
		fmt.Fprintln(os.Stderr, "cluster:", err)
		os.Exit(1)
	}
}

func measure(ctx context.Context, bin string, kills int, storm time.Duration) error {
	work, err := os.MkdirTemp("", "lbd-cluster-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	if bin == "" {
		if bin = filepath.Join(work, "bin"); os.Mkdir(bin, 0o700) != nil {
			return errors.New("no folder for the programs")
		}
		if err := node.Build(ctx, bin); err != nil {
			return err
		}
	}
	c := &cluster{ctx: ctx, bin: bin, work: work}
	defer c.close()
	began := time.Now()
	if err := c.form(3); err != nil {
		return err
	}
	fmt.Printf("three nodes, all voters, after %s\n", time.Since(began).Round(time.Millisecond))
	if kills > 0 {
		if err := c.kills(kills); err != nil {
			return err
		}
	}
	if storm > 0 {
		return c.storm(storm)
	}
	return nil
}

// kills kills the leader again and again, and asks another node for a change at that moment. The killed one comes back before the next turn.
func (c *cluster) kills(n int) error {
	var took []time.Duration
	for i := range n {
		leader, err := c.leader()
		if err != nil {
			return err
		}
		other := c.nodes[(slices.Index(c.nodes, leader)+1)%len(c.nodes)]
		if err := leader.kill(); err != nil {
			return err
		}
		began := time.Now()
		if _, err := c.lbctl(other, page(i), "apply", "-f", "-", "--timeout", "30s"); err != nil {
			return fmt.Errorf("after kill %d: %w", i+1, err)
		}
		took = append(took, time.Since(began))
		if err := c.start(leader, "run"); err != nil {
			return err
		}
		if err := c.settled(); err != nil {
			return err
		}
	}
	slices.Sort(took)
	fmt.Printf("leader killed %d times; until `lbctl apply` on another node returns: median %s, p99 %s, least %s, most %s\n", n,
		at(took, 0.5), at(took, 0.99), at(took, 0), at(took, 1))
	return nil
}

// at is a quantile of sorted times.
func at(sorted []time.Duration, q float64) time.Duration {
	return sorted[int(q*float64(len(sorted)-1)+0.5)].Round(time.Millisecond)
}
