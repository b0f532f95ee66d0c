package vectest

import (
	"fmt"
	"strings"
)

// Result is what came of a vector.
type Result struct {
	Statuses []int  // the final answers that the client got
	Closed   bool   // the proxy closed the connection, or said so in its last answer
	Requests int    // that the backend got
	Note     string // what was odd about the answers
	Client   string // the vector's own address and port, by which the proxy's log may be searched
	Faults   []Fault
}

func (r *Result) String() string {
	s := fmt.Sprintf("answers %v, closed %v, %d at the backend", r.Statuses, r.Closed, r.Requests)
	if r.Note != "" {
		s += ", " + r.Note
	}
	for _, f := range r.Faults {
		s += "\n\t" + f.String()
	}
	return s
}

func (r *Result) add(s Severity, format string, args ...any) {
	r.Faults = append(r.Faults, Fault{s, fmt.Sprintf(format, args...)})
}

// refused reports whether the client was told no, or nothing at all.
func (r *Result) refused() bool {
	for _, s := range r.Statuses {
		if s >= 400 {
			return true
		}
	}
	return len(r.Statuses) == 0 && r.Closed
}

func (r *Result) good() (n int) {
	for _, s := range r.Statuses {
		if s < 400 {
			n++
		}
	}
	return n
}

// Run sends v through the proxy at target, which must forward every host and path to backend,
// and judges what came of it. Only one Run at a time may use a backend. An error means that the
// proxy could not be reached; what it did wrong is in the Result. Vectors over HTTP/2 are not
// for Run.
func Run(v *Vector, backend *Backend, target Target) (*Result, error) {
	var s *seen
	var err error
	switch v.Proto {
	case "h1":
		backend.begin(nil)
		want := v.Requests
		if v.Expect == Reject {
			want++ // the refusal
		}
		s, err = exchange(target, v.Segments, v.Fin, want, v.MustClose || v.Expect == Close)
	case "resp":
		backend.begin(&answer{octets: join(v.Segments), close: v.Fin})
		s, err = exchange(target, [][]byte{[]byte("GET /resp HTTP/1.1\r\nHost: v.test\r\n\r\n")}, false, 1, v.Expect == Close)
	default:
		err = fmt.Errorf("%s: cannot run %s", v.ID, v.Proto)
	}
	if err != nil {
		return nil, err
	}
	r := &Result{Statuses: s.statuses, Closed: s.closed, Note: s.note, Client: s.client}
	if wrong := probe(target, v.ID); wrong != "" {
		r.add(Critical, "the next client gets: %s", wrong)
	}
	raw := backend.taken()
	if v.Proto == "resp" {
		r.judgeAnswer(v, s)
		return r, nil
	}
	all := ""
	for _, octets := range raw {
		octets, probed := cutProbe(octets, v.ID)
		if probed && len(octets) == 0 {
			continue
		}
		count, faults := inspect(v, octets)
		r.Requests += count
		r.Faults = append(r.Faults, faults...)
		all += strings.ToLower(string(octets))
	}
	r.judge(v, all)
	return r, nil
}

func join(segments [][]byte) (all []byte) {
	for _, s := range segments {
		all = append(all, s...)
	}
	return all
}

// cutProbe takes the probe's request off the end of a record.
func cutProbe(octets []byte, id string) ([]byte, bool) {
	i := strings.Index(string(octets), "GET /probe/"+id+" HTTP/1.1\r\n")
	if i < 0 {
		return octets, false
	}
	return octets[:i], true
}

// judge compares what came of v with its class. forwarded are the octets at the backend.
func (r *Result) judge(v *Vector, forwarded string) {
	if v.Expect != Forward && r.Requests > v.Requests {
		s := Lenient
		if v.Expect == Either {
			s = Critical
		}
		r.add(s, "%d requests reached the backend, %d may", r.Requests, v.Requests)
	}
	switch v.Expect {
	case Reject:
		r.judgeRefusal(v)
	case Close:
		if !r.Closed {
			r.add(Lenient, "the connection stayed open")
		}
	case Forward:
		r.judgeForwarding(v)
	case Either:
		if r.good() == 0 && !r.refused() {
			r.add(Lenient, "neither answered nor refused")
		}
	default:
		r.add(Critical, "class %q is unknown", v.Expect)
	}
	for _, p := range v.Present {
		if r.good() > 0 && !strings.Contains(forwarded, p) {
			r.add(Noncanonical, "%q was not forwarded", p)
		}
	}
	for _, s := range r.Statuses {
		if s == v.StatusNot {
			r.add(Noncanonical, "answered %d", s)
		}
	}
	if v.MustClose && !r.Closed {
		r.add(Lenient, "the connection must close after this")
	}
}

func (r *Result) judgeRefusal(v *Vector) {
	if r.good() > v.Requests {
		r.add(Lenient, "%d good answers", r.good())
	}
	if !r.refused() {
		r.add(Lenient, "neither refused nor closed")
	}
	for _, s := range r.Statuses {
		if s >= 500 && s != 501 && s != 505 {
			r.add(Lenient, "%d does not blame the client", s)
		}
	}
}

func (r *Result) judgeForwarding(v *Vector) {
	if r.Requests < v.Requests || r.good() < v.Requests {
		r.add(OverStrict, "%d requests reached the backend of %d", r.Requests, v.Requests)
	}
	if r.Requests > v.Requests {
		r.add(Critical, "%d requests reached the backend, not %d", r.Requests, v.Requests)
	}
}

// judgeAnswer judges what the client got from a misbehaving backend.
func (r *Result) judgeAnswer(v *Vector, s *seen) {
	low := strings.ToLower(string(s.octets))
	for _, a := range v.Absent {
		if strings.Contains(low, a) {
			r.add(Noncanonical, "the client got %q", a)
		}
	}
	if len(r.Statuses) > 1 {
		r.add(Critical, "the client got %d answers", len(r.Statuses))
	}
	failed := len(r.Statuses) == 1 && r.Statuses[0] >= 500
	switch v.Expect {
	case Reject5:
		if !failed && !r.refused() {
			r.add(Lenient, "the client got %v", r.Statuses)
		}
	case Forward:
		if len(r.Statuses) != 1 || failed {
			r.add(OverStrict, "the client got %v", r.Statuses)
		}
	case Close:
		if !failed && (!r.Closed || r.Note == "") {
			r.add(Critical, "a truncated answer looks whole")
		}
	}
}
