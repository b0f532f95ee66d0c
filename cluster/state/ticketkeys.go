package state

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"iter"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

// Session-ticket keys, each with an epoch, are beside the revisions: nothing rolls them back, and no backup has them.
//
//	         rotate              rotate                 wipe
//	STAGED ─────────> ACTIVE ─────────────> ACCEPTED ─────────> gone
//	   └── renew: gone   └── renew ────────────┘└── renew, with wipe: gone
//	IMPORTED ── its time is over, or renew with wipe ──> gone
//
// A key is staged, and so accepted by every node, for a whole interval before it issues its first ticket.

// KindTicketKeys is the kind that ticket keys are sealed as: no kind of resource.
const KindTicketKeys Kind = "ticket_keys"

// TicketKeys are all keys: the oldest epoch first, then those from outside by name.
func (s *State) TicketKeys() iter.Seq[*raftv1.TicketKey] {
	return func(yield func(*raftv1.TicketKey) bool) {
		for _, m := range s.prefix(ticketKeyPrefix) {
			if !yield(m.(*raftv1.TicketKey)) {
				return
			}
		}
	}
}

// TicketKeyIn is the newest key in a state, such as the active one; nil: there is none.
func (s *State) TicketKeyIn(state lbdv1.TicketKeyState) (found *raftv1.TicketKey) {
	for k := range s.TicketKeys() {
		if k.GetState() == state {
			found = k
		}
	}
	return found
}

// NewestTicketEpoch is the last that was given away; 0: none was.
func (s *State) NewestTicketEpoch() (newest int64) {
	for k := range s.TicketKeys() {
		newest = max(newest, k.GetEpoch())
	}
	return newest
}

// TicketKeyVersion differs between two states that differ in their ticket keys. It says nothing else.
func (s *State) TicketKeyVersion() int64 { return s.counter(ticketKeysIndex) }

// ticketKeyDigest is what a key adds to TicketKeyVersion.
func ticketKeyDigest(k *raftv1.TicketKey) int64 {
	sum := sha256.Sum256(encode(k))
	return int64(binary.BigEndian.Uint64(sum[:8]))
}

// TicketKeysDigest tells sets of keys apart: what there is, and what is done with each. The order does not matter. It says nothing of the secrets.
func TicketKeysDigest(keys iter.Seq[*raftv1.TicketKey]) string {
	var lines []string
	for k := range keys {
		lines = append(lines, fmt.Sprintf("%d %s %x\n", k.GetEpoch(), k.GetState(), k.GetName()))
	}
	slices.Sort(lines)
	h := sha256.New()
	for _, l := range lines {
		h.Write([]byte(l))
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil)[:8])
}

// TicketKeySettings are how ticket keys change, with defaults filled in.
type TicketKeySettings struct {
	Interval, AcceptFor, MaxAge time.Duration
}

func ticketKeySettingsOf(m *lbdv1.TicketKeySettings) TicketKeySettings {
	t := TicketKeySettings{ticketIntervalDefault, ticketAcceptDefault, ticketAgeDefault}
	if d := m.GetInterval(); d != nil {
		t.Interval = d.AsDuration()
	}
	if d := m.GetAcceptFor(); d != nil {
		t.AcceptFor = d.AsDuration()
	}
	if d := m.GetMaxKeyAge(); d != nil {
		t.MaxAge = d.AsDuration()
	}
	return t
}

// Until is when a key's tickets are accepted no more, and none is issued under it: each node holds that against its own clock, whether or not it hears
// of a leader.
func (t TicketKeySettings) Until(k *raftv1.TicketKey) time.Time {
	last := k.GetActivateTime().AsTime().Add(t.MaxAge)
	switch k.GetState() {
	case lbdv1.TicketKeyState_TICKET_KEY_STATE_IMPORTED:
		return k.GetExpireTime().AsTime()
	case lbdv1.TicketKeyState_TICKET_KEY_STATE_ACTIVE:
		return last
	case lbdv1.TicketKeyState_TICKET_KEY_STATE_ACCEPTED:
		if end := k.GetEndTime().AsTime().Add(t.AcceptFor); end.Before(last) {
			return end
		}
		return last
	}
	return k.GetCreateTime().AsTime().Add(t.Interval + t.MaxAge) // nobody has told when it became active
}

// TicketKeysDue is what time asks for.
type TicketKeysDue struct {
	// Begin: there are no keys.
	Begin bool
	// Rotate: the active key has issued for an interval.
	Rotate bool
	// Wipe are the keys whose time is over; nil: none.
	Wipe *raftv1.WipeTicketKeys
}

