package state_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	"lbd/cluster/state"
	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

func poolChange(owner, name, address string, day int64) *raftv1.ChangeCommand {
	pool := &lbdv1.Pool{Name: name, Backends: []*lbdv1.Backend{{Address: address}}}
	return &raftv1.ChangeCommand{
		Owner: owner,
		Time:  &timestamppb.Timestamp{Seconds: day * 86400},
		Upserts: []*raftv1.StoredResource{
			{Resource: &lbdv1.Resource{Spec: &lbdv1.Resource_Pool{Pool: pool}}},
		},
	}
}

func command(change *raftv1.ChangeCommand) *raftv1.Command {
	return &raftv1.Command{Kind: &raftv1.Command_Change{Change: change}}
}

func mustApply(t testing.TB, s *state.State, change *raftv1.ChangeCommand) *state.State {
	t.Helper()
	next, res := s.Apply(command(change))
	if res.Err != nil {
		t.Fatal(res.Err)
	}
	return next
}

func kept(s *state.State, owner string) (n int, newest, oldest int64) {
	for r := range s.Revisions(owner) {
		if n++; n == 1 {
			newest = r.GetNumber()
		}
		oldest = r.GetNumber()
	}
	return n, newest, oldest
}

func TestOldRevisionsAreForgotten(t *testing.T) {
	s := state.New("c-test")
	s = mustApply(t, s, poolChange("other", "other", "10.0.0.1:80", 0))
	for i := range 150 {
		s = mustApply(t, s, poolChange("web", "shop", fmt.Sprintf("10.0.0.1:%d", 1+i), 1))
	}
	if n, _, _ := kept(s, "web"); n != 150 {
		t.Fatalf("%d young revisions kept, want all 150", n)
	}
	s = mustApply(t, s, poolChange("web", "shop", "10.0.0.1:9999", 40))
	n, newest, oldest := kept(s, "web")
	if n != state.RevisionsKeptMin || newest != 152 || oldest != 53 {
		t.Fatalf("kept %d revisions, %d to %d; want the last %d", n, oldest, newest, state.RevisionsKeptMin)
	}
	if n, _, _ := kept(s, "other"); n != 1 {
		t.Fatal("another owner's revision was forgotten")
	}
	if _, ok := s.ChangedSince(50); ok {
		t.Fatal("changes since a revision are known although some are forgotten")
	}
	if keys, ok := s.ChangedSince(52); !ok || len(keys) != 1 {
		t.Fatalf("changes since 52: %v %v", keys, ok)
	}
	if page, _, _ := keptBefore(s, "web", 60); page != 7 {
		t.Fatalf("%d revisions before 60, want 53 to 59", page)
	}
}

func keptBefore(s *state.State, owner string, before int64) (n int, newest, oldest int64) {
	for r := range s.RevisionsBefore(owner, before) {
		if n++; n == 1 {
			newest = r.GetNumber()
		}
		oldest = r.GetNumber()
	}
	return n, newest, oldest
}

func TestRevisionsOfOneOwnerAreBounded(t *testing.T) {
	s := state.New("c-test")
	for i := range state.RevisionsKeptMax + 20 {
		s = mustApply(t, s, poolChange("web", "shop", fmt.Sprintf("10.0.0.1:%d", 1+i), 1))
	}
	if n, _, oldest := kept(s, "web"); n != state.RevisionsKeptMax || oldest != 21 {
		t.Fatalf("kept %d, oldest %d", n, oldest)
	}
}

func TestRequestsAreBounded(t *testing.T) {
	s := state.New("c-test")
	for i := range state.RequestsKeptMax + 10 {
		change := poolChange("web", "shop", fmt.Sprintf("10.0.0.1:%d", 1+i), 1)
		change.RequestId = fmt.Sprint("r", i)
		s = mustApply(t, s, change)
	}
	if s.Requests() != state.RequestsKeptMax {
		t.Fatalf("%d requests remembered, want %d", s.Requests(), state.RequestsKeptMax)
	}
	last := poolChange("web", "shop", fmt.Sprintf("10.0.0.1:%d", state.RequestsKeptMax+10), 1)
	last.RequestId = fmt.Sprint("r", state.RequestsKeptMax+9)
	if _, res := s.Apply(command(last)); !res.Replayed {
		t.Fatal("the newest request is not remembered")
	}
}

func part(name string, index int32, size int) *raftv1.Command {
	digest := sha256.Sum256([]byte(name))
	p := &raftv1.PartCommand{Digest: digest[:], Index: index, Data: make([]byte, size)}
	return &raftv1.Command{Kind: &raftv1.Command_Part{Part: p}}
}

