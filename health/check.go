package health

import (
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"time"
)

// Check says how a backend is asked whether it is alive. Without HTTP and TLS a connection that opens is the answer, with TLS
// alone a handshake, with HTTP an answer.
type Check struct {
	Address string // host:port, as the operator has written it
	// Dial is where Address answers now, for a caller that resolves names; the zero value leaves that to the dialer. It is no
	// part of the key: Prober.Set changes it in place.
	Dial netip.AddrPort
	Port uint16 // asked in place of the address's; 0: the address's
	HTTP *HTTP
	TLS  *TLS
	// Interval is between the starts of two checks; default 5s.
	Interval time.Duration
	// DownInterval is in its place while the backend is down; default: Interval.
	DownInterval time.Duration
	// Timeout is for the whole check; default 1s, or half the interval if that is less.
	Timeout time.Duration
	// Rise and Fall are the results in a row that bring a backend up (default 2) and take it down (default 3).
	Rise, Fall int
	// Start is Down for a backend that takes no requests before Rise successes. Unknown, the default, and Up mean that it does
	// until Fall failures.
	Start State
}

// HTTP is one request over HTTP/1.1.
type HTTP struct {
	Method string // default GET
	Path   string // default "/"
	Host   string // default: the address
	// Headers are more request fields. One that we send ourselves (Host, User-Agent, Accept) is replaced; Connection and what
	// frames a body is not.
	Headers map[string]string
	// Expect lists codes ("204") and classes ("2xx") that are a success; default 2xx and 3xx.
	Expect []string
	// ExpectBody must be in the first 64 KiB of the answer's body; "" is in any.
	ExpectBody string
}

// TLS is how the connection is secured, which is how requests do it.
type TLS struct {
	// Config is not changed once it has been handed over. Its ServerName, if empty, is the address's host. Session tickets are
	// not used: each check verifies the backend anew.
	Config *tls.Config
	// Key tells two settings apart, for Check.Key.
	Key string
}

// Key names a check with everything that it depends on: two pools that ask the same of one address share one prober. It holds no
// value of a request field, which may be a secret.
type Key string

// Key of the check. Defaults that are written out make no difference.
func (c Check) Key() Key {
	c = c.complete()
	how := "tcp"
	if h := c.HTTP; h != nil {
		how = fmt.Sprintf("http %s %q %q %q", h.Method, h.Path, h.Host, h.Expect)
		if h.ExpectBody != "" {
			how += fmt.Sprintf(" with %q", h.ExpectBody)
		}
		if len(h.Headers) > 0 {
			how += fmt.Sprintf(" fields %.8x", sha256.Sum256(fmt.Appendf(nil, "%q", h.Headers)))
		}
	}
	if c.TLS != nil {
		how += fmt.Sprintf(" tls %q", c.TLS.Key)
	}
	if c.Port != 0 {
		how += fmt.Sprintf(" port %d", c.Port)
	}
	if c.DownInterval != c.Interval {
		how += fmt.Sprintf(" every %s while down", c.DownInterval)
	}
	if c.Start == Down {
		how += " starts down"
	}
	return Key(fmt.Sprintf("%s %s every %s within %s, %d up, %d down", c.Address, how, c.Interval, c.Timeout, c.Rise, c.Fall))
}

// complete fills in the defaults.
func (c Check) complete() Check {
	if c.Interval <= 0 {
		c.Interval = intervalDefault
	}
	if c.DownInterval <= 0 {
		c.DownInterval = c.Interval
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
	if c.Start != Down {
		c.Start = Unknown
	}
	if c.HTTP == nil {
		return c
	}
	h := *c.HTTP
	if h.Method == "" {
		h.Method = "GET"
	}
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

// target is what is dialled.
func (c Check) target() string {
	if c.Dial.IsValid() {
		port := c.Dial.Port()
		if c.Port != 0 {
			port = c.Port
		}
		return netip.AddrPortFrom(c.Dial.Addr(), port).String()
	}
	if host, _, err := net.SplitHostPort(c.Address); err == nil && c.Port != 0 {
		return net.JoinHostPort(host, strconv.Itoa(int(c.Port)))
	}
	return c.Address
}
