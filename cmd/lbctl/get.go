package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lbd/cluster/state"
	"lbd/cmd/lbctl/document"
	lbdv1 "lbd/proto/lbd/v1"
)

// pageSize is how many resources or revisions one call asks for.
const pageSize = 500

func (c *cli) getCommand() *cobra.Command {
	var owner string
	kinds := kindWords()
	cmd := &cobra.Command{
		Use:   "get KIND[/NAME]",
		Short: "Read resources of a kind, or one",
		Long:  "Read resources of a kind, or one. Kinds: " + strings.Join(kinds, ", ") + "; the singular is understood too.",
		Example: `  lbctl get pools
  lbctl get pool/shop -o jsonpath='{.pool.backends[*].address}'`,
		Args:      cobra.ExactArgs(1),
		ValidArgs: kinds,
		RunE: c.does(func(ctx context.Context, args []string) error {
			kind, name, err := parseKey(args[0])
			if err != nil {
				return err
			}
			if name != "" && owner != "" {
				return fail(exitUsage, "--owner chooses among several: leave the name or the owner out")
			}
			return c.call(func(cl *client) error { return c.get(ctx, cl, kind, name, owner) })
		}),
	}
	cmd.Flags().StringVar(&owner, "owner", "", "only this owner's")
	return cmd
}

func kindWords() []string {
	var words []string
	for _, k := range state.Kinds() {
		words = append(words, string(k))
	}
	return words
}

// parseKey reads KIND or KIND/NAME.
func parseKey(arg string) (kind state.Kind, name string, err error) {
	if word, _, ok := strings.Cut(arg, "/"); !ok {
		if kind, ok := state.ParseKind(word); ok {
			return kind, "", nil
		}
	}
	key, err := state.ParseKey(arg)
	if err != nil {
		return "", "", fail(exitUsage, "%w: one of %s", err, strings.Join(kindWords(), ", "))
	}
	return key.Kind, key.Name, nil
}

func (c *cli) get(ctx context.Context, cl *client, kind state.Kind, name, owner string) error {
	if name == "" && !kind.Single() {
		resources, err := listAll(ctx, cl, kind, owner)
		if err != nil {
			return err
		}
		values := []*document.Value{}
		for _, r := range resources {
			values = append(values, document.Of(r))
		}
		c.printResources(document.ListOf(values), resources, kind)
		return nil
	}
	answer, err := cl.config.Get(ctx, &lbdv1.GetRequest{Kind: string(kind), Name: name})
	if err != nil {
		return err
	}
	c.printResources(document.Of(answer.GetResource()), []*lbdv1.Resource{answer.GetResource()}, kind)
	return nil
}

// listAll reads all pages of a kind.
func listAll(ctx context.Context, cl *client, kind state.Kind, owner string) ([]*lbdv1.Resource, error) {
	var all []*lbdv1.Resource
	request := &lbdv1.ListRequest{Kind: string(kind), Owner: owner, PageSize: pageSize}
	for {
		page, err := cl.config.List(ctx, request)
		if err != nil {
			return nil, err
		}
		all = append(all, page.GetResources()...)
		if request.PageToken = page.GetNextPageToken(); request.PageToken == "" {
			return all, nil
		}
	}
}

func (c *cli) printResources(value *document.Value, resources []*lbdv1.Resource, kind state.Kind) {
	var names []string
	for _, r := range resources {
		key, _ := state.KeyOf(r)
		names = append(names, key.String())
	}
	c.print(result{value: value, names: names, table: func(w *table) {
		w.wideRow(append(headings[kind], "OWNER", "REVISION"), "LABELS", "UPDATED", "ETAG")
		for _, r := range resources {
			cells := append(cells(r), r.GetOwner(), fmt.Sprint(r.GetRevision()))
			w.wideRow(cells, labels(r), moment(r.GetUpdateTime()), r.GetEtag())
		}
	}})
}

