package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"filippo.io/age"
)

// TestPages types what the pages for operators say, in their order and as it is written, on one node for each page. CONTRIBUTING.md has
// the rules for whoever writes one.
func TestPages(t *testing.T) {
	pages, err := filepath.Glob(filepath.Join("..", "..", "docs", "*.md"))
	if err != nil || len(pages) == 0 {
		t.Fatalf("no pages: %v", err)
	}
	ran := 0
	for _, path := range pages {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		steps, err := parsePage(string(text))
		if err != nil {
			t.Fatalf("%s:%v", path, err)
		}
		if !slices.ContainsFunc(steps, func(s pageStep) bool { return s.command != "" }) {
			continue
		}
		ran++
		t.Run(filepath.Base(path), func(t *testing.T) {
			w := newPageWorld(t)
			for _, s := range steps {
				if err := w.do(s); err != nil {
					t.Errorf("%s:%d: %s: %v", path, s.line, s.task, err)
				}
			}
		})
	}
	if ran == 0 {
		t.Fatal("no page has a command")
	}
}

// pageStep is a file to write, a pipeline to run, or a command with what is to be seen.
type pageStep struct {
	line int
	// The heading that it stands under.
	task string

	file, text string

	command string
	exit    int
	// It is typed again until the answer is the one that is written.
	inAMoment bool
	// Lines that its output must have in this order, others between them.
	want []string
}

var (
	pageFile    = regexp.MustCompile(`^# ((?:[\w.-]+/)*[\w.-]+)$`)
	pageRemark  = regexp.MustCompile(`^(.*?)\s{2,}# (.+)$`)
	pageExit    = regexp.MustCompile(`^exit (\d+)$`)
	manySpaces  = regexp.MustCompile(`\s+`)
	pageStarter = "```"
)

// parsePage finds the steps of a page. An error begins with its line.
func parsePage(text string) ([]pageStep, error) {
	var steps []pageStep
	task, fence, begin := "", "", 0
	var block []string
	for i, line := range strings.Split(text, "\n") {
		switch {
		case fence == "" && strings.HasPrefix(line, "#"):
			task = strings.TrimLeft(line, "# ")
		case fence == "" && strings.HasPrefix(line, pageStarter):
			if fence, begin, block = strings.TrimPrefix(line, pageStarter), i+2, nil; fence == "" {
				return nil, fmt.Errorf("%d: say what the block is: console, yaml or text", i+1)
			}
		case fence != "" && line == pageStarter:
			more, err := parseBlock(fence, begin, block)
			if err != nil {
				return nil, err
			}
			for _, s := range more {
				s.task = task
				steps = append(steps, s)
			}
			fence = ""
		case fence != "":
			block = append(block, line)
		}
	}
	if fence != "" {
		return nil, fmt.Errorf("%d: the block does not end", begin-1)
	}
	return steps, nil
}

func parseBlock(kind string, begin int, lines []string) ([]pageStep, error) {
	switch kind {
	case "text":
		return nil, nil
	case "yaml":
		m := pageFile.FindStringSubmatch(slices.Concat(lines, []string{""})[0])
		if m == nil {
			return nil, fmt.Errorf("%d: the first line must be `# FILE`", begin)
		}
		return []pageStep{{line: begin, file: m[1], text: strings.Join(lines, "\n") + "\n"}}, nil
	case "console":
		return parseConsole(begin, lines)
	default:
		return nil, fmt.Errorf("%d: a block is console, yaml or text, not %s", begin-1, kind)
	}
}

func parseConsole(begin int, lines []string) ([]pageStep, error) {
	var steps []pageStep
	for i, line := range lines {
		command, ok := strings.CutPrefix(line, "$ ")
		switch {
		case ok:
			s := pageStep{line: begin + i, command: command}
			if m := pageRemark.FindStringSubmatch(command); m != nil {
				s.command = m[1]
				if err := s.remark(m[2]); err != nil {
					return nil, fmt.Errorf("%d: %w", begin+i, err)
				}
			}
			steps = append(steps, s)
		case len(steps) == 0:
			return nil, fmt.Errorf("%d: the first line must be a command behind `$ `", begin+i)
		case strings.TrimSpace(line) != "":
			last := &steps[len(steps)-1]
			last.want = append(last.want, line)
		}
	}
	return steps, nil
}

// remark reads what stands behind a command.
func (s *pageStep) remark(text string) (err error) {
	for _, part := range strings.Split(text, ", ") {
		m := pageExit.FindStringSubmatch(part)
		switch {
		case m != nil:
			if s.exit, err = strconv.Atoi(m[1]); err != nil {
				return err
			}
		case part == "in a moment":
			s.inAMoment = true
		default:
			return fmt.Errorf("a remark is `exit N` or `in a moment`, not %q", part)
		}
	}
	return nil
}

