package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"lbd/cmd/lbctl/document"
	lbdv1 "lbd/proto/lbd/v1"
)

func (c *cli) routeCommand() *cobra.Command {
	return noun("route", "Ask what becomes of requests", c.routeTest())
}

func (c *cli) routeTest() *cobra.Command {
	request := &lbdv1.TestRouteRequest{}
	var headers []string
	var against int64
	var node string
	var cmd *cobra.Command
	cmd = &cobra.Command{
		Use:   "test URL",
		Short: "Say what would become of a request, and why, without sending it",
		Long: `Say what would become of a request, and why, without sending it: which listener, certificate, route, pool and backend take it,
and why the others do not; what is changed in it, and which timeouts hold. The answering node decides, or another (--node NAME), or
each by itself (--node all).

Exit 0 if a route takes it, 1 if it is refused, denied or answered by a route in maintenance, or if no backend of the pool
takes it. With --diff two revisions decide, and what differs is shown: exit 1 if anything does. --diff takes two revisions, 0 for the one that is served.`,
		Example: `  lbctl route test https://shop.example.com/cart -H 'X-Canary: always'
  lbctl route test https://shop.example.com/cart --diff 41 42`,
		Args: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("diff") {
				return cobra.ExactArgs(2)(cmd, args)
			}
			return cobra.ExactArgs(1)(cmd, args)
		},
		RunE: c.does(func(ctx context.Context, args []string) (err error) {
			if request.Headers, err = parseHeaders(headers); err != nil {
				return err
			}
			if !cmd.Flags().Changed("diff") {
				request.Url = args[0]
				if err := checkAsked(request); err != nil {
					return err
				}
				return c.call(func(cl *client) error {
					if node == allNodes {
						return c.testRouteEverywhere(ctx, cl, request)
					}
					request.Node = node
					return c.testRoute(ctx, cl, request)
				})
			}
			if request.Node, err = oneNode(node); err != nil {
				return err
			}
			url, other, err := urlAndRevision(args)
			if err != nil {
				return err
			}
			request.Url = url
			if against < 0 {
				return noRevision("--diff", against)
			}
			if err := checkAsked(request); err != nil {
				return err
			}
			return c.call(func(cl *client) error { return c.diffRoute(ctx, cl, request, against, other) })
		}),
	}
	flags := cmd.Flags()
	flags.StringVarP(&request.Method, "method", "X", "GET", "the request's method")
	flags.StringArrayVarP(&headers, "header", "H", nil, "a field of the request, as 'Name: value'")
	flags.StringVar(&request.Sni, "sni", "", "server name in TLS (default: the URL's host)")
	flags.StringVar(&request.ClientAddress, "client-ip", "", "the client's address (default 192.0.2.1)")
	flags.StringVar(&request.Listener, "listener", "", "the listener that takes it (default: by the URL's port and scheme)")
	flags.BoolVar(&request.RsaOnly, "rsa-only", false, "the client can verify RSA keys alone")
	flags.Int64Var(&request.Revision, "revision", 0, "decide by this revision, not by the one that is served")
	flags.Int64Var(&against, "diff", 0, "compare the decisions of two revisions: --diff 41 42")
	flags.StringVar(&node, "node", "", "the node that decides, by name or id, or all (default: the one that answers)")
	cmd.MarkFlagsMutuallyExclusive("revision", "diff")
	return cmd
}

// checkAsked refuses a command line whose request cannot be one.
func checkAsked(r *lbdv1.TestRouteRequest) error {
	for _, f := range []struct{ flag, fault string }{
		{"URL", document.URLFault(r.GetUrl())},
		{"-X", document.MethodFault(r.GetMethod())},
		{"--client-ip", document.ClientFault(cmp.Or(r.GetClientAddress(), "::"))},
	} {
		if f.fault != "" {
			return fail(exitUsage, "%s %s", f.flag, f.fault)
		}
	}
	if r.GetRevision() < 0 {
		return noRevision("--revision", r.GetRevision())
	}
	return nil
}

func noRevision(flag string, n int64) error {
	return fail(exitUsage, "%s takes a revision's number, 0 for the one that is served, not %d", flag, n)
}

// parseHeaders reads fields as curl takes them.
func parseHeaders(lines []string) ([]*lbdv1.HeaderField, error) {
	var all []*lbdv1.HeaderField
	for _, l := range lines {
		name, value, ok := strings.Cut(l, ":")
		if name = strings.TrimSpace(name); !ok || name == "" {
			return nil, fail(exitUsage, "a field is written 'Name: value', not %q", l)
		}
		all = append(all, &lbdv1.HeaderField{Name: name, Value: strings.TrimSpace(value)})
	}
	return all, nil
}

