package state

import (
	"net"
	"net/http"
	"slices"
	"strconv"

	lbdv1 "lbd/proto/lbd/v1"
)

func (c *checker) checkRespond(r *lbdv1.Respond) {
	if s := r.GetStatus(); s < 200 || s > 599 {
		c.errorf("respond.status", "must be 200 to 599, not %d", s)
	}
	switch s := r.GetStatus(); {
	case len(r.GetBody()) > bodyBytesMax:
		c.errorf("respond.body", "has %d bytes: at most %d", len(r.GetBody()), bodyBytesMax)
	case r.GetBody() != "" && (s == http.StatusNoContent || s == http.StatusNotModified):
		c.errorf("respond.body", "an answer with status %d has no body", s)
	}
	c.checkFields("respond.headers", r.GetHeaders(), headersMax, framingFields)
}

var redirectCodes = []int32{
	http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther, http.StatusTemporaryRedirect, http.StatusPermanentRedirect,
}

func (c *checker) checkRedirect(r *lbdv1.Route, d *lbdv1.Redirect) {
	if s := d.GetScheme(); s != "" && s != "http" && s != "https" {
		c.errorf("redirect.scheme", "unknown scheme `%s` (http, https)", s)
	}
	if d.GetHost() != "" {
		if fault := serverFault(d.GetHost()); fault != "" {
			c.errorf("redirect.host", "`%s` %s", d.GetHost(), fault)
		}
	}
	c.checkRange("redirect.port", int64(d.GetPort()), 1, 65535)
	if d.GetPath() != "" {
		c.checkTarget("redirect.path", d.GetPath())
	}
	if code := d.GetCode(); code != 0 && !slices.Contains(redirectCodes, code) {
		c.errorf("redirect.code", "must be 301, 302, 303, 307 or 308, not %d", code)
	}
	switch {
	case d.GetHost() != "" || d.GetPath() != "":
	case d.GetScheme() == "" && d.GetPort() == 0:
		c.errorf("redirect", "leads back to the same address: set `scheme`, `host`, `port` or `path`")
	default:
		c.checkRedirectLoop(r, d)
	}
}

// checkRedirectLoop warns where a redirect that keeps host and path leads to a listener of its own route.
func (c *checker) checkRedirectLoop(r *lbdv1.Route, d *lbdv1.Redirect) {
	for _, name := range r.GetListeners() {
		stored, _ := c.next.Get(Listeners, name)
		l := stored.GetResource().GetListener()
		scheme, port := "http", "80"
		if l.GetProtocol() == lbdv1.Protocol_PROTOCOL_HTTPS {
			scheme = "https"
		}
		if d.GetScheme() != "" && d.GetScheme() != scheme {
			continue
		}
		if scheme == "https" {
			port = "443"
		}
		if d.GetPort() != 0 {
			port = strconv.Itoa(int(d.GetPort()))
		}
		for _, address := range l.GetAddresses() {
			if _, p, err := net.SplitHostPort(address); err == nil && p == port {
				c.warnf("redirect", "leads back to the same address on listener `%s`", name)
				return
			}
		}
	}
}

func (c *checker) checkErrorPages(pages []*lbdv1.ErrorPage) {
	c.checkMost("error_pages", len(pages), errorPagesMax)
	first := make(map[string]int)
	for i, page := range pages {
		path := itemPath("error_pages", i)
		c.checkCount(path+".status", "status", len(page.GetStatus()), statusesMax)
		for j, status := range page.GetStatus() {
			at := itemPath(path+".status", j)
			earlier, twice := first[status]
			switch {
			case !statusForm.MatchString(status) || status[0] < '4':
				c.errorf(at, "`%s` is no error: write a code (`503`) or a class (`5xx`)", status)
			case twice && earlier == i:
				c.errorf(at, "`%s` is there twice", status)
			case twice:
				c.errorf(at, "`%s` is in error_pages[%d] already, which counts", status, earlier)
			default:
				first[status] = i
			}
		}
		c.checkPage(path, page.GetContentType(), page.GetBody())
	}
}

// checkPage checks a page that lbd answers with in place of a backend.
func (c *checker) checkPage(path, contentType, body string) {
	if fieldValueFault(contentType) != "" || len(contentType) > nameBytesMax*2 {
		c.errorf(path+".content_type", "`%s` is no media type", contentType)
	}
	if n := len(body); n > bodyBytesMax {
		c.errorf(path+".body", "has %d bytes: at most %d", n, bodyBytesMax)
	}
}

func (c *checker) checkMaintenance(m *lbdv1.Maintenance) {
	c.checkSpan("maintenance.retry_after", m.GetRetryAfter(), retryAfterMin, timeoutMax)
	c.checkNetworks("maintenance.bypass", m.GetBypass(), bypassMax)
	c.checkPage("maintenance", m.GetContentType(), m.GetBody())
	if m.GetContentType() != "" && m.GetBody() == "" {
		c.errorf("maintenance.content_type", "is that of `body`, which is missing")
	}
}
