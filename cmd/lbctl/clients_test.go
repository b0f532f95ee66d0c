package main

import (
	"bytes"
	"context"
	"crypto/tls"
	_ "embed"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// chromePage is what the browser is shown: its script makes the requests.
//
//go:embed testdata/clients/page.html
var chromePage []byte

// realClient is a program that people use, with what it is asked to do. All do GET, HEAD and POST of 1 MB.
type realClient struct {
	name        string
	needs       []string // programs, all of them; the first is what run gets
	imports     string   // a Python module
	connections int64    // that it may open at most: fewer than it makes requests
	headless    bool     // it cannot do HEAD
	run         func(t *testing.T, c *clientRun)
}

// clientRun is one client's run.
type clientRun struct {
	program   string
	url, body string // body is a file with 1 MB
	dir       string
}

// command runs the client's program and returns what it says.
func (c *clientRun) command(t *testing.T, arguments ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.program, arguments...)
	cmd.Dir = c.dir
	cmd.Env = append(os.Environ(), "NODE_TLS_REJECT_UNAUTHORIZED=0", "NODE_NO_WARNINGS=1", "HOME="+c.dir)
	cmd.WaitDelay = patience
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%s: %v\n%s", strings.Join(cmd.Args, " "), err, out)
	}
	return string(out)
}

// script runs one of testdata/clients.
func script(file string) func(t *testing.T, c *clientRun) {
	return func(t *testing.T, c *clientRun) {
		at, err := filepath.Abs(filepath.Join("testdata", "clients", file))
		if err != nil {
			t.Fatal(err)
		}
		c.command(t, at, c.url, c.body)
	}
}

var realClients = []realClient{
	{name: "curl", needs: []string{"curl"}, connections: 1, run: func(t *testing.T, c *clientRun) {
		c.command(t, "-kfsS", c.url, "-o", "a", "--next", "-kfsS", "-I", c.url, "--next", "-kfsS", "--data-binary", "@"+c.body, c.url, "-o", "b",
			"--next", "-kfsS", "-T", c.body, "-H", "Transfer-Encoding: chunked", "-X", "POST", c.url, "-o", "c")
	}},
	{name: "wget", needs: []string{"wget"}, connections: 3, run: func(t *testing.T, c *clientRun) {
		c.command(t, "-q", "--no-check-certificate", "-O", "a", c.url, c.url) // both on one connection
		c.command(t, "-q", "--no-check-certificate", "--spider", "--method=HEAD", c.url)
		c.command(t, "-q", "--no-check-certificate", "-O", "b", "--post-file", c.body, c.url)
	}},
	// Over HTTP/1.1 h2load takes the length that an answer to HEAD states for a body that is to come, and waits for it.
	{name: "h2load", needs: []string{"h2load"}, connections: 4, headless: true, run: func(t *testing.T, c *clientRun) {
		for _, more := range [][]string{{}, {"-d", c.body}} {
			said := c.command(t, append([]string{"--h1", "-n", "20", "-c", "2", "-t", "1", c.url}, more...)...)
			if !strings.Contains(said, "20 succeeded, 0 failed, 0 errored") {
				t.Error(said)
			}
		}
	}},
	{name: "ab", needs: []string{"ab"}, connections: 6, run: func(t *testing.T, c *clientRun) {
		for _, more := range [][]string{{}, {"-p", c.body, "-T", "application/octet-stream"}, {"-i"}} {
			said := c.command(t, append(append([]string{"-q", "-k", "-n", "20", "-c", "2"}, more...), c.url)...)
			if !strings.Contains(said, "Complete requests:      20\nFailed requests:        0\n") || strings.Contains(said, "Non-2xx") {
				t.Error(said)
			}
		}
	}},
	{name: "python-stdlib", needs: []string{"python3"}, imports: "http.client", connections: 2, run: script("with_stdlib.py")},
	{name: "python-requests", needs: []string{"python3"}, imports: "requests", connections: 1, run: script("with_requests.py")},
	{name: "python-aiohttp", needs: []string{"python3"}, imports: "aiohttp", connections: 1, run: script("with_aiohttp.py")},
	{name: "node-https", needs: []string{"node"}, connections: 1, run: script("https.mjs")},
	{name: "node-fetch", needs: []string{"node"}, connections: 4, run: script("fetch.mjs")},
	{name: "go", connections: 1, run: goClient},
	{name: "chromium", needs: []string{"chromium"}, connections: 3, run: func(t *testing.T, c *clientRun) {
		said := c.command(t, "--headless", "--no-sandbox", "--disable-gpu", "--ignore-certificate-errors", "--disable-background-networking",
			"--user-data-dir="+c.dir, "--timeout=20000", "--virtual-time-budget=20000", "--dump-dom", c.url+"/page")
		if !strings.Contains(said, "<title>all is well</title>") {
			t.Error(said)
		}
	}},
}

