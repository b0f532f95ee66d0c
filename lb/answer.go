package lb

import (
	"bytes"
	"cmp"
	"strconv"
	"time"

	"lbd/lb/http1"
)

// answer is a whole answer of our own, compiled from a route's Respond.
type answer struct {
	status int
	fields []byte // lines with CRLF
	body   []byte
}

func newAnswer(r *Respond) *answer {
	a := &answer{status: r.Status, body: []byte(r.Body)}
	for _, h := range r.Headers {
		a.fields = append(a.fields, h.Name+": "+h.Value+"\r\n"...)
	}
	return a
}

// answerOptions is for OPTIONS *, which asks us and no backend (RFC 9110 9.3.7).
var answerOptions = &answer{status: 204, fields: []byte("Allow: GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS\r\n")}

// The answers of a listener's health path.
var (
	answerReady    = &answer{status: 200, fields: []byte(readinessFields), body: []byte("ready\n")}
	answerDraining = &answer{status: 503, fields: []byte(readinessFields), body: []byte("draining\n")}
)

const readinessFields = "Content-Type: text/plain\r\nCache-Control: no-store\r\n"

// respond sends an answer of ours as the exchange's only one.
func (x *exchange) respond(a *answer) step {
	return x.answered(x.sendOwn(a.status, a.fields, a.body))
}

// answered ends an exchange with an answer of ours. If that did not get out, nothing may follow it.
func (x *exchange) answered(f *fault) step {
	x.aborted = f != nil
	return x.finish(f)
}

// refuse ends an exchange that cannot be served: with an answer that says so, if none has begun and there is somebody to
// read it.
func (x *exchange) refuse(f *fault) step {
	x.requestBy = time.Time{} // the answer has the client's time
	switch f.reason {
	case BadRequest, ClientTimeout, ClientAborted, Internal:
		x.closing = true // where the next request begins is not known
	}
	if f.status == 0 {
		x.aborted = true
		return x.finish(f)
	}
	var fields []byte
	if f.status == 503 {
		fields = append(fields, "Retry-After: "+cmp.Or(f.retryAfter, retryAfterSeconds)+"\r\n"...)
	}
	if f.status == 405 {
		fields = append(fields, "Allow: GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS\r\n"...)
	}
	kind, body := x.errorBody(f)
	fields = append(fields, "Content-Type: "+kind+"\r\nCache-Control: no-store\r\n"...)
	if x.sendOwn(f.status, fields, body) != nil {
		x.aborted = true
	}
	return x.finish(f)
}

// statusText is the reason phrase of what we send ourselves; clients do not need it (RFC 9112 4).
func statusText(status int) string {
	switch status {
	case 200:
		return "OK"
	case 204:
		return "No Content"
	case 301:
		return "Moved Permanently"
	case 302:
		return "Found"
	case 303:
		return "See Other"
	case 307:
		return "Temporary Redirect"
	case 308:
		return "Permanent Redirect"
	case 400:
		return "Bad Request"
	case 403:
		return "Forbidden"
	case 404:
		return "Not Found"
	case 405:
		return "Method Not Allowed"
	case 408:
		return "Request Timeout"
	case 413:
		return "Content Too Large"
	case 414:
		return "URI Too Long"
	case 417:
		return "Expectation Failed"
	case 431:
		return "Request Header Fields Too Large"
	case 500:
		return "Internal Server Error"
	case 501:
		return "Not Implemented"
	case 502:
		return "Bad Gateway"
	case 503:
		return "Service Unavailable"
	case 504:
		return "Gateway Timeout"
	case 505:
		return "HTTP Version Not Supported"
	case 508:
		return "Loop Detected"
	}
	return ""
}

// errorBody is HTML for who asks for it, else JSON. Both hold fixed words only, and the request's id.
func (x *exchange) errorBody(f *fault) (kind string, body []byte) {
	text := strconv.Itoa(f.status) + " " + statusText(f.status)
	page := f.page
	if page == nil && x.route != nil {
		page = x.route.errorPage(f.status)
	}
	if page != nil {
		return page.kind, page.body(f.status, x.rec.RequestID)
	}
	id := string(x.rec.RequestID)
	if accept, _ := x.req.Fields.Get("accept"); bytes.Contains(accept, []byte("text/html")) {
		return "text/html; charset=utf-8", []byte("<!doctype html><title>" + text + "</title><h1>" + text + "</h1><p>" +
			f.reason.String() + ", request " + id + "\n")
	}
	return "application/json", []byte(`{"status":` + strconv.Itoa(f.status) + `,"error":"` + f.reason.String() +
		`","request_id":"` + id + "\"}\n")
}

// sendOwn writes an answer of ours.
func (x *exchange) sendOwn(status int, fields, body []byte) *fault {
	x.closing = x.closing || !x.skipBody() || x.lastRequest()
	x.rec.Status = status
	x.borrowOut()
	out := append(x.out, "HTTP/1.1 "...)
	out = strconv.AppendInt(out, int64(status), 10)
	out = append(out, ' ')
	out = append(out, statusText(status)...)
	out = append(out, "\r\n"...)
	fieldsFrom := len(out)
	out = append(out, "Date: "...)
	out = append(out, x.date()...)
	out = append(out, "\r\nX-Request-Id: "...)
	out = append(out, x.rec.RequestID...)
	out = append(out, "\r\n"...)
	out = append(out, fields...)
	out = x.route.responseAfter(x.form.response).Edit(out, fieldsFrom)
	if status != 204 && status != 304 {
		out = append(out, "Content-Length: "...)
		out = strconv.AppendInt(out, int64(len(body)), 10)
		out = append(out, "\r\n"...)
	} else {
		body = nil
	}
	switch {
	case x.closing:
		out = append(out, "Connection: close\r\n"...)
	case x.req.Minor == 0:
		out = append(out, "Connection: keep-alive\r\n"...)
	}
	out = append(out, "\r\n"...)
	if string(x.req.Method) != "HEAD" {
		out = append(out, body...)
		x.rec.ResponseBytes = int64(len(body))
	}
	x.out = out
	if x.closing {
		return x.putLast(out)
	}
	return x.put(out)
}

// skipBody drops the request's body if all of it is at hand, and reports whether the next request can follow.
func (x *exchange) skipBody() bool {
	for x.req.Framing != http1.NoBody && !x.up.body.Done() {
		if x.in.empty() {
			return false
		}
		if _, f := x.up.decode(&x.in, len(x.in.bytes())); f != nil {
			return false
		}
	}
	x.up.done = true
	return true
}
