// Package journal is what one node keeps of its callers by itself, beside the replicated state: calls that were refused, and when
// each credential was used last. A stranger makes it write, so that nothing here may cost another node anything, grow without
// bounds, or make a call wait for the disk.
//
// Refusals are gathered in memory, summed by source, author, method, result and cause, and go once a minute to a file in which every line is
// chained to the one before by a digest: see chain.go. What somebody cuts off at its end is not noticed, nor that all of it was written
// anew: that is what the copy to syslog is for.
package journal

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	lbdv1 "lbd/proto/lbd/v1"
)

// Options are where a [Journal] is and who hears of it. Only Dir is required.
type Options struct {
	// Dir is the node's data directory: audit.log, audit.log.1 and token-uses are in it.
	Dir string
	// Syslog is the path of a syslog socket ("/dev/log") that gets a copy of each refusal; empty: none does.
	Syslog string
	// Logger defaults to slog.Default().
	Logger *slog.Logger
	// FileBytes bounds audit.log; it and audit.log.1 are all that is kept. 0 is the default, 4 MiB.
	FileBytes int64
	// Now defaults to time.Now.
	Now func() time.Time
	// Tick, if set, replaces the ticks at which the journal is written.
	Tick <-chan time.Time
}

// Journal implements rpc.Journal. Its one goroutine writes the files.
type Journal struct {
	log    *slog.Logger
	now    func() time.Time
	syslog *syslog
	file   *chain
	uses   *uses

	// writing is held while entries go from the memory to the file, so that who reads both meets each once.
	writing sync.Mutex

	mu     sync.Mutex
	sums   map[cause]*lbdv1.ListAuditResponse // of the minute under way
	told   map[cause]int                      // how many messages of each, the message left out, are among them
	queued []*lbdv1.ListAuditResponse         // summed, not written yet

	stop chan struct{}
	done sync.WaitGroup
	once sync.Once
}

// cause is what refusals are summed by.
type cause struct{ source, author, method, result, message string }

// otherCauses stands for what one caller was refused for beyond causesMax.
const otherCauses = "for other causes than those listed"

// Open reads what was kept and goes on with it. What was tampered with is put aside, told to the log and by Problems; the journal
// begins anew then. It fails only where the directory cannot be written.
func Open(o Options) (*Journal, error) {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.FileBytes == 0 {
		o.FileBytes = fileBytesMax
	}
	file, err := openChain(filepath.Join(o.Dir, "audit.log"), o.FileBytes)
	if err != nil {
		return nil, fmt.Errorf("open the log of refusals: %w", err)
	}
	for _, fault := range file.faults {
		o.Logger.Error("the log of refusals was changed by somebody else", "err", fault)
	}
	j := &Journal{
		log: o.Logger, now: o.Now, file: file, uses: openUses(filepath.Join(o.Dir, "token-uses"), o.Logger), syslog: newSyslog(o.Syslog),
		sums: map[cause]*lbdv1.ListAuditResponse{}, told: map[cause]int{}, stop: make(chan struct{}),
	}
	tick, stopTick := o.Tick, func() {}
	if tick == nil {
		t := time.NewTicker(writeInterval)
		tick, stopTick = t.C, t.Stop
	}
	j.done.Go(func() {
		defer stopTick()
		j.run(tick)
	})
	return j, nil
}

// run writes at every tick, and once more at the end.
func (j *Journal) run(tick <-chan time.Time) {
	failing := false
	for {
		ended := false
		select {
		case <-tick:
		case <-j.stop:
			ended = true
		}
		err := j.write()
		if err != nil && !failing {
			j.log.Warn("the log of refusals cannot be written; it is tried again", "err", err)
		}
		failing = err != nil
		if ended {
			return
		}
	}
}

