package main

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"lbd/cluster/rpc"
	"lbd/cluster/state"
	"lbd/health"
	"lbd/lb"
	lbdv1 "lbd/proto/lbd/v1"
)

// The appliance is the control plane's rpc.Observer: all that this file reads is immutable, atomic or locked for a moment.

func (a *appliance) Progress() rpc.Progress { return a.observation.get() }

func (a *appliance) ServedSerial(certificate string) string {
	if c := a.certificates.Current().Get(certificate); c != nil {
		return c.Serial()
	}
	return ""
}

func (a *appliance) Backends(only string) []*lbdv1.BackendStatus {
	view := a.view.Load()
	if view == nil {
		return nil
	}
	stats := map[string]map[string]lb.PoolBackendStats{}
	for _, p := range a.server.Stats().Pools {
		stats[p.Name] = map[string]lb.PoolBackendStats{}
		for _, b := range p.Backends {
			stats[p.Name][b.Key] = b
		}
	}
	var out []*lbdv1.BackendStatus
	for _, name := range slices.Sorted(maps.Keys(view.pools)) {
		if only != "" && name != only {
			continue
		}
		for _, b := range view.pools[name].backends {
			out = append(out, a.backendStatus(name, b, stats[name][b.key]))
		}
	}
	slices.SortStableFunc(out, func(x, y *lbdv1.BackendStatus) int {
		return cmp.Or(strings.Compare(x.GetPool(), y.GetPool()), strings.Compare(x.GetAddress(), y.GetAddress()))
	})
	return out
}

func (a *appliance) backendStatus(pool string, b backend, s lb.PoolBackendStats) *lbdv1.BackendStatus {
	out := &lbdv1.BackendStatus{
		Node: a.cfg.node, Pool: pool, Address: b.address, Weight: int32(s.Weight), Backup: b.backup,
		Health:   lbdv1.BackendHealth_BACKEND_HEALTH_UNCHECKED,
		InFlight: s.InFlight, IdleConnections: s.Idle, RequestsTotal: s.Requests, FailuresTotal: s.Failures,
		ConnectionsNewTotal: s.NewConnections, ConnectionsReusedTotal: s.Reused, Connections: s.Connections, Queued: s.Queued,
		EjectionsTotal: s.Ejections, Eligible: s.Takes, IneligibleReason: s.Why, LatencyMs: float64(s.Latency) / float64(time.Millisecond),
		State: stateWord(b.set.state), NodeLocal: b.set.here,
	}
	var status health.Status
	if b.check != nil {
		status, _ = a.prober.Status(b.checkKey)
		out.Health = healthWord(status.State)
		if !status.Since.IsZero() {
			out.Since = timestamppb.New(status.Since)
		}
		if status.State == health.Down && status.LastError != "" {
			out.IneligibleReason = "down: " + status.LastError
		}
	}
	if !s.EjectedUntil.IsZero() {
		out.EjectedUntil = timestamppb.New(s.EjectedUntil)
	}
	if b.dial.IsValid() && b.dial.String() != b.address {
		out.ResolvedAddress = b.dial.String()
	}
	unresolved, since := a.resolver.trouble(b.asked)
	if unresolved != "" && !b.dial.IsValid() {
		out.IneligibleReason = "no address: " + unresolved
	}
	text, at := lastError(status, s)
	if unresolved != "" {
		text, at = unresolved, since
	}
	if out.LastError = text; !at.IsZero() {
		out.LastErrorTime = timestamppb.New(at)
	}
	return out
}

// lastError is the later of what checks and requests have met; of a backend that is down, the check's, for that is why.
func lastError(h health.Status, s lb.PoolBackendStats) (string, time.Time) {
	if h.State != health.Down && s.LastFailureTime.After(h.LastErrorTime) {
		return s.LastFailure, s.LastFailureTime
	}
	return h.LastError, h.LastErrorTime
}