// TicketKeysDue says what is to be done with the keys at a time. A key that is said to be active since a time to come was activated by a clock that was
// wrong, and is rotated away from.
func (s *State) TicketKeysDue(now time.Time) TicketKeysDue {
	t := s.Settings().TicketKeys
	active := s.TicketKeyIn(lbdv1.TicketKeyState_TICKET_KEY_STATE_ACTIVE)
	if active == nil {
		return TicketKeysDue{Begin: true}
	}
	age := now.Sub(active.GetActivateTime().AsTime())
	due := TicketKeysDue{Rotate: age >= t.Interval || age <= -t.Interval}
	wipe := &raftv1.WipeTicketKeys{}
	for k := range s.TicketKeys() {
		switch {
		case !wipeable(k) || t.Until(k).After(now):
		case k.GetEpoch() == 0:
			wipe.Names = append(wipe.Names, k.GetName())
		default:
			wipe.Epochs = append(wipe.Epochs, k.GetEpoch())
		}
	}
	if len(wipe.GetEpochs())+len(wipe.GetNames()) > 0 {
		due.Wipe = wipe
	}
	return due
}

func wipeable(k *raftv1.TicketKey) bool {
	return k.GetState() == lbdv1.TicketKeyState_TICKET_KEY_STATE_ACCEPTED || k.GetState() == lbdv1.TicketKeyState_TICKET_KEY_STATE_IMPORTED
}

// ticketKeys changes the keys:
//
//  1. answer a repeated request as before
//  2. change them, unless they are not those that the command was made for
//  3. say so in the audit, and remember the request
func (s *State) ticketKeys(e *edit, cmd *raftv1.TicketKeysCommand) (*State, Result) {
	digest := ticketKeysDigest(cmd)
	if id := cmd.GetRequestId(); id != "" {
		if known, ok := s.request(id); ok {
			return s, replay(known, digest)
		}
	}
	res := Result{Revision: s.revision}
	var text string
	switch change := cmd.GetChange().(type) {
	case *raftv1.TicketKeysCommand_Rotate:
		text, res.Err = s.rotateTicketKeys(e, change.Rotate, cmd.GetTime())
	case *raftv1.TicketKeysCommand_Renew:
		text, res.Err = s.renewTicketKeys(e, change.Renew, cmd.GetTime())
	case *raftv1.TicketKeysCommand_Extend:
		text = s.extendTicketKey(e, change.Extend, cmd.GetTime())
	case *raftv1.TicketKeysCommand_Wipe:
		text, res.Err = s.wipeTicketKeys(e, change.Wipe)
	case *raftv1.TicketKeysCommand_Import:
		text, res.Err = s.importTicketKeys(e, change.Import, cmd.GetTime())
	default:
		res.Err = ErrUnknownCommand
	}
	if res.Err != nil {
		return s, res
	}
	if text == "" {
		res.Replayed = true
		return s, res
	}
	if cmd.GetMessage() != "" {
		text += ": " + cmd.GetMessage()
	}
	e.audit(cmd.GetAuthor(), cmd.GetTime(), cmd.GetOrigin(), text, 0)
	if id := cmd.GetRequestId(); id != "" {
		e.put(requestKey(s.revision, id), &raftv1.Request{Id: id, Revision: s.revision, Digest: digest})
		e.forgetRequests()
	}
	return e.state(), res
}

// ticketKeysDigest is a digest of what the caller asked for: the keys themselves are made anew for a retry, but for those from outside.
func ticketKeysDigest(cmd *raftv1.TicketKeysCommand) []byte {
	asked := fmt.Sprintf("ticket keys %T %t %v", cmd.GetChange(), cmd.GetRenew().GetWipe(), cmd.GetMessage())
	for _, k := range cmd.GetImport().GetKeys() {
		asked += fmt.Sprintf(" %x", k.GetName())
	}
	sum := sha256.Sum256([]byte(asked))
	return sum[:]
}

// errTicketKeysMoved: other keys are in place than those that a command was made for.
func errTicketKeysMoved() error {
	return &ConflictError{Reason: ResourceMoved, Conflicts: []Conflict{{Key: Key{KindTicketKeys, ""}}}}
}