// Refuse notes a refused call.
func (j *Journal) Refuse(entry *lbdv1.ListAuditResponse) {
	group := cause{source: clean(entry.GetSource()), author: clean(entry.GetAuthor()), method: clean(entry.GetMethod()), result: clean(entry.GetResult())}
	key := group
	key.message = clean(entry.GetMessage())
	j.mu.Lock()
	defer j.mu.Unlock()
	sum, known := j.sums[key]
	if !known && j.told[group] >= causesMax {
		key.message = otherCauses
		sum, known = j.sums[key]
	}
	if !known && len(j.sums) >= sumsMax {
		key = cause{source: "others", result: group.result, message: "more than are told apart in one minute"}
		sum, known = j.sums[key]
	}
	if known {
		sum.Count += entry.GetCount()
		return
	}
	sum = proto.CloneOf(entry)
	sum.Source, sum.Author, sum.Method, sum.Result, sum.Message = key.source, key.author, key.method, key.result, key.message
	j.sums[key] = sum
	j.told[group]++
}

// Note notes a call that was accepted, and of which no log but this one knows: an entry like any other, whose result says so.
func (j *Journal) Note(entry *lbdv1.ListAuditResponse) { j.Refuse(entry) }

// Refusals are the notes later than a time, oldest first: those of the files, and those that are not written yet.
func (j *Journal) Refusals(since time.Time) []*lbdv1.ListAuditResponse {
	j.writing.Lock()
	defer j.writing.Unlock()
	all, err := j.file.read(since)
	if err != nil {
		j.log.Warn("the log of refusals cannot be read", "err", err)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, entry := range j.queued {
		if entry.GetTime().AsTime().After(since) {
			all = append(all, entry)
		}
	}
	for _, sum := range j.sums {
		if sum.GetTime().AsTime().After(since) {
			all = append(all, proto.CloneOf(sum))
		}
	}
	slices.SortStableFunc(all, byTime)
	return all
}

func byTime(a, b *lbdv1.ListAuditResponse) int {
	return a.GetTime().AsTime().Compare(b.GetTime().AsTime())
}

// Use notes that a credential was used.
func (j *Journal) Use(token string, at time.Time) { j.uses.note(token, at) }

// LastUse is when a credential was used last on this node; zero: not as far as it knows.
func (j *Journal) LastUse(token string) time.Time { return j.uses.last(token) }

// Problems are what an operator has to look at: that the log was changed by somebody else, or cannot be written.
func (j *Journal) Problems() []string { return j.file.problems() }

// Close writes what is left and returns when the goroutine has ended.
func (j *Journal) Close() error {
	j.once.Do(func() {
		close(j.stop)
		j.done.Wait()
		j.syslog.close()
	})
	return j.file.close()
}

// write takes the sums to the disk. What the disk does not take stays for the next time, up to a bound.
func (j *Journal) write() error {
	for _, entry := range j.take() {
		j.syslog.send(entry)
	}
	j.writing.Lock()
	defer j.writing.Unlock()
	j.mu.Lock()
	pending := slices.Clone(j.queued)
	j.mu.Unlock()
	n, err := j.file.append(pending)
	j.mu.Lock()
	j.queued = j.queued[n:]
	if surplus := len(j.queued) - queuedMax; surplus > 0 {
		lost := &lbdv1.ListAuditResponse{Time: timestamppb.New(j.now()), Result: "lost", Message: "entries that the disk did not take"}
		for _, entry := range j.queued[:surplus+1] {
			lost.Count += entry.GetCount()
		}
		j.queued = append([]*lbdv1.ListAuditResponse{lost}, j.queued[surplus+1:]...)
	}
	j.mu.Unlock()
	return errors.Join(err, j.uses.write())
}

// take ends the minute under way: its sums are queued, by time.
func (j *Journal) take() []*lbdv1.ListAuditResponse {
	j.mu.Lock()
	defer j.mu.Unlock()
	var sums []*lbdv1.ListAuditResponse
	for _, sum := range j.sums {
		sums = append(sums, sum)
	}
	clear(j.sums)
	clear(j.told)
	slices.SortFunc(sums, byTime)
	j.queued = append(j.queued, sums...)
	return sums
}

// clean is a text that a stranger may have made, as it can be kept and shown: short, UTF-8, without control characters but those of lines.
func clean(text string) string {
	end := ""
	if len(text) > textBytesMax {
		text, end = text[:textBytesMax], "…"
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' {
			return utf8.RuneError
		}
		return r
	}, strings.ToValidUTF8(text, string(utf8.RuneError))) + end
}
