package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lbd/cluster"
	"lbd/cluster/state"
	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

// firstLeaderTimeout bounds the wait of a first start for its own election.
const firstLeaderTimeout = 20 * time.Second

const devPage = `lbd is running.

This is the default route of a dev node. Send traffic to a backend of yours, in one revision:

    lbctl init --backend 127.0.0.1:3000 | lbctl apply -f - --wait

and see what the node does with

    lbctl status
    lbctl backend status
`

// devResources are what a dev node begins with. Their owner gives way to the first document that names them.
func devResources() []*lbdv1.Resource {
	specs := []proto.Message{
		&lbdv1.Listener{Name: "http", Addresses: []string{"127.0.0.1:8080"}, Protocol: lbdv1.Protocol_PROTOCOL_HTTP},
		&lbdv1.Listener{Name: "https", Addresses: []string{"127.0.0.1:8443"}, Protocol: lbdv1.Protocol_PROTOCOL_HTTPS},
		&lbdv1.Certificate{Name: "default", Source: &lbdv1.Certificate_SelfSigned{SelfSigned: &lbdv1.CertificateSelfSigned{Hosts: []string{"localhost"}}}},
		&lbdv1.Route{Name: "default", Listeners: []string{"http", "https"}, Action: &lbdv1.Route_Respond{Respond: &lbdv1.Respond{
			Status: http.StatusOK, Body: devPage, Headers: map[string]string{"Content-Type": "text/plain; charset=utf-8"},
		}}},
		&lbdv1.ClusterSettings{AllowLoopbackBackends: proto.Bool(true)},
	}
	var out []*lbdv1.Resource
	for _, spec := range specs {
		r, ok := state.Wrap(state.OwnerDev, spec)
		if !ok {
			panic(fmt.Sprintf("no kind for %T", spec))
		}
		out = append(out, r)
	}
	return out
}

// devChange is the first revision of a dev node.
func devChange(k keys, clusterID string, now time.Time) (*raftv1.ChangeCommand, error) {
	change := &raftv1.ChangeCommand{
		Owner: state.OwnerDev, Author: "lbd", Time: timestamppb.New(now), Message: "the embedded dev configuration", RequestId: "lbd-dev",
		Origin: &raftv1.Origin{Source: "lbd", Method: "start"},
	}
	for _, r := range devResources() {
		stored := &raftv1.StoredResource{Resource: r}
		if c := r.GetCertificate(); c != nil {
			m, err := k.selfSignedMaterial(clusterID, c)
			if err != nil {
				return nil, err
			}
			stored.Material = m
		}
		change.Upserts = append(change.Upserts, stored)
	}
	return change, nil
}

func (k keys) selfSignedMaterial(clusterID string, c *lbdv1.Certificate) (*raftv1.CertificateMaterial, error) {
	pair, err := k.SelfSigned(c.GetSelfSigned().GetHosts(), c.GetSelfSigned().GetKeyType())
	if err != nil {
		return nil, err
	}
	sum, err := publicKeySHA256(pair)
	if err != nil {
		return nil, err
	}
	sealed, err := k.Seal(clusterID, c.GetName(), sum, pair.Key)
	if err != nil {
		return nil, err
	}
	return &raftv1.CertificateMaterial{Chain: pair.Chain, SealedKey: sealed, PublicKeySha256: sum}, nil
}

// beginDev stores the embedded configuration on a dev node that has none. It waits for the node's own election, which
// only a first start has to.
func beginDev(ctx context.Context, node *cluster.Node, k keys) error {
	change, err := devChange(k, node.State().ClusterID(), k.now())
	if err != nil {
		return fmt.Errorf("make the dev configuration: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, firstLeaderTimeout)
	defer cancel()
	for {
		_, err := node.Propose(ctx, change)
		if err == nil || !errors.Is(err, cluster.ErrNoLeader) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("store the dev configuration: %w: %w", err, ctx.Err())
		case <-time.After(10 * time.Millisecond):
		}
	}
}