// lacks is the first wanted line that the output does not have, in order; empty if it has them all. `…` stands for anything, and
// columns may be wider.
func (s pageStep) lacks(output string) string {
	lines := strings.Split(output, "\n")
	for _, want := range s.want {
		var parts []string
		for _, part := range strings.Split(manySpaces.ReplaceAllString(strings.TrimSpace(want), " "), "…") {
			parts = append(parts, regexp.QuoteMeta(strings.TrimSpace(part)))
		}
		pattern := regexp.MustCompile(strings.Join(parts, ".*"))
		at := slices.IndexFunc(lines, func(line string) bool { return pattern.MatchString(manySpaces.ReplaceAllString(line, " ")) })
		if at < 0 {
			return want
		}
		lines = lines[at+1:]
	}
	return ""
}

// pageWorld is where a page's commands run: a node whose listeners http and https are what curl finds on ports 80 and 443, and servers
// in place of the backends that pages name.
type pageWorld struct {
	dir   string
	node  *node
	env   []string
	names *strings.Replacer
	forge *forge
}

// pagePrelude makes the files that pages speak of.
const pagePrelude = `set -e
ec() { openssl ecparam -genkey -name prime256v1 -noout -out $1; }
leaf() { # name, authority, subject, what else
  ec $1.key
  openssl req -x509 -CA $2.pem -CAkey $2.key -key $1.key -subj /CN=$3 -addext basicConstraints=critical,CA:FALSE -addext $4 -days 90 -out $1.pem
}
for ca in public-ca inside-ca; do ec $ca.key; openssl req -x509 -key $ca.key -subj /CN=$ca -days 90 -out $ca.pem; done
leaf shop public-ca shop.example.com subjectAltName=DNS:shop.example.com
leaf shop-new public-ca shop.example.com subjectAltName=DNS:shop.example.com
leaf pay inside-ca pay.internal subjectAltName=DNS:pay.internal
leaf front inside-ca front extendedKeyUsage=clientAuth
lbctl apply -f lab.yaml --wait
`

// lab is what a test needs and an operator does not.
const lab = "api_version: lbd/v1\nowner: lab\ncluster_settings: { allow_loopback_backends: true }\n"

func newPageWorld(t *testing.T) *pageWorld {
	w := &pageWorld{dir: t.TempDir()}
	free := make([]string, 4)
	for i := range free {
		address, err := freeAddress()
		if err != nil {
			t.Fatal(err)
		}
		free[i] = address
	}
	data := filepath.Join(w.dir, "data")
	w.env = append(os.Environ(), "PATH="+binaries+string(filepath.ListSeparator)+os.Getenv("PATH"),
		"LBCTL_ENDPOINTS=unix:"+filepath.Join(data, "control.sock"), "CURL_HOME="+w.dir,
		"XDG_CONFIG_HOME="+filepath.Join(w.dir, "config"))
	w.write(t, "lab.yaml", lab)
	identity, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	w.write(t, "key.txt", identity.String()+"\n")
	w.write(t, "recipient", identity.Recipient().String()+"\n")
	w.write(t, ".curlrc", fmt.Sprintf("connect-to = \":80:%s\"\nconnect-to = \":443:%s\"\ncacert = %q\n", free[0], free[1], filepath.Join(w.dir, "public-ca.pem")))
	w.node = &node{name: "edge-1", binary: "lbd-plain", log: filepath.Join(w.dir, "lbd.log"), args: []string{"run", "--node", "edge-1",
		"--data-dir", data, "--metrics", "off", "--control", free[3], "--listen", "http=" + free[0], "--listen", "https=" + free[1]}}
	if _, err := w.node.start(w.env); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.node.kill() })
	if out, code, err := w.run(pagePrelude); err != nil || code != 0 {
		t.Fatalf("exit %d: %v\n%s", code, err, out)
	}
	w.forge = newForge(t, w.dir)
	w.names = strings.NewReplacer(
		"10.0.0.11:8080", pageBackend(t, "b1"),
		"10.0.0.12:8080", pageBackend(t, "b2"),
		"10.0.0.13:8080", pageBackend(t, "b3"),
		"10.0.0.14:8080", free[2], // nobody is there
		"10.0.0.15:8080", forgetfulBackend(t, "b5"),
		"10.0.0.21:8443", w.payBackend(t),
		"10.0.0.1:7443", free[3],
		"10.0.0.0/24", "127.0.0.0/8", // where they are here
	)
	return w
}

