package tlsterm

import (
	"slices"
	"sync/atomic"
	"time"
)

// TicketKey is the secret of one epoch, as a node uses it.
type TicketKey struct {
	Epoch uint64
	// Name is random: all that a ticket shows of its key.
	Name [TicketKeyNameBytes]byte
	// Secret is what keys are derived from: each ticket is sealed under one of its own, with a random salt.
	Secret [TicketSecretBytes]byte
	// Until is when tickets are accepted no more and, of the key that issues, none is issued any more; zero: there is no bound.
	Until time.Time
}

// ForeignKey is a key of another tier (nginx's ssl_session_ticket_key, HAProxy's tls-ticket-keys): accepted, never issued under.
type ForeignKey struct {
	Name [TicketKeyNameBytes]byte
	// Secret is the file's content behind the name, 32 or 64 bytes: see ForeignKeySizes.
	Secret []byte
	Until  time.Time
}

const (
	// TicketKeyNameBytes is how long a key's name is, ours or another tier's (RFC 5077, section 4).
	TicketKeyNameBytes = 16
	// TicketSecretBytes is how long the secret of an epoch is.
	TicketSecretBytes = 32
)

// ForeignKeySizes are the lengths that another tier's key may have, name included: with AES-128, and with AES-256.
var ForeignKeySizes = [...]int{48, 80}

// TicketKeys are the keys of one moment. They never change: others take their place.
type TicketKeys struct {
	node    uint64
	issue   *TicketKey // nil: no ticket is issued
	byName  map[[TicketKeyNameBytes]byte]*TicketKey
	foreign map[[TicketKeyNameBytes]byte]*ForeignKey
}

// NewTicketKeys are keys of a node that says in its tickets that it is node. It issues under one of them, or none (nil), and accepts the tickets of that
// one, of the others and of the foreign ones.
func NewTicketKeys(node uint64, issue *TicketKey, accept []TicketKey, foreign []ForeignKey) *TicketKeys {
	k := &TicketKeys{
		node: node, byName: make(map[[TicketKeyNameBytes]byte]*TicketKey, len(accept)+1), foreign: make(map[[TicketKeyNameBytes]byte]*ForeignKey, len(foreign)),
	}
	for _, a := range accept {
		k.byName[a.Name] = &a
	}
	if issue != nil {
		own := *issue
		k.issue, k.byName[own.Name] = &own, &own
	}
	for _, f := range foreign {
		f.Secret = slices.Clone(f.Secret)
		k.foreign[f.Name] = &f
	}
	return k
}

// Node is what the keys' tickets say of who has issued them.
func (k *TicketKeys) Node() uint64 { return k.node }

// Issuing is the key that tickets are issued under now; nil: none is.
func (k *TicketKeys) Issuing(now time.Time) *TicketKey {
	if k.issue == nil || ended(k.issue.Until, now) {
		return nil
	}
	return k.issue
}

// Find is the key with a name, whose tickets are accepted now; nil: there is none.
func (k *TicketKeys) Find(name [TicketKeyNameBytes]byte, now time.Time) *TicketKey {
	if found := k.byName[name]; found != nil && !ended(found.Until, now) {
		return found
	}
	return nil
}

// FindForeign is Find among the keys of other tiers.
func (k *TicketKeys) FindForeign(name [TicketKeyNameBytes]byte, now time.Time) *ForeignKey {
	if found := k.foreign[name]; found != nil && !ended(found.Until, now) {
		return found
	}
	return nil
}

func ended(until, now time.Time) bool { return !until.IsZero() && !now.Before(until) }

// Tickets are the ticket keys that a process works with, for all its listeners. One writer replaces them; each handshake loads them once.
type Tickets struct {
	keys atomic.Pointer[TicketKeys]
}

// NewTickets has no keys: no ticket is issued or accepted.
func NewTickets() *Tickets {
	t := &Tickets{}
	t.Replace(NewTicketKeys(0, nil, nil, nil))
	return t
}

// Replace has other keys used from the next handshake on.
func (t *Tickets) Replace(keys *TicketKeys) { t.keys.Store(keys) }

// Current are the keys now.
func (t *Tickets) Current() *TicketKeys { return t.keys.Load() }