func goClient(t *testing.T, c *clientRun) {
	tr := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	defer tr.CloseIdleConnections()
	client := &http.Client{Transport: tr, Timeout: patience}
	body, err := os.ReadFile(c.body)
	if err != nil {
		t.Fatal(err)
	}
	for _, method := range []string{"GET", "HEAD", "POST", "GET"} {
		var content io.Reader
		if method == "POST" {
			content = bytes.NewReader(body)
		}
		r, err := http.NewRequest(method, c.url, content)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusOK || (len(got) == 0) != (method == "HEAD") {
			t.Errorf("%s: %s, %d bytes, %v", method, resp.Status, len(got), err)
		}
	}
}

// program returns what runs the client: where it is installed with all that it needs, or what is missing.
func (r *realClient) program() (program, missing string) {
	for _, name := range r.needs {
		found, err := exec.LookPath(name)
		if err != nil {
			return "", name
		}
		if program == "" {
			program = found
		}
	}
	if r.imports == "" {
		return program, ""
	}
	for _, python := range []string{program, "/usr/bin/python3"} { // the distribution's modules belong to the distribution's Python
		if exec.Command(python, "-c", "import "+r.imports).Run() == nil {
			return python, ""
		}
	}
	return "", "Python's " + r.imports
}

// asked is what reached the backend: how often, by the client's name and the method. A POST counts if its body is the right one.
type asked struct {
	mu    sync.Mutex
	times map[string]int
	body  []byte
}

func (a *asked) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	got, err := io.ReadAll(r.Body)
	if path.Base(r.URL.Path) == "page" {
		w.Header().Set("Content-Type", "text/html")
		_, _ = w.Write(chromePage) // the browser says what it got
		return
	}
	key := strings.Split(r.URL.Path, "/")[1] + " " + r.Method
	if err != nil || r.Method == "POST" && !bytes.Equal(got, a.body) {
		key += " wrong"
	}
	a.mu.Lock()
	a.times[key]++
	a.mu.Unlock()
	_, _ = io.WriteString(w, "a short answer\n") // the client says what it got
}

// counter passes connections on and counts them: what a client opens is seen in front of lbd.
type counter struct {
	net.Listener
	accepted atomic.Int64
	wg       sync.WaitGroup
}

func newCounter(t *testing.T, to string) *counter {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &counter{Listener: l}
	c.wg.Go(func() { c.run(to) })
	t.Cleanup(func() { l.Close(); c.wg.Wait() })
	return c
}

func (c *counter) run(to string) {
	for {
		in, err := c.Accept()
		if err != nil {
			return
		}
		c.accepted.Add(1)
		c.wg.Go(func() {
			defer in.Close()
			out, err := net.Dial("tcp", to)
			if err != nil {
				return
			}
			defer out.Close()
			up := make(chan struct{})
			go func() {
				defer close(up)
				_, _ = io.Copy(out, in) // ends when either side does
				_ = out.(*net.TCPConn).CloseWrite()
			}()
			_, _ = io.Copy(in, out)
			in.Close()
			<-up
		})
	}
}

