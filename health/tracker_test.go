package health

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

var update = flag.Bool("update", false, "rewrite the expected output in testdata")

// TestTrackerScript runs testdata/tracker.txt, which is also where to read what a Tracker does.
func TestTrackerScript(t *testing.T) {
	const path = "testdata/tracker.txt"
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	for line := range strings.Lines(string(want)) {
		start, results, isInput := strings.Cut(strings.TrimSpace(line), ":")
		switch {
		case isInput && !strings.HasPrefix(line, "#"):
			fmt.Fprint(&got, line, runTracker(t, start, results), "\n")
		case line == "\n" || strings.HasPrefix(line, "#"):
			got.WriteString(line)
		}
	}
	if *update {
		if err := os.WriteFile(path, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if got.String() != string(want) {
		t.Errorf("got:\n%s\nwant:\n%s", &got, want)
	}
}

func runTracker(t *testing.T, start, results string) string {
	t.Helper()
	var (
		state      string
		rise, fall int
	)
	if _, err := fmt.Sscanf(start, "%s %d %d", &state, &rise, &fall); err != nil {
		t.Fatalf("%q: %v", start, err)
	}
	tracker := NewTracker(map[string]State{"UNKNOWN": Unknown, "UP": Up, "DOWN": Down}[state], rise, fall)
	var out []string
	for _, result := range strings.Fields(results) {
		mark := ""
		if tracker.Observe(result == "+") {
			mark = "!"
		}
		out = append(out, tracker.State().String()+mark)
	}
	return strings.Join(out, " ")
}

// TestTrackerTwin compares the counter with the definition: look at the last results.
func TestTrackerTwin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rise, fall := rapid.IntRange(1, 5).Draw(t, "rise"), rapid.IntRange(1, 5).Draw(t, "fall")
		start := rapid.SampledFrom([]State{Unknown, Up, Down}).Draw(t, "start")
		results := rapid.SliceOfN(rapid.Bool(), 1, 60).Draw(t, "results")
		tracker, state := NewTracker(start, rise, fall), start
		for i := range results {
			before := state
			switch {
			case lastAre(results[:i+1], true, rise), before == Unknown && results[i]:
				state = Up
			case lastAre(results[:i+1], false, fall):
				state = Down
			}
			if flipped := tracker.Observe(results[i]); tracker.State() != state || flipped != (state != before) {
				t.Fatalf("from %s after %v: %s, flipped %v; want %s", start, results[:i+1], tracker.State(), flipped, state)
			}
		}
	})
}

func lastAre(results []bool, ok bool, n int) bool {
	if len(results) < n {
		return false
	}
	for _, result := range results[len(results)-n:] {
		if result != ok {
			return false
		}
	}
	return true
}
