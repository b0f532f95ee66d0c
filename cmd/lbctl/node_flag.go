package main

import (
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	lbdv1 "lbd/proto/lbd/v1"
)

// Words of --node: every node, as a person writes it and as a request has it.
const (
	allNodes  = "all"
	everyNode = "*"
)

// nodeFlag is --node of a verb about one node.
func nodeFlag(cmd *cobra.Command, node *string) {
	cmd.Flags().StringVar(node, "node", "", "the node that is meant, by name or id (default: the one that answers)")
}

// nodesFlag is --node of a verb that asks every node unless one is meant.
func nodesFlag(cmd *cobra.Command, node *string) {
	cmd.Flags().StringVar(node, "node", allNodes, "the node that is meant, by name or id")
}

// meant is what a request has of the node that --node names. With --node-local no other node is asked.
func (c *cli) meant(node string) string {
	switch {
	case c.nodeLocal:
		return ""
	case node == allNodes:
		return everyNode
	}
	return node
}

// oneNode is what a request has of the one node that --node names.
func oneNode(node string) (string, error) {
	if node == allNodes {
		return "", fail(exitUsage, "--node takes one node's name or id here, not %q", node)
	}
	return node, nil
}

// warnUnreached names the nodes of which nothing is in an answer.
func (c *cli) warnUnreached(unreached []*lbdv1.UnreachedNode) {
	for _, u := range unreached {
		fmt.Fprintf(c.stderr, "warning: node %s does not answer: %s\n", oneLine(u.GetNode()), oneLine(u.GetReason()))
	}
}

// several tells whether an answer has rows of more than one node.
func several[T interface{ GetNode() string }](rows []T) bool {
	return len(rows) > 1 && slices.ContainsFunc(rows, func(r T) bool { return r.GetNode() != rows[0].GetNode() })
}

// byNode is wideRow with the node as the first column where there are several, else as the first of the wide ones.
func (t *table) byNode(several bool, node string, cells []string, more ...string) {
	if several {
		t.wideRow(append([]string{node}, cells...), more...)
		return
	}
	t.wideRow(cells, append([]string{node}, more...)...)
}
