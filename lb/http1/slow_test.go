package http1

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// The slow twin: the same rules written the obvious way, over strings, with the grammar as
// regular expressions and the standard library for addresses. It is the reference for the
// fuzz targets, and must share no code with what it checks.

const tokenRE = "[!#$%&'*+\\-.^_`|~0-9A-Za-z]+"

var (
	slowRequestLine = regexp.MustCompile(`^(` + tokenRE + `) ([^ ]+) HTTP/1\.([0-9])$`)
	slowStatusLine  = regexp.MustCompile(`^HTTP/1\.([0-9]) ([1-5][0-9][0-9])(?: ((?s:.*)))?$`)
	slowField       = regexp.MustCompile(`(?s)^(` + tokenRE + `):(.*)$`)
	slowAnswerField = regexp.MustCompile(`(?s)^(` + tokenRE + `)[ \t]*:(.*)$`)
	slowName        = regexp.MustCompile(`^[0-9A-Za-z_-]+(\.[0-9A-Za-z_-]+)*\.?$`)
	slowPort        = regexp.MustCompile(`^(:[0-9]*)?$`)
	slowExtension   = regexp.MustCompile(`(?s)^([ \t]*;[ \t]*` + tokenRE + `([ \t]*=[ \t]*(` + tokenRE +
		`|"(\\[^\x00-\x08\x0a-\x1f\x7f]|[^"\\\x00-\x08\x0a-\x1f\x7f])*"))?)*$`)
	slowDisguised = regexp.MustCompile(`(^|/|%2F|%5C)\.\.?(;[^/]*?)?($|/|%2F|%5C)`)
)

// slowMessage is what both kinds of head come to.
type slowMessage struct {
	method, host, authority, path, query string
	hasHost, slash                       bool
	status                               int
	minor                                int
	fields                               [][2]string
	framing                              Framing
	length                               int64
	keepAlive, expect, upgrade, trailers bool
	kept                                 [][2]string // fields that go on, with no rules and no trust
}

func (m *slowMessage) String() string { return fmt.Sprintf("%+v", *m) }

// slowHead splits a whole head off b. ok is false if there is none, or one that no rule allows.
func slowHead(b string, lim *Limits, field *regexp.Regexp) (first string, fields [][2]string, n int, ok bool) {
	end := strings.Index(b, "\r\n\r\n")
	if end < 0 || end+4 > lim.HeadBytes {
		return "", nil, 0, false
	}
	lines := strings.Split(b[:end], "\r\n")
	if strings.ContainsAny(strings.Join(lines, ""), "\r\n") || len(lines)-1 > lim.Fields {
		return "", nil, 0, false
	}
	for _, line := range lines[1:] {
		m := field.FindStringSubmatch(line)
		if m == nil || slowHasControl(m[2]) {
			return "", nil, 0, false
		}
		fields = append(fields, [2]string{m[1], strings.Trim(m[2], " \t")})
	}
	return lines[0], fields, end + 4, true
}

func slowHasControl(s string) bool {
	return strings.ContainsFunc(s, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f })
}

func slowRequest(b string, lim *Limits) (m *slowMessage, n int, ok bool) {
	b, skipped := strings.CutPrefix(b, "\r\n")
	lim = &Limits{lim.HeadBytes, lim.Fields}
	if skipped {
		lim.HeadBytes -= 2
	}
	first, fields, n, ok := slowHead(b, lim, slowField)
	if !ok {
		return nil, 0, false
	}
	if skipped {
		n += 2
	}
	line := slowRequestLine.FindStringSubmatch(first)
	if line == nil || len(line[1]) > methodBytesMax || line[1] == "CONNECT" || line[1] == "TRACE" {
		return nil, 0, false
	}
	m = &slowMessage{method: line[1], fields: fields, length: -1}
	m.minor = min(int(line[3][0]-'0'), 1)
	if !m.target(line[2]) || !m.findHost() || !m.requestBody() || !m.connection(true) {
		return nil, 0, false
	}
	return m, n, true
}