func stateWord(s lb.BackendState) lbdv1.BackendState {
	switch s {
	case lb.Drain:
		return lbdv1.BackendState_BACKEND_STATE_DRAIN
	case lb.InMaintenance:
		return lbdv1.BackendState_BACKEND_STATE_MAINTENANCE
	}
	return lbdv1.BackendState_BACKEND_STATE_UNSPECIFIED
}

func healthWord(s health.State) lbdv1.BackendHealth {
	switch s {
	case health.Up:
		return lbdv1.BackendHealth_BACKEND_HEALTH_UP
	case health.Down:
		return lbdv1.BackendHealth_BACKEND_HEALTH_DOWN
	}
	return lbdv1.BackendHealth_BACKEND_HEALTH_UNKNOWN
}

func (a *appliance) Status() *lbdv1.SystemServiceGetStatusResponse {
	stats, progress := a.server.Stats(), a.Progress()
	out := &lbdv1.SystemServiceGetStatusResponse{
		StartTime:      timestamppb.New(a.started),
		ServedRevision: progress.Revision,
		RaftRole:       a.node.Role(),
		Engine:         a.engine.Kind(),
		Connections:    stats.Connections,
		Listeners:      a.listenerStatuses(progress),
	}
	for _, l := range stats.Listeners {
		for _, n := range l.Requests {
			out.RequestsTotal += n
		}
	}
	for _, b := range a.Backends("") {
		out.BackendsTotal++
		if b.GetEligible() || b.GetIneligibleReason() == "backup" {
			out.BackendsUp++
		}
	}
	out.Traffic, out.StaleMs = a.traffic.get(), staleMs(a.node.Fresh())
	s := a.node.State()
	out.StateBytes, out.StateBytesMax = s.Usage().Total(), s.StateBytes()
	out.Problems = a.problems(progress, out)
	return out
}

func (a *appliance) listenerStatuses(progress rpc.Progress) []*lbdv1.ListenerStatus {
	view := a.view.Load()
	if view == nil {
		return nil
	}
	refused := map[string]string{}
	for _, r := range progress.Refused {
		if r.Kind == string(state.Listeners) {
			refused[r.Name] = r.Reason
		}
	}
	var out []*lbdv1.ListenerStatus
	for _, name := range slices.Sorted(maps.Keys(view.listeners)) {
		l := &lbdv1.ListenerStatus{Name: name, Programmed: true, Addresses: texts(a.server.Addresses(name))}
		if reason, ok := refused[name]; ok {
			l.Programmed, l.Reason, l.Message = false, listenerReason(reason), reason
		}
		out = append(out, l)
	}
	return out
}

// listenerReason is the word that scripts read.
func listenerReason(message string) string {
	if strings.Contains(message, "address already in use") {
		return "ADDRESS_IN_USE"
	}
	return "BIND_FAILED"
}

func texts(addresses []net.Addr) []string {
	out := make([]string, 0, len(addresses))
	for _, a := range addresses {
		out = append(out, a.String())
	}
	slices.Sort(out)
	return out
}

// problems says in words what an operator should look at.
func (a *appliance) problems(progress rpc.Progress, s *lbdv1.SystemServiceGetStatusResponse) []string {
	out := append(a.node.Problems(), a.control.problems()...)
	out = append(out, a.backups.problems()...)
	out = append(out, a.overlay.problems()...)
	out = append(out, a.adminProblems(time.Now())...)
	if a.leaving.Load() {
		out = append(out, "this node is stopping: requests under way end, it takes no new connections")
	}
	for _, r := range progress.Refused {
		if r.Kind == "" {
			out = append(out, fmt.Sprintf("revision %d is not served, but the one before: %s", r.Revision, r.Reason))
			continue
		}
		out = append(out, fmt.Sprintf("%s/%s is not served as revision %d stored it: %s", r.Kind, r.Name, r.Revision, r.Reason))
	}
	if troubled := a.troubled(); troubled > 0 {
		out = append(out, fmt.Sprintf("%d of %d backends take no requests: see `lbctl backend status`", troubled, s.GetBackendsTotal()))
	}
	out = append(out, a.contactProblems()...)
	for _, p := range a.server.Stats().Pools {
		if p.FailOpen {
			out = append(out, fmt.Sprintf("pool %s fails open: too few of its backends are eligible, all take requests", p.Name))
		}
	}
	out = append(out, unserved(a.Backends(""))...)
	if view := a.view.Load(); view != nil {
		for name, p := range view.pools {
			if problem := a.discoveryProblem(p); problem != "" {
				out = append(out, "pools/"+name+": "+problem)
			}
		}
	}
	out = append(out, a.expiring(time.Now(), expiryWarning)...)
	if a.engine.Stats().Stalled() {
		out = append(out, "a loop is stalled: see the log")
	}
	slices.Sort(out)
	return out
}

