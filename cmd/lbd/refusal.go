package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"

	"lbd/cluster/rpc"
	"lbd/cluster/state"
)

// choice is what a node serves in place of the newest revision: one that it cannot serve is refused as a whole, and stays refused
// over restarts, for the same build would fail on it again. The next revision is tried as usual, and so is the same one by another build.
type choice struct {
	// Refused is the newest revision that is not served; 0: none is.
	Refused int64 `json:"refused"`
	// Serve is the one that is served in its place.
	Serve  int64  `json:"serve"`
	Reason string `json:"reason"`
	Build  string `json:"build"`
}

const choiceFile = "refused.json"

// readChoice reads what a run before has refused. Only another build's is nothing to us.
func readChoice(dir, build string) (choice, error) {
	data, err := os.ReadFile(filepath.Join(dir, choiceFile))
	if errors.Is(err, fs.ErrNotExist) {
		return choice{}, nil
	}
	var c choice
	if err == nil {
		err = json.Unmarshal(data, &c)
	}
	if err != nil {
		return choice{}, fmt.Errorf("read the refused revision (remove %s to try the newest again): %w", filepath.Join(dir, choiceFile), err)
	}
	if c.Build != build {
		return choice{}, nil
	}
	return c, nil
}

// firstChoice is what the command line says, or what a run before has refused. An error is the command line's: to serve another
// revision than the one that is asked for could do the harm that is to be avoided.
func (c config) firstChoice(s *state.State, log *slog.Logger) (choice, error) {
	newest := s.Revision()
	if n := c.serveRevision; n > 0 {
		if _, err := s.At(n); err != nil {
			return choice{}, fmt.Errorf("--serve-revision %d: %w: start without it, and see `lbctl history`", n, err)
		}
		if n == newest {
			return choice{}, nil
		}
		return choice{Refused: newest, Serve: n, Reason: fmt.Sprintf("--serve-revision %d was given", n)}, nil
	}
	kept, err := readChoice(c.dataDir, readBuild().id())
	if err != nil {
		log.Warn("trying the newest revision", "err", err)
	}
	if kept.Serve <= 0 || kept.Serve >= kept.Refused || kept.Refused > newest { // another directory's, or damaged
		return choice{}, nil
	}
	return kept, nil
}

// startRevisionsMax bounds how many revisions a start goes back.
const startRevisionsMax = 10

// begin publishes for the first time. Where the revision to serve is refused as a whole, those before it are tried: one bad
// revision must not leave a node that starts with nothing to serve.
func (a *appliance) begin() {
	a.followDrain()
	a.followTicketKeys()
	newest := a.node.State().Revision()
	serve := newest
	if a.choice.Refused == newest && newest > 0 {
		serve = a.choice.Serve
	}
	a.publish()
	for n := serve - 1; n > max(0, serve-1-startRevisionsMax) && a.current.revision == 0; n-- {
		whole, refused := a.refused[state.Key{}]
		if _, err := a.node.State().At(n); err != nil || !refused {
			return
		}
		clear(a.refused) // what is refused of a revision that is not served says nothing of this one
		a.choose(choice{Refused: newest, Serve: n, Reason: whole.Reason, Build: readBuild().id()})
		a.publish()
	}
}

// target is the state to serve: the stored one, or an older one while that is refused.
func (a *appliance) target() *state.State {
	s := a.node.State()
	if a.choice.Refused < s.Revision() {
		return s
	}
	old, err := s.At(a.choice.Serve)
	if err != nil {
		a.log.Error("the revision before the refused one is kept no more: trying the newest", "revision", a.choice.Serve, "err", err)
		return s
	}
	return old
}

// refuseRevision records that a whole revision is not served: the last good one stays, over a restart, too.
func (a *appliance) refuseRevision(revision int64, reason string) {
	a.log.Error("a revision is refused; the last good one stays", "revision", revision, "serving", a.current.revision, "err", reason)
	a.events.add("revision_refused", fmt.Sprintf("revisions/%d", revision), reason)
	a.refused[state.Key{}] = rpc.Refusal{Revision: revision, Reason: reason}
	if a.current.revision > 0 {
		if revision > a.current.revision {
			a.choose(choice{Refused: revision, Serve: a.current.revision, Reason: reason, Build: readBuild().id()})
		}
		a.keep(a.current)
	}
	a.report()
}

// choose keeps a choice for the next start.
func (a *appliance) choose(c choice) {
	a.choice = c
	data, err := json.Marshal(c)
	if err == nil {
		err = replaceFile(filepath.Join(a.cfg.dataDir, choiceFile), data)
	}
	if err != nil {
		a.log.Error("cannot keep the choice of revision for the next start", "err", err)
	}
}

// forgetChoice ends a refusal once a newer revision is served.
func (a *appliance) forgetChoice(served int64) {
	if a.choice.Refused == 0 {
		delete(a.refused, state.Key{})
		return
	}
	if served <= a.choice.Refused { // what is served is the older one
		a.refused[state.Key{}] = rpc.Refusal{Revision: a.choice.Refused, Reason: a.choice.Reason}
		return
	}
	delete(a.refused, state.Key{})
	a.choice = choice{}
	if err := os.Remove(filepath.Join(a.cfg.dataDir, choiceFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		a.log.Error("cannot forget the refused revision", "err", err)
	}
}

// containPanic keeps a revision that makes us panic from ending the node: what was served before stays.
func (a *appliance) containPanic(s *state.State) {
	p := recover()
	if p == nil {
		return
	}
	a.log.Error("publish panicked", "panic", p, "stack", string(debug.Stack()))
	reason := fmt.Sprintf("panic: %v", p)
	if k := a.compiling; k.Kind != "" {
		reason = fmt.Sprintf("panic while compiling %s%s: %v", k, changedBy(s, k), p)
		a.compiling = state.Key{}
	}
	a.refuseRevision(s.Revision(), reason)
}

// survive keeps a panic in following what moves by itself from ending the node. No revision is to blame: what was served stays.
func (a *appliance) survive(what string) {
	if p := recover(); p != nil {
		a.log.Error(what+" panicked; what was served stays", "panic", p, "stack", string(debug.Stack()))
	}
}

// changedBy says which revision brought a resource into its form, and whose that was.
func changedBy(s *state.State, k state.Key) string {
	stored, _ := s.Get(k.Kind, k.Name)
	r, ok := s.RevisionAt(stored.GetResource().GetRevision())
	if !ok {
		return ""
	}
	return fmt.Sprintf(" (revision %d by %s, owner %s)", r.GetNumber(), r.GetAuthor(), r.GetOwner())
}

// replaceFile replaces a file as a whole. What a kill leaves behind is one file, which the next write takes.
func replaceFile(path string, data []byte) error {
	next := path + ".new"
	f, err := os.OpenFile(next, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(next, path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(next))
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
