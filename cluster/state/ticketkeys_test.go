package state_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lbd/cluster/state"
	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

var ticketTime = time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)

func ticketKey(epoch int64) *raftv1.TicketKey {
	return &raftv1.TicketKey{Epoch: epoch, Name: fmt.Appendf(nil, "name of key %04d", epoch), SealedKey: fmt.Appendf(nil, "sealed %d", epoch)}
}

func foreignTicketKey(name byte, until time.Time) *raftv1.TicketKey {
	return &raftv1.TicketKey{Name: bytes.Repeat([]byte{name}, 16), SealedKey: []byte{name}, ExpireTime: timestamppb.New(until)}
}

func rotateKeys(from, staged int64) *raftv1.TicketKeysCommand {
	return &raftv1.TicketKeysCommand{Change: &raftv1.TicketKeysCommand_Rotate{Rotate: &raftv1.RotateTicketKeys{From: from, Staged: ticketKey(staged)}}}
}

func renewKeys(active int64, wipe bool) *raftv1.TicketKeysCommand {
	return &raftv1.TicketKeysCommand{Change: &raftv1.TicketKeysCommand_Renew{Renew: renewal(active, wipe)}}
}

func renewal(active int64, wipe bool) *raftv1.RenewTicketKeys {
	return &raftv1.RenewTicketKeys{Active: ticketKey(active), Staged: ticketKey(active + 1), Wipe: wipe}
}

func extendKey(epoch int64) *raftv1.TicketKeysCommand {
	return &raftv1.TicketKeysCommand{Change: &raftv1.TicketKeysCommand_Extend{Extend: &raftv1.ExtendTicketKey{Epoch: epoch}}}
}

func wipeKeys(names [][]byte, epochs ...int64) *raftv1.TicketKeysCommand {
	return &raftv1.TicketKeysCommand{Change: &raftv1.TicketKeysCommand_Wipe{Wipe: &raftv1.WipeTicketKeys{Epochs: epochs, Names: names}}}
}

func importKeys(keys ...*raftv1.TicketKey) *raftv1.TicketKeysCommand {
	return &raftv1.TicketKeysCommand{Change: &raftv1.TicketKeysCommand_Import{Import: &raftv1.ImportTicketKeys{Keys: keys}}}
}

// at applies a command so many hours after ticketTime.
func keysAt(s *state.State, hours float64, cmd *raftv1.TicketKeysCommand) (*state.State, state.Result) {
	cmd.Author, cmd.Time = "lbd", timestamppb.New(ticketTime.Add(time.Duration(hours*float64(time.Hour))))
	return s.Apply(&raftv1.Command{Kind: &raftv1.Command_TicketKeys{TicketKeys: cmd}})
}

// keysText is "1 accepted until 48h, 2 active until 84h, …", the times since ticketTime.
func keysText(s *state.State) string {
	var all []string
	for k := range s.TicketKeys() {
		word := strings.ToLower(strings.TrimPrefix(k.GetState().String(), "TICKET_KEY_STATE_"))
		all = append(all, fmt.Sprintf("%d %s %.0fh", k.GetEpoch(), word, s.Settings().TicketKeys.Until(k).Sub(ticketTime).Hours()))
	}
	return strings.Join(all, ", ")
}

// The life of keys under the default settings: interval 12h, accept_for 36h, max_key_age 72h.
func TestTicketKeys(t *testing.T) {
	foreign := foreignTicketKey('f', ticketTime.Add(50*time.Hour))
	steps := []struct {
		hours float64
		cmd   *raftv1.TicketKeysCommand
		want  string
		fails bool
	}{
		{0, rotateKeys(0, 1), "", true},
		{0, renewKeys(1, false), "1 active 72h, 2 staged 84h", false},
		{0, renewKeys(1, false), "1 active 72h, 2 staged 84h", true},
		{12, rotateKeys(1, 3), "1 accepted 48h, 2 active 84h, 3 staged 96h", false},
		{12, rotateKeys(1, 4), "1 accepted 48h, 2 active 84h, 3 staged 96h", true},  // of another leader, late
		{12, rotateKeys(2, 3), "1 accepted 48h, 2 active 84h, 3 staged 96h", true},  // an epoch twice
		{13, extendKey(2), "1 accepted 48h, 2 active 84h, 3 staged 96h", false},     // nothing to extend
		{14, extendKey(1), "1 accepted 50h, 2 active 84h, 3 staged 96h", false},     // a node went on with it for 2 hours
		{13, extendKey(1), "1 accepted 50h, 2 active 84h, 3 staged 96h", false},     // an earlier word
		{60, extendKey(1), "1 accepted 72h, 2 active 84h, 3 staged 96h", false},     // never beyond max_key_age
		{60, wipeKeys(nil, 2), "1 accepted 72h, 2 active 84h, 3 staged 96h", true},  // it issues
		{60, wipeKeys(nil, 9), "1 accepted 72h, 2 active 84h, 3 staged 96h", false}, // gone already
		{72, wipeKeys(nil, 1), "2 active 84h, 3 staged 96h", false},                 //
		{20, importKeys(foreign), "2 active 84h, 3 staged 96h, 0 imported 50h", false},
		{51, importKeys(foreign), "2 active 84h, 3 staged 96h, 0 imported 50h", true}, // its time is over
		{21, importKeys(foreignTicketKey('f', ticketTime.Add(60*time.Hour))), "2 active 84h, 3 staged 96h, 0 imported 60h", false},
		{24, renewKeys(4, false), "2 accepted 60h, 4 active 96h, 5 staged 108h, 0 imported 60h", false}, // the staged one is known, and goes
		{60, wipeKeys([][]byte{foreign.GetName()}), "2 accepted 60h, 4 active 96h, 5 staged 108h", false},
		{26, renewKeys(5, true), "2 accepted 60h, 4 active 96h, 5 staged 108h", true},
		{26, renewKeys(6, true), "6 active 98h, 7 staged 110h", false}, // an emergency
	}
	s := state.New("c-test")
	for i, step := range steps {
		next, res := keysAt(s, step.hours, step.cmd)
		if failed := res.Err != nil; failed != step.fails {
			t.Fatalf("step %d: error %v, want one: %t", i, res.Err, step.fails)
		}
		if s = next; keysText(s) != step.want {
			t.Fatalf("step %d: %s, want %s", i, keysText(s), step.want)
		}
	}
	if copied := reload(t, s); copied.Digest() != s.Digest() {
		t.Fatal("a snapshot does not hold the keys")
	}
}

