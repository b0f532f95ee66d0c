package lb

import (
	"math"
	"time"

	"lbd/lb/balance"
)

// choice is who takes requests of a pool, compiled: immutable. A new one is made
//
//  1. when the pool is new, when a backend's health or address changes, when one is ejected, and while time alone changes something;
//  2. from each member's seat: what the operator and experience say of it;
//  3. as the group that takes new requests: primaries, else backups, else those that are only ejected; or all, if the pool fails open;
//  4. and the policy that picks from that group.
type choice struct {
	seats    []seat    // by the pool's members
	members  []*member // by the policy's indexes
	policy   balance.Policy
	bound    map[uint64]*member // by mark: who takes requests of its own sessions; nil without persistence
	failOpen bool
	timed    bool // will be another without any event: a ramp, an ejection or a drain is under way
}

// seat is what holds for one member now.
type seat struct {
	obstacle obstacle
	takes    bool      // new requests
	part     float64   // of its weight, while it starts slowly; else 1
	until    time.Time // ejected
}

// obstacle is why a member may not take new requests. A pool that fails open overcomes those before hasNoAddress.
type obstacle uint8

const (
	noObstacle obstacle = iota
	isWeightless
	isEjected
	isDown
	drains
	hasNoAddress
	hasDrained
	inMaintenance
)

// weight is what the member counts for now.
func (s *seat) weight(m *member) float64 {
	if !s.takes {
		return 0
	}
	return float64(m.weight) * s.part
}

// refresh makes the choice of this moment. The turn goes on where it was. The caller holds Server.mu.
func (p *Pool) refresh(now time.Time) {
	before := p.choice.Load()
	next := &choice{seats: make([]seat, len(p.members))}
	for i, m := range p.members {
		if m.look(p, now) {
			p.tell(now, BackendRestored, m, "takes requests again after its ejection")
		}
		next.seats[i] = p.seat(m, now)
	}
	next.failOpen = p.opens(next.seats)
	p.seatGroup(next)
	next.compile(p, now)
	p.choice.Store(next)
	for i, m := range p.members {
		if !next.seats[i].takes {
			m.backend.line.tellAll()
		}
	}
	p.roamers.tell() // some may have come back
	if next.failOpen != before.failOpen {
		p.tellFailOpen(now, next.failOpen)
	}
}

func (p *Pool) seat(m *member, now time.Time) seat {
	s := seat{part: m.ramp(p.slowStart, now), until: m.ejectedUntil}
	switch {
	case m.state == InMaintenance:
		s.obstacle = inMaintenance
	case m.state == Drain && !now.Before(m.drainedBy(p)):
		s.obstacle = hasDrained
	case !m.backend.address.Load().IsValid():
		s.obstacle = hasNoAddress
	case m.state == Drain:
		s.obstacle = drains
	case m.down:
		s.obstacle = isDown
	case !m.ejectedUntil.IsZero():
		s.obstacle = isEjected
	case m.weight == 0:
		s.obstacle = isWeightless
	}
	return s
}

// opens reports whether less than the wanted share of primaries is eligible. Those that an operator has taken out do not count
// either way: that is no failure.
func (p *Pool) opens(seats []seat) bool {
	wanted, up := 0, 0
	for i, m := range p.members {
		if m.backup || m.weight == 0 || m.state != Ready {
			continue
		}
		wanted++
		if seats[i].obstacle == noObstacle {
			up++
		}
	}
	return wanted > 0 && up*100 < p.failOpen*wanted
}

// seatGroup decides who takes new requests.
func (p *Pool) seatGroup(c *choice) {
	groups := []func(*seat, *member) bool{
		func(s *seat, m *member) bool { return s.obstacle == noObstacle && !m.backup },
		func(s *seat, m *member) bool { return s.obstacle == noObstacle && m.backup },
		// To be ejected is a comparison with others, and there are none.
		func(s *seat, m *member) bool { return s.obstacle == isEjected && m.weight > 0 },
	}
	if c.failOpen {
		groups = []func(*seat, *member) bool{func(s *seat, m *member) bool { return s.obstacle < hasNoAddress && m.weight > 0 }}
	}
	for _, in := range groups {
		largest := 0.0
		for i, m := range p.members {
			if s := &c.seats[i]; in(s, m) {
				s.takes = true
				largest = max(largest, s.part)
			}
		}
		if largest == 0 {
			continue
		}
		for i := range c.seats { // where all start slowly, nobody does
			c.seats[i].part /= largest
		}
		return
	}
}

// compile makes the policy, and finds who serves bound clients.
func (c *choice) compile(p *Pool, now time.Time) {
	if p.persistence != nil {
		c.bound = make(map[uint64]*member, len(p.members))
	}
	ramps := false
	for i, m := range p.members {
		s := &c.seats[i]
		ramps = ramps || s.takes && s.part < 1
		c.timed = c.timed || m.ramp(p.slowStart, now) < 1 || !m.ejectedUntil.IsZero() || m.state == Drain && s.obstacle != hasDrained
		// A drain and a weight of 0 keep those who are there. A backup does not: it is there for want of others.
		stays := s.obstacle == isWeightless && !m.backup || s.obstacle == drains && !m.down && m.ejectedUntil.IsZero()
		if c.bound != nil && (s.takes || stays) {
			c.bound[m.mark] = m
		}
	}
	if p.balance == Maglev {
		c.compileMaglev(p)
		return
	}
	var weights []int
	var loads []*balance.Load
	for i, m := range p.members {
		s := &c.seats[i]
		if !s.takes {
			continue
		}
		w := m.weight
		if ramps {
			w = max(1, int(math.Round(float64(w*rampSteps)*s.part)))
		}
		c.members, weights, loads = append(c.members, m), append(weights, w), append(loads, &m.backend.load)
	}
	switch {
	case len(weights) == 0:
	case p.balance == LeastConnections:
		c.policy = balance.NewLeastConnections(weights, loads)
	case p.balance == P2CEWMA:
		c.policy = balance.NewP2CEWMA(weights, loads)
	default:
		c.policy = balance.NewRoundRobin(weights)
	}
}

// compileMaglev: the table is of all members, whoever is there.
func (c *choice) compileMaglev(p *Pool) {
	if p.maglev == nil {
		return
	}
	open := make([]float64, len(c.seats))
	for i := range c.seats {
		if c.seats[i].takes {
			open[i] = c.seats[i].part
		}
	}
	if among := p.maglev.Among(open); among != nil {
		c.members, c.policy = p.members, among
	}
}