// troubled counts the backends that take no requests though nobody has asked for that.
func (a *appliance) troubled() (n int32) {
	for _, b := range a.Backends("") {
		asked := b.GetState() != lbdv1.BackendState_BACKEND_STATE_UNSPECIFIED || b.GetWeight() == 0 || b.GetIneligibleReason() == "backup"
		if !b.GetEligible() && !asked {
			n++
		}
	}
	return n
}

// unserved names the pools that have backends of which none takes requests, and what keeps them out.
func unserved(backends []*lbdv1.BackendStatus) (out []string) {
	kept, taken := map[string]map[string]int{}, map[string]bool{}
	for _, b := range backends {
		if b.GetEligible() {
			taken[b.GetPool()] = true
		}
		if kept[b.GetPool()] == nil {
			kept[b.GetPool()] = map[string]int{}
		}
		kept[b.GetPool()][keptOutBy(b)]++
	}
	for pool, reasons := range kept {
		if taken[pool] {
			continue
		}
		var parts []string
		for _, reason := range slices.Sorted(maps.Keys(reasons)) {
			parts = append(parts, fmt.Sprintf("%d %s", reasons[reason], reason))
		}
		out = append(out, fmt.Sprintf("pool %s: no backend takes requests: %s", pool, strings.Join(parts, ", ")))
	}
	return out
}

// keptOutBy puts in words why a backend takes no requests; what an operator said comes first, as only he can take it back.
func keptOutBy(b *lbdv1.BackendStatus) string {
	switch {
	case b.GetState() == lbdv1.BackendState_BACKEND_STATE_DRAIN:
		return "drained by operators"
	case b.GetState() == lbdv1.BackendState_BACKEND_STATE_MAINTENANCE:
		return "in maintenance"
	case b.GetWeight() == 0:
		return "of weight 0"
	case strings.HasPrefix(b.GetIneligibleReason(), "no address"):
		return "without an address"
	case strings.HasPrefix(b.GetIneligibleReason(), "ejected"):
		return "ejected"
	case strings.HasPrefix(b.GetIneligibleReason(), "down"):
		return "down"
	}
	return "not ready"
}

const (
	// expiryWarning is how long before a certificate's end status begins to say so: two weeks leave time for a manual renewal.
	expiryWarning = 14 * 24 * time.Hour
	// expirySoon is when the doctor does: most renew by themselves a month ahead, so that this one has missed its turn.
	expirySoon = 30 * 24 * time.Hour
)

// expiring says which certificates have ended, or will in less than a while.
func (a *appliance) expiring(now time.Time, within time.Duration) []string {
	var out []string
	for c := range a.certificates.Current().All() {
		switch left := c.NotAfter().Sub(now); {
		case left < 0:
			out = append(out, fmt.Sprintf("certificates/%s expired at %s", c.Name(), c.NotAfter().UTC().Format(time.RFC3339)))
		case left < within:
			out = append(out, fmt.Sprintf("certificates/%s expires at %s", c.Name(), c.NotAfter().UTC().Format(time.RFC3339)))
		}
	}
	return out
}
