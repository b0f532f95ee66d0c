package rpc

import (
	"context"
	"fmt"
	"strconv"

	"google.golang.org/grpc"

	"lbd/cluster/state"
	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

// configService answers lbd.v1.ConfigService.
type configService struct {
	lbdv1.UnimplementedConfigServiceServer
	node     string
	store    Store
	observer Observer
	writer   *writer
	fleet    *fleet
	inbox    inbox
}

// Apply makes resources so, as one revision, or changes nothing.
func (s *configService) Apply(stream applyStream) error {
	p, err := s.inbox.receive(stream)
	if err != nil {
		return err
	}
	defer p.release()
	answers := s.writer.lookUp(stream.Context(), p.resources)
	answer, err := s.writer.write(stream.Context(), p.head, func(d *draft) error {
		d.answers = answers
		d.refusal = d.apply(p)
		return nil
	})
	if err != nil {
		return err
	}
	return stream.SendAndClose(answer)
}

// Validate reports what Apply would refuse or warn of. It sees the same state and runs the same checks; what it cannot
// see is a conflict, which Apply with validate_only reports.
func (s *configService) Validate(ctx context.Context, req *lbdv1.ValidateRequest) (*lbdv1.ValidateResponse, error) {
	doc := req.GetDocument()
	if doc == nil {
		return nil, invalidField("document", "a document is missing")
	}
	var violations []*lbdv1.Violation
	if v := doc.GetApiVersion(); v != state.APIVersion {
		violations = append(violations, violation("api_version", "`%s` is not a version that this lbd knows: write `%s`", v, state.APIVersion))
	}
	d := s.writer.draft(&lbdv1.ApplyHeader{Owner: doc.GetOwner()}, "")
	d.add(state.Resources(doc))
	by, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	d.judge(ctx, s.writer, by, false)
	found := state.Validate(d.base, d.rehearsal())
	if len(d.denied) > 0 {
		return nil, d.refusals(state.Result{Err: &state.InvalidError{Violations: found}})
	}
	violations = append(violations, d.violations...)
	return &lbdv1.ValidateResponse{Violations: append(violations, dropAt(found, violations)...)}, nil
}

// Export streams the resources of one owner, or of all owners and cluster_settings, ordered by kind and name: the state
// at one moment, however long the client takes.
func (s *configService) Export(req *lbdv1.ExportRequest, stream grpc.ServerStreamingServer[lbdv1.ExportResponse]) error {
	current := s.store.State()
	out := parts{send: stream.Send}
	for _, kind := range state.Kinds() {
		for stored := range current.All(kind) {
			if owner := req.GetOwner(); owner != "" && stored.GetResource().GetOwner() != owner {
				continue
			}
			if err := out.add(answer(stored)); err != nil {
				return err
			}
		}
	}
	return out.flush()
}

// Get reads one resource, who refers to it, and what this node, or each, makes of it.
func (s *configService) Get(ctx context.Context, req *lbdv1.GetRequest) (*lbdv1.GetResponse, error) {
	kind, err := parseKind(req.GetKind())
	if err != nil {
		return nil, err
	}
	if kind.Single() && req.GetName() != "" {
		return nil, invalidField("name", "%s has no name: the cluster has one", kind)
	}
	current := s.store.State()
	stored, ok := current.Get(kind, req.GetName())
	switch {
	case ok && req.GetAllNodes():
		return s.describeEverywhere(ctx, current, state.Key{Kind: kind, Name: req.GetName()}, stored)
	case ok:
		return s.describe(current, state.Key{Kind: kind, Name: req.GetName()}, stored), nil
	case kind == state.ClusterSettings: // nobody has set any: all have their defaults
		settings := &lbdv1.Resource_ClusterSettings{ClusterSettings: &lbdv1.ClusterSettings{}}
		return &lbdv1.GetResponse{Resource: &lbdv1.Resource{Spec: settings}}, nil
	}
	return nil, notFound(string(kind)+"/"+req.GetName(), "there is no %s named `%s`", kind.Singular(), req.GetName())
}

// describe adds what the state and this node know of a resource. What is stored is accepted, and refers to what is there:
// the state holds nothing else.
func (s *configService) describe(current *state.State, key state.Key, stored *raftv1.StoredResource) *lbdv1.GetResponse {
	out := &lbdv1.GetResponse{Resource: answer(stored)}
	out.Conditions = []*lbdv1.Condition{
		{Type: "Accepted", Status: true, Reason: "ACCEPTED", Message: fmt.Sprintf("stored by revision %d", stored.GetResource().GetRevision())},
		{Type: "ResolvedRefs", Status: true, Reason: "RESOLVED"},
	}
	out.Conditions = append(out.Conditions, s.observer.Conditions(string(key.Kind), key.Name)...)
	for _, c := range out.GetConditions() {
		c.Node = s.node
	}
	for _, user := range current.Users(key) {
		out.UsedBy = append(out.UsedBy, user.String())
	}
	if key.Kind == state.Pools {
		out.Overrides = inForce(current, s.writer.overlay, key.Name, s.writer.now())
	}
	return out
}

// describeEverywhere is describe, with what every node makes of the resource.
func (s *configService) describeEverywhere(ctx context.Context, current *state.State, key state.Key, stored *raftv1.StoredResource) (*lbdv1.GetResponse, error) {
	out := s.describe(current, key, stored)
	here := func(context.Context) (*lbdv1.GetResponse, error) { return out, nil }
	answers, unreached, err := answered(s.fleet, ask(ctx, s.fleet, here,
		func(ctx context.Context, conn grpc.ClientConnInterface) (*lbdv1.GetResponse, error) {
			return lbdv1.NewConfigServiceClient(conn).Get(ctx, &lbdv1.GetRequest{Kind: string(key.Kind), Name: key.Name})
		}))
	if err != nil {
		return nil, err
	}
	var conditions []*lbdv1.Condition
	for _, a := range answers {
		conditions = append(conditions, a.answer.GetConditions()...)
	}
	out.Conditions, out.Unreached = conditions, unreached
	for _, n := range s.fleet.nodes() {
		if n.GetDrain() != nil {
			out.Drained = append(out.Drained, n.GetName())
		}
	}
	return out, nil
}

// List reads a page of one kind, ordered by name.
func (s *configService) List(_ context.Context, req *lbdv1.ListRequest) (*lbdv1.ListResponse, error) {
	kind, err := parseKind(req.GetKind())
	if err != nil {
		return nil, err
	}
	page, err := newPage(req.GetPageSize())
	if err != nil {
		return nil, err
	}
	last, err := parsePageToken(req.GetPageToken(), string(kind), req.GetOwner())
	if err != nil {
		return nil, err
	}
	out := &lbdv1.ListResponse{}
	for stored := range s.store.State().From(kind, last) {
		r := stored.GetResource()
		key, _ := state.KeyOf(r)
		if req.GetOwner() != "" && r.GetOwner() != req.GetOwner() || last != "" && key.Name == last {
			continue
		}
		if entry := answer(stored); page.take(entry) {
			out.Resources = append(out.Resources, entry)
			continue
		}
		before, _ := state.KeyOf(out.Resources[len(out.Resources)-1])
		out.NextPageToken = pageToken(string(kind), req.GetOwner(), before.Name)
		break
	}
	return out, nil
}

// ListRevisions reads a page of the history, newest first.
func (s *configService) ListRevisions(_ context.Context, req *lbdv1.ListRevisionsRequest) (*lbdv1.ListRevisionsResponse, error) {
	page, err := newPage(req.GetPageSize())
	if err != nil {
		return nil, err
	}
	last, err := parsePageToken(req.GetPageToken(), "revisions", req.GetOwner())
	if err != nil {
		return nil, err
	}
	current := s.store.State()
	before := current.Revision() + 1
	if last != "" {
		if before, err = strconv.ParseInt(last, 10, 64); err != nil {
			return nil, invalidField("page_token", "%v", err)
		}
	}
	out := &lbdv1.ListRevisionsResponse{}
	for revision := range current.RevisionsBefore(req.GetOwner(), before) {
		if page.take(revision) {
			out.Revisions = append(out.Revisions, revision)
			continue
		}
		oldest := out.Revisions[len(out.Revisions)-1].GetNumber()
		out.NextPageToken = pageToken("revisions", req.GetOwner(), strconv.FormatInt(oldest, 10))
		break
	}
	return out, nil
}

func parseKind(word string) (state.Kind, error) {
	kind, ok := state.ParseKind(word)
	if !ok {
		return "", invalidField("kind", "there is no kind `%s`: one of %v", word, state.Kinds())
	}
	return kind, nil
}
