package vectest

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"sync"
	"sync/atomic"
)

// Campaign sends many mutated requests through a proxy: pipelined and one by one, whole and in pieces, on many connections
// at once. Behind each comes a probe, whose answer shows whether the two are still one behind the other.
type Campaign struct {
	CampaignConfig
	report Report
	echo   *echo
	seeds  [][]byte
	asked  atomic.Int64 // connections begun
}

// CampaignConfig says what a Campaign sends.
type CampaignConfig struct {
	Vectors  []*Vector
	Seed     uint64 // of everything that is random; the same seed sends the same
	Requests int64  // answers to wait for, at least
	Clients  int    // connections at a time
}

// Report is what came of a Campaign.
type Report struct {
	Connections, Sent int64         // connections made; requests sent, probes included
	Answers           int64         // final answers that the clients got
	Statuses          map[int]int64 // of the answers
	AtBackend         int64         // requests that the backend read
	Faults            int64

	mu       sync.Mutex
	examples []string
}

// examplesMax is how many faults a report shows.
const examplesMax = 20

// Examples are the first faults, each with the octets in question.
func (r *Report) Examples() []string { return r.examples }

func (r *Report) fault(f Fault, octets []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.Faults++; len(r.examples) < examplesMax {
		r.examples = append(r.examples, fmt.Sprintf("%v\n%q", f, octets))
	}
}

// NewCampaign starts the backend that the proxy must forward every host and path to. Close ends it.
func NewCampaign(cfg CampaignConfig) (*Campaign, error) {
	c := &Campaign{CampaignConfig: cfg, seeds: seedsOf(cfg.Vectors), report: Report{Statuses: map[int]int64{}}}
	var err error
	c.echo, err = newEcho(&c.report)
	return c, err
}

// Address is the backend's host and port.
func (c *Campaign) Address() string { return c.echo.listener.Addr().String() }

// Close ends the backend.
func (c *Campaign) Close() { c.echo.close() }

// Run goes on until so many more answers have come, each connection to one of the targets. halfway is called once, when half
// of them are there.
func (c *Campaign) Run(targets []Target, halfway func()) *Report {
	var once sync.Once
	var wg sync.WaitGroup
	for range max(1, c.Clients) {
		wg.Go(func() {
			for {
				n := c.answers()
				if n >= c.Requests/2 {
					once.Do(halfway)
				}
				if n >= c.Requests {
					return
				}
				number := uint64(c.asked.Add(1))
				// Which connection goes where, and what on it, depends on its number and the seed alone.
				random := rand.New(rand.NewPCG(c.Seed, number))
				c.connection(number, targets[random.IntN(len(targets))], &mutator{random, c.seeds})
			}
		})
	}
	wg.Wait()
	c.report.AtBackend = c.echo.requests.Load()
	return &c.report
}

func (c *Campaign) answers() int64 {
	c.report.mu.Lock()
	defer c.report.mu.Unlock()
	return c.report.Answers
}

// tagOf names a connection such that no mutant is likely to name another.
func (c *Campaign) tagOf(number uint64) string {
	h := fnv.New64a()
	fmt.Fprint(h, c.Seed, number)
	return fmt.Sprintf("%08x%016x", number, h.Sum64())
}

// isTag reports whether s is the tag of any connection.
func (c *Campaign) isTag(s string) bool {
	var number uint64
	if len(s) != 24 {
		return false
	}
	_, err := fmt.Sscanf(s[:8], "%08x", &number)
	return err == nil && c.tagOf(number) == s
}
