package rpc

import (
	"sync"

	lbdv1 "lbd/proto/lbd/v1"
)

// shares divide something that there is a bounded amount of (calls in flight, bytes held) among callers: none has more than each, and
// the last of it, the reserve, is for those who could take a credential away that uses up the rest.
type shares struct {
	most, each, reserve int64

	mu   sync.Mutex
	used int64
	by   map[string]int64
}

func newShares(most, each, reserve int64) *shares {
	return &shares{most: most, each: each, reserve: reserve, by: map[string]int64{}}
}

// take gives a caller some more, unless that is too much: then it says of how much.
func (s *shares) take(c Caller, amount int64) (bound int64, ok bool) {
	most := s.most
	if !c.rescues() {
		most -= s.reserve
	}
	who := c.account()
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.by[who]+amount > s.each:
		return s.each, false
	case s.used+amount > most:
		return most, false
	}
	s.used += amount
	s.by[who] += amount
	return 0, true
}

// give takes back what a caller has taken.
func (s *shares) give(c Caller, amount int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used -= amount
	if who := c.account(); s.by[who] > amount {
		s.by[who] -= amount
	} else {
		delete(s.by, who)
	}
}

// account is what a caller's share is counted by: the credential, or the machine's user.
func (c Caller) account() string {
	if c.TokenID != "" {
		return c.TokenID
	}
	return c.Author
}

// rescues tells whether the caller is one who keeps the cluster in order when others misuse it: an admin who is bound to no owner, and
// whoever operates this machine.
func (c Caller) rescues() bool {
	return c.Role >= lbdv1.Role_ROLE_ADMIN && !c.bound() || c.Kind == kindSocket && c.Role >= lbdv1.Role_ROLE_OPERATOR
}

// connection is whose a connection is that a caller has come by: of calls that a node passes on, the node's.
func (c Caller) connection() string {
	if c.node != nil {
		return "node/" + c.node.GetId()
	}
	return c.account()
}
