package health

import (
	"fmt"
	"time"
)

// Check says how a backend is asked whether it is alive. Without HTTP, a connection that opens is the answer.
type Check struct {
	Address string // host:port
	HTTP    *HTTP
	// Interval is between the starts of two checks; default 5s.
	Interval time.Duration
	// Timeout is for the whole check; default 1s, or half the interval if that is less.
	Timeout time.Duration
	// Rise and Fall are the results in a row that bring a backend up (default 2) and take it down (default 3).
	Rise, Fall int
}

// HTTP is one GET over HTTP/1.1.
type HTTP struct {
	Path string // default "/"
	Host string // default: the address
	// Expect lists codes ("204") and classes ("2xx") that are a success; default 2xx and 3xx.
	Expect []string
}

// Key names a check with everything that it depends on: two pools that ask the same of one address share one prober.
type Key string

// Key of the check. Defaults that are written out make no difference.
func (c Check) Key() Key {
	c = c.complete()
	how := "tcp"
	if h := c.HTTP; h != nil {
		how = fmt.Sprintf("http %q %q %q", h.Path, h.Host, h.Expect)
	}
	return Key(fmt.Sprintf("%s %s every %s within %s, %d up, %d down", c.Address, how, c.Interval, c.Timeout, c.Rise, c.Fall))
}

// complete fills in the defaults.
func (c Check) complete() Check {
	if c.Interval <= 0 {
		c.Interval = intervalDefault
	}
	if c.Timeout <= 0 {
		c.Timeout = min(timeoutDefault, c.Interval/2)
	}
	if c.Rise <= 0 {
		c.Rise = riseDefault
	}
	if c.Fall <= 0 {
		c.Fall = fallDefault
	}
	if c.HTTP == nil {
		return c
	}
	h := *c.HTTP
	if h.Path == "" {
		h.Path = "/"
	}
	if h.Host == "" {
		h.Host = c.Address
	}
	if len(h.Expect) == 0 {
		h.Expect = []string{"2xx", "3xx"}
	}
	c.HTTP = &h
	return c
}