func (w *pageWorld) write(t *testing.T, name, text string) {
	if err := os.WriteFile(filepath.Join(w.dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func pageBackend(t *testing.T, name string) string { return startPageBackend(t, name).address }

// forgetfulBackend closes each connection behind its answer.
func forgetfulBackend(t *testing.T, name string) string {
	b := startPageBackend(t, name)
	b.server.SetKeepAlivesEnabled(false)
	return b.address
}

func startPageBackend(t *testing.T, name string) *backend {
	b := &backend{name: name, address: "127.0.0.1:0", status: http.StatusOK}
	if err := b.start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.stop)
	return b
}

// payBackend speaks TLS with who shows a certificate of the inner authority.
func (w *pageWorld) payBackend(t *testing.T) string {
	pair, err := tls.LoadX509KeyPair(filepath.Join(w.dir, "pay.pem"), filepath.Join(w.dir, "pay.key"))
	if err != nil {
		t.Fatal(err)
	}
	ca, err := os.ReadFile(filepath.Join(w.dir, "inside-ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	config := &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: x509.NewCertPool()}
	config.ClientCAs.AppendCertsFromPEM(ca)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{TLSConfig: config, ErrorLog: log.New(io.Discard, "", 0), Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})}
	go func() { _ = server.ServeTLS(l, "", "") }()
	t.Cleanup(func() { server.Close() })
	return l.Addr().String()
}

// do does one step. An error says what was seen instead.
func (w *pageWorld) do(s pageStep) error {
	if isPipeline(s.file) {
		return w.runPipeline(s.file, s.text)
	}
	if s.file != "" {
		path := filepath.Join(w.dir, s.file)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return err
		}
		return os.WriteFile(path, []byte(w.names.Replace(s.text)), 0o600)
	}
	for i := range s.want {
		s.want[i] = w.names.Replace(s.want[i])
	}
	for deadline := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		out, code, err := w.enter(w.names.Replace(s.command))
		lacking := s.lacks(out)
		switch {
		case err != nil:
			return err
		case code == s.exit && lacking == "":
			return nil
		case s.inAMoment && time.Now().Before(deadline):
		case code != s.exit:
			return fmt.Errorf("%s: exit %d, not %d:\n%s", s.command, code, s.exit, out)
		default:
			return fmt.Errorf("%s: no line has %q:\n%s", s.command, lacking, out)
		}
	}
}

// enter runs a command. `lbd run …` starts the page's node anew with these flags and says what the node said.
func (w *pageWorld) enter(command string) (output string, exit int, err error) {
	flags, ok := strings.CutPrefix(command, "lbd run")
	if !ok {
		return w.run(command)
	}
	if err := w.node.signal(syscall.SIGTERM); err != nil {
		return "", 0, err
	}
	if err := os.Truncate(w.node.log, 0); err != nil {
		return "", 0, err
	}
	again := &node{name: w.node.name, binary: w.node.binary, log: w.node.log, args: slices.Concat(w.node.args, strings.Fields(flags))}
	if _, err := again.start(w.env); err != nil {
		return "", 0, err
	}
	w.node = again
	return again.tail(), 0, nil
}

func (w *pageWorld) run(command string) (output string, exit int, err error) {
	cmd := exec.Command("bash", "-c", command)
	cmd.Dir, cmd.Env = w.dir, w.env
	out, err := cmd.CombinedOutput()
	var ended *exec.ExitError
	if errors.As(err, &ended) {
		err = nil
	}
	return string(out), cmd.ProcessState.ExitCode(), err
}

// TestPageRules shows that a page with a mistake fails, and what its blocks mean.
func TestPageRules(t *testing.T) {
	for name, text := range map[string]string{
		"a block of no kind":     "```\nls\n```",
		"a block of another one": "```sh\nls\n```",
		"a file without a name":  "```yaml\na: b\n```",
		"output of nothing":      "```console\nok\n```",
		"an unknown remark":      "```console\n$ ls   # later\n```",
		"a block without an end": "```console\n$ ls",
	} {
		if _, err := parsePage(text); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	steps, err := parsePage("## A task\n\n```console\n$ ls '# a'    # in a moment, exit 3\na  … c\nd\n```\n")
	if err != nil || len(steps) != 1 {
		t.Fatalf("%v, %v", steps, err)
	}
	s := steps[0]
	if s.command != "ls '# a'" || s.exit != 3 || !s.inAMoment || s.task != "A task" || s.line != 4 {
		t.Errorf("%+v", s)
	}
	for output, lacks := range map[string]string{"x\na   b    c\ny\nd e\n": "", "a c": "d", "d\na b c": "d", "c a\nd": "a  … c", "": "a  … c"} {
		if got := s.lacks(output); got != lacks {
			t.Errorf("%q: lacks %q, not %q", output, got, lacks)
		}
	}
}

var pageLink = regexp.MustCompile(`\]\(([^)#:\s]+)(#[^)\s]*)?\)`)

// TestLinks holds that what the pages and the papers at the root link to is there.
func TestLinks(t *testing.T) {
	root := filepath.Join("..", "..")
	pages, _ := filepath.Glob(filepath.Join(root, "*.md"))
	more, _ := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	links := 0
	for _, page := range slices.Concat(pages, more) {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range pageLink.FindAllStringSubmatch(string(text), -1) {
			links++
			if _, err := os.Stat(filepath.Join(filepath.Dir(page), m[1])); err != nil {
				t.Errorf("%s links to %s: %v", page, m[1], err)
			}
		}
	}
	if links == 0 {
		t.Error("no links")
	}
}