// reload is the state as a snapshot brings it back.
func reload(t *testing.T, s *state.State) *state.State {
	t.Helper()
	copied, err := state.Load(s.Header(), s.Records())
	if err != nil {
		t.Fatal(err)
	}
	return copied
}

func TestTicketKeysDue(t *testing.T) {
	s := state.New("c-test")
	if due := s.TicketKeysDue(ticketTime); !due.Begin {
		t.Fatal("a new state asks for no keys")
	}
	s, _ = keysAt(s, 0, renewKeys(1, false))
	s, _ = keysAt(s, 12, rotateKeys(1, 3))
	for _, c := range []struct {
		hours  float64
		rotate bool
		wipe   []int64
	}{
		{12, false, nil},
		{23.9, false, nil},
		{24, true, nil},
		{47.9, true, nil},
		{48, true, []int64{1}},
		{0.5, false, nil}, // a clock that is behind waits
		{-1, true, nil},   // the one that activated the key was wrong
	} {
		due := s.TicketKeysDue(ticketTime.Add(time.Duration(c.hours * float64(time.Hour))))
		if due.Begin || due.Rotate != c.rotate || !slices.Equal(due.Wipe.GetEpochs(), c.wipe) {
			t.Errorf("at %g hours: %+v, want rotate %t, wipe %v", c.hours, due, c.rotate, c.wipe)
		}
	}
}

// Rotation all the time leaves a bounded number of keys, the newest; the digest tells each set from the one before.
func TestTicketKeysAreBounded(t *testing.T) {
	s, res := keysAt(state.New("c-test"), 0, renewKeys(1, false))
	seen := map[string]bool{state.TicketKeysDigest(s.TicketKeys()): true}
	for epoch := int64(1); epoch < 400 && res.Err == nil; epoch++ {
		s, res = keysAt(s, 0, rotateKeys(epoch, epoch+2))
		seen[state.TicketKeysDigest(s.TicketKeys())] = true
	}
	all := slices.Collect(s.TicketKeys())
	if res.Err != nil || len(all) != 250 || all[249].GetEpoch() != 401 || s.NewestTicketEpoch() != 401 || len(seen) != 400 {
		t.Fatalf("%d keys, newest %d, %d digests, %v", len(all), s.NewestTicketEpoch(), len(seen), res.Err)
	}
}

func TestTicketKeysRefuse(t *testing.T) {
	s, _ := keysAt(state.New("c-test"), 0, renewKeys(1, false))
	nameless, unsealed, twice := ticketKey(3), ticketKey(3), ticketKey(3)
	nameless.Name, unsealed.SealedKey, twice.Name = nil, nil, ticketKey(1).GetName()
	for what, k := range map[string]*raftv1.TicketKey{"no name": nameless, "no secret": unsealed, "another's name": twice} {
		_, res := keysAt(s, 1, &raftv1.TicketKeysCommand{Change: &raftv1.TicketKeysCommand_Rotate{Rotate: &raftv1.RotateTicketKeys{From: 1, Staged: k}}})
		if invalid := new(state.InvalidError); !errors.As(res.Err, &invalid) {
			t.Errorf("%s: %v", what, res.Err)
		}
	}
	if _, res := keysAt(s, 1, &raftv1.TicketKeysCommand{}); !errors.Is(res.Err, state.ErrUnknownCommand) {
		t.Errorf("no change: %v", res.Err)
	}
}

