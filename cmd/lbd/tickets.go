package main

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"lbd/cluster/state"
	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
	tlsterm "lbd/tls"
	"lbd/tls/seal"
)

// ticketOverdue is how long after its interval a key may issue before somebody has to look: an election is no reason.
const ticketOverdue = 5 * time.Minute

// NewTicketKey implements rpc.TicketSealing.
func (k keys) NewTicketKey(clusterID string, epoch int64, sealKey string) (*raftv1.TicketKey, error) {
	secret := make([]byte, tlsterm.TicketKeyNameBytes+tlsterm.TicketSecretBytes)
	defer clear(secret)
	if _, err := rand.Read(secret); err != nil {
		return nil, err
	}
	return k.sealTicketKey(clusterID, epoch, secret, sealKey)
}

// ImportTicketKey implements rpc.TicketSealing.
func (k keys) ImportTicketKey(clusterID string, key []byte, sealKey string) (*raftv1.TicketKey, error) {
	if sizes := tlsterm.ForeignKeySizes; !slices.Contains(sizes[:], len(key)) {
		return nil, fmt.Errorf("has %d bytes: a ticket key of nginx, HAProxy or OpenSSL has %d or %d", len(key), sizes[0], sizes[1])
	}
	return k.sealTicketKey(clusterID, 0, key, sealKey)
}

// sealTicketKey seals what stands behind the name of a key.
func (k keys) sealTicketKey(clusterID string, epoch int64, key []byte, sealKey string) (*raftv1.TicketKey, error) {
	sealer, err := k.ring.Sealer().Under(sealKey)
	if err != nil {
		return nil, err
	}
	out := &raftv1.TicketKey{Epoch: epoch, Name: slices.Clone(key[:tlsterm.TicketKeyNameBytes])}
	out.SealedKey = sealer.Seal(bindingOf(clusterID, state.SecretOfTicketKey(out)), key[tlsterm.TicketKeyNameBytes:])
	return out, nil
}

func (k keys) openTicketKey(clusterID string, stored *raftv1.TicketKey) ([]byte, error) {
	return k.ring.Sealer().Open(bindingOf(clusterID, state.SecretOfTicketKey(stored)), stored.GetSealedKey())
}

// nodeNumber is what tickets say of the node that has issued them.
func nodeNumber(id string) uint64 {
	sum := sha256.Sum256([]byte(id))
	return binary.BigEndian.Uint64(sum[:8])
}

// ticketKeys are the keys that this node works with.
type ticketKeys struct {
	tickets *tlsterm.Tickets
	served  atomic.Pointer[servedTicketKeys] // nil: nothing was looked at yet

	// Only run.
	version  int64
	settings state.TicketKeySettings
	waits    bool // for a sealing key
	late     bool // as it was told
}

// servedTicketKeys say what is served, without a secret.
type servedTicketKeys struct {
	digest    string
	epoch     int64
	activated time.Time
	until     time.Time // when no ticket is issued any more
	interval  time.Duration
	problem   string // why a stored key is not among them; empty: all are
}

func newTicketKeys() *ticketKeys { return &ticketKeys{tickets: tlsterm.NewTickets()} }

// followTicketKeys has the data plane use the stored keys. They wait for no revision and no listener. A key that cannot be opened is left out, and
// told: the next one may be in order.
func (a *appliance) followTicketKeys() {
	t := a.ticketKeys
	s := a.node.State()
	settings := s.Settings().TicketKeys
	if t.served.Load() != nil && !t.waits && t.version == s.TicketKeyVersion() && t.settings == settings {
		return
	}
	before := t.served.Load()
	t.version, t.settings, t.waits = s.TicketKeyVersion(), settings, false
	served := &servedTicketKeys{interval: settings.Interval}
	var issue *tlsterm.TicketKey
	var accept []tlsterm.TicketKey
	var foreign []tlsterm.ForeignKey
	var opened []*raftv1.TicketKey
	for stored := range s.TicketKeys() {
		secret, err := a.keys.openTicketKey(s.ClusterID(), stored)
		if err != nil {
			served.problem = a.ticketKeyMissed(stored, err)
			continue
		}
		opened = append(opened, stored)
		until := settings.Until(stored)
		if stored.GetEpoch() == 0 {
			foreign = append(foreign, tlsterm.ForeignKey{Name: [16]byte(stored.GetName()), Secret: secret, Until: until})
			continue
		}
		key := tlsterm.TicketKey{Epoch: uint64(stored.GetEpoch()), Name: [16]byte(stored.GetName()), Secret: [32]byte(secret), Until: until}
		clear(secret)
		if stored.GetState() != lbdv1.TicketKeyState_TICKET_KEY_STATE_ACTIVE {
			accept = append(accept, key)
			continue
		}
		issue = &key
		served.epoch, served.activated, served.until = stored.GetEpoch(), stored.GetActivateTime().AsTime(), until
	}
	t.tickets.Replace(tlsterm.NewTicketKeys(nodeNumber(a.node.ID()), issue, accept, foreign))
	served.digest = state.TicketKeysDigest(slices.Values(opened))
	t.served.Store(served)
	a.tellTicketKeys(before, served)
}

