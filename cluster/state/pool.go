package state

import (
	"net"
	"regexp"
	"strings"
	"time"

	lbdv1 "lbd/proto/lbd/v1"
)

var statusForm = regexp.MustCompile(`^([1-5]xx|[1-5][0-9][0-9])$`)

func checkPool(c *checker, p *lbdv1.Pool) {
	if _, known := lbdv1.Balance_name[int32(p.GetBalance())]; !known {
		c.errorf("balance", "unknown algorithm %d (ROUND_ROBIN)", p.GetBalance())
	}
	c.checkCount("backends", "backend", len(p.GetBackends()), backendsMax)
	seen := make(map[string]bool)
	for i, b := range p.GetBackends() {
		path := itemPath("backends", i)
		c.checkBackendAddress(path+".address", b.GetAddress())
		if seen[b.GetAddress()] && b.GetAddress() != "" {
			c.errorf(path+".address", "`%s` is there twice", b.GetAddress())
		}
		seen[b.GetAddress()] = true
		if w := b.GetWeight(); w < 0 || w > weightMax {
			c.errorf(path+".weight", "must be 0 to %d, not %d", weightMax, w)
		}
	}
	if p.GetHealthCheck() != nil {
		c.checkHealthCheck(p.GetHealthCheck())
	}
	c.checkLength("connect_timeout", p.GetConnectTimeout())
}

func (c *checker) checkBackendAddress(path, address string) {
	if address == "" {
		c.errorf(path, "is required: `host:port`")
		return
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		c.errorf(path, "`%s` is no address: write `host:port` or `[v6]:port`", address)
		return
	}
	if fault := portFault(port); fault != "" {
		c.errorf(path, "`%s` %s", address, fault)
		return
	}
	ip, isIP := splitIP(host)
	if !isIP {
		if fault := hostFault(host); fault != "" {
			c.errorf(path, "`%s` %s", host, fault)
			return
		}
	}
	if isIP && (ip.IsUnspecified() || ip.IsMulticast() || host == "255.255.255.255") {
		c.errorf(path, "`%s` is no address of one machine", host)
		return
	}
	c.checkAllowed(path, host)
	c.checkBackendLoop(path, host, port)
}

// checkAllowed refuses this machine and its link where the cluster's settings do not allow them: whoever may write a
// pool could else reach what listens on the node only for the node.
func (c *checker) checkAllowed(path, host string) {
	setting := forbiddenBy(host, c.next.Settings())
	if setting == "" {
		return
	}
	text := "`%s` is refused as a backend unless cluster_settings.%s is true"
	if _, named := c.position[Key{Kind: ClusterSettings}]; named {
		c.errorf(path, text, host, setting)
		return
	}
	c.dependf(path, text, host, setting)
}

// forbiddenBy is the setting that would have to be true for a backend on this host; empty: it is allowed.
func forbiddenBy(host string, s Settings) string {
	ip, isIP := splitIP(host)
	switch {
	case !s.AllowLoopbackBackends && (isLocalName(host) || isIP && ip.IsLoopback()):
		return "allow_loopback_backends"
	case !s.AllowLinkLocalBackends && isIP && ip.IsLinkLocalUnicast():
		return "allow_link_local_backends"
	}
	return ""
}

func (c *checker) checkBackendLoop(path, host, port string) {
	c.next.indexed(listenIndex(port), func(rest string) bool {
		bound, name, _ := strings.Cut(rest, sep)
		if !reaches(host, bound) {
			return true
		}
		c.errorf(path, "is listener `%s` itself: requests would go in circles", name)
		return false
	})
}

func (c *checker) checkHealthCheck(h *lbdv1.HealthCheck) {
	switch check := h.GetCheck().(type) {
	case *lbdv1.HealthCheck_Http:
		c.checkHTTPCheck(check.Http)
	case *lbdv1.HealthCheck_Tcp:
	default:
		c.errorf("health_check", "needs a kind of check: `http` or `tcp`")
	}
	c.checkTimes(h)
	count := func(path string, n int32) {
		if n < 0 || n > checkCountMax {
			c.errorf(path, "must be 1 to %d, not %d", checkCountMax, n)
		}
	}
	count("health_check.rise", h.GetRise())
	count("health_check.fall", h.GetFall())
}

func (c *checker) checkTimes(h *lbdv1.HealthCheck) {
	interval := checkIntervalDefault
	if h.GetInterval() != nil {
		interval = duration(h.GetInterval())
		if interval < checkIntervalMin || interval > checkIntervalMax {
			c.errorf("health_check.interval", "must be 100ms to 1h")
			return
		}
	}
	if h.GetTimeout() == nil {
		return
	}
	switch timeout := duration(h.GetTimeout()); {
	case timeout <= 0:
		c.errorf("health_check.timeout", "must be more than 0")
	case timeout >= interval:
		c.errorf("health_check.timeout", "timeout must be shorter than interval (%s)", interval)
	}
}

func (c *checker) checkHTTPCheck(h *lbdv1.HttpCheck) {
	const base = "health_check.http."
	if h.GetPath() != "" {
		c.checkTarget(base+"path", h.GetPath())
	}
	if host := h.GetHost(); host != "" {
		name := host
		if h, port, err := net.SplitHostPort(host); err == nil && portFault(port) == "" {
			name = h
		}
		if _, isIP := splitIP(strings.Trim(name, "[]")); !isIP && hostFault(strings.ToLower(name)) != "" {
			c.errorf(base+"host", "`%s` is no host name", host)
		}
	}
	if n := len(h.GetExpectStatus()); n > statusesMax {
		c.errorf(base+"expect_status", "are %d: at most %d", n, statusesMax)
	}
	for i, status := range h.GetExpectStatus() {
		if !statusForm.MatchString(status) {
			c.errorf(itemPath(base+"expect_status", i), "`%s` is no status: write a code (`204`) or a class (`2xx`)", status)
		}
	}
}

// HealthCheckTimes are the interval and the timeout of a check with their defaults: 5s, and 1s or half the interval
// where that is less.
func HealthCheckTimes(h *lbdv1.HealthCheck) (interval, timeout time.Duration) {
	interval = checkIntervalDefault
	if h.GetInterval() != nil {
		interval = h.GetInterval().AsDuration()
	}
	if h.GetTimeout() != nil {
		return interval, h.GetTimeout().AsDuration()
	}
	return interval, min(checkTimeoutDefault, interval/2)
}

// checkSettings refuses a setting that would forbid what is in use.
func checkSettings(c *checker, s *lbdv1.ClusterSettings) {
	before, now := c.base.Settings(), settingsOf(s)
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
		for _, b := range p.GetBackends() {
			host, _, _ := net.SplitHostPort(b.GetAddress())
			if setting := forbiddenBy(host, now); setting != "" && !reported[setting] {
				reported[setting] = true
				c.errorf(setting, "backend `%s` of pool `%s` needs it: remove that first", b.GetAddress(), p.GetName())
			}
		}
	}
}