func TestUploadsAreBounded(t *testing.T) {
	s := state.New("c-test")
	for i := range state.UploadsMax + 5 {
		s, _ = s.Apply(part(fmt.Sprint(i), 0, 10))
	}
	if s.Uploads() != state.UploadsMax {
		t.Fatalf("%d uploads kept, want %d", s.Uploads(), state.UploadsMax)
	}
	// The one begun first is gone, the one begun last is there: sending its part again touches nothing.
	if _, res := s.Apply(part(fmt.Sprint(state.UploadsMax+4), 0, 10)); len(res.Touched) != 0 {
		t.Fatal("the newest upload was dropped")
	}
	if _, res := s.Apply(part("0", 0, 10)); len(res.Touched) == 0 {
		t.Fatal("the oldest upload was kept")
	}
}

// TestUploadsThatWereGivenUpAreForgotten: by a later part, and by a later change; one that is sent on is not.
func TestUploadsThatWereGivenUpAreForgotten(t *testing.T) {
	at := func(hours int64, cmd *raftv1.Command) *raftv1.Command {
		cmd.GetPart().Time = &timestamppb.Timestamp{Seconds: hours * 3600}
		return cmd
	}
	s := state.New("c-test")
	s, _ = s.Apply(at(0, part("old", 0, 10)))
	s, _ = s.Apply(at(1, part("young", 0, 10)))
	if s.Uploads() != 2 {
		t.Fatalf("%d uploads after an hour, want both", s.Uploads())
	}
	s, _ = s.Apply(at(2, part("old", 1, 10)))
	if s.Uploads() != 2 {
		t.Fatalf("%d uploads: one that is sent on was dropped", s.Uploads())
	}
	s, _ = s.Apply(at(2, part("young", 1, 10)))
	if s.Uploads() != 1 {
		t.Fatalf("%d uploads, want only the one that was begun an hour ago", s.Uploads())
	}
	s = mustApply(t, s, poolChange("web", "shop", "10.0.0.1:80", 1))
	if s.Uploads() != 0 {
		t.Fatalf("%d uploads the day after", s.Uploads())
	}
}

func TestPartsAreBoundedInBytes(t *testing.T) {
	s := state.New("c-test")
	s, _ = s.Apply(part("old", 0, state.PartBytesMax))
	for i := range int32(2 * state.ChangeBytesMax / state.PartBytesMax) {
		s, _ = s.Apply(part("large", i, state.PartBytesMax))
	}
	if s.Uploads() != 1 {
		t.Fatalf("%d uploads, want the old one dropped for the large one", s.Uploads())
	}
}

