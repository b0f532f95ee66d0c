package main

import (
	"bufio"
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"lbd/cmd/lbctl/document"
	lbdv1 "lbd/proto/lbd/v1"
)

func (c *cli) connectionsCommand() *cobra.Command {
	return noun("connections", "See and close clients' connections", c.connectionsList(), c.connectionsKill())
}

func (c *cli) connectionsList() *cobra.Command {
	request := &lbdv1.ListConnectionsRequest{}
	var node string
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List clients' open connections",
		Long:    `List clients' open connections to every node, or to one (--node), oldest first. What is chosen by several flags must fulfil all.`,
		Example: `  lbctl connections list --client 192.0.2.0/24 -o wide`,
		Args:    cobra.NoArgs,
		RunE: c.does(func(ctx context.Context, _ []string) error {
			request.Node = c.meant(node)
			return c.call(func(cl *client) error {
				answer, err := cl.traffic.ListConnections(ctx, request)
				if err != nil {
					return c.complained(err)
				}
				c.warnUnreached(answer.GetUnreached())
				c.printConnections(answer.GetConnections(), answer.GetNodes() > 1)
				if answer.GetTruncated() {
					fmt.Fprintln(c.stderr, "warning: there are more: raise --limit, or choose by --listener, --client or --pool")
				}
				return nil
			})
		}),
	}
	choiceFlags(cmd, &request.Listener, &request.Client, &request.Pool)
	cmd.Flags().Int32Var(&request.Limit, "limit", 1000, "how many at most, up to 10000")
	nodesFlag(cmd, &node)
	return cmd
}

func choiceFlags(cmd *cobra.Command, listener, client, pool *string) {
	cmd.Flags().StringVar(listener, "listener", "", "those of this listener")
	cmd.Flags().StringVar(client, "client", "", "those of this client's address, or of a network as 192.0.2.0/24")
	cmd.Flags().StringVar(pool, "pool", "", "those with a request at a backend of this pool")
}

// printConnections lists connections, by the names by which they can be closed.
func (c *cli) printConnections(connections []*lbdv1.Connection, nodes bool) {
	values := []*document.Value{}
	var names []string
	for _, conn := range connections {
		values = append(values, document.OfAnswer(conn))
		names = append(names, connectionName(conn, nodes))
	}
	c.print(result{value: document.ListOf(values), names: names, table: func(w *table) {
		w.wideRow([]string{"ID", "LISTENER", "CLIENT", "SINCE", "STATE", "REQUESTS", "ROUTE", "POOL", "BACKEND"}, "NODE", "TLS", "SERVER NAME")
		for _, conn := range connections {
			w.wideRow([]string{
				connectionName(conn, nodes), conn.GetListener(), conn.GetClientAddress(), moment(conn.GetStartTime()), conn.GetState(),
				fmt.Sprint(conn.GetRequests()), conn.GetRoute(), conn.GetPool(), conn.GetBackend(),
			}, conn.GetNode(), conn.GetTlsVersion(), conn.GetServerName())
		}
	}})
}

// connectionName is a connection's id, which is its node's own: with the node where there are several.
func connectionName(conn *lbdv1.Connection, nodes bool) string {
	if nodes {
		return fmt.Sprintf("%s/%d", conn.GetNode(), conn.GetId())
	}
	return fmt.Sprint(conn.GetId())
}

func (c *cli) connectionsKill() *cobra.Command {
	request := &lbdv1.KillConnectionsRequest{}
	yes, node := false, ""
	cmd := &cobra.Command{
		Use:   "kill [NODE/]ID…|--listener NAME|--client ADDRESS|--pool NAME",
		Short: "Close clients' connections at once",
		Long: `Close clients' connections at once, whatever is under way on them: by their ids from "connections list", with the node's name where
there are several nodes; or all at every node, or at one (--node), that fulfil the flags. On a terminal it asks first; elsewhere --yes is needed.`,
		Example: `  lbctl connections kill --client 192.0.2.7 --yes`,
		RunE: c.does(func(ctx context.Context, args []string) error {
			whose, err := parseConnections(args, c.meant(node))
			if err != nil {
				return err
			}
			for _, ids := range whose {
				request.Ids = append(request.Ids, ids...)
			}
			if len(args) == 0 && request.Listener == "" && request.Client == "" && request.Pool == "" {
				return fail(exitUsage, "nothing is chosen: name ids, --listener, --client or --pool")
			}
			if !yes {
				if err := c.confirm("Close " + chosen(request) + "?"); err != nil {
					return err
				}
			}
			return c.call(func(cl *client) error { return c.kill(ctx, cl, request, whose) })
		}),
	}
	choiceFlags(cmd, &request.Listener, &request.Client, &request.Pool)
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	nodesFlag(cmd, &node)
	return cmd
}

