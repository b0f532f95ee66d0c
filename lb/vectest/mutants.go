package vectest

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
)

const (
	pairsMax = 8 // mutants on one connection, each with its probe
	// quiet is how long a client that goes step by step waits for an answer before it says that no more comes. Slow answers
	// are judged the same.
	quiet = 100 * time.Millisecond
	// hang is when a connection that neither answers nor ends is a fault.
	hang = 30 * time.Second
	// answersMax is far more than the answers to all of a connection's requests take, in octets.
	answersMax = 1 << 20
)

// mutantConn is one of a campaign's connections.
type mutantConn struct {
	*Campaign
	net.Conn
	tag  string
	sent bytes.Buffer
	n    int64 // requests sent
	r    *bufio.Reader
	got  bytes.Buffer
	// answers, in order
	answers []mutantAnswer
}

// mutantAnswer is a final answer as far as it matters.
type mutantAnswer struct {
	status  int
	close   bool
	backend bool // it is the backend's
	method  string
	target  string
	tag     string
}

// connection sends what the mutator makes, and judges the answers.
func (c *Campaign) connection(number uint64, target Target, m *mutator) {
	conn, err := dial(target)
	if err != nil {
		c.report.fault(Fault{Critical, "connect: " + err.Error()}, nil)
		return
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(hang))
	mc := &mutantConn{Campaign: c, Conn: conn, tag: c.tagOf(number)}
	mc.r = bufio.NewReader(io.TeeReader(conn, &mc.got))
	pairs := 1 + m.random.IntN(pairsMax)
	if m.random.IntN(2) == 0 {
		err = mc.pipeline(m, pairs)
	} else {
		err = mc.stepByStep(m, pairs)
	}
	mc.judge(err)
}

func (c *mutantConn) probeTarget(i int) string { return fmt.Sprintf("/probe/%s/%d", c.tag, i) }

// pair is a mutant and its probe.
func (c *mutantConn) pair(m *mutator, i int) []byte {
	probe := fmt.Sprintf("GET %s HTTP/1.1\r\nHost: v.test\r\nX-Tag: %s\r\n\r\n", c.probeTarget(i), c.tag)
	c.n += 2
	return append(m.next(c.tag), probe...)
}

// pipeline sends all at once, in a few pieces, and reads to the end.
func (c *mutantConn) pipeline(m *mutator, pairs int) error {
	var all []byte
	for i := range pairs {
		all = append(all, c.pair(m, i)...)
	}
	c.sent.Write(all)
	for pieces := m.random.IntN(4); pieces > 0 && len(all) > 1; pieces-- {
		at := 1 + m.random.IntN(len(all)-1)
		if _, err := c.Write(all[:at]); err != nil {
			return c.toTheEnd() // it has closed: what it answered before is judged
		}
		all = all[at:]
	}
	c.Write(all) // likewise
	return c.toTheEnd()
}

// stepByStep sends the next pair when the last probe is answered.
func (c *mutantConn) stepByStep(m *mutator, pairs int) error {
	for i := range pairs {
		pair := c.pair(m, i)
		c.sent.Write(pair)
		if _, err := c.Write(pair); err != nil {
			return c.toTheEnd()
		}
		for {
			c.SetReadDeadline(time.Now().Add(quiet))
			_, err := c.r.Peek(1)
			c.SetReadDeadline(time.Now().Add(hang))
			if err != nil {
				return c.toTheEnd()
			}
			if err := c.answer(); err != nil {
				return err
			}
			if a := c.answers[len(c.answers)-1]; a.target == c.probeTarget(i) {
				break
			}
		}
	}
	return c.toTheEnd()
}