func (m *slowMessage) values(name string) (v []string) {
	for _, f := range m.fields {
		if strings.EqualFold(f[0], name) {
			v = append(v, f[1])
		}
	}
	return v
}

func slowList(values []string) (elements []string) {
	for _, v := range values {
		for _, e := range strings.Split(v, ",") {
			elements = append(elements, strings.ToLower(strings.Trim(e, " \t")))
		}
	}
	return elements
}

func (m *slowMessage) target(t string) bool {
	if strings.ContainsAny(t, "#\x7f") || strings.ContainsFunc(t, func(r rune) bool { return r <= ' ' }) {
		return false
	}
	if t == "*" {
		m.path = "*"
		return m.method == "OPTIONS"
	}
	if !strings.HasPrefix(t, "/") {
		scheme, rest, found := strings.Cut(t, "://")
		if s := strings.ToLower(scheme); !found || s != "http" && s != "https" {
			return false
		}
		end := strings.IndexAny(rest+"/", "/?")
		m.authority, t = rest[:end], rest[end:]
		if m.authority == "" {
			return false
		}
		if t == "" && m.method == "OPTIONS" {
			m.path = "*"
			return true
		}
		if !strings.HasPrefix(t, "/") {
			t = "/" + t
		}
	}
	path, query, found := strings.Cut(t, "?")
	if found {
		m.query = "?" + query
	}
	var ok bool
	m.path, m.slash, ok = slowPath(path)
	return ok
}

// slowPath escapes and unescapes first, looks for disguises, and then runs the algorithm of
// RFC 3986 5.2.4 as it is written there.
func slowPath(p string) (string, bool, bool) {
	var b strings.Builder
	for i := 0; i < len(p); i++ {
		c := p[i]
		switch {
		case c == '%':
			if i+3 > len(p) {
				return "", false, false
			}
			v, err := strconv.ParseUint(p[i+1:i+3], 16, 8)
			if err != nil || v == 0 {
				return "", false, false
			}
			if regexp.MustCompile(`^[A-Za-z0-9._~-]$`).MatchString(string(rune(v))) {
				b.WriteByte(byte(v))
			} else {
				fmt.Fprintf(&b, "%%%02X", v)
			}
			i += 2
		case strings.IndexByte("\"<>\\^`{|}[]", c) >= 0 || c >= 0x80:
			fmt.Fprintf(&b, "%%%02X", c)
		default:
			b.WriteByte(c)
		}
	}
	for _, segment := range strings.Split(b.String(), "/") {
		if segment != "." && segment != ".." && slowDisguised.MatchString(segment) {
			return "", false, false
		}
	}
	slash := strings.Contains(b.String(), "%2F") || strings.Contains(b.String(), "%5C")
	return slowRemoveDots(b.String()), slash, true
}

func slowRemoveDots(in string) string {
	out := ""
	for in != "" {
		switch {
		case strings.HasPrefix(in, "/./"):
			in = in[2:]
		case in == "/.":
			in = "/"
		case strings.HasPrefix(in, "/../"), in == "/..":
			in = "/" + strings.TrimPrefix(in[3:], "/")
			out = out[:max(0, strings.LastIndex(out, "/"))]
		default:
			end := strings.Index(in[1:]+"/", "/") + 1
			out, in = out+in[:end], in[end:]
		}
	}
	return out
}

func (m *slowMessage) findHost() bool {
	hosts := m.values("Host")
	if len(hosts) > 1 || len(hosts) == 0 && m.minor > 0 {
		return false
	}
	if len(hosts) == 1 {
		if _, ok := slowHost(hosts[0]); !ok {
			return false
		}
		if m.authority == "" {
			m.authority = hosts[0]
		}
	}
	if m.authority == "" {
		return true
	}
	m.host, m.hasHost = slowHost(m.authority)
	return m.hasHost
}

