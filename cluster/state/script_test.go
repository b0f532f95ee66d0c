package state_test

import (
	"crypto/sha256"
	"encoding/hex"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lbd/cluster/state"
	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

var update = flag.Bool("update", false, "rewrite the expected output in testdata")

// TestScripts runs testdata/*.txt. A script is a list of blocks: a command line with key=value arguments, an optional
// body, a line of dashes, and the expected output up to an empty line. A body line is a kind and its fields as
// prototext, or "delete kind/name". All commands of a script act on one state.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) { runScript(t, file) })
	}
}

func runScript(t *testing.T, file string) {
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{state: state.New("c-test")}
	var out strings.Builder
	for _, block := range strings.Split(strings.TrimSpace(string(raw)), "\n\n") {
		lines := strings.Split(block, "\n")
		if strings.HasPrefix(lines[0], "#") && len(lines) == 1 {
			fmt.Fprintf(&out, "%s\n\n", block)
			continue
		}
		input, want, _ := strings.Cut(block+"\n", "\n----\n")
		input = strings.TrimSuffix(input, "\n")
		got := w.run(t, input)
		if !*update && strings.TrimSpace(got) != strings.TrimSpace(want) {
			t.Errorf("%s:\n%s\n---- got\n%s---- want\n%s", file, input, got, want)
		}
		fmt.Fprintf(&out, "%s\n----\n%s\n", input, got)
	}
	if *update {
		if err := os.WriteFile(file, []byte(strings.TrimSuffix(out.String(), "\n")), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

type world struct {
	state *state.State
}

func (w *world) run(t *testing.T, input string) string {
	var body []string
	var line string
	for _, l := range strings.Split(input, "\n") {
		switch {
		case strings.HasPrefix(l, "#"):
		case line == "":
			line = l
		default:
			body = append(body, l)
		}
	}
	words := strings.Fields(line)
	args := map[string]string{}
	for _, word := range words[1:] {
		k, v, _ := strings.Cut(word, "=")
		args[k] = strings.ReplaceAll(v, "_", " ")
	}
	switch words[0] {
	case "apply":
		return w.apply(&raftv1.Command{Kind: &raftv1.Command_Change{Change: seal(parseChange(t, args, body), args["seal"])}})
	case "parts":
		return w.parts(t, args, seal(parseChange(t, args, body), args["seal"]))
	case "validate":
		return showViolations(state.Validate(w.state, parseChange(t, args, body)))
	case "offline":
		return showViolations(state.Validate(nil, parseChange(t, args, body)))
	case "show":
		return w.show(t, words[1])
	case "history":
		return w.history(args["owner"])
	case "since":
		return w.since(t, args["revision"])
	case "restore":
		return w.restore(t)
	}
	return w.runHistory(t, words, args, body)
}

func parseChange(t *testing.T, args map[string]string, body []string) *raftv1.ChangeCommand {
	at, _ := strconv.ParseInt(args["day"], 10, 64)
	change := &raftv1.ChangeCommand{
		Owner:     args["owner"],
		Author:    "node/a uid=0",
		Time:      &timestamppb.Timestamp{Seconds: at * 86400},
		Message:   args["message"],
		RequestId: args["id"],
		TakeOver:  args["take-over"] == "yes",
		Applied:   args["applied"] == "yes",
	}
	if n, err := strconv.ParseInt(args["if-revision"], 10, 64); err == nil {
		change.IfRevision = &n
	}
	for _, line := range body {
		kind, text, _ := strings.Cut(line, " ")
		if kind == "delete" {
			change.Deletes = append(change.Deletes, text)
			continue
		}
		if kind == "if" {
			key, etag, _ := strings.Cut(text, " ")
			change.IfEtags = append(change.IfEtags, &raftv1.Precondition{Key: key, Etag: strings.TrimPrefix(etag, "none")})
			continue
		}
		r := new(lbdv1.Resource)
		if err := prototext.Unmarshal([]byte(kind+":{"+text+"}"), r); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		change.Upserts = append(change.Upserts, &raftv1.StoredResource{Resource: r})
	}
	return change
}

// seal adds what the API adds to certificates before they are stored; how varies the sealed bytes, as every sealing
// does.
func seal(change *raftv1.ChangeCommand, how string) *raftv1.ChangeCommand {
	for _, up := range change.GetUpserts() {
		if c := up.GetResource().GetCertificate(); c != nil {
			public := sha256.Sum256([]byte(c.GetName()))
			up.Material = &raftv1.CertificateMaterial{
				Chain: [][]byte{[]byte("leaf of " + c.GetName())}, SealedKey: []byte("sealed" + how), PublicKeySha256: public[:],
			}
		}
	}
	return change
}

func (w *world) apply(cmd *raftv1.Command) string {
	next, res := w.state.Apply(cmd)
	w.state = next
	return showResult(res)
}

// parts sends a change in pieces; drop=N leaves one out, twice=N sends one again.
func (w *world) parts(t *testing.T, args map[string]string, change *raftv1.ChangeCommand) string {
	whole, err := proto.MarshalOptions{Deterministic: true}.Marshal(change)
	if err != nil {
		t.Fatal(err)
	}
	digest := sha256.Sum256(whole)
	size := 20
	n := 0
	for ; n*size < len(whole); n++ {
		if args["drop"] == strconv.Itoa(n) {
			continue
		}
		part := &raftv1.PartCommand{Digest: digest[:], Index: int32(n), Data: whole[n*size : min(len(whole), (n+1)*size)]}
		w.state, _ = w.state.Apply(&raftv1.Command{Kind: &raftv1.Command_Part{Part: part}})
		if args["twice"] == strconv.Itoa(n) {
			_, res := w.state.Apply(&raftv1.Command{Kind: &raftv1.Command_Part{Part: part}})
			if len(res.Touched) > 0 {
				t.Errorf("a part sent twice touched %q", res.Touched)
			}
		}
	}
	if args["commit"] == "no" {
		return fmt.Sprintf("%d parts\n", n)
	}
	return w.apply(&raftv1.Command{Kind: &raftv1.Command_Commit{Commit: &raftv1.CommitCommand{Digest: digest[:], Parts: int32(n)}}})
}

func showResult(res state.Result) string {
	var b strings.Builder
	if res.Replayed {
		b.WriteString("replayed ")
	}
	if res.Err != nil {
		if invalid, ok := res.Err.(*state.InvalidError); ok {
			return showViolations(invalid.Violations)
		}
		return res.Err.Error() + "\n"
	}
	fmt.Fprintf(&b, "revision %d\n", res.Revision)
	for _, c := range res.Changes {
		fmt.Fprintf(&b, "  %s %s", strings.ToLower(strings.TrimPrefix(c.GetAction().String(), "CHANGE_ACTION_")), state.Key{Kind: state.Kind(c.GetKind()), Name: c.GetName()})
		if c.GetTakenFrom() != "" {
			fmt.Fprintf(&b, ", taken from %s", c.GetTakenFrom())
		}
		b.WriteString("\n")
	}
	return b.String() + showViolations(res.Warnings)
}

func showViolations(violations []*lbdv1.Violation) string {
	var b strings.Builder
	for _, v := range violations {
		word := map[lbdv1.Severity]string{lbdv1.Severity_SEVERITY_ERROR: "error", lbdv1.Severity_SEVERITY_WARNING: "warning"}[v.GetSeverity()]
		fmt.Fprintf(&b, "%s %s: %s\n", word, v.GetField(), v.GetDescription())
	}
	return b.String()
}

func (w *world) show(t *testing.T, what string) string {
	if kind, ok := state.ParseKind(what); ok && !kind.Single() {
		var b strings.Builder
		for r := range w.state.All(kind) {
			key, _ := state.KeyOf(r.GetResource())
			fmt.Fprintf(&b, "%s owner=%s revision=%d\n", key, r.GetResource().GetOwner(), r.GetResource().GetRevision())
		}
		return b.String()
	}
	key, err := state.ParseKey(what)
	if err != nil {
		t.Fatal(err)
	}
	r, ok := w.state.Get(key.Kind, key.Name)
	if !ok {
		return "none\n"
	}
	return fmt.Sprintf("owner=%s revision=%d\n%s\n", r.GetResource().GetOwner(), r.GetResource().GetRevision(),
		strings.Join(strings.Fields(prototext.Format(state.Spec(r.GetResource()))), " "))
}

func (w *world) history(owner string) string {
	var b strings.Builder
	for r := range w.state.Revisions(owner) {
		fmt.Fprintf(&b, "%d owner=%s day=%d %s", r.GetNumber(), r.GetOwner(), r.GetTime().GetSeconds()/86400, r.GetMessage())
		for _, c := range r.GetChanges() {
			fmt.Fprintf(&b, " %s/%s", c.GetKind(), c.GetName())
		}
		b.WriteString("\n")
	}
	return b.String()
}

func (w *world) since(t *testing.T, revision string) string {
	n, err := strconv.ParseInt(revision, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	keys, ok := w.state.ChangedSince(n)
	if !ok {
		return "unknown: compare everything\n"
	}
	var b strings.Builder
	for _, key := range keys {
		fmt.Fprintln(&b, key)
	}
	return b.String()
}

// restore puts the state through Encode and Decode and through Records and Load, and goes on with the result.
func (w *world) restore(t *testing.T) string {
	decoded := reencode(t, w.state)
	loaded, err := state.Load(w.state.Header(), w.state.Records())
	if err != nil {
		t.Fatal(err)
	}
	if hash(t, decoded) != hash(t, w.state) || hash(t, loaded) != hash(t, w.state) {
		return "differs\n"
	}
	w.state = decoded
	return "same\n"
}

func reencode(t interface{ Fatal(...any) }, s *state.State) *state.State {
	var records []*raftv1.SnapshotRecord
	err := s.Encode(func(r *raftv1.SnapshotRecord) error {
		raw, err := proto.Marshal(r)
		if err != nil {
			return err
		}
		again := new(raftv1.SnapshotRecord)
		records = append(records, again)
		return proto.Unmarshal(raw, again)
	})
	if err != nil {
		t.Fatal(err)
	}
	decoded, err := state.Decode(s.Header(), func() (*raftv1.SnapshotRecord, error) {
		if len(records) == 0 {
			return nil, io.EOF
		}
		r := records[0]
		records = records[1:]
		return r, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return decoded
}

func hash(t interface{ Fatal(...any) }, s *state.State) string { return hashOf(t, s, true) }

// hashOf leaves the audit out where that is not compared.
func hashOf(t interface{ Fatal(...any) }, s *state.State, audit bool) string {
	h := sha256.New()
	fmt.Fprintln(h, s.Revision(), s.ClusterID())
	err := s.Encode(func(r *raftv1.SnapshotRecord) error {
		if r.GetAudit() != nil && !audit {
			return nil
		}
		b, err := proto.MarshalOptions{Deterministic: true}.Marshal(r)
		fmt.Fprintf(h, "%d %s", len(b), b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return hex.EncodeToString(h.Sum(nil))
}