func (s *State) rotateTicketKeys(e *edit, rotate *raftv1.RotateTicketKeys, at *timestamppb.Timestamp) (text string, err error) {
	active, staged := s.TicketKeyIn(lbdv1.TicketKeyState_TICKET_KEY_STATE_ACTIVE), s.TicketKeyIn(lbdv1.TicketKeyState_TICKET_KEY_STATE_STAGED)
	if active.GetEpoch() != rotate.GetFrom() || staged == nil || rotate.GetStaged().GetEpoch() <= staged.GetEpoch() {
		return "", errTicketKeysMoved()
	}
	if err := s.checkTicketKey("staged", rotate.GetStaged()); err != nil {
		return "", err
	}
	e.endTicketKey(active, at)
	e.putTicketKey(staged, lbdv1.TicketKeyState_TICKET_KEY_STATE_ACTIVE, func(k *raftv1.TicketKey) { k.ActivateTime = at })
	e.stageTicketKey(rotate.GetStaged(), at)
	e.forgetTicketKeys()
	return fmt.Sprintf("ticket key epoch %d issues, %d is staged", staged.GetEpoch(), rotate.GetStaged().GetEpoch()), nil
}

// renewTicketKeys puts an active and a staged key in place that nobody has had before. The one that was staged has issued nothing, and goes.
func (s *State) renewTicketKeys(e *edit, renew *raftv1.RenewTicketKeys, at *timestamppb.Timestamp) (text string, err error) {
	active, staged := renew.GetActive(), renew.GetStaged()
	if active.GetEpoch() <= s.NewestTicketEpoch() || staged.GetEpoch() <= active.GetEpoch() {
		return "", errTicketKeysMoved()
	}
	if err := cmp.Or(s.checkTicketKey("active", active), s.checkTicketKey("staged", staged)); err != nil {
		return "", err
	}
	for k := range s.TicketKeys() {
		switch {
		case renew.GetWipe(), k.GetState() == lbdv1.TicketKeyState_TICKET_KEY_STATE_STAGED:
			e.remove(ticketKeyKey(k))
		case k.GetState() == lbdv1.TicketKeyState_TICKET_KEY_STATE_ACTIVE:
			e.endTicketKey(k, at)
		}
	}
	e.putTicketKey(active, lbdv1.TicketKeyState_TICKET_KEY_STATE_ACTIVE, func(k *raftv1.TicketKey) { k.CreateTime, k.ActivateTime = at, at })
	e.stageTicketKey(staged, at)
	e.forgetTicketKeys()
	text = fmt.Sprintf("fresh ticket keys: epoch %d issues, %d is staged", active.GetEpoch(), staged.GetEpoch())
	if renew.GetWipe() {
		text += "; no earlier ticket is accepted"
	}
	return text, nil
}

// renewTicketKeysWith is renewTicketKeys as a part of what ends trust in nodes, which have had the present keys. Where there are none there is nothing to renew.
func (s *State) renewTicketKeysWith(e *edit, renew *raftv1.RenewTicketKeys, at *timestamppb.Timestamp) error {
	if s.NewestTicketEpoch() == 0 && renew == nil {
		return nil
	}
	_, err := s.renewTicketKeys(e, renew, at)
	return err
}

// extendTicketKey moves the end of a key that a node still issues under.
func (s *State) extendTicketKey(e *edit, extend *raftv1.ExtendTicketKey, at *timestamppb.Timestamp) string {
	for k := range s.TicketKeys() {
		if k.GetEpoch() == extend.GetEpoch() && k.GetState() == lbdv1.TicketKeyState_TICKET_KEY_STATE_ACCEPTED && at.AsTime().After(k.GetEndTime().AsTime()) {
			e.endTicketKey(k, at)
			return fmt.Sprintf("ticket key epoch %d is accepted for longer: a node still issued under it", k.GetEpoch())
		}
	}
	return ""
}

// wipeTicketKeys removes keys that issue no more. One that is gone already is no fault.
func (s *State) wipeTicketKeys(e *edit, wipe *raftv1.WipeTicketKeys) (text string, err error) {
	gone := 0
	for k := range s.TicketKeys() {
		named := slices.Contains(wipe.GetEpochs(), k.GetEpoch())
		if k.GetEpoch() == 0 {
			named = slices.ContainsFunc(wipe.GetNames(), func(name []byte) bool { return bytes.Equal(name, k.GetName()) })
		}
		switch {
		case !named:
		case !wipeable(k):
			return "", invalid("epochs", "%d is %s: only what issues no more can be wiped", k.GetEpoch(), k.GetState())
		default:
			e.remove(ticketKeyKey(k))
			gone++
		}
	}
	if gone == 0 {
		return "", nil
	}
	return fmt.Sprintf("%d ticket keys wiped: their tickets are accepted no more", gone), nil
}

