package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"lbd/cmd/lbctl/document"
	lbdv1 "lbd/proto/lbd/v1"
)

func (c *cli) testCommand() *cobra.Command {
	var revision int64
	cmd := &cobra.Command{
		Use:   "test FILE…",
		Short: "Check what becomes of requests against a file of cases",
		Long: `Check what becomes of requests against a file of cases, on the answering node and without sending any of them. A file (a
folder of them, or - for stdin) is a list:

  - name: the shop's cart goes to its pool
    request: { url: "https://shop.example.com/cart", method: POST, headers: { X-Canary: always } }
    expect: { route: shop, pool: shop, certificate: shop }

request: url, method, headers, sni, client_ip, listener, rsa_only. expect: listener, certificate, route, not_route, action (forward,
redirect, respond, maintenance, denied, refused), status (of lbd's own answer), location, reason, backend_host, backend_path, pool
(the only one), pools (all that get a share), request_headers and response_headers ({set, add, remove}, as in a route). What is
not named may be anything.

All cases run. Exit 1 if one fails, 3 if a file is wrong: it cannot be read so, or names a listener that is not there.`,
		Example: `  lbctl test examples/cases.yaml -o json`,
		Args:    cobra.MinimumNArgs(1),
		RunE: c.does(func(ctx context.Context, args []string) error {
			if revision < 0 {
				return noRevision("--revision", revision)
			}
			cases, err := c.readCases(args)
			if err != nil {
				return err
			}
			return c.call(func(cl *client) error { return c.runCases(ctx, cl, cases, revision) })
		}),
	}
	cmd.Flags().Int64Var(&revision, "revision", 0, "decide by this revision, not by the one that is served")
	return c.reportsProblems(cmd)
}

func (c *cli) readCases(paths []string) ([]document.Case, error) {
	files, err := document.ReadFiles(paths, c.stdin)
	if err != nil {
		return nil, fail(exitUsage, "%w", err)
	}
	var all []document.Case
	var problems []document.Problem
	for _, f := range files {
		cases, wrong := document.ParseCases(f)
		all, problems = append(all, cases...), append(problems, wrong...)
	}
	return all, c.tell(problems)
}

// caseResult is what one case came to.
type caseResult struct {
	document.Case
	failures []caseFailure
}

// caseFailure is one thing that is not as expected.
type caseFailure struct {
	document.Expectation
	got string
}

func (f caseFailure) String() string {
	if f.Field == "not_route" {
		return fmt.Sprintf("route %s takes it", f.got)
	}
	return fmt.Sprintf("%s: want %s, got %s", f.Field, orNone(f.Want), orNone(f.got))
}

func orNone(text string) string {
	if text == "" {
		return "none"
	}
	return fmt.Sprintf("%q", text)
}

func (c *cli) runCases(ctx context.Context, cl *client, cases []document.Case, revision int64) error {
	var results []caseResult
	var wrong, misses []document.Problem
	failed := 0
	for _, one := range cases {
		one.Request.Revision = revision
		d, err := cl.traffic.TestRoute(ctx, one.Request)
		r := caseResult{Case: one}
		switch code := status.Code(err); {
		case code == codes.InvalidArgument, code == codes.NotFound && !isRevision(err): // no listener, or several
			place := cmp.Or(one.Places["listener"], one.Places["url"], one.At)
			wrong = append(wrong, document.Problem{Position: place, Message: status.Convert(err).Message()})
		case err != nil:
			return err
		default:
			r.failures = judge(one.Expect, d)
		}
		if len(r.failures) > 0 {
			failed++
		}
		if c.problems.format != problemsText {
			for _, f := range r.failures {
				misses = append(misses, document.Problem{Position: f.At, Field: f.Field, Message: one.Name + ": " + f.String()})
			}
		}
		results = append(results, r)
	}
	if len(wrong) > 0 {
		return c.tell(wrong)
	}
	_ = c.tell(misses) // that is no wrong file: a case has failed
	c.printCases(results)
	c.say("%s, %d failed", countOf(len(results), "case"), failed)
	if failed > 0 {
		return &failure{code: exitNo}
	}
	return nil
}

// judge compares a decision with what is expected of it.
func judge(expect []document.Expectation, d *lbdv1.TestRouteResponse) []caseFailure {
	var failures []caseFailure
	for _, e := range expect {
		got, ok := decided(e, d)
		if !ok {
			failures = append(failures, caseFailure{e, got})
		}
	}
	return failures
}

// decided is what a decision says of an expectation's field, and whether that is as expected.
func decided(e document.Expectation, d *lbdv1.TestRouteResponse) (got string, ok bool) {
	switch e.Field {
	case "not_route":
		return d.GetRoute(), d.GetRoute() != e.Want
	case "request_headers":
		return among(e.Want, d.GetRequestHeaders())
	case "response_headers":
		return among(e.Want, d.GetResponseHeaders())
	case "pool", "pools":
		got = strings.Join(shared(d), ", ")
	case "certificate":
		got = d.GetCertificate().GetName()
	case "status":
		got = numberText(int64(d.GetStatus()))
	default:
		for _, f := range factsOf(d) {
			if f.path == e.Field {
				got = f.text
			}
		}
	}
	return got, got == e.Want
}

// shared are the pools that get requests of the route, by name.
func shared(d *lbdv1.TestRouteResponse) []string {
	var names []string
	for _, p := range d.GetPools() {
		if p.GetSharePercent() > 0 {
			names = append(names, p.GetName())
		}
	}
	slices.Sort(names)
	return names
}

// among looks for one change of a field; names are compared in any case.
func among(want string, changes []*lbdv1.HeaderChange) (got string, ok bool) {
	name := func(text string) (head, value string) {
		head, value, _ = strings.Cut(text, ":")
		return strings.ToLower(head), value
	}
	wantHead, wantValue := name(want)
	ok = slices.ContainsFunc(changes, func(ch *lbdv1.HeaderChange) bool {
		head, value := name(headerChangeText(ch))
		return head == wantHead && value == wantValue
	})
	return headerChangesText(changes), ok
}

func (c *cli) printCases(results []caseResult) {
	values := []*document.Value{}
	var names []string
	for _, r := range results {
		failures := []*document.Value{}
		for _, f := range r.failures {
			failures = append(failures, document.MapOf().With("at", document.Text(f.At.String())).With("field", document.Text(f.Field)).
				With("want", document.Text(f.Want)).With("got", document.Text(f.got)).With("message", document.Text(f.String())))
		}
		values = append(values, document.MapOf().With("name", document.Text(r.Name)).With("at", document.Text(r.At.String())).
			With("passed", document.Truth(len(r.failures) == 0)).With("failures", document.ListOf(failures)))
		names = append(names, r.Name)
	}
	c.print(result{value: document.ListOf(values), names: names, table: func(*table) {
		for _, r := range results {
			if len(r.failures) == 0 {
				fmt.Fprintf(c.stdout, "ok    %s\n", oneLine(r.Name))
				continue
			}
			fmt.Fprintf(c.stdout, "FAIL  %s\n", oneLine(r.Name))
			for _, f := range r.failures {
				fmt.Fprintf(c.stdout, "      %s: %s\n", f.At, oneLine(f.String()))
			}
		}
	}})
}
