package main

import "time"

// adminNotice is how long before the last admin's token ends that is told.
const adminNotice = 30 * 24 * time.Hour

// adminProblems say that it is, or will be soon, other people than the settings say who administer the cluster.
func (a *appliance) adminProblems(now time.Time) []string {
	current := a.node.State()
	if current.Settings().LocalAdmin {
		return nil
	}
	if a.cfg.localAdmin {
		return []string{"--local-admin was given: the control socket's users are admins, though local_admin is false: start without it once an admin has a token again"}
	}
	switch until := current.AdminUntil(); {
	case until.IsZero() || until.Sub(now) > adminNotice:
		return nil
	case until.Before(now):
		return []string{"local_admin is false, and no admin's token is good any more: root is an admin by the control socket until there is one"}
	default:
		return []string{"local_admin is false, and the last admin's token ends at " + until.UTC().Format(time.RFC3339) + ": make another one"}
	}
}
