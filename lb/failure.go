package lb

import (
	"errors"
	"io"
	"strconv"
	"syscall"
	"time"
)

// failure is how a try failed by the backend's fault. Immutable.
type failure struct {
	at     time.Time
	status int // of an answer that counts as an error; 0: detail says what
	detail string
	cause  error
}

// newFailure makes it of a try's fault, or of the status of its answer where that is all.
func newFailure(at time.Time, f *fault, status int) *failure {
	if f == nil || f == faultStatus {
		return &failure{at: at, status: status}
	}
	return &failure{at: at, detail: f.detail, cause: f.cause}
}

// failureWords are for operators what details are for programs. Others are the parser's, and stand behind "answer".
var failureWords = map[string]string{
	"connect":                  "connect",
	"connect_timeout":          "connect",
	"backend_tls":              "TLS",
	"send":                     "send the request",
	"no_answer":                "no answer",
	"answer":                   "no answer in time",
	"answer_head":              "answer's head",
	"request_time":             "no whole answer in the request's time",
	"ended_early":              "answer ended early",
	"body":                     "answer's body",
	"too_many_interim_answers": "too many interim answers",
	"tunnel":                   "tunnel",
}

// words say it: "status 503", "connect: connection refused".
func (f *failure) words() string {
	if f.status != 0 {
		return "status " + strconv.Itoa(f.status)
	}
	text, known := failureWords[f.detail]
	if !known {
		text = "answer: " + f.detail
	}
	var number syscall.Errno
	switch {
	case isTimeout(f.cause) && (f.detail == "answer" || f.detail == "request_time"):
	case isTimeout(f.cause):
		text += ": timeout"
	case errors.As(f.cause, &number):
		text += ": " + number.Error()
	case errors.Is(f.cause, io.EOF):
		text += ": connection closed"
	case f.cause != nil:
		text += ": " + f.cause.Error()
	}
	return text
}