// headings are the columns of a kind that cells fills.
var headings = map[state.Kind][]string{
	state.Listeners:       {"NAME", "ADDRESSES", "PROTOCOL"},
	state.Certificates:    {"NAME", "SOURCE", "HOSTS"},
	state.Pools:           {"NAME", "BALANCE", "BACKENDS", "CHECK"},
	state.Routes:          {"NAME", "LISTENERS", "HOSTS", "MATCHES", "ACTION"},
	state.Policies:        {"NAME", "RULE"},
	state.ClusterSettings: {"LOOPBACK BACKENDS", "LINK-LOCAL BACKENDS"},
}

func cells(r *lbdv1.Resource) []string {
	switch spec := r.GetSpec().(type) {
	case *lbdv1.Resource_Listener:
		l := spec.Listener
		return []string{l.GetName(), list(l.GetAddresses()), word(l.GetProtocol())}
	case *lbdv1.Resource_Certificate:
		if s := spec.Certificate.GetSelfSigned(); s != nil {
			return []string{spec.Certificate.GetName(), "self_signed", list(s.GetHosts())}
		}
		return []string{spec.Certificate.GetName(), "pem", ""}
	case *lbdv1.Resource_Pool:
		return poolCells(spec.Pool)
	case *lbdv1.Resource_Route:
		return routeCells(spec.Route)
	case *lbdv1.Resource_Policy:
		return []string{spec.Policy.GetName(), fmt.Sprintf("body_size %d", spec.Policy.GetBodySize().GetMaxBytes())}
	case *lbdv1.Resource_ClusterSettings:
		s := spec.ClusterSettings
		return []string{fmt.Sprint(s.GetAllowLoopbackBackends()), fmt.Sprint(s.GetAllowLinkLocalBackends())}
	default:
		return []string{""}
	}
}

func poolCells(p *lbdv1.Pool) []string {
	var backends []string
	for _, b := range p.GetBackends() {
		backends = append(backends, b.GetAddress())
	}
	balance := p.GetBalance()
	if balance == lbdv1.Balance_BALANCE_UNSPECIFIED {
		balance = lbdv1.Balance_BALANCE_ROUND_ROBIN
	}
	check := ""
	switch h := p.GetHealthCheck(); {
	case h.GetHttp() != nil:
		check = "http"
	case h.GetTcp() != nil:
		check = "tcp"
	}
	return []string{p.GetName(), word(balance), list(backends), check}
}

func routeCells(r *lbdv1.Route) []string {
	var matches []string
	for _, m := range r.GetMatches() {
		switch p := m.GetPath().GetMatch().(type) {
		case *lbdv1.PathMatch_Exact:
			matches = append(matches, "="+p.Exact)
		case *lbdv1.PathMatch_Prefix:
			matches = append(matches, p.Prefix)
		}
	}
	action := ""
	switch {
	case r.GetRespond() != nil:
		action = fmt.Sprintf("respond %d", r.GetRespond().GetStatus())
	case r.GetForward() != nil:
		var pools []string
		for _, p := range r.GetForward().GetPools() {
			pools = append(pools, p.GetPool())
		}
		action = "forward " + list(pools)
	}
	return []string{r.GetName(), list(r.GetListeners()), list(r.GetHosts()), list(matches), action}
}

// labels are a resource's labels as KEY=VALUE, by key.
func labels(r *lbdv1.Resource) string {
	spec, ok := state.Spec(r).(interface{ GetLabels() map[string]string })
	if !ok {
		return ""
	}
	var all []string
	for k, v := range spec.GetLabels() {
		all = append(all, k+"="+v)
	}
	slices.Sort(all)
	return strings.Join(all, ",")
}

// word is an enum's bare word.
func word(e protoreflect.Enum) string { return document.Word(e.Descriptor(), e.Number()) }

// moment is a time for people: UTC, to the second.
func moment(t *timestamppb.Timestamp) string {
	if t == nil {
		return ""
	}
	return t.AsTime().UTC().Format(time.RFC3339)
}