// startNodeFor runs a dev node for a test and applies a document, in which BACKEND stands for an address.
func startNodeFor(t *testing.T, engine, binary, document, backend string) (http, https string, lbctl func(stdin string, arguments ...string) error) {
	t.Helper()
	dir := t.TempDir()
	for _, a := range []*string{&http, &https} {
		var err error
		if *a, err = freeAddress(); err != nil {
			t.Fatal(err)
		}
	}
	n := &node{name: "n", binary: binary, log: filepath.Join(dir, "log"), args: []string{
		"run", "--dev", "--data-dir", filepath.Join(dir, "data"), "--node", "n", "--listen", "http=" + http, "--listen", "https=" + https, "--metrics", "off",
	}}
	t.Cleanup(n.kill)
	if _, err := n.start(append(os.Environ(), "LBD_ENGINE="+engine, "GORACE=halt_on_error=1")); err != nil {
		t.Fatal(err)
	}
	lbctl = func(stdin string, arguments ...string) error {
		cmd := exec.Command(filepath.Join(binaries, "lbctl"), arguments...)
		cmd.Env = append(os.Environ(), "LBCTL_ENDPOINTS=unix:"+filepath.Join(dir, "data", "control.sock"))
		cmd.Stdin = strings.NewReader(stdin)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}
	if err := lbctl(strings.ReplaceAll(document, "BACKEND", backend), "apply", "-f", "-", "--wait"); err != nil {
		t.Fatal(err)
	}
	return http, https, lbctl
}

const clientsDocument = `
api_version: lbd/v1
owner: dev
pools: [{ name: default, backends: [{ address: "BACKEND" }] }]
routes: [{ name: default, listeners: [http, https], forward: { pools: [{ pool: default }] } }]
`

// TestClients lets every client that is installed do GET, HEAD, POST of 1 MB and reuse through a node, over TLS, and names
// those that are not.
func TestClients(t *testing.T) {
	body := make([]byte, 1<<20)
	for i := range body {
		body[i] = byte(i % 251)
	}
	bodyFile := filepath.Join(t.TempDir(), "body")
	if err := os.WriteFile(bodyFile, body, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, engine := range engines() {
		t.Run(engine, func(t *testing.T) {
			saw := &asked{times: map[string]int{}, body: body}
			backend := httptest.NewServer(saw)
			t.Cleanup(backend.Close)
			_, https, _ := startNodeFor(t, engine, "lbd", clientsDocument, backend.Listener.Addr().String())
			for _, r := range realClients {
				program, missing := r.program()
				if missing != "" {
					t.Logf("not installed, so not asked: %s (%s is missing)", r.name, missing)
					continue
				}
				t.Run(r.name, func(t *testing.T) { r.check(t, saw, program, https, bodyFile) })
			}
		})
	}
}

func (r *realClient) check(t *testing.T, saw *asked, program, https, body string) {
	front := newCounter(t, https)
	dir, err := os.MkdirTemp("", "client-") // a browser's last files come after its end: t.TempDir would complain
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	r.run(t, &clientRun{program: program, url: "https://" + front.Addr().String() + "/" + r.name, body: body, dir: dir})
	saw.mu.Lock()
	defer saw.mu.Unlock()
	requests := int64(0)
	for _, method := range []string{"GET", "HEAD", "POST"} {
		n := saw.times[r.name+" "+method]
		if n == 0 && !(method == "HEAD" && r.headless) {
			t.Errorf("no %s came", method)
		}
		if wrong := saw.times[r.name+" "+method+" wrong"]; wrong > 0 {
			t.Errorf("%d times %s with a wrong body", wrong, method)
		}
		requests += int64(n)
	}
	if opened := front.accepted.Load(); opened > r.connections || opened >= requests {
		t.Errorf("%d requests on %d connections, at most %d were to be opened", requests, opened, r.connections)
	}
}
