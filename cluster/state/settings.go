package state

import (
	"net"

	lbdv1 "lbd/proto/lbd/v1"
)

// checkSettings refuses a setting that would forbid what is in use.
func checkSettings(c *checker, s *lbdv1.ClusterSettings) {
	if n := s.GetStateBytes(); n != 0 && (n < StateBytesMin || n > StateBytesMax) {
		c.errorf("state_bytes", "must be %d to %d, not %d", StateBytesMin, int64(StateBytesMax), n)
	}
	c.checkBudget(s)
	c.checkBackup(s.GetBackup())
	c.checkDrain(s.GetDrain())
	c.checkTicketKeySettings(s.GetTicketKeys())
	before, now := c.base.Settings(), settingsOf(s)
	if !c.offline && !c.restoring && before.LocalAdmin && !now.LocalAdmin && !c.base.HasAdmin(c.at) {
		c.errorf("local_admin", "would leave no admin: make a bearer token of role admin, bound to no owner, first")
	}
	if c.offline || (now.AllowLoopbackBackends || !before.AllowLoopbackBackends) &&
		(now.AllowLinkLocalBackends || !before.AllowLinkLocalBackends) {
		return
	}
	reported := make(map[string]bool)
	for stored := range c.next.All(Pools) {
		p := stored.GetResource().GetPool()
		if _, changed := c.position[Key{Pools, p.GetName()}]; changed {
			continue // reports it itself
		}
		for _, d := range destinations(p) {
			if setting := forbiddenBy(d.host, now); setting != "" && !reported[setting] {
				reported[setting] = true
				c.errorf(setting, "backend `%s` of pool `%s` needs `%s`: leave that true, or remove the backend first", net.JoinHostPort(d.host, d.port), p.GetName(), setting)
			}
		}
	}
}

func (c *checker) checkDrain(d *lbdv1.DrainSettings) {
	if grace := d.GetGrace(); grace != nil && (!grace.IsValid() || grace.AsDuration() < 0 || grace.AsDuration() > drainGraceMax) {
		c.errorf("drain.grace", "must be 0s to %s", drainGraceMax)
	}
	if deadline := d.GetDeadline(); deadline != nil && (!deadline.IsValid() || deadline.AsDuration() < drainDeadlineMin || deadline.AsDuration() > drainDeadlineMax) {
		c.errorf("drain.deadline", "must be %s to %s", drainDeadlineMin, drainDeadlineMax)
	}
}
