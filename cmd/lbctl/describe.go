package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"lbd/cluster/state"
	"lbd/cmd/lbctl/document"
	lbdv1 "lbd/proto/lbd/v1"
)

func (c *cli) describeCommand() *cobra.Command {
	var node string
	cmd := &cobra.Command{
		Use:   "describe KIND/NAME",
		Short: "Show all that is known of a resource",
		Long: `Show all that is known of a resource: what it says and the defaults in force, who changed it last and why, whether it works on
each node, who refers to it, and overrides; of a pool its backends' condition, of a certificate what is served.

With --node it is what that one node has, and how it sees it.`,
		Example: "  lbctl describe pool/shop\n  lbctl describe pool/shop --node edge-2",
		Args:    oneKey,
		RunE: c.does(func(ctx context.Context, args []string) error {
			key, err := state.ParseKey(args[0])
			if err != nil {
				return fail(exitUsage, "%w", err)
			}
			return c.call(func(cl *client) error { return c.describe(ctx, cl, key, node) })
		}),
	}
	nodesFlag(cmd, &node)
	return cmd
}

// described is a resource with what belongs to it.
type described struct {
	key    state.Key
	answer *lbdv1.GetResponse
	// The revision that changed it last; nil if it is not kept.
	revision     *lbdv1.Revision
	backends     []*lbdv1.BackendStatus
	certificates []*lbdv1.CertificateStatus
}

func (c *cli) describe(ctx context.Context, cl *client, key state.Key, node string) (err error) {
	d := described{key: key}
	request := &lbdv1.GetRequest{Kind: string(key.Kind), Name: key.Name, AllNodes: node == allNodes}
	if !request.GetAllNodes() {
		request.Node = node
	}
	if d.answer, err = cl.config.Get(ctx, request); err != nil {
		return err
	}
	if number := d.answer.GetResource().GetRevision(); number > 0 {
		r, err := cl.config.GetRevision(ctx, &lbdv1.GetRevisionRequest{Number: number})
		if err != nil && status.Code(err) != codes.NotFound {
			return err
		}
		d.revision = r.GetRevision()
	}
	switch key.Kind {
	case state.Pools:
		r, err := cl.backend.GetStatus(ctx, &lbdv1.BackendServiceGetStatusRequest{Pool: key.Name, Node: c.meant(node)})
		if err != nil {
			return err
		}
		d.backends = r.GetBackends()
	case state.Certificates:
		r, err := cl.certificate.GetStatus(ctx, &lbdv1.CertificateServiceGetStatusRequest{Name: key.Name, Node: c.meant(node)})
		if err != nil {
			return err
		}
		d.certificates = r.GetCertificates()
	}
	c.warnUnreached(d.answer.GetUnreached())
	c.print(result{value: d.value(), names: []string{key.String()}, table: func(w *table) { c.writeDescribed(w, d) }})
	return nil
}

// value is the answers as they came, with the defaults.
func (d described) value() *document.Value {
	v := document.OfAnswer(d.answer)
	if d.revision != nil {
		v.With("last_revision", document.OfAnswer(d.revision))
	}
	defaults := document.MapOf()
	for _, def := range d.defaults() {
		defaults.With(def.Path, document.Text(def.Text))
	}
	v.With("defaults", defaults)
	var backends, certificates []*document.Value
	for _, b := range d.backends {
		backends = append(backends, document.OfAnswer(b))
	}
	for _, s := range d.certificates {
		certificates = append(certificates, document.OfAnswer(s))
	}
	switch d.key.Kind {
	case state.Pools:
		v.With("backends", document.ListOf(backends))
	case state.Certificates:
		v.With("certificates", document.ListOf(certificates))
	}
	return v
}

// defaults are what holds for the fields that the resource leaves out; a listener without TLS has none of TLS.
func (d described) defaults() []document.DefaultValue {
	spec := state.Spec(d.answer.GetResource())
	if spec == nil {
		return nil
	}
	return document.Defaults(spec.ProtoReflect())
}

func (c *cli) writeDescribed(w *table, d described) {
	r := d.answer.GetResource()
	w.row("RESOURCE", d.key.String())
	w.row("OWNER", r.GetOwner())
	w.row("LABELS", labels(r))
	w.row("REVISION", fmt.Sprint(r.GetRevision()))
	w.row("CHANGED", moment(r.GetUpdateTime()))
	w.row("AUTHOR", d.revision.GetAuthor())
	w.row("MESSAGE", d.revision.GetMessage())
	w.row("USED BY", strings.Join(d.answer.GetUsedBy(), ", "))
	w.row("ETAG", r.GetEtag())
	w.flush()
	c.section("document")
	if spec := state.Spec(r); spec != nil {
		c.stdout.Write(document.Of(spec).YAML())
	}
	if defaults := d.defaults(); len(defaults) > 0 {
		c.section("defaults in force")
		for _, def := range defaults {
			w.row(def.Path, def.Text)
		}
		w.flush()
	}
	if conditions := d.answer.GetConditions(); len(conditions) > 0 {
		c.section("conditions")
		w.row("NODE", "CONDITION", "HOLDS", "REASON", "MESSAGE")
		for _, cond := range conditions {
			w.row(cond.GetNode(), cond.GetType(), fmt.Sprint(cond.GetStatus()), cond.GetReason(), cond.GetMessage())
		}
		w.flush()
	}
	if overrides := d.answer.GetOverrides(); len(overrides) > 0 {
		c.section("overrides")
		for _, o := range overrides {
			fmt.Fprintln(c.stdout, overrideText(o))
		}
	}
	if d.backends != nil {
		c.section("backends")
		c.printBackends(d.backends)
	}
	if d.certificates != nil {
		c.section("served")
		d.writeServed(w)
	}
}

func (c *cli) section(title string) { fmt.Fprintf(c.stdout, "\n# %s\n", title) }

func (d described) writeServed(w *table) {
	for _, s := range d.certificates {
		w.row("HOSTS", strings.Join(s.GetHosts(), ", "))
		w.row("KEY", s.GetKeyType())
		w.row("NOT BEFORE", moment(s.GetNotBefore()))
		w.row("NOT AFTER", moment(s.GetNotAfter()))
		w.row("SERIAL", s.GetSerial())
		w.row("SERVED SERIAL", servedSerials(s))
		w.row("ISSUER", s.GetIssuer())
		w.row("FINGERPRINT", s.GetFingerprint())
		w.row("LISTENERS", strings.Join(s.GetListeners(), ", "))
		w.row("SHADOWED BY", strings.Join(s.GetShadowedBy(), ", "))
	}
	w.flush()
}
