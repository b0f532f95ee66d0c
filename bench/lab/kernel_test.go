//go:build linux

package main

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"lbd/bench/plot"
)

func TestParseStat(t *testing.T) {
	got, err := parseStat([]byte("812 (a) b (c)) S 17 812 812 0 -1 4194560 900 0 3 0 250 75 1 2 20 0 9 0 55 1000 300 18446744073709551615"))
	if want := (processStat{parent: 17, user: 250, system: 75, endedUser: 1, endedSystem: 2}); err != nil || got != want {
		t.Fatalf("got %+v, %v, want %+v", got, err, want)
	}
	for _, malformed := range []string{"", "812 (a) S 17", "812 (a) S x 812 812 0 -1 4194560 900 0 3 0 250 75 1 2"} {
		if got, err := parseStat([]byte(malformed)); err == nil {
			t.Errorf("%q gave %+v", malformed, got)
		}
	}
}

func TestParseCore(t *testing.T) {
	content := "cpu  99 9 9 9 9 9 9 9 9 9\ncpu0 10 1 20 300 5 2 3 7 100 100\ncpu1 1 1 1 1 1 1 1 1 0 0\n"
	got, err := parseCore(content, 0)
	if want := (coreTicks{busy: 10 + 1 + 20 + 2 + 3, all: 10 + 1 + 20 + 300 + 5 + 2 + 3 + 7}); err != nil || got != want {
		t.Fatalf("got %+v, %v, want %+v", got, err, want)
	}
	if _, err := parseCore(content, 2); err == nil {
		t.Fatal("a core that is not there has ticks")
	}
	later := coreTicks{busy: got.busy + 30, all: got.all + 40}
	if share := later.share(got); share != 0.75 {
		t.Errorf("share %v, want 0.75", share)
	}
	if share := got.share(got); share != 0 {
		t.Errorf("share %v of no time", share)
	}
}

func TestDescend(t *testing.T) {
	children := map[int][]int{1: {2, 9}, 2: {3, 4}, 4: {5}, 8: {10}}
	if got := descend(2, children); !slices.Equal(got, []int{2, 3, 4, 5}) {
		t.Fatalf("got %v", got)
	}
}

func TestKilobytes(t *testing.T) {
	rollup := "5581 [rollup]\nRss:                2048 kB\nPss:                1536 kB\nPss_Dirty:           100 kB\n"
	if got := kilobytes([]byte(rollup), "Pss:"); got != 1536 {
		t.Fatalf("got %d", got)
	}
}

func TestScaledCPUTime(t *testing.T) {
	if got, want := (cpuTime{Total: 2, User: 1, System: 3}).scaled(), (cpuTime{2, 0.5, 1.5}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := (cpuTime{Total: 2}).scaled(); got.User+got.System != 2 {
		t.Errorf("without ticks: %+v", got)
	}
}

// The sampler looks at the test's own process, which does nothing but work meanwhile.
func TestSamplerSeesWork(t *testing.T) {
	s := newSampler(os.Getpid())
	before, err := s.sample()
	if err != nil {
		t.Fatal(err)
	}
	begin, sum := time.Now(), 0
	for time.Since(begin) < 50*time.Millisecond {
		for i := range 10_000 {
			sum += i
		}
	}
	after, err := s.sample()
	if err != nil || sum == 0 {
		t.Fatal(err, sum)
	}
	used := after.minus(before).Total
	// The schedstat of a running thread lags by up to a tick, and others want the core, too: but some of it must be there.
	if used <= 0 || before.Total <= 0 {
		t.Fatalf("%v s before, %v s used", before.Total, used)
	}
}

// A shell's child burns time and ends before the second sample: the shell's account has it.
func TestSamplerCountsChildrenThatHaveEnded(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sh", "-c", "read go; "+self+" burn; echo done; read end")
	input, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	output, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s := newSampler(cmd.Process.Pid)
	before, err := s.sample()
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(input, "go\n")
	if line, err := bufio.NewReader(output).ReadString('\n'); line != "done\n" {
		t.Fatal(line, err)
	}
	after, err := s.sample()
	if err != nil {
		t.Fatal(err)
	}
	// The kernel counts ended children in ticks of 10 ms.
	if used := after.minus(before).Total; used < burnTime.Seconds()/2 {
		t.Errorf("%v s, the child used %v", used, burnTime)
	}
	input.Close()
	if err := cmd.Wait(); err == nil {
		t.Error("the shell read a second line that nobody wrote")
	}
}

func TestSamplerOfAProcessThatIsGone(t *testing.T) {
	c, err := newSampler(1 << 22).sample() // above the largest process number
	if err != nil || c.Total != 0 {
		t.Fatalf("%+v, %v", c, err)
	}
}

func TestParseCounts(t *testing.T) {
	got, err := parseCounts(`% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 60.00    0.600000           6    100000           sendto
 30.00    0.300000           3    100007        12 read
 10.00    0.100000          10     10000           epoll_wait
------ ----------- ----------- --------- --------- ----------------
100.00    1.000000           4    210007        12 total
`)
	want := []callCount{{"read", 100007, 12}, {"sendto", 100000, 0}, {"epoll_wait", 10000, 0}}
	if err != nil || !slices.Equal(got, want) {
		t.Fatalf("got %+v, %v, want %+v", got, err, want)
	}
	if _, err := parseCounts("strace: attach: Operation not permitted\n"); err == nil {
		t.Fatal("no error without a table")
	}
}

func TestParsePerf(t *testing.T) {
	got := parsePerf(strings.NewReader(`lbd 
	ffffffff81a tcp_sendmsg ([kernel.kallsyms])
	     47c0e2 main.serve[go.shape.int] (/tmp/lbd)
	     47a001 runtime.main (/tmp/lbd)

lbd 
	ffffffff81a tcp_sendmsg ([kernel.kallsyms])
	     47c0e2 main.serve[go.shape.int] (/tmp/lbd)
	     47a001 runtime.main (/tmp/lbd)

nginx worker 
	      8a11 [unknown] (/usr/lib/libcrypto.so.3)
`))
	want := map[string]int{
		"runtime.main>main.serve[go.shape.int]>tcp_sendmsg [kernel]": 2,
		"[libcrypto.so.3]": 1,
	}
	if len(got) != len(want) {
		t.Fatalf("got %+v", got)
	}
	for _, s := range got {
		if want[strings.Join(s.Frames, ">")] != s.Count {
			t.Errorf("unexpected stack %+v", s)
		}
	}
	if _, err := plot.Flame("x", got, isKernel); err != nil {
		t.Error(err)
	}
}
