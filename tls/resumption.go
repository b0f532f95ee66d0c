package tlsterm

import (
	"crypto/tls"
	"sync/atomic"
	"time"
)

// Resumption is what became of a client's session in a handshake: the word of lbd_tls_resumption_total, and of the access log.
type Resumption uint8

const (
	// MissNoTicket: the client has brought none.
	MissNoTicket Resumption = iota
	// HitLocal and HitPeer: it resumed, by a ticket of this node or of another one; HitForeign: by one of another tier.
	HitLocal
	HitPeer
	HitForeign
	// MissUnknownKey: no key of that name is here, or no more.
	MissUnknownKey
	// MissExpired: the key or the session is too old.
	MissExpired
	// MissPolicy: the ticket is for another server name, another listener or another policy, or tickets are off.
	MissPolicy
	// MissDamaged: the key is here and does not open it.
	MissDamaged
	// MissFormat: another build's.
	MissFormat
	// MissRefused: it fits, and crypto/tls made a full handshake all the same: the client offers no suite that goes with the session.
	MissRefused
	resumptionsLen
)

var resumptionNames = [resumptionsLen]string{
	MissNoTicket: "miss_no_ticket", HitLocal: "hit_local", HitPeer: "hit_peer", HitForeign: "hit_foreign", MissUnknownKey: "miss_unknown_key",
	MissExpired: "miss_expired", MissPolicy: "miss_policy", MissDamaged: "miss_damaged", MissFormat: "miss_format", MissRefused: "miss_refused",
}

func (r Resumption) String() string { return resumptionNames[r] }

// hit is whether the ticket fits.
func (r Resumption) hit() bool { return r >= HitLocal && r <= HitForeign }

// attempt is one handshake's dealing with tickets. It belongs to the handshake's goroutine.
type attempt struct {
	listener *listener
	keys     *TicketKeys // loaded once, so that one handshake sees one set
	result   Resumption
	issuer   uint64        // of the ticket that was brought, where it opened
	age      time.Duration // of it
}

// config is the listener's for this handshake. Without a key to issue under there are no tickets, nor where the policy says so: crypto/tls would
// use keys of its own.
func (a *attempt) config() *tls.Config {
	config := a.listener.config.Load().Clone()
	if a.listener.policy.Load().NoTickets || a.keys.Issuing(a.listener.now()) == nil {
		config.SessionTicketsDisabled = true
		return config
	}
	config.WrapSession, config.UnwrapSession = a.wrap, a.unwrap
	return config
}

// wrap makes a ticket of a session (crypto/tls's WrapSession).
func (a *attempt) wrap(client tls.ConnectionState, session *tls.SessionState) ([]byte, error) {
	now := a.listener.now()
	key := a.keys.Issuing(now)
	if key == nil { // it has ended since the handshake began: the ticket is one that nobody accepts
		key = &TicketKey{}
	}
	text, err := session.Bytes()
	if err != nil {
		return nil, err
	}
	t := &ticket{
		epoch: key.Epoch, node: a.keys.Node(), issued: now, clientPolicy: a.listener.policy.Load().ClientPolicy,
		serverName: client.ServerName, listener: a.listener.name, session: text,
	}
	return t.seal(key)
}

// unwrap opens a ticket (crypto/tls's UnwrapSession). Whatever does not fit is no session and no error: a full handshake follows.
func (a *attempt) unwrap(identity []byte, client tls.ConnectionState) (*tls.SessionState, error) {
	if len(identity) == 0 { // a client of TLS 1.2 that wants a ticket and has none
		return nil, nil
	}
	if a.result.hit() { // a client of TLS 1.3 may bring several: the first that fits is taken
		return nil, nil
	}
	session, result := a.open(identity, client)
	a.result = result
	return session, nil
}

func (a *attempt) open(identity []byte, client tls.ConnectionState) (*tls.SessionState, Resumption) {
	policy, now := a.listener.policy.Load(), a.listener.now()
	name, ok := ticketKeyName(identity)
	if !ok {
		return nil, MissUnknownKey
	}
	key := a.keys.Find(name, now)
	if key == nil {
		if a.keys.byName[name] != nil {
			return nil, MissExpired
		}
		return nil, MissUnknownKey
	}
	t, err := openTicket(key, identity)
	switch {
	case err == errTicketFormat:
		return nil, MissFormat
	case err != nil || t.epoch != key.Epoch:
		return nil, MissDamaged
	}
	a.issuer, a.age = t.node, max(now.Sub(t.issued), 0)
	// A ticket of one name must not open a listener, or skip a demand for a client certificate, under another; nor get past the refusal of a name for
	// which there is no certificate (any more).
	if t.serverName != client.ServerName || t.listener != a.listener.name || t.clientPolicy != policy.ClientPolicy ||
		!a.listener.certificates.Current().knows(client.ServerName, policy) {
		return nil, MissPolicy
	}
	session, err := tls.ParseSessionState(t.session)
	if err != nil {
		return nil, MissFormat
	}
	if t.node == a.keys.Node() {
		return session, HitLocal
	}
	return session, HitPeer
}

// outcome is the word for the whole handshake.
func (a *attempt) outcome(resumed bool) Resumption {
	if a.result.hit() && !resumed {
		return MissRefused
	}
	return a.result
}

// observe counts a complete handshake.
func (t *Terminator) observe(a *attempt, resumed bool) {
	outcome := a.outcome(resumed)
	t.resumptions[outcome].Add(1)
	if outcome.hit() {
		t.ages.observe(a.age)
	}
}

// TicketAgeBounds are the upper bounds of the buckets of [Terminator.TicketAges].
var TicketAgeBounds = [...]time.Duration{time.Second, 10 * time.Second, time.Minute, 10 * time.Minute, time.Hour, 6 * time.Hour, 12 * time.Hour, 24 * time.Hour, 36 * time.Hour, 72 * time.Hour}

// ages are a histogram of the tickets by which clients resumed. The last bucket has no bound.
type ages struct {
	buckets [len(TicketAgeBounds) + 1]atomic.Uint64
	sum     atomic.Int64 // nanoseconds
}

func (g *ages) observe(age time.Duration) {
	i := 0
	for i < len(TicketAgeBounds) && age > TicketAgeBounds[i] {
		i++
	}
	g.buckets[i].Add(1)
	g.sum.Add(int64(age))
}

// TicketAges is how old the tickets were by which clients resumed: how many in each bucket, the last one beyond all bounds, and the sum.
func (t *Terminator) TicketAges() (buckets [len(TicketAgeBounds) + 1]uint64, sum time.Duration) {
	for i := range buckets {
		buckets[i] = t.ages.buckets[i].Load()
	}
	return buckets, time.Duration(t.ages.sum.Load())
}

// resumptions count the outcomes of complete handshakes.
type resumptions [resumptionsLen]atomic.Uint64

// ResumptionCount is one line of them.
type ResumptionCount struct {
	Result string
	Count  uint64
}

// Resumptions lists what became of sessions in complete handshakes so far, zero lines too: a rate needs them from the start.
func (t *Terminator) Resumptions() []ResumptionCount {
	lines := make([]ResumptionCount, 0, resumptionsLen)
	for r := range t.resumptions {
		lines = append(lines, ResumptionCount{resumptionNames[r], t.resumptions[r].Load()})
	}
	return lines
}
