package lb

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"lbd/lb/http1"
)

// Probe is a request that is not sent: what Table.Explain is asked about. It goes through the same reading as a head that comes
// on a connection.
type Probe struct {
	Method        string // GET if empty
	Host          string // of the Host field, with the port if it names one; empty: none, as HTTP/1.0 may
	Target        string // path and query, as in a request line; "/" if empty
	Headers       []Header
	ClientAddress netip.Addr // of the connection
	Time          time.Time  // of the request, for cookies that end; now if zero

	// What the listener says, as in its ListenerConfig. Of Limits only those of a head count.
	TLS             bool
	Trusted         []netip.Prefix
	HealthPath      string
	Limits          Limits
	ResponseHeaders HeaderChanges
}

// request reads the probe's head.
func (p *Probe) request() (*http1.Request, *fault) {
	method, target := p.Method, p.Target
	if method == "" {
		method = "GET"
	}
	if target == "" {
		target = "/"
	}
	texts := []string{method, target, p.Host}
	var head strings.Builder
	head.WriteString(method + " " + target)
	if p.Host == "" {
		head.WriteString(" HTTP/1.0\r\n")
	} else {
		head.WriteString(" HTTP/1.1\r\nHost: " + p.Host + "\r\n")
	}
	for _, h := range p.Headers {
		texts = append(texts, h.Name, h.Value)
		head.WriteString(h.Name + ": " + h.Value + "\r\n")
	}
	head.WriteString("\r\n")
	for _, text := range texts {
		if strings.ContainsAny(text, "\r\n") { // else a value could hold another field
			return nil, &fault{reason: BadRequest, status: 400, detail: "line_break"}
		}
	}
	req := &http1.Request{}
	limits := p.Limits.ofHeads()
	if _, err := req.Parse([]byte(head.String()), &limits); err != nil {
		return nil, badRequest(err)
	}
	return req, nil
}

// limited says in words which limits of the listener a head was measured by that is too large for them; else nothing.
func (p *Probe) limited(f *fault) string {
	if f.status != 414 && f.status != 431 {
		return ""
	}
	limits := p.Limits.ofHeads()
	return fmt.Sprintf("the listener takes heads of at most %d fields and %d bytes", limits.Fields, limits.HeadBytes)
}

// trusted reports whether the probe comes from a proxy of ours.
func (p *Probe) trusted() bool { return isOurs(plainAddress(p.ClientAddress), p.Trusted) }

// client is the address that the listener takes for the client's.
func (p *Probe) client(req *http1.Request) netip.Addr {
	if !p.trusted() {
		return plainAddress(p.ClientAddress)
	}
	return clientBehind(&req.Fields, p.ClientAddress, p.Trusted)
}

func (p *Probe) scheme(req *http1.Request) string {
	own := "http"
	if p.TLS {
		own = "https"
	}
	return schemeOf(&req.Fields, own, p.trusted())
}

func (p *Probe) now() time.Time {
	if p.Time.IsZero() {
		return time.Now()
	}
	return p.Time
}
