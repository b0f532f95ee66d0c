//go:build lbdnext

package main

import (
	"context"
	"log/slog"
	"time"

	"lbd/cluster"
	"lbd/cluster/state"
)

// The build that tests use as the next version writes what only it can read, as soon as it may: once each time that a node leads.
func init() {
	keepNext = func(ctx context.Context, node *cluster.Node, log *slog.Logger) {
		for said := false; ; {
			next := node.Next()
			leads := node.Role() == "leader"
			if said = said && leads; leads && !said && node.State().Gate() >= 2 {
				_, err := node.ProposeCommand(ctx, state.Note("a note of gate 2, by "+node.Name()))
				if said = err == nil; said {
					log.Info("a note of gate 2 is in the log")
				}
			}
			select {
			case <-ctx.Done():
				return
			case <-next:
			case <-time.After(100 * time.Millisecond):
			}
		}
	}
}
