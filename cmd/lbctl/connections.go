package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"lbd/cmd/lbctl/document"
	lbdv1 "lbd/proto/lbd/v1"
)

func (c *cli) connectionsCommand() *cobra.Command {
	return noun("connections", "See and close clients' connections", c.connectionsList(), c.connectionsKill())
}

func (c *cli) connectionsList() *cobra.Command {
	request := &lbdv1.ListConnectionsRequest{}
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List clients' open connections to the answering node",
		Long:    `List clients' open connections to the answering node, oldest first. What is chosen by several flags must fulfil all.`,
		Example: `  lbctl connections list --client 192.0.2.0/24 -o wide`,
		Args:    cobra.NoArgs,
		RunE: c.does(func(ctx context.Context, _ []string) error {
			return c.call(func(cl *client) error {
				answer, err := cl.traffic.ListConnections(ctx, request)
				if err != nil {
					return c.complained(err)
				}
				c.printConnections(answer.GetConnections())
				if answer.GetTruncated() {
					fmt.Fprintln(c.stderr, "warning: there are more: raise --limit, or choose by --listener, --client or --pool")
				}
				return nil
			})
		}),
	}
	choiceFlags(cmd, &request.Listener, &request.Client, &request.Pool)
	cmd.Flags().Int32Var(&request.Limit, "limit", 1000, "how many at most, up to 10000")
	return cmd
}

func choiceFlags(cmd *cobra.Command, listener, client, pool *string) {
	cmd.Flags().StringVar(listener, "listener", "", "those of this listener")
	cmd.Flags().StringVar(client, "client", "", "those of this client's address, or of a network as 192.0.2.0/24")
	cmd.Flags().StringVar(pool, "pool", "", "those with a request at a backend of this pool")
}

func (c *cli) printConnections(connections []*lbdv1.Connection) {
	values := []*document.Value{}
	var names []string
	for _, conn := range connections {
		values = append(values, document.OfAnswer(conn))
		names = append(names, fmt.Sprint(conn.GetId()))
	}
	c.print(result{value: document.ListOf(values), names: names, table: func(w *table) {
		w.wideRow([]string{"ID", "LISTENER", "CLIENT", "SINCE", "STATE", "REQUESTS", "ROUTE", "POOL", "BACKEND"}, "NODE", "TLS", "SERVER NAME")
		for _, conn := range connections {
			w.wideRow([]string{
				fmt.Sprint(conn.GetId()), conn.GetListener(), conn.GetClientAddress(), moment(conn.GetStartTime()), conn.GetState(),
				fmt.Sprint(conn.GetRequests()), conn.GetRoute(), conn.GetPool(), conn.GetBackend(),
			}, conn.GetNode(), conn.GetTlsVersion(), conn.GetServerName())
		}
	}})
}

func (c *cli) connectionsKill() *cobra.Command {
	request := &lbdv1.KillConnectionsRequest{}
	yes := false
	cmd := &cobra.Command{
		Use:   "kill ID…|--listener NAME|--client ADDRESS|--pool NAME",
		Short: "Close clients' connections at once",
		Long: `Close clients' connections to the answering node at once, whatever is under way on them: by their ids from "connections list",
or all that fulfil the flags. On a terminal it asks first; elsewhere --yes is needed.`,
		Example: `  lbctl connections kill --client 192.0.2.7 --yes`,
		RunE: c.does(func(ctx context.Context, args []string) error {
			for _, arg := range args {
				id, err := strconv.ParseInt(arg, 10, 64)
				if err != nil || id < 1 {
					return fail(exitUsage, "a connection's id is a number from `lbctl connections list`, not %q", arg)
				}
				request.Ids = append(request.Ids, id)
			}
			if len(args) == 0 && request.Listener == "" && request.Client == "" && request.Pool == "" {
				return fail(exitUsage, "nothing is chosen: name ids, --listener, --client or --pool")
			}
			if !yes {
				if err := c.confirm("Close " + chosen(request) + "?"); err != nil {
					return err
				}
			}
			return c.call(func(cl *client) error { return c.kill(ctx, cl, request) })
		}),
	}
	choiceFlags(cmd, &request.Listener, &request.Client, &request.Pool)
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}

func (c *cli) kill(ctx context.Context, cl *client, request *lbdv1.KillConnectionsRequest) error {
	answer, err := cl.traffic.KillConnections(ctx, request)
	if err != nil {
		return c.complained(err)
	}
	c.print(result{value: document.OfAnswer(answer), names: nil, table: func(*table) {
		fmt.Fprintf(c.stdout, "closed %s\n", countOf(int(answer.GetKilled()), "connection"))
	}})
	if len(request.GetIds()) > 0 && answer.GetKilled() == 0 {
		return fail(exitNotFound, "no such connection is open")
	}
	return nil
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
