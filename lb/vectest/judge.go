package vectest

import (
	"errors"
	"fmt"
	"io"
	"strings"
)

// Severity orders faults by what they cost.
type Severity int

// From harmless to dangerous.
const (
	OverStrict   Severity = iota // refused what is fair
	Lenient                      // accepted what must be refused
	Noncanonical                 // ambiguous or forbidden octets went on
	Critical                     // a desync: other requests at the backend, or a wrong answer for the next client
)

func (s Severity) String() string {
	return [...]string{"over-strict", "lenient", "noncanonical", "critical"}[s]
}

// Fault is one thing that a proxy did wrong.
type Fault struct {
	Severity Severity
	What     string
}

func (f Fault) String() string { return f.Severity.String() + ": " + f.What }

// Inspect judges the octets that one backend connection got because of v: are they canonical,
// do all personalities read the same requests in them, is anything in them that v forbids?
func Inspect(v *Vector, raw []byte) []Fault {
	_, faults := inspect(v, raw)
	return faults
}

// inspect also counts the requests. One that is malformed counts: it was forwarded.
func inspect(v *Vector, raw []byte) (count int, faults []Fault) {
	add := func(s Severity, format string, args ...any) {
		faults = append(faults, Fault{s, fmt.Sprintf(format, args...)})
	}
	reqs, err := strict.requests(raw)
	count = len(reqs)
	cut := errors.Is(err, io.ErrUnexpectedEOF)
	if err != nil && !cut {
		add(Noncanonical, "not canonical: %v", err)
		count++
	}
	for _, q := range reqs {
		for _, f := range v.Forbid {
			if strings.Contains(q.target, f) {
				add(Critical, "smuggled request %s", q.target)
			}
		}
	}
	for i := range lenient {
		p := &lenient[i]
		read, perr := p.requests(raw)
		if (err == nil || cut) && len(read) != len(reqs) || err == nil && perr != nil {
			add(ambiguity(p, raw), "%d requests for a strict parser, %d for %s (%v)", len(reqs), len(read), p.name, perr)
		}
		for _, q := range read {
			for _, f := range v.Forbid {
				if strings.Contains(q.target, f) {
					add(ambiguity(p, raw), "%s sees the smuggled request %s", p.name, q.target)
				}
			}
		}
	}
	low := strings.ToLower(string(raw))
	for _, a := range v.Absent {
		if strings.Contains(low, a) {
			add(Noncanonical, "%q was forwarded", a)
		}
	}
	return count, faults
}

// ambiguity: only gateways that turn "_" into "-" are fooled by a twin, so that is less.
func ambiguity(p *personality, raw []byte) Severity {
	if p.looseCoding && strings.Contains(strings.ToLower(string(raw)), "transfer_encoding") {
		return Noncanonical
	}
	return Critical
}