func TestBadPartIsRefused(t *testing.T) {
	for name, cmd := range map[string]*raftv1.Command{
		"empty":    part("x", 0, 0),
		"too big":  part("x", 0, state.PartBytesMax+1),
		"negative": part("x", -1, 1),
		"digest":   {Kind: &raftv1.Command_Part{Part: &raftv1.PartCommand{Digest: []byte("x"), Data: []byte("x")}}},
	} {
		if _, res := state.New("c").Apply(cmd); res.Err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestUnknownCommandIsRefused(t *testing.T) {
	s := mustApply(t, state.New("c-test"), poolChange("web", "shop", "10.0.0.1:80", 1))
	for _, cmd := range []*raftv1.Command{nil, {}} {
		next, res := s.Apply(cmd)
		if !errors.Is(res.Err, state.ErrUnknownCommand) || next != s {
			t.Errorf("%v: %v", cmd, res.Err)
		}
	}
}

func TestPanicIsContained(t *testing.T) {
	s := mustApply(t, state.New("c-test"), poolChange("web", "shop", "10.0.0.1:80", 1))
	bad := poolChange("web", "shop", "10.0.0.2:80", 1)
	bad.Message = "\xff" // no UTF-8: cannot be encoded, and no entry of the log can hold it
	next, res := s.Apply(command(bad))
	var fault *state.PanicError
	if !errors.As(res.Err, &fault) || next != s || len(fault.Stack) == 0 {
		t.Fatalf("got %v", res.Err)
	}
}

func TestUnknownFormatIsRefused(t *testing.T) {
	end := func() (*raftv1.SnapshotRecord, error) { return nil, io.EOF }
	for name, header := range map[string]*raftv1.SnapshotHeader{"none": nil, "next": {Format: 2}} {
		if _, err := state.Decode(header, end); !errors.Is(err, state.ErrFormat) {
			t.Errorf("%s: %v", name, err)
		}
	}
	records := []*raftv1.SnapshotRecord{{}}
	_, err := state.Decode(state.New("c").Header(), func() (*raftv1.SnapshotRecord, error) { return records[0], nil })
	if !errors.Is(err, state.ErrFormat) {
		t.Errorf("unknown record: %v", err)
	}
}

func TestRecordUnderAnothersKeyIsRefused(t *testing.T) {
	s := mustApply(t, state.New("c-test"), poolChange("web", "shop", "10.0.0.1:80", 1))
	_, err := state.Load(s.Header(), func(yield func(string, *raftv1.SnapshotRecord) bool) {
		for key, record := range s.Records() {
			if !yield(key+"x", record) {
				return
			}
		}
	})
	if !errors.Is(err, state.ErrDamaged) {
		t.Errorf("got %v", err)
	}
}

func TestContentHashIsOfTheContent(t *testing.T) {
	hashOf := func(address string) string {
		s := mustApply(t, state.New("c-test"), poolChange("web", "shop", address, 1))
		r, _ := s.RevisionAt(1)
		return r.GetContentHash()
	}
	one, again, other := hashOf("10.0.0.1:80"), hashOf("10.0.0.1:80"), hashOf("10.0.0.2:80")
	if one != again || one == other {
		t.Fatal("the hash does not follow the content")
	}
}

// genChange draws changes over few names, so that they meet.
func genChange(t *rapid.T) *raftv1.ChangeCommand {
	name := rapid.SampledFrom([]string{"a", "b", "c", "d"})
	maybe := func(label string) bool { return rapid.IntRange(0, 5).Draw(t, label) == 0 }
	change := &raftv1.ChangeCommand{
		Owner:    rapid.SampledFrom([]string{"web", "api", "dev", "Bad"}).Draw(t, "owner"),
		Author:   "node/a uid=0",
		Time:     &timestamppb.Timestamp{Seconds: rapid.Int64Range(0, 100).Draw(t, "day") * 86400},
		TakeOver: maybe("take over"),
	}
	if rapid.Bool().Draw(t, "has id") {
		change.RequestId = rapid.StringMatching(`[a-d]`).Draw(t, "id")
	}
	for range rapid.IntRange(0, 4).Draw(t, "upserts") {
		change.Upserts = append(change.Upserts, &raftv1.StoredResource{Resource: genResource(t, name)})
	}
	for range rapid.IntRange(0, 1).Draw(t, "deletes") {
		kind := rapid.SampledFrom(state.Kinds()).Draw(t, "kind")
		change.Deletes = append(change.Deletes, state.Key{Kind: kind, Name: name.Draw(t, "name")}.String())
	}
	return seal(change, rapid.StringMatching(`[xy]`).Draw(t, "seal"))
}

func genResource(t *rapid.T, name *rapid.Generator[string]) *lbdv1.Resource {
	n := name.Draw(t, "name")
	port := rapid.IntRange(80, 84).Draw(t, "port")
	switch rapid.IntRange(0, 4).Draw(t, "kind") {
	case 0:
		l := &lbdv1.Listener{Name: n, Addresses: []string{fmt.Sprintf(":%d", port)}, Protocol: lbdv1.Protocol_PROTOCOL_HTTPS}
		if rapid.Bool().Draw(t, "fallback") {
			l.Tls = &lbdv1.ListenerTls{DefaultCertificate: name.Draw(t, "certificate")}
		}
		return &lbdv1.Resource{Spec: &lbdv1.Resource_Listener{Listener: l}}
	case 1:
		c := &lbdv1.CertificateSelfSigned{Hosts: []string{n + ".example.com"}}
		return &lbdv1.Resource{Spec: &lbdv1.Resource_Certificate{Certificate: &lbdv1.Certificate{Name: n, Source: &lbdv1.Certificate_SelfSigned{SelfSigned: c}}}}
	case 2:
		host := rapid.SampledFrom([]string{"10.0.0.1", "127.0.0.1", "localhost", "App.example.com"}).Draw(t, "host")
		p := &lbdv1.Pool{Name: n, Backends: []*lbdv1.Backend{{Address: fmt.Sprintf("%s:%d", host, port)}}}
		return &lbdv1.Resource{Spec: &lbdv1.Resource_Pool{Pool: p}}
	case 3:
		r := &lbdv1.Route{Name: n, Listeners: []string{name.Draw(t, "listener")}}
		r.Hosts = rapid.SliceOfN(rapid.SampledFrom([]string{"A.example.com", "b.example.com"}), 0, 2).Draw(t, "hosts")
		r.Action = &lbdv1.Route_Forward{Forward: &lbdv1.Forward{Pools: []*lbdv1.ForwardPool{{Pool: name.Draw(t, "pool")}}}}
		return &lbdv1.Resource{Spec: &lbdv1.Resource_Route{Route: r}}
	default:
		s := &lbdv1.ClusterSettings{AllowLoopbackBackends: proto.Bool(rapid.Bool().Draw(t, "allow"))}
		return &lbdv1.Resource{Spec: &lbdv1.Resource_ClusterSettings{ClusterSettings: s}}
	}
}

// genCommands draws a change whole or in parts, or a command about keys.
func genCommands(t *rapid.T) []*raftv1.Command {
	if rapid.IntRange(0, 5).Draw(t, "about keys") == 0 {
		return []*raftv1.Command{genSealed(t)}
	}
	change := genChange(t)
	if rapid.Bool().Draw(t, "whole") {
		return []*raftv1.Command{command(change)}
	}
	whole, err := proto.MarshalOptions{Deterministic: true}.Marshal(change)
	if err != nil {
		t.Fatal(err)
	}
	digest := sha256.Sum256(whole)
	var all []*raftv1.Command
	n := int32(0)
	for ; len(whole) > 0; n++ {
		size := min(50, len(whole))
		p := &raftv1.PartCommand{Digest: digest[:], Index: n, Data: whole[:size]}
		all = append(all, &raftv1.Command{Kind: &raftv1.Command_Part{Part: p}})
		whole = whole[size:]
	}
	if rapid.IntRange(0, 3).Draw(t, "commit") > 0 {
		all = append(all, &raftv1.Command{Kind: &raftv1.Command_Commit{Commit: &raftv1.CommitCommand{Digest: digest[:], Parts: n}}})
	}
	return all
}

// TestReplicasAgree drives replicas with random commands: one that only applies, one that is restored from a snapshot
// now and then, and a table of records kept as the durable state is kept, by what each command touched. They hold the
// same at each step, and a state does not change by having something applied to it.
func TestReplicasAgree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		one, two := state.New("c-test"), state.New("c-test")
		durable := map[string]*raftv1.SnapshotRecord{}
		for range rapid.IntRange(1, 20).Draw(t, "changes") {
			for _, cmd := range genCommands(t) {
				before := hash(t, one)
				next, res := one.Apply(cmd)
				if hash(t, one) != before {
					t.Fatal("apply changed the state that it was given")
				}
				if next.Revision() != one.Revision() && next.Revision() != one.Revision()+1 {
					t.Fatalf("revision %d after %d", next.Revision(), one.Revision())
				}
				var again state.Result
				two, again = two.Apply(proto.CloneOf(cmd))
				if showResult(res) != showResult(again) {
					t.Fatalf("answers differ:\n%s%s", showResult(res), showResult(again))
				}
				one = next
				for _, key := range res.Touched {
					if record, ok := one.Record(key); ok {
						durable[key] = record
					} else {
						delete(durable, key)
					}
				}
			}
			if hash(t, one) != hash(t, two) || one.Index() != two.Index() {
				t.Fatal("replicas differ")
			}
			if rapid.Bool().Draw(t, "restore") {
				two = reencode(t, two)
			}
		}
		loaded, err := state.Load(one.Header(), maps.All(durable))
		if err != nil {
			t.Fatal(err)
		}
		if hash(t, loaded) != hash(t, one) || loaded.Index() != one.Index() {
			t.Fatal("the records that were touched do not make the state")
		}
		if used := one.Usage().Total(); used != counted(one) {
			t.Fatalf("%d bytes in use, counted one by one %d", used, counted(one))
		}
	})
}

