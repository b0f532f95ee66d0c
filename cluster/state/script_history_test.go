package state_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lbd/cluster/state"
	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

// runHistory runs the commands of scripts about history and overrides.
func (w *world) runHistory(t *testing.T, words []string, args map[string]string, body []string) string {
	switch words[0] {
	case "rollback":
		return w.rollback(t, args)
	case "undo":
		n, err := strconv.ParseInt(args["only"], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		change, err := w.state.RollbackOnly(args["owner"], n)
		if err != nil {
			return err.Error() + "\n"
		}
		change.Time = &timestamppb.Timestamp{}
		return w.apply(&raftv1.Command{Kind: &raftv1.Command_Change{Change: change}})
	case "at":
		return w.at(t, words[1], words[2])
	case "applied":
		return w.applied()
	case "users":
		key, err := state.ParseKey(words[1])
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintln(w.state.Users(key))
	case "override":
		return w.override(t, args, body)
	case "overrides":
		var b strings.Builder
		for o := range w.state.Overrides(args["pool"]) {
			b.WriteString(showOverride(o))
		}
		return b.String()
	case "diff":
		var forms []*lbdv1.Resource
		for _, line := range body {
			forms = append(forms, parseForm(t, line))
		}
		return showFields(state.Diff(forms[0], forms[1]))
	}
	t.Fatalf("unknown command %q", words)
	return ""
}

// rollback applies what Rollback makes; to=before is the one before the newest.
func (w *world) rollback(t *testing.T, args map[string]string) string {
	to := int64(-1)
	if args["to"] != "before" {
		var err error
		if to, err = strconv.ParseInt(args["to"], 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	change, err := w.state.Rollback(args["owner"], to)
	if err != nil {
		return err.Error() + "\n"
	}
	change.Time = &timestamppb.Timestamp{}
	return w.apply(&raftv1.Command{Kind: &raftv1.Command_Change{Change: change}})
}

// at shows a resource or the revisions that there were at a revision.
func (w *world) at(t *testing.T, revision, what string) string {
	n, err := strconv.ParseInt(revision, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	past, err := w.state.At(n)
	if err != nil {
		return err.Error() + "\n"
	}
	then := &world{state: past}
	if what == "history" {
		return then.history("")
	}
	return then.show(t, what)
}

// applied names what prune may delete.
func (w *world) applied() string {
	var b strings.Builder
	for _, kind := range state.Kinds() {
		for stored := range w.state.All(kind) {
			if key, _ := state.KeyOf(stored.GetResource()); stored.GetApplied() {
				fmt.Fprintln(&b, key)
			}
		}
	}
	return b.String()
}

// override reads lines "set" and "clear" with prototext.
func (w *world) override(t *testing.T, args map[string]string, body []string) string {
	at, _ := strconv.ParseInt(args["day"], 10, 64)
	cmd := &raftv1.OverrideCommand{Author: args["author"], Time: &timestamppb.Timestamp{Seconds: at * 86400}, RequestId: args["id"]}
	for _, line := range body {
		word, text, _ := strings.Cut(line, " ")
		var err error
		if word == "set" {
			o := new(lbdv1.Override)
			err = prototext.Unmarshal([]byte(text), o)
			cmd.Sets = append(cmd.Sets, o)
		} else {
			k := new(raftv1.OverrideKey)
			err = prototext.Unmarshal([]byte(text), k)
			cmd.Clears = append(cmd.Clears, k)
		}
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
	}
	before := w.state.OverrideVersion()
	next, res := w.state.Apply(&raftv1.Command{Kind: &raftv1.Command_Override{Override: cmd}})
	w.state = next
	var b strings.Builder
	b.WriteString(showResult(res))
	for _, o := range res.Overrides {
		b.WriteString("  set " + showOverride(o))
	}
	for _, o := range res.Ended {
		b.WriteString("  ended " + showOverride(o))
	}
	if moved := w.state.OverrideVersion() != before; !moved {
		b.WriteString("  the same version\n")
	}
	return b.String()
}

func showOverride(o *lbdv1.Override) string {
	what := fmt.Sprintf("weight %d", o.GetWeight())
	if _, ok := o.GetWhat().(*lbdv1.Override_State); ok {
		what = strings.TrimPrefix(o.GetState().String(), "BACKEND_STATE_")
	}
	text := fmt.Sprintf("%s/%s %s", o.GetPool(), o.GetAddress(), what)
	if o.GetAuthor() != "" {
		text += " by " + o.GetAuthor()
	}
	if o.GetExpireTime() != nil {
		text += fmt.Sprintf(" until day %d", o.GetExpireTime().GetSeconds()/86400)
	}
	return text + "\n"
}

// parseForm reads a kind and its fields; "none" is nil.
func parseForm(t *testing.T, line string) *lbdv1.Resource {
	kind, text, _ := strings.Cut(line, " ")
	if kind == "none" {
		return nil
	}
	r := new(lbdv1.Resource)
	if err := prototext.Unmarshal([]byte(kind+":{"+text+"}"), r); err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	return r
}

func showFields(changes []*lbdv1.FieldChange) string {
	var b strings.Builder
	for _, c := range changes {
		fmt.Fprintf(&b, "%s: %s -> %s\n", c.GetPath(), or(c.GetBefore()), or(c.GetAfter()))
	}
	return b.String()
}

func or(text string) string {
	if text == "" {
		return "(none)"
	}
	return text
}
