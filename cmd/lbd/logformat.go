package main

import (
	"strconv"
	"time"
	"unicode/utf8"

	"lbd/lb"
)

// logFormat appends a record as one line.
type logFormat func(dst []byte, r *lb.Record) []byte

// logFormats are the words of --access-log-format.
var logFormats = map[string]logFormat{
	"json":     appendJSON,
	"common":   appendCommon,
	"combined": appendCombined,
}

// logFieldBytesMax is where what a client sent is cut: a head may have 64 KiB, and six bytes in the log for each.
const logFieldBytesMax = 2048

// appendJSON writes an object. Times are in milliseconds; what is not known or did not happen is left out.
func appendJSON(dst []byte, r *lb.Record) []byte {
	dst = append(dst, `{"time":"`...)
	dst = r.Time.UTC().AppendFormat(dst, "2006-01-02T15:04:05.000Z07:00")
	dst = append(dst, '"')
	dst = appendText(dst, "node", r.Node)
	dst = appendText(dst, "listener", r.Listener)
	dst = append(dst, `,"client":"`...)
	dst = r.Client.AppendTo(dst)
	dst = append(dst, '"')
	dst = appendRequest(dst, r)
	dst = appendText(dst, "route", r.Route)
	dst = appendText(dst, "pool", r.Pool)
	dst = appendText(dst, "backend", r.Backend)
	dst = appendNumber(dst, "status", int64(r.Status))
	dst = appendText(dst, "reason", r.Reason.String())
	dst = appendText(dst, "detail", r.Detail)
	dst = appendNumber(dst, "request_bytes", r.RequestBytes)
	dst = appendNumber(dst, "response_bytes", r.ResponseBytes)
	dst = appendNumber(dst, "tries", int64(r.Tries))
	dst = appendFlag(dst, "reused", r.Reused)
	dst = appendMillis(dst, "head_ms", r.Head)
	if r.Tries > 0 {
		dst = appendMillis(dst, "connect_ms", r.Connect)
		dst = appendMillis(dst, "first_byte_ms", r.FirstByte)
	}
	if r.Queued > 0 { // perhaps for nothing
		dst = appendMillis(dst, "queue_ms", r.Queued)
	}
	dst = appendMillis(dst, "total_ms", r.Total)
	if r.TLS != nil {
		dst = appendTLS(dst, r.TLS)
	}
	return append(dst, '}', '\n')
}

// appendRequest says what was asked; of a head that was refused, its first line as it came.
func appendRequest(dst []byte, r *lb.Record) []byte {
	dst = appendText(dst, "request_id", r.RequestID)
	if r.Method == nil {
		return appendText(dst, "line", r.Line)
	}
	if r.Minor == 0 {
		dst = appendText(dst, "protocol", "HTTP/1.0")
	} else {
		dst = appendText(dst, "protocol", "HTTP/1.1")
	}
	dst = appendText(dst, "method", r.Method)
	dst = appendText(dst, "host", r.Host)
	dst = appendText(dst, "path", r.Path)
	dst = appendText(dst, "query", r.Query)
	dst = appendText(dst, "user_agent", r.UserAgent)
	return appendText(dst, "referer", r.Referer)
}

func appendTLS(dst []byte, f *lb.TLSFacts) []byte {
	dst = appendText(dst, "tls_version", f.Version)
	dst = appendText(dst, "tls_cipher", f.Suite)
	dst = appendText(dst, "tls_server_name", f.ServerName)
	dst = appendText(dst, "tls_alpn", f.Protocol)
	return appendFlag(dst, "tls_resumed", f.Resumed)
}

func appendKey(dst []byte, key string) []byte {
	dst = append(dst, `,"`...)
	dst = append(dst, key...)
	return append(dst, `":`...)
}

func appendText[T string | []byte](dst []byte, key string, value T) []byte {
	if len(value) == 0 {
		return dst
	}
	dst = append(appendKey(dst, key), '"')
	dst = appendEscaped(dst, value, false)
	return append(dst, '"')
}