// toTheEnd half-closes and reads until the proxy ends the connection.
func (c *mutantConn) toTheEnd() error {
	closeWrite(c.Conn)
	for {
		if err := c.answer(); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// answer reads a final answer. io.EOF: there is none.
func (c *mutantConn) answer() error {
	for {
		if c.got.Len() > answersMax {
			return errors.New("it answers without end")
		}
		method, err := c.peekMethod()
		if err != nil {
			if timeout := net.Error(nil); errors.As(err, &timeout) && timeout.Timeout() {
				return errors.New("it hangs")
			}
			return io.EOF // a reset is an end, too, when nothing was under way
		}
		resp, err := http.ReadResponse(c.r, &http.Request{Method: method})
		if err != nil {
			return fmt.Errorf("answer's head: %w", err)
		}
		if resp.StatusCode < 200 {
			continue
		}
		a := mutantAnswer{status: resp.StatusCode, close: resp.Close, method: method, backend: method != ""}
		body, err := io.ReadAll(resp.Body)
		if err != nil && (a.backend || len(body) > 0) { // the proxy's own answer to HEAD announces a body, and ends the connection
			return fmt.Errorf("answer's body: %w", err)
		}
		if a.backend {
			a.target, a.tag, _ = strings.Cut(strings.TrimSuffix(string(body), "\n"), "\n")
		}
		c.answers = append(c.answers, a)
		return nil
	}
}

// peekMethod waits for a head and returns the method that the backend names in it; none: the answer is the proxy's own.
func (c *mutantConn) peekMethod() (string, error) {
	for n := 1; ; n = c.r.Buffered() + 1 {
		_, err := c.r.Peek(n)
		seen, _ := c.r.Peek(c.r.Buffered())
		head, _, whole := bytes.Cut(seen, []byte("\r\n\r\n"))
		switch {
		case whole || err != nil && len(seen) > 0: // what is wrong with a head that has no end shows when it is read
			_, rest, _ := bytes.Cut(head, []byte("X-Method: "))
			method, _, _ := bytes.Cut(rest, []byte("\r\n"))
			return string(method), nil
		case err != nil:
			return "", err
		}
	}
}

// judge looks at all answers of the connection. err is what was wrong with reading them.
func (c *mutantConn) judge(err error) {
	report := func(format string, args ...any) {
		octets := fmt.Appendf(nil, "tag %s\n>>> %s\n<<< %s", c.tag, c.sent.Bytes(), c.got.Bytes())
		c.report.fault(Fault{Critical, fmt.Sprintf(format, args...)}, octets)
	}
	if err != nil {
		report("%v", err)
	}
	probes, ended := -1, false
	for i, a := range c.answers {
		if c.isTag(a.tag) && a.tag != c.tag {
			report("answer %d is for the connection %s", i, a.tag)
		}
		if ended {
			report("answer %d comes behind the last", i)
		}
		ended = a.close
		if rest, found := strings.CutPrefix(a.target, "/probe/"+c.tag+"/"); found {
			n, err := strconv.Atoi(rest)
			if err != nil || n <= probes {
				report("probe %d is answered behind probe %d", n, probes)
			}
			probes = n
		}
		if a.status >= 500 && a.status != 501 && a.status != 505 {
			report("answer %d is %d", i, a.status)
		}
	}
	c.compare(report)
	c.count()
}

// compare: where a strict reader takes all that was sent, and the proxy refused nothing and did not end the connection, it
// must have read the same requests.
func (c *mutantConn) compare(report func(string, ...any)) {
	reqs, err := strict.requests(c.sent.Bytes())
	if err != nil {
		return
	}
	if n := len(c.answers); n > len(reqs) {
		report("%d answers to %d requests", n, len(reqs))
		return
	}
	ended := false
	for i, a := range c.answers {
		ended = a.close
		if a.backend && a.method != reqs[i].method {
			report("answer %d is for %s, the request was %s", i, a.method, reqs[i].method)
		}
		if strings.HasPrefix(reqs[i].target, "/probe/") && a.status == 200 && a.target != reqs[i].target {
			report("answer %d is for %s, the request was %s", i, a.target, reqs[i].target)
		}
	}
	if !ended && len(c.answers) < len(reqs) {
		report("%d answers to %d requests, and no reason", len(c.answers), len(reqs))
	}
}

func (c *mutantConn) count() {
	c.report.mu.Lock()
	defer c.report.mu.Unlock()
	c.report.Connections++
	c.report.Sent += c.n
	c.report.Answers += int64(len(c.answers))
	for _, a := range c.answers {
		c.report.Statuses[a.status]++
	}
}
