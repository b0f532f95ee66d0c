package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"lbd/cluster/state"
	"lbd/cmd/lbctl/document"
	lbdv1 "lbd/proto/lbd/v1"
)

func (c *cli) initCommand() *cobra.Command {
	var name string
	var backends []string
	cmd := &cobra.Command{
		Use:   "init --backend HOST:PORT…",
		Short: "Write a starter document",
		Long: `Write a starter document to stdout: an HTTP and an HTTPS listener, a self-signed certificate, and a route to a pool of
the given backends.

Without --name it has the names that "lbd run --dev" starts with, and its first apply turns that node into a balancer.
With --name everything is named after NAME and listens on ports 80 and 443 of all addresses.`,
		Example: `  lbctl init --backend 127.0.0.1:3000 | lbctl apply -f - --wait
  lbctl init --name shop --backend 10.0.0.11:8080 --backend 10.0.0.12:8080 >shop.yaml`,
		Args: cobra.NoArgs,
		RunE: c.does(func(context.Context, []string) error {
			doc := starter(name, backends)
			for _, v := range state.Validate(nil, change(doc)) {
				if v.GetSeverity() == lbdv1.Severity_SEVERITY_ERROR {
					return fail(exitUsage, "%s: %s", v.GetField(), v.GetDescription())
				}
			}
			lead := "# Written by `lbctl init`. Check it with `lbctl validate -f FILE`, make it so with `lbctl apply -f FILE --wait`.\n"
			fmt.Fprintf(c.stdout, "%s%s", lead, document.Of(doc).YAML())
			return nil
		}),
	}
	cmd.Flags().StringVar(&name, "name", "", "what the resources are called and whose they are (default: the names of a dev node, owner web)")
	cmd.Flags().StringSliceVar(&backends, "backend", nil, "a backend's HOST:PORT (repeatable)")
	if err := cmd.MarkFlagRequired("backend"); err != nil {
		panic(err)
	}
	return cmd
}

// starter is the document that init writes.
func starter(name string, backends []string) *lbdv1.Document {
	owner, thing := "web", "default"
	plain := &lbdv1.Listener{Name: "http", Addresses: []string{"127.0.0.1:8080"}, Protocol: lbdv1.Protocol_PROTOCOL_HTTP}
	secure := &lbdv1.Listener{Name: "https", Addresses: []string{"127.0.0.1:8443"}, Protocol: lbdv1.Protocol_PROTOCOL_HTTPS}
	if name != "" {
		owner, thing = name, name
		plain.Name, plain.Addresses = name+"-http", []string{":80"}
		secure.Name, secure.Addresses = name+"-https", []string{":443"}
		secure.Tls = &lbdv1.ListenerTls{DefaultCertificate: name}
	}
	pool := &lbdv1.Pool{
		Name: thing,
		HealthCheck: &lbdv1.HealthCheck{
			Check:    &lbdv1.HealthCheck_Tcp{Tcp: &lbdv1.TcpCheck{}},
			Interval: durationpb.New(2 * time.Second),
			Timeout:  durationpb.New(time.Second),
		},
	}
	for _, b := range backends {
		pool.Backends = append(pool.Backends, &lbdv1.Backend{Address: strings.TrimSpace(b)})
	}
	return &lbdv1.Document{
		ApiVersion: state.APIVersion,
		Owner:      owner,
		Listeners:  []*lbdv1.Listener{plain, secure},
		Certificates: []*lbdv1.Certificate{{
			Name:   thing,
			Source: &lbdv1.Certificate_SelfSigned{SelfSigned: &lbdv1.CertificateSelfSigned{Hosts: []string{"localhost"}}},
		}},
		Pools: []*lbdv1.Pool{pool},
		Routes: []*lbdv1.Route{{
			Name:      thing,
			Listeners: []string{plain.Name, secure.Name},
			Action:    &lbdv1.Route_Forward{Forward: &lbdv1.Forward{Pools: []*lbdv1.ForwardPool{{Pool: thing}}}},
		}},
	}
}