// urlAndRevision tells the URL from the second revision of --diff: the flag takes the first alone.
func urlAndRevision(args []string) (url string, revision int64, err error) {
	for i, arg := range args {
		if n, err := strconv.ParseInt(arg, 10, 64); err == nil && n >= 0 {
			return args[1-i], n, nil
		}
	}
	return "", 0, fail(exitUsage, "--diff takes two revisions, as --diff 41 42, not %q", strings.Join(args, " "))
}

func (c *cli) testRoute(ctx context.Context, cl *client, request *lbdv1.TestRouteRequest) error {
	d, err := cl.traffic.TestRoute(ctx, request)
	if err != nil {
		return c.complained(nameListener(err))
	}
	c.print(result{value: document.OfAnswer(d), names: decisionNames(d), table: func(w *table) { writeDecision(w, d) }})
	if refused(d) || unserved(d) {
		return &failure{code: exitNo}
	}
	return nil
}

// testRouteEverywhere shows what each node decides by itself.
func (c *cli) testRouteEverywhere(ctx context.Context, cl *client, request *lbdv1.TestRouteRequest) error {
	s, err := clusterState(ctx, cl)
	if err != nil {
		return err
	}
	var decisions []*lbdv1.TestRouteResponse
	values, no := []*document.Value{}, false
	var names []string
	for _, n := range s.GetNodes() {
		if request.Node = n.GetNode().GetName(); !n.GetReachable() {
			c.warnUnreached([]*lbdv1.UnreachedNode{{Node: request.GetNode(), Reason: n.GetUnreachableReason()}})
			no = true
			continue
		}
		d, err := cl.traffic.TestRoute(ctx, request)
		if err != nil {
			return c.complained(nameListener(err))
		}
		decisions, values = append(decisions, d), append(values, document.OfAnswer(d))
		names = append(names, decisionNames(d)...)
		no = no || refused(d) || unserved(d)
	}
	slices.Sort(names)
	c.print(result{value: document.ListOf(values), names: slices.Compact(names), table: func(w *table) {
		for i, d := range decisions {
			if i > 0 {
				w.row()
			}
			writeDecision(w, d)
		}
	}})
	if no {
		return &failure{code: exitNo}
	}
	return nil
}

// refused tells a request that no route lets through to what it is for.
func refused(d *lbdv1.TestRouteResponse) bool {
	return slices.Contains([]string{"refused", "denied", "maintenance"}, d.GetAction())
}

// unserved tells a request that has a pool and nobody in it who takes it.
func unserved(d *lbdv1.TestRouteResponse) bool { return d.GetPool() != "" && d.GetBackend() == "" }

// nameListener says by which flag to do what a node asks for.
func nameListener(err error) error {
	s := status.Convert(err)
	if s.Code() != codes.InvalidArgument || !strings.HasSuffix(s.Message(), ": name one") {
		return err
	}
	return fail(exitUsage, "%s with --listener", s.Message())
}

// decisionNames are the resources that a decision goes through.
func decisionNames(d *lbdv1.TestRouteResponse) []string {
	var names []string
	for _, n := range []struct{ kind, name string }{
		{"listeners", d.GetListener().GetName()}, {"certificates", d.GetCertificate().GetName()}, {"routes", d.GetRoute()}, {"pools", d.GetPool()},
	} {
		if n.name != "" {
			names = append(names, n.kind+"/"+n.name)
		}
	}
	return names
}

// diffRoute shows how the decisions of two revisions differ.
func (c *cli) diffRoute(ctx context.Context, cl *client, request *lbdv1.TestRouteRequest, before, after int64) error {
	var facts [2][]fact
	for i, revision := range []int64{before, after} {
		request.Revision = revision
		d, err := cl.traffic.TestRoute(ctx, request)
		if err != nil {
			return c.complained(nameListener(err))
		}
		facts[i] = factsOf(d)
	}
	changes := differences(facts[0], facts[1])
	values := []*document.Value{}
	var names []string
	for _, f := range changes {
		values = append(values, document.OfAnswer(f))
		names = append(names, f.GetPath())
	}
	c.print(result{value: document.ListOf(values), names: names, table: func(*table) {
		for _, f := range changes {
			fmt.Fprintf(c.stdout, "%s %s\n", fieldSign(f), fieldText(f))
		}
	}})
	if len(changes) > 0 {
		return &failure{code: exitNo}
	}
	c.say("no differences")
	return nil
}
