package lb

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"lbd/lb/balance"
	"lbd/lb/http1"
)

// split shares a route's requests among its pools. With persistence a cookie binds each client to the one that it got: the pool's
// mark and, where the binding ends by time, when it was last renewed:
//
//	0f3a91c2d4e5b697.65a1b2c3
//
// in hexadecimal digits, in seconds. Who makes one up gets a pool that he could have got by luck.
type split struct {
	shares  *balance.Split
	weights []int
	marks   []uint64
	cookie  string        // empty: nobody is bound
	idle    time.Duration // 0: for ever

	_    [64]byte
	turn atomic.Uint64
	_    [64]byte
}

// newSplit returns nil for one pool without persistence.
func newSplit(f *Forward) (*split, error) {
	s := &split{}
	for _, w := range f.Pools {
		s.weights = append(s.weights, w.Weight)
		s.marks = append(s.marks, splitMark(w.Pool))
	}
	if s.shares = balance.NewSplit(s.weights); s.shares == nil {
		return nil, errors.New("no pool has a weight")
	}
	if f.Persistence != nil {
		s.cookie, s.idle = f.Persistence.Cookie, f.Persistence.IdleTimeout
	}
	if len(f.Pools) == 1 && s.cookie == "" {
		return nil, nil
	}
	s.turn.Store(rand.Uint64())
	return s, nil
}

// splitMark names a pool alike on every node, and does not show its name.
func splitMark(pool string) uint64 {
	sum := sha256.Sum256([]byte("split\x00" + pool))
	return binary.BigEndian.Uint64(sum[:])
}

// choosePool says which pool gets the request. It stays with it, retries included: a split is a decision, so a pool without an
// eligible backend is no reason to send its clients to another.
func (x *exchange) choosePool() {
	s := x.route.split
	if s == nil {
		x.pool = x.route.pools[0]
		return
	}
	var at int
	at, x.splitFresh = s.bound(&x.req.Fields, x.rec.Time)
	if at < 0 {
		at = s.shares.Pick(s.turn.Add(1))
	}
	x.pool, x.splitAt = x.route.pools[at], at
}

// bound returns the place of the pool that the client's cookie names, -1 if there is none or its time is over, and whether the
// cookie may stay as it is. A pool of weight 0 keeps its clients.
func (s *split) bound(fields *http1.Fields, now time.Time) (at int, fresh bool) {
	if s.cookie == "" {
		return -1, true
	}
	value, ok := cookieValue(fields, s.cookie)
	if !ok || len(value) < markDigits {
		return -1, false
	}
	mark, ok := parseHex(value[:markDigits])
	if !ok {
		return -1, false
	}
	at = -1
	for i, m := range s.marks {
		if m == mark {
			at = i
		}
	}
	rest := value[markDigits:]
	if s.idle == 0 || at < 0 {
		return at, at >= 0
	}
	if len(rest) != 1+secondsDigits || rest[0] != '.' {
		return at, false // from before there was a limit: its time begins now
	}
	seen, ok := parseHex(rest[1:])
	idle := time.Duration(now.Unix()-int64(seen)) * time.Second
	switch {
	case !ok, idle >= s.idle, idle <= -s.idle:
		return -1, false
	}
	return at, idle < s.idle/sessionRenewals
}

// bindSplit puts the split's cookie into the answer's head where the client has none that says the same, or an old one.
func (x *exchange) bindSplit() {
	s := x.route.split
	if s == nil || x.splitFresh {
		return
	}
	value := appendHex(x.scratch[:0], s.marks[x.splitAt], markDigits)
	if s.idle > 0 {
		value = appendHex(append(value, '.'), uint64(x.rec.Time.Unix()), secondsDigits)
	}
	c := setCookie{name: s.cookie, maxAge: s.idle, sameSite: "Lax", secure: x.scheme() == "https"}
	x.cookies = c.append(x.cookies, value)
}
