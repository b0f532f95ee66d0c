package journal

import (
	"bytes"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	lbdv1 "lbd/proto/lbd/v1"
)

var start = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// book is a journal whose minutes are told.
type book struct {
	*Journal
	t    *testing.T
	dir  string
	said *bytes.Buffer
	tick chan time.Time
}

func open(t *testing.T, dir string, change ...func(*Options)) *book {
	t.Helper()
	b := &book{t: t, dir: dir, said: &bytes.Buffer{}, tick: make(chan time.Time)}
	o := Options{Dir: dir, Logger: slog.New(slog.NewTextHandler(b.said, nil)), Now: func() time.Time { return start }, Tick: b.tick}
	for _, c := range change {
		c(&o)
	}
	var err error
	if b.Journal, err = Open(o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b
}

// minute ends the minute under way. The second tick is taken only when the first has been dealt with.
func (b *book) minute() {
	b.tick <- start
	b.tick <- start
}

func refusal(source string, second int, result string) *lbdv1.ListAuditResponse {
	return &lbdv1.ListAuditResponse{
		Time: timestamppb.New(start.Add(time.Duration(second) * time.Second)), Source: source, Method: "ConfigService/Apply", Result: result,
		Message: "the token is not known", Count: 1,
	}
}

// told is what the journal holds, in short.
func (b *book) told() string {
	var lines []string
	for _, e := range b.Refusals(time.Time{}) {
		lines = append(lines, fmt.Sprintf("%s %s %d", e.GetSource(), e.GetResult(), e.GetCount()))
	}
	return strings.Join(lines, "; ")
}

func TestRefusalsAreSummedByTheMinute(t *testing.T) {
	b := open(t, t.TempDir())
	for i := range 100 {
		b.Refuse(refusal("10.0.0.9", i%60, "unauthenticated"))
	}
	b.Refuse(refusal("10.0.0.9", 3, "forbidden"))
	b.Refuse(refusal("10.0.0.8", 2, "unauthenticated"))
	want := "10.0.0.9 unauthenticated 100; 10.0.0.8 unauthenticated 1; 10.0.0.9 forbidden 1"
	if got := b.told(); got != want {
		t.Errorf("before it is written: %s", got)
	}
	b.minute()
	if got := b.told(); got != want {
		t.Errorf("written: %s", got)
	}
	b.Refuse(refusal("10.0.0.9", 61, "unauthenticated"))
	if got := b.told(); got != want+"; 10.0.0.9 unauthenticated 1" {
		t.Errorf("the next minute: %s", got)
	}
	if late := b.Refusals(start.Add(10 * time.Second)); len(late) != 1 {
		t.Errorf("since: %v", late)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	again := open(t, b.dir)
	if got := again.told(); got != want+"; 10.0.0.9 unauthenticated 1" {
		t.Errorf("after a restart: %s", got)
	}
	if info, err := os.Stat(filepath.Join(b.dir, "audit.log")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	if p := again.Problems(); len(p) > 0 {
		t.Errorf("problems of a sound log: %v", p)
	}
}

// What one caller was refused for at one method is told cause by cause; what is too much for that is counted.
func TestCausesAreToldApart(t *testing.T) {
	b := open(t, t.TempDir())
	refuse := func(message string) {
		e := refusal("10.0.0.1", 0, "forbidden")
		e.Message = message
		b.Refuse(e)
	}
	refuse("a host")
	refuse("settings")
	refuse("a host")
	counts := map[string]int64{}
	for _, e := range b.Refusals(time.Time{}) {
		counts[e.GetMessage()] = e.GetCount()
	}
	if want := map[string]int64{"a host": 2, "settings": 1}; !maps.Equal(counts, want) {
		t.Errorf("%v, want %v", counts, want)
	}
	for i := range 100 {
		refuse(fmt.Sprint("cause ", i))
	}
	all := b.Refusals(time.Time{})
	var total, others int64
	for _, e := range all {
		total += e.GetCount()
		if e.GetMessage() == otherCauses {
			others = e.GetCount()
		}
	}
	if len(all) != causesMax+1 || total != 103 || others != 100-(causesMax-2) {
		t.Errorf("%d entries for %d refusals, %d of them not told apart", len(all), total, others)
	}
	b.minute()
	refuse("a new minute")
	if all := b.Refusals(time.Time{}); all[len(all)-1].GetMessage() == otherCauses {
		t.Errorf("%v", all[len(all)-1])
	}
}

// A stranger with any number of addresses, and any length of text, costs a bounded number of bytes.
func TestStrangersAreBounded(t *testing.T) {
	b := open(t, t.TempDir(), func(o *Options) { o.FileBytes = 64 << 10 })
	for minute := range 5 {
		for i := range 4 * sumsMax {
			e := refusal(fmt.Sprintf("10.%d.%d.%d", minute, i/256, i%256), i%60, "unauthenticated")
			e.Message = strings.Repeat("x", 10<<10)
			b.Refuse(e)
		}
		b.minute()
	}
	var all int64
	files, _ := filepath.Glob(filepath.Join(b.dir, "*"))
	for _, f := range files {
		info, err := os.Stat(f)
		if err != nil {
			t.Fatal(err)
		}
		all += info.Size()
	}
	if most := int64(2 * (64<<10 + lineBytesMax)); len(files) != 2 || all > most {
		t.Errorf("%d files of %d bytes, at most %d", len(files), all, most)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	again := open(t, b.dir, func(o *Options) { o.FileBytes = 64 << 10 })
	if len(again.Problems()) > 0 || len(again.Refusals(time.Time{})) == 0 {
		t.Errorf("after it has rotated: %v", again.Problems())
	}
}

func TestTamperingIsTold(t *testing.T) {
	spoil := map[string]func(text string) string{
		"a word": func(s string) string { return strings.Replace(s, "10.0.0.2", "10.0.0.3", 1) },
		"a line gone": func(s string) string {
			l := strings.SplitAfter(s, "\n")
			return strings.Join(append(l[:2], l[3:]...), "")
		},
		"lines swapped": func(s string) string {
			l := strings.SplitAfter(s, "\n")
			l[1], l[2] = l[2], l[1]
			return strings.Join(l, "")
		},
		"the first line": func(s string) string { return strings.Replace(s, "lbd-audit 1 0", "lbd-audit 1 1", 1) },
		"garbage":        func(s string) string { return s + "and more\n" },
		"a digest": func(s string) string {
			l := strings.SplitAfter(s, "\n")
			l[2] = strings.Repeat("0", 8) + l[2][8:]
			return strings.Join(l, "")
		},
		"a long line": func(s string) string { return s + strings.Repeat("x", 2*lineBytesMax) + "\n" },
	}
	for what, change := range spoil {
		t.Run(what, func(t *testing.T) {
			dir := t.TempDir()
			b := open(t, dir)
			for i := range 4 {
				b.Refuse(refusal(fmt.Sprintf("10.0.0.%d", i), i, "unauthenticated"))
			}
			if err := b.Close(); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(dir, "audit.log")
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			changed := change(string(text))
			if changed == string(text) {
				t.Fatal("nothing was changed")
			}
			if err := os.WriteFile(path, []byte(changed), 0o600); err != nil {
				t.Fatal(err)
			}
			again := open(t, dir)
			if p := again.Problems(); len(p) != 1 || !strings.Contains(p[0], path) || !strings.Contains(again.said.String(), "changed by somebody else") {
				t.Errorf("problems %v, said %s", p, again.said)
			}
			if kept, err := os.ReadFile(path + evidence); err != nil || string(kept) != changed {
				t.Errorf("the evidence: %v", err)
			}
			again.Refuse(refusal("10.0.0.7", 7, "forbidden"))
			again.minute()
			if got := again.told(); got != "10.0.0.7 forbidden 1" {
				t.Errorf("begun anew: %s", got)
			}
		})
	}
}

// What a crash leaves of the last line is no tampering.
func TestCutOffLine(t *testing.T) {
	dir := t.TempDir()
	b := open(t, dir)
	b.Refuse(refusal("10.0.0.1", 1, "unauthenticated"))
	b.Refuse(refusal("10.0.0.2", 2, "unauthenticated"))
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "audit.log")
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, info.Size()-5); err != nil {
		t.Fatal(err)
	}
	again := open(t, dir)
	again.Refuse(refusal("10.0.0.3", 3, "unauthenticated"))
	again.minute()
	if got := again.told(); got != "10.0.0.1 unauthenticated 1; 10.0.0.3 unauthenticated 1" || len(again.Problems()) > 0 {
		t.Errorf("%s, problems %v", got, again.Problems())
	}
}

// What a stranger sends that is no text is kept as one, so that the log can be written and shown.
func TestRefusalsAreText(t *testing.T) {
	b := open(t, t.TempDir())
	e := refusal("10.0.0.9", 1, "unauthenticated")
	e.Method, e.Message, e.Author = "a\xff\xfe", strings.Repeat("x", textBytesMax-1)+"€ and more", "\x1b[2Jme\n"
	b.Refuse(e)
	b.minute()
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	again := open(t, b.dir)
	all := again.Refusals(time.Time{})
	if len(all) != 1 {
		t.Fatalf("kept: %v", all)
	}
	got := all[0]
	if _, err := proto.Marshal(got); err != nil || got.GetMethod() != "a\uFFFD" || got.GetAuthor() != "\uFFFD[2Jme\n" {
		t.Errorf("%v: %v", got, err)
	}
	if m := got.GetMessage(); !strings.HasPrefix(m, "xxx") || !strings.HasSuffix(m, "x\uFFFD…") {
		t.Errorf("the message ends in %q", m[len(m)-10:])
	}
}

// A file that could not be begun when the one before was full is begun later: nothing is lost.
func TestRotationThatFails(t *testing.T) {
	dir := t.TempDir()
	b := open(t, dir, func(o *Options) { o.FileBytes = 1 }) // each entry begins a file
	b.Refuse(refusal("10.0.0.1", 1, "unauthenticated"))
	b.minute()
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
		t.Fatal(err)
	}
	none := files
	none.Cur = 0 // files are renamed, none is opened
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &none); err != nil {
		t.Fatal(err)
	}
	b.Refuse(refusal("10.0.0.2", 2, "unauthenticated"))
	b.minute()
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
		t.Fatal(err)
	}
	if p := b.Problems(); len(p) != 1 || !strings.Contains(p[0], "cannot be written") {
		t.Errorf("problems %v", p)
	}
	b.minute()
	if got := b.told(); got != "10.0.0.1 unauthenticated 1; 10.0.0.2 unauthenticated 1" || len(b.Problems()) > 0 {
		t.Errorf("%s, problems %v", got, b.Problems())
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if again := open(t, dir); len(again.Problems()) > 0 {
		t.Errorf("after a restart: %v", again.Problems())
	}
}

