package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"lbd/cluster/state"
	"lbd/cmd/lbctl/document"
	lbdv1 "lbd/proto/lbd/v1"
)

func (c *cli) exportCommand() *cobra.Command {
	var owner string
	cmd := &cobra.Command{
		Use:   "export",
		Short: "Write the desired state as documents",
		Long: `Write the desired state as documents, one for each owner, as YAML or with -o json as JSON. To apply one again changes
nothing: private keys are there as fingerprints, which means unchanged.`,
		Example: "  lbctl export --owner web >web.yaml",
		Args:    cobra.NoArgs,
		RunE: c.does(func(ctx context.Context, _ []string) error {
			if c.format.name != "table" && c.format.name != "yaml" && c.format.name != "json" {
				return fail(exitUsage, "export writes yaml or json")
			}
			return c.call(func(cl *client) error { return c.export(ctx, cl, owner) })
		}),
	}
	cmd.Flags().StringVar(&owner, "owner", "", "only this owner's resources (default: all, and cluster_settings)")
	return cmd
}

func (c *cli) export(ctx context.Context, cl *client, owner string) error {
	resources, err := exported(ctx, cl, owner)
	if err != nil {
		return err
	}
	if len(resources) == 0 && owner != "" {
		return fail(exitNotFound, "owner %q has no resources", owner)
	}
	for i, doc := range byOwner(resources) {
		if c.format.name == "json" {
			c.stdout.Write(document.Of(doc).IndentedJSON())
			continue
		}
		if i > 0 {
			fmt.Fprintln(c.stdout, "---")
		}
		c.stdout.Write(document.Of(doc).YAML())
	}
	return nil
}

// exported reads an export whole, so that one that breaks off writes nothing.
func exported(ctx context.Context, cl *client, owner string) ([]*lbdv1.Resource, error) {
	stream, err := cl.config.Export(ctx, &lbdv1.ExportRequest{Owner: owner})
	if err != nil {
		return nil, err
	}
	var all []*lbdv1.Resource
	for {
		part, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		all = append(all, part.GetResources()...)
	}
}

// byOwner makes a document for each owner, in the order of the owners' first resources. cluster_settings, which have no
// owner, go with the first.
func byOwner(resources []*lbdv1.Resource) []*lbdv1.Document {
	var owners []string
	owned := map[string][]*lbdv1.Resource{}
	var settings []*lbdv1.Resource
	for _, r := range resources {
		if r.GetClusterSettings() != nil {
			settings = append(settings, r)
			continue
		}
		if owned[r.GetOwner()] == nil {
			owners = append(owners, r.GetOwner())
		}
		owned[r.GetOwner()] = append(owned[r.GetOwner()], r)
	}
	if len(owners) == 0 && len(settings) > 0 {
		owners = append(owners, state.OwnerDev)
	}
	var docs []*lbdv1.Document
	for i, owner := range owners {
		if i == 0 {
			owned[owner] = append(owned[owner], settings...)
		}
		docs = append(docs, state.DocumentOf(owner, owned[owner]))
	}
	return docs
}
