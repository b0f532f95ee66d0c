package lb

import (
	"crypto/sha256"
	"encoding/binary"
	"time"
)

// A session's cookie is the mark of its backend and, where sessions end by time, when it was made and when it was last renewed:
//
//	0f3a91c2d4e5b697.65a1b2c3.65a1b2c3
//
// All of it in hexadecimal digits, times in seconds. Nothing in it is secret or believed: who makes one up is at the backend that he
// could have been sent to.

// session is what a request's cookie says.
type session struct {
	mark       uint64
	made, seen int64 // seconds; 0: it does not say
}

// sessionMark names a backend in a pool alike on every node, and does not show its address.
func sessionMark(pool, backend string) uint64 {
	sum := sha256.Sum256([]byte(pool + "\x00" + backend))
	return binary.BigEndian.Uint64(sum[:])
}

const markDigits = 16

// parseSession reads a cookie's value; false if it is none of ours.
func parseSession(value []byte) (s session, ok bool) {
	if len(value) < markDigits {
		return s, false
	}
	if s.mark, ok = parseHex(value[:markDigits]); !ok {
		return s, false
	}
	rest := value[markDigits:]
	if len(rest) == 0 {
		return s, true
	}
	if len(rest) != 2*(1+secondsDigits) || rest[0] != '.' || rest[1+secondsDigits] != '.' {
		return s, false
	}
	made, ok1 := parseHex(rest[1 : 1+secondsDigits])
	seen, ok2 := parseHex(rest[2+secondsDigits:])
	s.made, s.seen = int64(made), int64(seen)
	return s, ok1 && ok2
}

// secondsDigits are enough until 2106.
const secondsDigits = 8

func parseHex(digits []byte) (v uint64, ok bool) {
	for _, d := range digits {
		switch {
		case '0' <= d && d <= '9':
			v = v<<4 | uint64(d-'0')
		case 'a' <= d && d <= 'f':
			v = v<<4 | uint64(d-'a'+10)
		default:
			return 0, false
		}
	}
	return v, true
}

func appendHex(dst []byte, v uint64, digits int) []byte {
	for shift := 4 * (digits - 1); shift >= 0; shift -= 4 {
		dst = append(dst, "0123456789abcdef"[v>>shift&15])
	}
	return dst
}

// timed reports whether sessions end by time.
func (sp *SessionPersistence) timed() bool { return sp.IdleTimeout > 0 || sp.AbsoluteTimeout > 0 }

// over reports whether the session has ended. Clocks of nodes differ a little: what was in the future is now. A cookie from
// before there were limits begins to age with its next renewal.
func (sp *SessionPersistence) over(s session, now int64) bool {
	idle, age := time.Duration(now-s.seen)*time.Second, time.Duration(now-s.made)*time.Second
	return s.made > 0 && (sp.IdleTimeout > 0 && idle >= sp.IdleTimeout || sp.AbsoluteTimeout > 0 && age >= sp.AbsoluteTimeout)
}

// stale reports whether the client's cookie is to be written anew: at most once in a tenth of the idle time.
func (sp *SessionPersistence) stale(s session, now int64) bool {
	return sp.timed() && (s.made == 0 || sp.IdleTimeout > 0 && time.Duration(now-s.seen)*time.Second >= sp.IdleTimeout/sessionRenewals)
}

// bound returns the member that the request's cookie names, if it takes the requests of its sessions; for a first try alone, for
// what has failed once may fail again.
func (x *exchange) bound(c *choice) *member {
	sp := x.pool.persistence
	if sp == nil || x.tries > 0 {
		return nil
	}
	value, ok := cookieValue(&x.req.Fields, sp.Cookie)
	if ok {
		x.session, ok = parseSession(value)
	}
	if !ok || sp.over(x.session, x.rec.Time.Unix()) {
		x.session = session{}
		return nil
	}
	return c.bound[x.session.mark]
}

// bindSession puts the session's cookie into the answer's head where the client has none that says the same, or an old one.
func (x *exchange) bindSession() {
	sp := x.pool.persistence
	if sp == nil {
		return
	}
	s, now := x.session, x.rec.Time.Unix()
	if s.mark == x.member.mark && !sp.stale(s, now) {
		return
	}
	if s.mark != x.member.mark || s.made == 0 {
		s.made = now
	}
	value := appendHex(x.scratch[:0], x.member.mark, markDigits)
	c := setCookie{name: sp.Cookie, sameSite: sp.SameSite, secure: x.scheme() == "https"}
	if sp.timed() {
		value = appendHex(append(value, '.'), uint64(s.made), secondsDigits)
		value = appendHex(append(value, '.'), uint64(now), secondsDigits)
		c.maxAge = sp.left(s, now)
	}
	x.cookies = c.append(x.cookies, value)
}

// left is how long a cookie that is written now is good for.
func (sp *SessionPersistence) left(s session, now int64) time.Duration {
	left := sp.AbsoluteTimeout - time.Duration(now-s.made)*time.Second
	switch {
	case sp.AbsoluteTimeout == 0:
		return sp.IdleTimeout
	case sp.IdleTimeout > 0:
		return max(time.Second, min(sp.IdleTimeout, left))
	}
	return max(time.Second, left)
}

// withDefaults says Lax where nothing is said.
func (sp *SessionPersistence) withDefaults() *SessionPersistence {
	if sp == nil || sp.SameSite != "" {
		return sp
	}
	c := *sp
	c.SameSite = "Lax"
	return &c
}