func slowHost(a string) (string, bool) {
	host, port := a, ""
	if strings.HasPrefix(a, "[") {
		end := strings.Index(a, "]")
		if end < 0 {
			return "", false
		}
		host, port = a[:end+1], a[end+1:]
		ip, err := netip.ParseAddr(a[1:end])
		if err != nil || !ip.Is6() || ip.Zone() != "" {
			return "", false
		}
	} else if i := strings.Index(a, ":"); i >= 0 {
		host, port = a[:i], a[i:]
	}
	if !strings.HasPrefix(host, "[") && (!slowName.MatchString(host) || len(host) > hostBytesMax) {
		return "", false
	}
	if !slowPort.MatchString(port) {
		return "", false
	}
	if len(port) > 1 {
		if _, err := strconv.ParseUint(port[1:], 10, 16); err != nil {
			return "", false
		}
	}
	return strings.ToLower(strings.TrimSuffix(host, ".")), true
}

func (m *slowMessage) requestBody() bool {
	tes, cls := m.values("Transfer-Encoding"), m.values("Content-Length")
	switch {
	case len(tes) > 0:
		m.framing = Chunked
		return m.minor > 0 && len(cls) == 0 && len(tes) == 1 && strings.EqualFold(tes[0], "chunked")
	case len(cls) > 0:
		m.framing = Length
		return m.contentLength(cls)
	}
	return true
}

func (m *slowMessage) contentLength(cls []string) bool {
	n, err := strconv.ParseUint(cls[0], 10, 63)
	m.length = int64(n)
	return err == nil && len(cls) == 1 && strings.Trim(cls[0], "0123456789") == ""
}

func (m *slowMessage) connection(request bool) bool {
	options := slowList(m.values("Connection"))
	if len(options) > connectionOptionsMax {
		return false
	}
	m.keepAlive = !slices.Contains(options, "close") && (m.minor > 0 || slices.Contains(options, "keep-alive"))
	m.upgrade = m.minor > 0 && m.method == "GET" && m.framing == NoBody && slices.Contains(options, "upgrade") &&
		slices.Contains(slowList(m.values("Upgrade")), "websocket")
	m.trailers = m.minor > 0 && slices.Contains(slowList(m.values("TE")), "trailers")
	if request && m.minor > 0 {
		for _, v := range m.values("Expect") {
			if !strings.EqualFold(v, "100-continue") {
				return false
			}
			m.expect = m.framing == Chunked || m.length > 0
		}
	}
	m.keep(options, request)
	return true
}

// keep makes the list of the fields that go on.
func (m *slowMessage) keep(options []string, request bool) {
	same := func(s string) string { return strings.ReplaceAll(strings.ToLower(s), "_", "-") }
	var known []string
	for _, n := range nameTexts {
		known = append(known, n)
	}
	gone := strings.Fields("content-length transfer-encoding connection keep-alive proxy-connection te upgrade " +
		"http2-settings proxy-authenticate")
	if request {
		gone = append(gone, strings.Fields("host expect x-forwarded-for x-forwarded-proto x-forwarded-host x-forwarded-port "+
			"x-request-id client-cert client-cert-chain early-data proxy proxy-authorization forwarded")...)
	}
	if m.framing != Chunked {
		gone = append(gone, "trailer")
	}
	for _, f := range m.fields {
		name := strings.ToLower(f[0])
		twin := strings.Contains(name, "_") && slices.Contains(known, same(name))
		named := slices.ContainsFunc(options, func(o string) bool {
			return same(o) == same(name) && !slices.Contains([]string{"", "close", "keep-alive", "upgrade", "date", "via"}, o)
		})
		if twin || named && name != "date" && name != "via" || slices.Contains(gone, name) {
			continue
		}
		m.kept = append(m.kept, f)
	}
}