func TestTicketKeysRetry(t *testing.T) {
	s, _ := keysAt(state.New("c-test"), 0, renewKeys(1, false))
	first := renewKeys(3, true)
	first.RequestId = "r1"
	s, _ = keysAt(s, 1, first)
	again := renewKeys(5, true)
	again.RequestId = "r1"
	if next, res := keysAt(s, 1, again); !res.Replayed || keysText(next) != keysText(s) {
		t.Errorf("the same request again: %s, %+v", keysText(next), res)
	}
	other := rotateKeys(3, 5)
	other.RequestId = "r1"
	conflict := new(state.ConflictError)
	if _, res := keysAt(s, 1, other); !errors.As(res.Err, &conflict) || conflict.Reason != state.RequestIDReused {
		t.Errorf("the id for another request: %v", res.Err)
	}
}

// New seals come under the keys as they are: nothing else of them changes.
func TestTicketKeysAreSealedAnew(t *testing.T) {
	s, _ := keysAt(state.New("c-test"), 0, renewKeys(1, false))
	before := state.TicketKeysDigest(s.TicketKeys())
	seals := &raftv1.ResealCommand{Author: "admin", Time: timestamppb.New(ticketTime)}
	for secret := range s.Secrets() {
		if secret.Kind != state.KindTicketKeys || secret.Version == "" {
			t.Fatalf("secret %+v", secret)
		}
		seals.Seals = append(seals.Seals, &raftv1.Reseal{BeforeSha256: sha256Of(secret.Sealed), Sealed: []byte("anew " + secret.Name)})
	}
	s, res := s.Apply(&raftv1.Command{Kind: &raftv1.Command_Reseal{Reseal: seals}})
	if res.Err != nil || res.Count != 2 || state.TicketKeysDigest(s.TicketKeys()) != before {
		t.Fatalf("%+v", res)
	}
	for k := range s.TicketKeys() {
		if want := fmt.Sprintf("anew %d", k.GetEpoch()); string(k.GetSealedKey()) != want {
			t.Errorf("epoch %d: %s", k.GetEpoch(), k.GetSealedKey())
		}
	}
}

func TestTicketKeySettings(t *testing.T) {
	for text, want := range map[string]string{
		"12h 36h 72h":   "",
		"1m 1m 2m":      "",
		"30s 1m 2m":     "ticket_keys.interval",
		"12h 200h 300h": "ticket_keys.accept_for",
		"12h 36h 400h":  "ticket_keys.max_key_age",
		"12h 36h 47h":   "ticket_keys.max_key_age",
		"1m 10h 72h":    "ticket_keys.accept_for",
	} {
		d := strings.Fields(text)
		settings := &lbdv1.TicketKeySettings{Interval: spanOf(t, d[0]), AcceptFor: spanOf(t, d[1]), MaxKeyAge: spanOf(t, d[2])}
		found := state.Validate(state.New("c-test"), &raftv1.ChangeCommand{Owner: "ops", Upserts: []*raftv1.StoredResource{{
			Resource: &lbdv1.Resource{Spec: &lbdv1.Resource_ClusterSettings{ClusterSettings: &lbdv1.ClusterSettings{TicketKeys: settings}}},
		}}})
		got := ""
		if len(found) > 0 {
			got = strings.TrimPrefix(found[0].GetField(), "cluster_settings.")
		}
		if got != want {
			t.Errorf("%s: %q, want %q: %v", text, got, want, found)
		}
	}
}

func spanOf(t *testing.T, text string) *durationpb.Duration {
	t.Helper()
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return durationpb.New(d)
}

// Who is taken out has had the keys: the same entry puts others in place, or is refused.
func TestTicketKeysEndWithNodes(t *testing.T) {
	s, _ := keysAt(two(t), 0, renewKeys(1, false))
	remove := &raftv1.RemoveNode{Id: member(2).GetId(), Authority: authorityOf(2)}
	refused(t, s, nodeCommand("", joinTime, remove), "")
	remove.TicketKeys = renewal(3, false)
	removed := must(t, s, nodeCommand("", joinTime, remove))
	epoch := &raftv1.EpochCommand{Node: member(2).GetId(), Epoch: 2, Authority: authorityOf(9), Time: timestamppb.New(joinTime)}
	refused(t, s, &raftv1.Command{Kind: &raftv1.Command_Epoch{Epoch: epoch}}, "")
	epoch.TicketKeys = renewal(17, false)
	recovered := must(t, s, &raftv1.Command{Kind: &raftv1.Command_Epoch{Epoch: epoch}})
	for s, want := range map[*state.State]string{removed: "1 accepted, 3 active, 4 staged", recovered: "1 accepted, 17 active, 18 staged"} {
		var got []string
		for _, text := range strings.Split(keysText(s), ", ") {
			got = append(got, text[:strings.LastIndex(text, " ")])
		}
		if strings.Join(got, ", ") != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
