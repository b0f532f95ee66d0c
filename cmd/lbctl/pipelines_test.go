package main

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.yaml.in/yaml/v3"
)

// pipeline is a forge's file as far as its commands go: the scripts of its jobs, in the file's order.
type pipeline struct {
	jobs []pipelineJob
}

type pipelineJob struct {
	name string
	// Each is run by a shell of its own that ends at the first command which fails.
	scripts []string
}

// isPipeline tells a forge's file by its name.
func isPipeline(name string) bool {
	return name == ".gitlab-ci.yml" || strings.HasPrefix(name, ".github/workflows/")
}

// parsePipeline reads GitHub's jobs, whose steps are shells of their own, and GitLab's, whose lines are one.
func parsePipeline(name, text string) (pipeline, error) {
	var p pipeline
	var file yaml.Node
	if err := yaml.Unmarshal([]byte(text), &file); err != nil {
		return p, err
	}
	if len(file.Content) != 1 || file.Content[0].Kind != yaml.MappingNode {
		return p, fmt.Errorf("%s is no mapping", name)
	}
	jobs := file.Content[0]
	github := name != ".gitlab-ci.yml"
	for i := 0; github && i < len(jobs.Content); i += 2 {
		if jobs.Content[i].Value == "jobs" {
			jobs = jobs.Content[i+1]
			break
		}
	}
	for i := 0; i+1 < len(jobs.Content); i += 2 {
		if jobs.Content[i+1].Kind != yaml.MappingNode {
			continue
		}
		var body struct {
			Steps  []struct{ Run string }
			Script []string
		}
		if err := jobs.Content[i+1].Decode(&body); err != nil {
			return p, fmt.Errorf("%s: job %s: %w", name, jobs.Content[i].Value, err)
		}
		job := pipelineJob{name: jobs.Content[i].Value}
		for _, s := range body.Steps {
			if s.Run != "" {
				job.scripts = append(job.scripts, s.Run)
			}
		}
		if len(body.Script) > 0 {
			job.scripts = append(job.scripts, strings.Join(body.Script, "\n"))
		}
		if len(job.scripts) > 0 {
			p.jobs = append(p.jobs, job)
		}
	}
	if len(p.jobs) == 0 {
		return p, fmt.Errorf("%s has no job with a command", name)
	}
	return p, nil
}

// forge stands in for what a pipeline says to its forge: GitLab's notes, gh, and git.
type forge struct {
	mu    sync.Mutex
	notes []string
	url   string
	bin   string
	log   string
}

func newForge(t *testing.T, dir string) *forge {
	f := &forge{bin: filepath.Join(dir, "forge"), log: filepath.Join(dir, "gh.log")}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(io.LimitReader(r.Body, 1<<20))
		if r.Method != http.MethodPost || r.URL.Path != "/projects/7/merge_requests/3/notes" || r.Header.Get("PRIVATE-TOKEN") != "may-comment" {
			http.Error(w, "no", http.StatusForbidden)
			return
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		f.notes = append(f.notes, string(body))
		w.WriteHeader(http.StatusCreated)
	}))
	t.Cleanup(server.Close)
	f.url = server.URL
	if err := os.Mkdir(f.bin, 0o755); err != nil {
		t.Fatal(err)
	}
	gh := fmt.Sprintf("#!/bin/sh\n[ \"$1 $2 $3 $4\" = 'pr comment 3 --body-file' ] || exit 1\ncat \"$5\" >>%q\n", f.log)
	if err := os.WriteFile(filepath.Join(f.bin, "gh"), []byte(gh), 0o755); err != nil {
		t.Fatal(err)
	}
	// A checkout that is the newest of its branch.
	git := "#!/bin/sh\ncase \"$*\" in 'fetch -q --depth 1 origin main' | 'diff --exit-code --stat HEAD FETCH_HEAD -- site cases.yaml') ;; *) exit 1 ;; esac\n"
	if err := os.WriteFile(filepath.Join(f.bin, "git"), []byte(git), 0o755); err != nil {
		t.Fatal(err)
	}
	return f
}

// env is what a forge gives its jobs.
func (f *forge) env() []string {
	return []string{
		"GITHUB_SHA=0123abc", "GITHUB_ACTOR=ada", "CHANGE=3", "GH_TOKEN=may-comment",
		"CI_COMMIT_SHA=0123abc", "GITLAB_USER_LOGIN=ada", "CI_API_V4_URL=" + f.url, "CI_PROJECT_ID=7", "CI_MERGE_REQUEST_IID=3", "NOTES_TOKEN=may-comment",
	}
}

// said are the comments that came, in any order.
func (f *forge) said() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	log, _ := os.ReadFile(f.log)
	return string(log) + strings.Join(f.notes, "")
}

// runPipeline runs all jobs of a forge's file one after another, as if each was due.
func (w *pageWorld) runPipeline(name, text string) error {
	p, err := parsePipeline(name, text)
	if err != nil {
		return err
	}
	before := w.forge.said()
	for _, job := range p.jobs {
		for _, script := range job.scripts {
			out, code, err := w.run("PATH=" + w.forge.bin + ":$PATH; export " + quoted(w.forge.env()) + "; set -eo pipefail\n" + script)
			if err != nil || code != 0 {
				return fmt.Errorf("%s: job %s: exit %d: %v\n%s\n%s", name, job.name, code, err, script, out)
			}
		}
	}
	if comment := strings.TrimPrefix(w.forge.said(), before); !strings.Contains(comment, "**lbctl diff** of owner `web`") {
		return fmt.Errorf("%s: the comment is %q", name, comment)
	}
	return nil
}

func quoted(assignments []string) string {
	var all []string
	for _, a := range assignments {
		name, value, _ := strings.Cut(a, "=")
		all = append(all, name+"='"+value+"'")
	}
	return strings.Join(all, " ")
}

// TestPipelineRules: what is a job, and what in it a command.
func TestPipelineRules(t *testing.T) {
	got, err := parsePipeline(".github/workflows/a.yml", "on: push\njobs:\n  b: { steps: [{ uses: x }, { run: one }, { run: two }] }\n  a: { steps: [{ run: three }] }\n  c: { steps: [{ uses: x }] }\n")
	if err != nil || fmt.Sprint(got.jobs) != "[{b [one two]} {a [three]}]" {
		t.Errorf("%v, %v", got, err)
	}
	got, err = parsePipeline(".gitlab-ci.yml", "stages: [a]\nvariables: { A: b }\nb:\n  script:\n    - one\n    - two\na:\n  script: [three]\n")
	if err != nil || fmt.Sprint(got.jobs) != "[{b [one\ntwo]} {a [three]}]" {
		t.Errorf("%v, %v", got, err)
	}
	for name, text := range map[string]string{"a list": "- a\n", "no command": "stages: [a]\n", "no YAML": "a: [\n"} {
		if _, err := parsePipeline(".gitlab-ci.yml", text); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	names := map[string]bool{".gitlab-ci.yml": true, ".github/workflows/lbd.yml": true, "site/web.yaml": false, "cases.yaml": false}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if isPipeline(name) != names[name] {
			t.Errorf("%s: pipeline %t", name, isPipeline(name))
		}
	}
}
