//go:build linux

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"lbd/bench/node"
)

// readyTimeout bounds each wait for a node.
const readyTimeout = 60 * time.Second

// cluster is some nodes on this machine.
type cluster struct {
	ctx       context.Context
	bin, work string
	nodes     []*member
}

// member is one of them, a process.
type member struct {
	name, dir, control, https string
	cmd                       *exec.Cmd
	token                     string // that it joined with
}

// form makes a cluster of n nodes from one token.
func (c *cluster) form(n int) error {
	var token string
	for i := range n {
		m := &member{name: fmt.Sprintf("edge-%d", i+1), dir: filepath.Join(c.work, fmt.Sprint("node", i+1)), token: token}
		for _, address := range []*string{&m.control, &m.https} {
			var err error
			if *address, err = node.FreeAddress("127.0.0.1"); err != nil {
				return err
			}
		}
		c.nodes = append(c.nodes, m)
		verb := "join"
		if i == 0 {
			verb = "run"
		}
		if err := c.start(m, verb); err != nil {
			return err
		}
		if i > 0 {
			continue
		}
		if _, err := c.lbctl(m, document, "apply", "-f", "-", "--wait"); err != nil {
			return err
		}
		out, err := c.lbctl(m, "", "cluster", "join-token", "create", "--reusable", "-o", "jsonpath={.secret}")
		if err != nil {
			return err
		}
		token = strings.TrimSpace(out)
	}
	return c.settled()
}

// document is what the nodes serve: a page of their own.
const document = `
api_version: lbd/v1
owner: bench
listeners: [{ name: front, addresses: ["127.0.0.1:8443"], protocol: HTTPS, tls: { default_certificate: front } }]
certificates: [{ name: front, self_signed: { hosts: [front.test] } }]
routes:
  - { name: front, listeners: [front], respond: { status: 200, body: "ok" } }
`

// page is a document with one more route.
func page(i int) string {
	return document + fmt.Sprintf("  - { name: r%d, listeners: [front], matches: [{ path: { exact: /%d } }], respond: { status: 200, body: x } }\n", i, i)
}

// start runs a node and waits for its ready line.
func (c *cluster) start(m *member, verb string) error {
	args := []string{verb}
	if verb == "join" {
		args = append(args, c.nodes[0].control, "--token", m.token)
	}
	args = append(args, "--data-dir", m.dir, "--node", m.name, "--control", m.control, "--metrics", "off", "--listen", "front="+m.https)
	m.cmd = exec.CommandContext(c.ctx, filepath.Join(c.bin, "lbd"), args...)
	stderr, err := m.cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := m.cmd.Start(); err != nil {
		m.cmd = nil
		return err
	}
	ready := make(chan error, 2) // ready, and the end
	go func() {
		said := ""
		s := bufio.NewScanner(stderr)
		for s.Scan() {
			if strings.HasPrefix(s.Text(), "lbd ready") {
				ready <- nil
			}
			if len(said) < 1<<16 {
				said += s.Text() + "\n"
			}
		}
		ready <- errors.New("it ended: " + said)
	}()
	select {
	case err = <-ready:
	case <-time.After(readyTimeout):
		err = errors.New("it is not ready")
	}
	if err != nil {
		return fmt.Errorf("start %s: %w", m.name, err)
	}
	return nil
}

// kill ends a node as a power cut would.
func (m *member) kill() error {
	if m.cmd == nil {
		return nil
	}
	err := m.cmd.Process.Kill()
	_ = m.cmd.Wait() // killed
	m.cmd = nil
	return err
}

func (c *cluster) close() {
	for _, m := range c.nodes {
		_ = m.kill()
	}
}

// lbctl runs it against one node's socket, with a document for its standard input.
func (c *cluster) lbctl(m *member, input string, args ...string) (string, error) {
	cmd := exec.CommandContext(c.ctx, filepath.Join(c.bin, "lbctl"), args...)
	cmd.Env = append(os.Environ(), "LBCTL_ENDPOINTS=unix:"+filepath.Join(m.dir, "control.sock"))
	cmd.Stdin = strings.NewReader(input)
	var out, talk bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &talk
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("lbctl %s: %w: %s", strings.Join(args, " "), err, talk.String())
	}
	return out.String(), nil
}

// condition is the part of `lbctl cluster status` that is looked at.
type condition struct {
	Leader string
	Voters int
	Nodes  []struct {
		Node      struct{ Name string }
		Reachable bool
	}
	Problems []string
}

func (c *cluster) status(m *member) (condition, error) {
	var s condition
	out, err := c.lbctl(m, "", "cluster", "status", "-o", "json") // exit 1: something is wrong, and it says what
	if jerr := json.Unmarshal([]byte(out), &s); jerr != nil {
		return s, errors.Join(err, jerr)
	}
	return s, nil
}

// settled waits until all nodes vote, answer, and nothing is wrong.
func (c *cluster) settled() error {
	var last error
	for end := time.Now().Add(readyTimeout); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		s, err := c.status(c.nodes[0])
		if err == nil && s.Voters == len(c.nodes) && s.Leader != "" && len(s.Problems) == 0 {
			return nil
		}
		last = fmt.Errorf("the cluster does not settle: %+v: %w", s, err)
	}
	return last
}

// leader is who leads now.
func (c *cluster) leader() (*member, error) {
	s, err := c.status(c.nodes[0])
	for _, m := range c.nodes {
		if err == nil && m.name == s.Leader {
			return m, nil
		}
	}
	return nil, fmt.Errorf("nobody leads: %w", err)
}