// Whoever asks for problems does not wait for a disk that does not answer.
func TestProblemsWaitForNoDisk(t *testing.T) {
	b := open(t, t.TempDir())
	b.file.mu.Lock() // as while something is written
	defer b.file.mu.Unlock()
	if p := b.Problems(); len(p) > 0 {
		t.Errorf("problems %v", p)
	}
}

// A disk that takes nothing makes nobody wait and loses nothing, as far as the bound goes; it is told, and tried again.
func TestDiskThatRefuses(t *testing.T) {
	b := open(t, t.TempDir())
	path := b.file.path
	b.file.mu.Lock()
	err := b.file.file.Close() // what comes next fails, and so does to open it again
	b.file.path = filepath.Join(b.dir, "missing", "audit.log")
	b.file.mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	b.Refuse(refusal("10.0.0.1", 1, "unauthenticated"))
	b.minute()
	if got := b.told(); got != "10.0.0.1 unauthenticated 1" {
		t.Errorf("while it fails: %s", got)
	}
	if p := b.Problems(); len(p) != 1 || !strings.Contains(p[0], "cannot be written") {
		t.Errorf("problems %v", p)
	}
	for i := range 3 * queuedMax {
		b.Refuse(refusal(fmt.Sprintf("10.1.%d.%d", i/256, i%256), 2, "unauthenticated"))
		if i%sumsMax == sumsMax-1 {
			b.minute()
		}
	}
	total, all := int64(0), b.Refusals(time.Time{})
	for _, e := range all {
		total += e.GetCount()
	}
	if total != 1+3*queuedMax || len(all) > queuedMax+sumsMax {
		t.Errorf("%d refusals in %d entries, want %d in at most %d", total, len(all), 1+3*queuedMax, queuedMax+sumsMax)
	}
	b.file.mu.Lock()
	b.file.path = path
	b.file.mu.Unlock()
	b.minute()
	if p := b.Problems(); len(p) > 0 {
		t.Errorf("after it has recovered: %v", p)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if verified, err := verify(filepath.Join(b.dir, "audit.log"), ""); err != nil || verified.size == 0 {
		t.Errorf("the log: %v, %v", verified, err)
	}
}

func TestUses(t *testing.T) {
	dir := t.TempDir()
	b := open(t, dir)
	b.Use("k3v9", start)
	b.Use("k3v9", start.Add(time.Hour))
	b.Use("k3v9", start) // a slower call
	if got := b.LastUse("k3v9"); !got.Equal(start.Add(time.Hour)) {
		t.Errorf("last use %v", got)
	}
	if got := b.LastUse("other"); !got.IsZero() {
		t.Errorf("use of one that was not: %v", got)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	again := open(t, dir)
	if got := again.LastUse("k3v9"); !got.Equal(start.Add(time.Hour)) {
		t.Errorf("after a restart: %v", got)
	}
	for i := range 2 * usesMax {
		again.Use(fmt.Sprintf("t%d", i), start.Add(time.Duration(i)*time.Second))
	}
	if len(again.uses.times) > usesMax || again.LastUse("t0").After(time.Time{}) {
		t.Errorf("%d uses are kept, at most %d, the newest", len(again.uses.times), usesMax)
	}
	if err := again.Close(); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"nonsense", "null", `{"a": "b"}`} {
		if err := os.WriteFile(filepath.Join(dir, "token-uses"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		b := open(t, dir)
		b.Use("x", start)
		if !b.LastUse("x").Equal(start) || !strings.Contains(b.said.String(), "forgotten") {
			t.Errorf("%s: said %s", text, b.said)
		}
		_ = b.Close()
	}
}

func TestSyslogGetsACopy(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	listen := func() *net.UnixConn {
		c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	daemon := listen()
	b := open(t, t.TempDir(), func(o *Options) { o.Syslog = path })
	hears := func(want string) {
		t.Helper()
		buf := make([]byte, 4096)
		if err := daemon.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
			t.Fatal(err)
		}
		n, err := daemon.Read(buf)
		if err != nil || !strings.HasPrefix(string(buf[:n]), "<37>") || !strings.Contains(string(buf[:n]), want) {
			t.Errorf("heard %q, %v", buf[:n], err)
		}
	}
	e := refusal("10.0.0.1", 1, "unauthenticated")
	e.Message = "a message\nof two lines"
	b.Refuse(e)
	b.minute()
	hears(`result=unauthenticated method="ConfigService/Apply" source="10.0.0.1" author="" count=1 message="a message\nof two lines"`)
	daemon.Close() // restarted
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	b.Refuse(refusal("10.0.0.2", 2, "forbidden"))
	b.minute()
	daemon = listen()
	defer daemon.Close()
	b.Refuse(refusal("10.0.0.3", 3, "forbidden"))
	b.minute()
	hears(`source="10.0.0.3"`)
}

func TestManyAtOnce(t *testing.T) {
	b := open(t, t.TempDir())
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for n := range 200 {
				b.Refuse(refusal("10.0.0.1", n%60, "unauthenticated"))
				b.Use(fmt.Sprint(i), start)
				if n%50 == 0 {
					b.Refusals(time.Time{})
					b.LastUse(fmt.Sprint(i))
				}
			}
		})
	}
	for range 3 {
		b.minute()
	}
	wg.Wait()
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	total := int64(0)
	for _, e := range open(t, b.dir).Refusals(time.Time{}) {
		total += e.GetCount()
	}
	if total != 8*200 {
		t.Errorf("%d refusals, want %d", total, 8*200)
	}
}