func slowAnswer(b string, lim *Limits, head, upgrade bool) (m *slowMessage, n int, ok bool) {
	first, fields, n, ok := slowHead(b, lim, slowAnswerField)
	if !ok {
		return nil, 0, false
	}
	line := slowStatusLine.FindStringSubmatch(first)
	if line == nil || slowHasControl(line[3]) {
		return nil, 0, false
	}
	m = &slowMessage{fields: fields, length: -1}
	m.minor = min(int(line[1][0]-'0'), 1)
	m.status, _ = strconv.Atoi(line[2])
	if !m.answerBody(head) || !m.connection(false) {
		return nil, 0, false
	}
	if m.framing == UntilClose {
		m.keepAlive = false
	}
	tes, cls := m.values("Transfer-Encoding"), m.values("Content-Length")
	switch {
	case m.status == 101:
		asked := upgrade && slices.Contains(slowList(m.values("Connection")), "upgrade") &&
			slices.Contains(slowList(m.values("Upgrade")), "websocket")
		return m, n, asked
	case m.status < 200, m.status == 204:
		m.keepAlive = m.keepAlive && len(tes) == 0 && (len(cls) == 0 || m.length == 0)
		m.length = -1
	}
	return m, n, true
}

func (m *slowMessage) answerBody(head bool) bool {
	tes, cls := m.values("Transfer-Encoding"), m.values("Content-Length")
	if len(tes) > 0 && (m.minor == 0 || len(cls) > 0 || len(tes) > 1 || !strings.EqualFold(tes[0], "chunked")) {
		return false
	}
	if len(cls) > 0 && !m.contentLength(cls) {
		return false
	}
	switch {
	case m.status < 200, m.status == 204, m.status == 304, head:
		m.framing = NoBody
	case len(tes) > 0:
		m.framing = Chunked
	case len(cls) > 0:
		m.framing = Length
	default:
		m.framing = UntilClose
	}
	return true
}

// slowChunked decodes a whole chunked body. ok is false if b has none at its front.
func slowChunked(b string) (payload, trailer, rest string, ok bool) {
	excess := int64(0)
	for {
		line, after, found := strings.Cut(b, "\r\n")
		if !found || strings.Contains(line, "\n") || len(line)+2 > chunkLineBytesMax {
			return "", "", "", false
		}
		digits := len(line) - len(strings.TrimLeft(line, "0123456789abcdefABCDEF"))
		if digits > 16 || !slowExtension.MatchString(line[digits:]) {
			return "", "", "", false
		}
		size, err := strconv.ParseUint(line[:digits], 16, 63)
		if err != nil {
			return "", "", "", false
		}
		if extension := int64(len(line) - digits); extension > 0 {
			if excess += extension; excess > extensionBytesMax {
				return "", "", "", false
			}
		}
		excess -= int64(size)
		b = after
		if size == 0 {
			break
		}
		if uint64(len(b)) < size || !strings.HasPrefix(b[size:], "\r\n") {
			return "", "", "", false
		}
		payload += b[:size]
		b = b[size+2:]
	}
	for count := 0; ; count++ {
		line, after, found := strings.Cut(b, "\r\n")
		if !found || strings.Contains(line, "\n") || len(line)+2 > trailerBytesMax-len(trailer) {
			return "", "", "", false
		}
		b = after
		if line == "" {
			return payload, trailer, b, true
		}
		m := slowField.FindStringSubmatch(line)
		if m == nil || slowHasControl(m[2]) || count == trailerFieldsMax {
			return "", "", "", false
		}
		name := strings.ReplaceAll(strings.ToLower(m[1]), "_", "-")
		forbidden := slices.ContainsFunc(slices.Concat(nameTexts[nameHost:], headOnly[:]), func(n string) bool { return n == name })
		if !forbidden {
			trailer += m[1] + ": " + strings.Trim(m[2], " \t") + "\r\n"
		}
	}
}
