//go:build linux

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestReadmesAreReplacedBetweenTheMarks(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "bench", "results", "full")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{filepath.Join(root, "README.md"), filepath.Join(root, "bench", "README.md")} {
		if err := os.WriteFile(file, []byte("before\n"+markBegin+"\nold\n"+markEnd+"\nafter\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	records := slices.Concat(madeSeries("single"), madeSeries("rate-4000"), madeSeries("lb"))
	for i := range records {
		if err := records[i].save(dir); err != nil {
			t.Fatal(err)
		}
	}
	if err := (facts{Commit: "abc", Command: "go run ./bench/lab"}).save(dir); err != nil {
		t.Fatal(err)
	}
	if err := writeReport(dir, ""); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time changes nothing
		if err := writeReadmes(root, dir, ""); err != nil {
			t.Fatal(err)
		}
	}
	for file, wants := range map[string][]string{
		"README.md": {"| `single`: one backend, kept-alive, 1 KiB | CPU µs/request | 19.6 (16.8–22.4) | 28.0", "**0.70**", "Commit abc"},
		"bench/README.md": {"| `lb`: three backends |", "![CPU time per request against the rate](results/full/cost.svg)", "| `single` | CPU a request, to the better of nginx and haproxy | ≤ 0.90 | 0.70 (0.70–0.70) | yes |",
			"(results/full/ratios.svg)", "(results/full/table.md)"},
	} {
		content, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		got := string(content)
		if !strings.HasPrefix(got, "before\n"+markBegin) || !strings.HasSuffix(got, markEnd+"\nafter\n") || strings.Contains(got, "old") || strings.Count(got, markBegin) != 1 {
			t.Errorf("%s: wrong frame:\n%s", file, got)
		}
		for _, want := range wants {
			if !strings.Contains(got, want) {
				t.Errorf("%s lacks %q:\n%s", file, want, got)
			}
		}
		if file == "README.md" && strings.Contains(got, "three backends") {
			t.Errorf("README.md has more than the headlines:\n%s", got)
		}
	}
	if err := writeReadmes(root, t.TempDir(), ""); err == nil {
		t.Error("a folder without records was accepted")
	}
}

func TestReadmesHaveTheirMarks(t *testing.T) {
	for _, file := range []string{"../README.md", "../../README.md"} {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if begin, end := strings.Index(string(content), markBegin), strings.Index(string(content), markEnd); begin < 0 || end < begin {
			t.Errorf("%s: no place for a run's tables", file)
		}
	}
}