// ticketKeyMissed says why a key is not served. One that waits for a sealing key is asked for.
func (a *appliance) ticketKeyMissed(stored *raftv1.TicketKey, err error) string {
	what := fmt.Sprintf("ticket key epoch %d", stored.GetEpoch())
	if errors.Is(err, seal.ErrUnknownKey) {
		a.ticketKeys.waits = true
		id, _ := seal.KeyOf(stored.GetSealedKey())
		if a.keyMissing != nil {
			a.keyMissing(id)
		}
		return what + " waits for sealing key " + id
	}
	return what + " cannot be opened: " + err.Error()
}

// tellTicketKeys makes an event of another key that issues, and of what is wrong.
func (a *appliance) tellTicketKeys(before, now *servedTicketKeys) {
	if before == nil {
		before = &servedTicketKeys{}
	}
	if now.epoch != before.epoch {
		a.events.add("ticket_key_active", fmt.Sprintf("ticket_keys/%d", now.epoch), "tickets are issued under it")
	}
	if now.problem != "" && now.problem != before.problem {
		a.log.Warn("a ticket key is not served", "problem", now.problem)
		a.events.add("ticket_key_missing", "ticket_keys", now.problem)
	}
}

// watchTicketKeys tells once that the active key is older than it should be.
func (a *appliance) watchTicketKeys(now time.Time) {
	t := a.ticketKeys
	text := t.served.Load().lateness(now)
	if (text != "") == t.late {
		return
	}
	if t.late = text != ""; t.late {
		a.log.Warn("the ticket keys are not rotated", "problem", text)
		a.events.add("ticket_keys_late", "ticket_keys", text)
	} else {
		a.events.add("ticket_keys_rotated", "ticket_keys", "they are rotated again")
	}
}

// lateness says in words that the active key issues for too long, or that none issues; empty: all is well.
func (s *servedTicketKeys) lateness(now time.Time) string {
	switch {
	case s == nil || s.epoch == 0:
		return ""
	case !now.Before(s.until):
		return fmt.Sprintf("epoch %d has reached max_key_age: no ticket is issued, and every client that returns makes a full handshake", s.epoch)
	case now.Sub(s.activated) > s.interval+ticketOverdue:
		return fmt.Sprintf("epoch %d issues for %s, longer than the interval of %s: no leader has made another one; it goes on until %s",
			s.epoch, now.Sub(s.activated).Round(time.Second), s.interval, s.until.UTC().Format(time.RFC3339))
	}
	return ""
}

// TicketKeys implements rpc.TicketObserver.
func (a *appliance) TicketKeys() *lbdv1.TicketKeysOnNode {
	out := &lbdv1.TicketKeysOnNode{Results: a.resumptions()}
	s := a.ticketKeys.served.Load()
	if s == nil {
		out.Problem = "it has not looked at the ticket keys yet"
		return out
	}
	out.Digest, out.Problem = s.digest, s.problem
	now := time.Now()
	if s.epoch != 0 && now.Before(s.until) {
		out.Epoch, out.Age = s.epoch, durationpb.New(now.Sub(s.activated))
	}
	if late := s.lateness(now); out.GetProblem() == "" {
		out.Problem = late
	}
	return out
}

// resumptions are this node's handshakes by how they went.
func (a *appliance) resumptions() map[string]uint64 {
	out := map[string]uint64{}
	for _, h := range a.terminator.Stats() {
		if h.Result == "ok" {
			out[h.Kind] += h.Count
		}
	}
	return out
}

// InspectTicket implements rpc.TicketObserver.
func (a *appliance) InspectTicket(ticket []byte) *lbdv1.InspectTicketResponse {
	out := &lbdv1.InspectTicketResponse{Result: "miss_damaged", Reason: "it is shorter than the name of a key"}
	if len(ticket) < tlsterm.TicketKeyNameBytes {
		return out
	}
	name := [16]byte(ticket)
	out.KeyName = hex.EncodeToString(name[:])
	keys, now := a.ticketKeys.tickets.Current(), time.Now()
	key := keys.Find(name, now)
	switch {
	case key != nil:
		out.Epoch = int64(key.Epoch)
	case keys.FindForeign(name, now) != nil:
		out.Reason = "its key is one from outside"
		return out
	default:
		out.Result, out.Reason = "miss_unknown_key", "no key of this node has the name that it shows: it is of a key that was wiped, or from elsewhere"
		return out
	}
	return out
}

// ticketKeysFinding is what the doctor says of the keys.
func (a *appliance) ticketKeysFinding(now time.Time) *lbdv1.Finding {
	const check = "ticket_keys"
	s := a.ticketKeys.served.Load()
	switch {
	case s == nil || s.epoch == 0 && s.problem == "":
		return warning(check, "a leader makes the first ones: see `lbctl cluster status`", "there are no ticket keys: every client that returns makes a full handshake")
	case s.problem != "":
		return failure(check, "see `lbctl ticket-keys status` and the node's log", "%s: clients that return with its tickets make full handshakes", s.problem)
	case !now.Before(s.until):
		return failure(check, "bring a leader back: see `lbctl cluster status`", "%s", s.lateness(now))
	case s.lateness(now) != "":
		return warning(check, "bring a leader back: see `lbctl cluster status`", "%s", s.lateness(now))
	}
	return fine(check, "epoch %d issues since %s, and is rotated every %s", s.epoch, s.activated.UTC().Format(time.RFC3339), s.interval)
}