func appendNumber(dst []byte, key string, value int64) []byte {
	return strconv.AppendInt(appendKey(dst, key), value, 10)
}

func appendFlag(dst []byte, key string, set bool) []byte {
	if !set {
		return dst
	}
	return append(appendKey(dst, key), "true"...)
}

// appendMillis writes at most three digits after the point.
func appendMillis(dst []byte, key string, d time.Duration) []byte {
	us := max(0, d.Microseconds())
	dst = strconv.AppendInt(appendKey(dst, key), us/1000, 10)
	if us %= 1000; us > 0 {
		dst = append(dst, '.', byte('0'+us/100), byte('0'+us/10%10), byte('0'+us%10))
	}
	return dst
}

const hexDigits = "0123456789abcdef"

// appendEscaped writes what clients sent so that it can end neither the string nor the line. What is not UTF-8 is written
// byte by byte: as \u00XX in JSON, as \xXX in a plain format, which has only ASCII.
func appendEscaped[T string | []byte](dst []byte, value T, plain bool) []byte {
	value = value[:min(len(value), logFieldBytesMax)]
	for i := 0; i < len(value); {
		if n := harmless(value[i:]); n > 0 {
			dst = append(dst, value[i:i+n]...)
			i += n
			continue
		}
		c := value[i]
		switch {
		case c == '"' || c == '\\':
			dst = append(dst, '\\', c)
		case plain:
			dst = append(dst, '\\', 'x', hexDigits[c>>4], hexDigits[c&15])
		case c >= utf8.RuneSelf:
			if _, n := utf8.DecodeRuneInString(string(value[i:min(len(value), i+utf8.UTFMax)])); n > 1 {
				dst = append(dst, value[i:i+n]...)
				i += n
				continue
			}
			fallthrough
		default:
			dst = append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		}
		i++
	}
	return dst
}

// harmless counts the bytes at the front that stand for themselves in every format.
func harmless[T string | []byte](value T) int {
	for i := range len(value) {
		if c := value[i]; c < ' ' || c >= 0x7f || c == '"' || c == '\\' {
			return i
		}
	}
	return len(value)
}

// appendCommon writes the Common Log Format: host - - [time] "request" status bytes.
func appendCommon(dst []byte, r *lb.Record) []byte {
	return append(commonLine(dst, r), '\n')
}

// appendCombined is appendCommon with Referer and User-Agent.
func appendCombined(dst []byte, r *lb.Record) []byte {
	dst = append(commonLine(dst, r), ` "`...)
	dst = orDash(dst, r.Referer)
	dst = append(dst, `" "`...)
	dst = orDash(dst, r.UserAgent)
	return append(dst, '"', '\n')
}

func orDash(dst, value []byte) []byte {
	if len(value) == 0 {
		return append(dst, '-')
	}
	return appendEscaped(dst, value, true)
}

// commonLine has the time in the node's time zone, as the format's tools expect.
func commonLine(dst []byte, r *lb.Record) []byte {
	dst = r.Client.Addr().AppendTo(dst)
	dst = append(dst, ` - - [`...)
	dst = r.Time.Local().AppendFormat(dst, "02/Jan/2006:15:04:05 -0700")
	dst = append(dst, `] "`...)
	if r.Method == nil {
		dst = orDash(dst, r.Line)
	} else {
		dst = appendEscaped(dst, r.Method, true)
		dst = append(dst, ' ')
		dst = appendEscaped(dst, r.Target, true)
		dst = append(dst, ` HTTP/1.`...)
		dst = strconv.AppendInt(dst, int64(r.Minor), 10)
	}
	dst = append(dst, `" `...)
	dst = strconv.AppendInt(dst, int64(r.Status), 10)
	dst = append(dst, ' ')
	return strconv.AppendInt(dst, r.ResponseBytes, 10)
}