func (s *State) importTicketKeys(e *edit, in *raftv1.ImportTicketKeys, at *timestamppb.Timestamp) (text string, err error) {
	if len(in.GetKeys()) == 0 {
		return "", invalid("keys", "are missing")
	}
	names := map[string]bool{}
	for k := range s.TicketKeys() {
		if k.GetEpoch() == 0 {
			names[string(k.GetName())] = true
		}
	}
	for i, k := range in.GetKeys() {
		field := itemPath("keys", i)
		if err := checkTicketKeyForm(field, k); err != nil {
			return "", err
		}
		if k.GetEpoch() != 0 || !k.GetExpireTime().AsTime().After(at.AsTime()) {
			return "", invalid(field, "has an epoch, or its time is over")
		}
		names[string(k.GetName())] = true
		e.putTicketKey(k, lbdv1.TicketKeyState_TICKET_KEY_STATE_IMPORTED, func(k *raftv1.TicketKey) { k.CreateTime = at })
	}
	if len(names) > ticketKeysImportedMax {
		return "", invalid("keys", "would be %d from outside: at most %d", len(names), ticketKeysImportedMax)
	}
	return fmt.Sprintf("%d ticket keys from outside are accepted", len(in.GetKeys())), nil
}

// checkTicketKey refuses a new key that is none, or that has another's name.
func (s *State) checkTicketKey(field string, k *raftv1.TicketKey) error {
	for other := range s.TicketKeys() {
		if bytes.Equal(other.GetName(), k.GetName()) {
			return invalid(field, "has the name of epoch %d", other.GetEpoch())
		}
	}
	return checkTicketKeyForm(field, k)
}

func checkTicketKeyForm(field string, k *raftv1.TicketKey) error {
	if len(k.GetName()) != ticketKeyNameBytes || len(k.GetSealedKey()) == 0 || len(k.GetSealedKey()) > ticketKeySealedBytesMax {
		return invalid(field, "needs a name of %d bytes and its secret, sealed", ticketKeyNameBytes)
	}
	return nil
}

// putTicketKey stores a key in a state, with what else is said of it.
func (e *edit) putTicketKey(k *raftv1.TicketKey, state lbdv1.TicketKeyState, with func(*raftv1.TicketKey)) {
	k = proto.CloneOf(k)
	k.State = state
	with(k)
	e.put(ticketKeyKey(k), k)
}

func (e *edit) stageTicketKey(k *raftv1.TicketKey, at *timestamppb.Timestamp) {
	e.putTicketKey(k, lbdv1.TicketKeyState_TICKET_KEY_STATE_STAGED, func(k *raftv1.TicketKey) { k.CreateTime = at })
}

func (e *edit) endTicketKey(k *raftv1.TicketKey, at *timestamppb.Timestamp) {
	e.putTicketKey(k, lbdv1.TicketKeyState_TICKET_KEY_STATE_ACCEPTED, func(k *raftv1.TicketKey) { k.EndTime = at })
}

// forgetTicketKeys drops the oldest that are accept-only where somebody has rotated all the time.
func (e *edit) forgetTicketKeys() {
	var all []*raftv1.TicketKey
	for k := range e.view().TicketKeys() {
		if k.GetEpoch() != 0 {
			all = append(all, k)
		}
	}
	for _, k := range all[:max(0, len(all)-ticketKeysMax)] {
		e.remove(ticketKeyKey(k))
	}
}

func ticketKeyKey(k *raftv1.TicketKey) string {
	if k.GetEpoch() == 0 {
		return ticketKeyPrefix + "f/" + string(k.GetName())
	}
	return ticketKeyPrefix + "e/" + number(k.GetEpoch())
}

func (c *checker) checkTicketKeySettings(m *lbdv1.TicketKeySettings) {
	if m == nil {
		return
	}
	t := ticketKeySettingsOf(m)
	for _, f := range []struct {
		name     string
		value    time.Duration
		min, max time.Duration
	}{
		{"interval", t.Interval, ticketIntervalMin, ticketIntervalMax},
		{"accept_for", t.AcceptFor, ticketIntervalMin, ticketIntervalMax},
		{"max_key_age", t.MaxAge, ticketIntervalMin, ticketAgeMax},
	} {
		if f.value < f.min || f.value > f.max {
			c.errorf("ticket_keys."+f.name, "must be %s to %s, not %s", f.min, f.max, f.value)
			return
		}
	}
	if t.AcceptFor > ticketIntervalsMax*t.Interval {
		c.errorf("ticket_keys.accept_for", "is more than %d times the interval, %s: that many keys would be accepted", ticketIntervalsMax, t.Interval)
	}
	if t.MaxAge < t.Interval+t.AcceptFor {
		c.errorf("ticket_keys.max_key_age", "is %s: tickets would end before interval and accept_for together, %s, are over", t.MaxAge, t.Interval+t.AcceptFor)
	}
}