// parseConnections reads ids, each its node's own, by node. What has no node's name is of the one that --node means. Without ids
// that node alone is in the answer.
func parseConnections(args []string, node string) (map[string][]int64, error) {
	if len(args) == 0 {
		return map[string][]int64{node: nil}, nil
	}
	whose := map[string][]int64{}
	for _, arg := range args {
		name, number, ok := strings.Cut(arg, "/")
		if !ok {
			name, number = node, arg
		}
		if name == everyNode {
			name = "" // there is one node, or the answering one asks whose they are
		}
		id, err := strconv.ParseInt(number, 10, 64)
		if err != nil || id < 1 {
			return nil, fail(exitUsage, "a connection is named by its id from `lbctl connections list`, ID or NODE/ID, not %q", arg)
		}
		whose[name] = append(whose[name], id)
	}
	return whose, nil
}

// kill closes connections, node by node where ids are named.
func (c *cli) kill(ctx context.Context, cl *client, request *lbdv1.KillConnectionsRequest, whose map[string][]int64) error {
	all := &lbdv1.KillConnectionsResponse{}
	for _, node := range slices.Sorted(maps.Keys(whose)) {
		one := proto.CloneOf(request)
		one.Node, one.Ids = node, whose[node]
		answer, err := cl.traffic.KillConnections(ctx, one)
		if err != nil {
			return c.complained(nameNode(err))
		}
		all.Killed += answer.GetKilled()
		all.Unreached = append(all.Unreached, answer.GetUnreached()...)
	}
	c.warnUnreached(all.GetUnreached())
	c.print(result{value: document.OfAnswer(all), names: nil, table: func(*table) {
		fmt.Fprintf(c.stdout, "closed %s\n", countOf(int(all.GetKilled()), "connection"))
	}})
	if len(request.GetIds()) > 0 && all.GetKilled() == 0 {
		return fail(exitNotFound, "no such connection is open")
	}
	return nil
}

// nameNode says how to write what a node asks for.
func nameNode(err error) error {
	for _, v := range violations(err) {
		if v.GetField() == "node" {
			return fail(exitUsage, "there are several nodes, and ids are each node's own: write NODE/ID")
		}
	}
	return err
}

// chosen says which connections a request means.
func chosen(r *lbdv1.KillConnectionsRequest) string {
	what := "all connections"
	if n := len(r.GetIds()); n > 0 {
		what = countOf(n, "connection")
	}
	for _, f := range []struct{ word, value string }{{"of listener", r.GetListener()}, {"from", r.GetClient()}, {"at pool", r.GetPool()}} {
		if f.value != "" {
			what += " " + f.word + " " + f.value
		}
	}
	return what
}

// confirm asks the person at the terminal. Where there is none it refuses: a script says --yes.
func (c *cli) confirm(question string) error {
	if !c.terminal() {
		return fail(exitUsage, "there is no terminal to ask at: %s Say --yes", question)
	}
	fmt.Fprintf(c.stderr, "%s [y/N] ", oneLine(question))
	answer, _ := bufio.NewReader(c.stdin).ReadString('\n')
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return nil
	}
	return fail(exitNo, "nothing was done")
}

// terminal tells whether somebody sits at stdin.
func (c *cli) terminal() bool {
	f, ok := c.stdin.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	if err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return false
	}
	null, err := os.Stat(os.DevNull) // a character device, too
	return err != nil || !os.SameFile(info, null)
}