// TestExportedStateAppliesAsNoChange applies each owner's resources as they are stored.
func TestExportedStateAppliesAsNoChange(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := state.New("c-test")
		for range rapid.IntRange(1, 20).Draw(t, "changes") {
			s, _ = s.Apply(command(genChange(t)))
		}
		for _, owner := range []string{"web", "api", "dev"} {
			change := &raftv1.ChangeCommand{Owner: owner}
			for _, kind := range state.Kinds() {
				for r := range s.All(kind) {
					if r.GetResource().GetOwner() == owner {
						change.Upserts = append(change.Upserts, r)
					}
				}
			}
			if _, res := s.Apply(command(change)); res.Err != nil || len(res.Changes) > 0 {
				t.Fatalf("owner %s: %s", owner, showResult(res))
			}
		}
	})
}

// FuzzApply gives arbitrary bytes for a command: whatever comes, nothing panics, and what is stored can be restored.
func FuzzApply(f *testing.F) {
	for _, cmd := range []*raftv1.Command{
		command(poolChange("web", "shop", "10.0.0.1:80", 1)),
		command(&raftv1.ChangeCommand{Owner: "web", Deletes: []string{"pools/shop", "cluster_settings"}}),
		part("x", 1, 10),
	} {
		b, err := proto.Marshal(cmd)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	base := mustApply(f, state.New("c-test"), poolChange("web", "base", "10.0.0.1:80", 1))
	f.Fuzz(func(t *testing.T, b []byte) {
		cmd := new(raftv1.Command)
		if proto.Unmarshal(b, cmd) != nil {
			return
		}
		next, res := base.Apply(cmd)
		var fault *state.PanicError
		if errors.As(res.Err, &fault) {
			t.Fatalf("%v\n%s", fault, fault.Stack)
		}
		if hash(t, reencode(t, next)) != hash(t, next) {
			t.Fatal("restored state differs")
		}
		state.Validate(nil, cmd.GetChange())
	})
}
