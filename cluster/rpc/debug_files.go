package rpc

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"lbd/cluster/state"
	lbdv1 "lbd/proto/lbd/v1"
)

// debugFiles are what the control plane knows, and the profiles. Resources are those that an export has: no secret is in them.
func (s *systemService) debugFiles(profile time.Duration) []DebugFile {
	files := []DebugFile{
		{Name: "version.json", About: "the build", Write: s.oneMessage(func(context.Context) (proto.Message, error) { return s.build, nil })},
		{Name: "status.json", About: "the node's condition, as `lbctl status` shows it", Write: s.oneMessage(func(ctx context.Context) (proto.Message, error) {
			return s.GetStatus(ctx, &lbdv1.SystemServiceGetStatusRequest{})
		})},
		{Name: "doctor.json", About: "what `lbctl doctor` finds", Write: s.oneMessage(func(ctx context.Context) (proto.Message, error) {
			return s.RunDoctor(ctx, &lbdv1.RunDoctorRequest{})
		})},
		{Name: "metrics.txt", About: "all metrics", Write: func(_ context.Context, w io.Writer) error {
			text, err := s.observer.Metrics()
			return writeText(w, text, err)
		}},
		{Name: "events.jsonl", About: "what has happened on this node since its start", Write: func(_ context.Context, w io.Writer) error {
			past, _ := s.observer.Events(time.Time{})
			return writeLines(w, slices.Values(past))
		}},
		{Name: "backends.jsonl", About: "every backend's status", Write: func(_ context.Context, w io.Writer) error {
			return writeLines(w, slices.Values(s.observer.Backends("")))
		}},
		{Name: "overrides.jsonl", About: "what operators have said of backends", Write: func(_ context.Context, w io.Writer) error {
			return writeLines(w, slices.Values(inForce(s.store.State(), s.overlay, "", s.now())))
		}},
		{Name: "connections.json", About: "open connections, with the addresses of clients", Write: s.oneMessage(func(context.Context) (proto.Message, error) {
			return s.observer.Connections(&lbdv1.ListConnectionsRequest{Limit: connectionsListedMax})
		})},
		{Name: "resources.jsonl", About: "all resources without their secrets", Write: s.writeResources},
		{Name: "revisions.jsonl", About: fmt.Sprintf("the last %d revisions, newest first", debugRevisionsMax), Write: s.writeRevisions},
		{Name: "audit.jsonl", About: fmt.Sprintf("who has changed something, and who was refused on this node, within %s", debugAuditAge), Write: s.writeAudit},
		{Name: "heap.pprof", About: "what the memory holds, for `go tool pprof`", Write: s.writeProfile(lbdv1.ProfileKind_PROFILE_KIND_HEAP, 0)},
	}
	if profile > 0 {
		files = append(files, DebugFile{
			Name: "cpu.pprof", About: "where the CPU time goes, for `go tool pprof`", longer: profile,
			Write: s.writeProfile(lbdv1.ProfileKind_PROFILE_KIND_CPU, profile),
		})
	}
	return files
}

func (s *systemService) writeProfile(kind lbdv1.ProfileKind, d time.Duration) func(context.Context, io.Writer) error {
	return func(ctx context.Context, w io.Writer) error {
		data, err := s.observer.Profile(ctx, kind, d)
		return writeText(w, string(data), err)
	}
}

func (s *systemService) writeResources(_ context.Context, w io.Writer) error {
	current := s.store.State()
	return writeLines(w, func(yield func(*lbdv1.Resource) bool) {
		for _, kind := range state.Kinds() {
			for stored := range current.All(kind) {
				if !yield(answer(stored)) {
					return
				}
			}
		}
	})
}

func (s *systemService) writeRevisions(_ context.Context, w io.Writer) error {
	current := s.store.State()
	return writeLines(w, func(yield func(*lbdv1.Revision) bool) {
		n := 0
		for revision := range current.RevisionsBefore("", current.Revision()+1) {
			if n++; n > debugRevisionsMax || !yield(revision) {
				return
			}
		}
	})
}

func (s *systemService) writeAudit(_ context.Context, w io.Writer) error {
	since := s.now().Add(-debugAuditAge)
	if err := writeLines(w, s.store.State().Audit(since)); err != nil {
		return err
	}
	return writeLines(w, slices.Values(s.journal.Refusals(since)))
}

// oneMessage is a file of one message.
func (s *systemService) oneMessage(read func(context.Context) (proto.Message, error)) func(context.Context, io.Writer) error {
	return func(ctx context.Context, w io.Writer) error {
		m, err := read(ctx)
		if err != nil {
			return err
		}
		text, err := protojson.MarshalOptions{UseProtoNames: true, Multiline: true}.Marshal(m)
		return writeText(w, string(text)+"\n", err)
	}
}

// writeLines writes each message on a line.
func writeLines[M proto.Message](w io.Writer, messages func(func(M) bool)) error {
	for m := range messages {
		text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
		if err := writeText(w, string(text)+"\n", err); err != nil {
			return err
		}
	}
	return nil
}

func writeText(w io.Writer, text string, err error) error {
	if err != nil {
		return err
	}
	_, err = io.WriteString(w, text)
	return err
}
