package state

import (
	"regexp"
	"slices"
	"strings"
	"time"

	lbdv1 "lbd/proto/lbd/v1"
)

var statusForm = regexp.MustCompile(`^([1-5]xx|[1-5][0-9][0-9])$`)

// checkMethods of HTTP checks: those that a backend answers without doing something twice, and POST for those that want it.
var checkMethods = []string{"GET", "HEAD", "OPTIONS", "POST"}

func (c *checker) checkHealthCheck(p *lbdv1.Pool) {
	h := p.GetHealthCheck()
	switch check := h.GetCheck().(type) {
	case *lbdv1.HealthCheck_Http:
		c.checkHTTPCheck(check.Http)
	case *lbdv1.HealthCheck_Tcp:
		if h.GetTlsOverride() != nil {
			c.errorf("health_check.tls_override", "is only for `http` and `tls`")
		}
	case *lbdv1.HealthCheck_Tls:
		if p.GetTls() == nil && h.GetTlsOverride() == nil {
			c.errorf("health_check.tls", "needs `tls` of the pool, or `tls_override`")
		}
	default:
		c.errorf("health_check", "needs a kind of check: `http`, `tcp` or `tls`")
	}
	if h.GetTlsOverride() != nil {
		c.checkBackendTLS("health_check.tls_override", h.GetTlsOverride())
	}
	c.checkTimes(h)
	c.checkRange("health_check.rise", int64(h.GetRise()), 1, checkCountMax)
	c.checkRange("health_check.fall", int64(h.GetFall()), 1, checkCountMax)
	c.checkRange("health_check.port", int64(h.GetPort()), 1, 65535)
	c.checkEnum("health_check.start", "state", h.GetStart())
}

func (c *checker) checkTimes(h *lbdv1.HealthCheck) {
	c.checkSpan("health_check.down_interval", h.GetDownInterval(), checkIntervalMin, checkIntervalMax)
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
	if m := h.GetMethod(); m != "" && !slices.Contains(checkMethods, m) {
		c.errorf(base+"method", "unknown method `%s` (%s)%s", m, strings.Join(checkMethods, ", "), didYouMean(m, checkMethods))
	}
	if h.GetPath() != "" {
		c.checkTarget(base+"path", h.GetPath())
	}
	if h.GetHost() != "" && authorityFault(h.GetHost()) != "" {
		c.errorf(base+"host", "`%s` is no host name", h.GetHost())
	}
	c.checkFields(base+"headers", h.GetHeaders(), checkHeadersMax, checkFieldsOfOurs)
	c.checkMost(base+"expect_status", len(h.GetExpectStatus()), statusesMax)
	for i, status := range h.GetExpectStatus() {
		if !statusForm.MatchString(status) {
			c.errorf(itemPath(base+"expect_status", i), "`%s` is no status: write a code (`204`) or a class (`2xx`)", status)
		}
	}
	switch n := len(h.GetExpectBody()); {
	case n > checkBodyBytesMax:
		c.errorf(base+"expect_body", "has %d bytes: at most %d", n, checkBodyBytesMax)
	case n > 0 && h.GetMethod() == "HEAD":
		c.errorf(base+"expect_body", "an answer to HEAD has no body")
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
