package vectest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
)

// judgeAfter is how many recorded octets a connection collects before they are judged.
const judgeAfter = 32 << 10

// echo is the campaign's backend. It reads strictly, says in each answer which request it is for, and judges what came on
// each connection as it goes.
type echo struct {
	listener net.Listener
	report   *Report
	requests atomic.Int64
	wg       sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]bool
}

func newEcho(report *Report) (*echo, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	e := &echo{listener: l, report: report, conns: map[net.Conn]bool{}}
	e.wg.Go(e.accept)
	return e, nil
}

func (e *echo) close() {
	e.listener.Close()
	e.mu.Lock()
	for c := range e.conns {
		c.Close()
	}
	e.mu.Unlock()
	e.wg.Wait()
}

func (e *echo) accept() {
	for {
		c, err := e.listener.Accept()
		if err != nil {
			return
		}
		e.mu.Lock()
		e.conns[c] = true
		e.mu.Unlock()
		e.wg.Go(func() {
			e.serve(c)
			c.Close()
			e.mu.Lock()
			delete(e.conns, c)
			e.mu.Unlock()
		})
	}
}

// record keeps what is read through it.
type record struct {
	io.Reader
	octets []byte
}

func (r *record) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	r.octets = append(r.octets, p[:n]...)
	return n, err
}

func (e *echo) serve(c net.Conn) {
	rec := &record{Reader: c}
	r := bufio.NewReader(rec)
	for served := 0; ; {
		q, err := strict.read(r, func() { io.WriteString(c, "HTTP/1.1 100 Continue\r\n\r\n") })
		if err != nil {
			e.judge(rec.octets, served, err)
			return
		}
		served++
		e.requests.Add(1)
		answer, last := answerTo(q)
		if _, err := io.WriteString(c, answer); err != nil || last {
			e.judge(rec.octets, served, io.EOF)
			return
		}
		if whole := len(rec.octets) - r.Buffered(); whole > judgeAfter {
			e.judge(rec.octets[:whole], served, nil)
			rec.octets = append(rec.octets[:0], rec.octets[whole:]...)
			served = 0
		}
	}
}

// judge reads raw as every personality would. end is why a strict reader went no further; nil says that raw ends with a
// request's end.
func (e *echo) judge(raw []byte, served int, end error) {
	count, faults := inspect(&Vector{}, raw)
	if end == nil && count != served {
		faults = append(faults, Fault{Critical, fmt.Sprintf("%d requests at a place where %d had ended", count, served)})
	}
	if bad := malformed(""); errors.As(end, &bad) && len(faults) == 0 {
		faults = append(faults, Fault{Noncanonical, bad.Error()})
	}
	for _, f := range faults {
		e.report.fault(f, raw)
	}
}

// answerTo names the request in the answer, in one of the forms that answers have. last: the connection ends with it.
func answerTo(q *request) (answer string, last bool) {
	tag := ""
	for _, line := range q.fields {
		if name, value, _ := strings.Cut(line, ":"); strings.EqualFold(name, "x-tag") {
			tag = strings.TrimSpace(value)
		}
	}
	body := q.target + "\n" + tag + "\n"
	fields := "X-Method: " + q.method + "\r\n"
	form := 0
	for _, c := range []byte(body) {
		form += int(c)
	}
	if form%5 == 0 {
		answer = "HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\n"
	}
	if last = form%7 == 0; last {
		fields += "Connection: close\r\n"
	}
	framing := fmt.Sprintf("Content-Length: %d\r\n", len(body))
	switch {
	case form%3 == 0:
		framing = "Transfer-Encoding: chunked\r\n"
		body = fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(body), body)
	case form%11 == 0 && last:
		framing = ""
	}
	if q.method == "HEAD" {
		body = ""
	}
	return answer + "HTTP/1.1 200 OK\r\n" + fields + framing + "\r\n" + body, last
}
