//go:build linux

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// proxy is one contestant.
type proxy struct {
	name    string // as the command line says it, and as tables show it
	kind    *kind
	program string
	control string // lbctl, for lbd
	built   bool   // by the lab
	version string
	library string // for TLS
}

// kind is how a program is configured and started. Templates are in bench/peers.
type kind struct {
	name    string
	version []string // arguments
	// files maps templates to what they become in the proxy's folder.
	files map[string]string
	// arguments of the program.
	arguments func(s setup, accessLog string) []string
	// apply is what remains to be done when the process runs. Nil: nothing.
	apply func(ctx context.Context, l *lab, p *proxy, s setup) error
	// rotate tells a running proxy that a certificate's files have changed. Nil: it has no way that the lab knows of.
	rotate func(ctx context.Context, b *bed, p *proxy, files certificateFiles) error
	// reroute tells a running proxy that its first host has another ExtraHost, and had old before; the files are written. Nil: as above.
	reroute func(ctx context.Context, b *bed, p *proxy, old string) error
	// environment is what a program without a setting for it reads its number of loops from. Nil: none.
	environment func(s setup) []string
	// library finds the TLS library in what the program says of its version; the first that matches counts. None: it is Go's.
	library []*regexp.Regexp
}

var kinds = []*kind{
	{
		name:    "nginx",
		version: []string{"-V"},
		files:   map[string]string{"nginx.conf": "nginx.conf"},
		arguments: func(s setup, _ string) []string {
			return []string{"-p", s.Dir, "-e", s.Dir + "/error.log", "-c", s.Dir + "/nginx.conf"}
		},
		rotate:  rotateNginx,
		reroute: rerouteNginx,
		library: []*regexp.Regexp{
			regexp.MustCompile(`running with ([^)\n]+)`),
			regexp.MustCompile(`built with ((?:OpenSSL|BoringSSL|AWS-LC|LibreSSL)[^\n]*)`),
		},
	},
	{
		name:      "haproxy",
		version:   []string{"-vv"},
		files:     map[string]string{"haproxy.cfg": "haproxy.cfg"},
		arguments: func(s setup, _ string) []string { return []string{"-db", "-f", s.Dir + "/haproxy.cfg"} },
		rotate:    rotateHAProxy,
		reroute:   rerouteHAProxy,
		library:   []*regexp.Regexp{regexp.MustCompile(`Running on (?:OpenSSL|SSL library) version : ([^\n]+)`)},
	},
	{
		name:    "caddy",
		version: []string{"version"},
		files:   map[string]string{"Caddyfile": "Caddyfile"},
		arguments: func(s setup, _ string) []string {
			return []string{"run", "--config", s.Dir + "/Caddyfile", "--adapter", "caddyfile"}
		},
		rotate:      rotateCaddy,
		reroute:     rerouteCaddy,
		environment: goLoops,
	},
	{
		name:        "traefik",
		version:     []string{"version"},
		files:       map[string]string{"traefik.yaml": "traefik.yaml", "traefik-routes.yaml": "routes.yaml"},
		arguments:   func(s setup, _ string) []string { return []string{"--configfile=" + s.Dir + "/traefik.yaml"} },
		rotate:      rotateTraefik,
		reroute:     rerouteTraefik,
		environment: goLoops,
	},
	{
		name:      "lbd",
		version:   []string{"version"},
		files:     map[string]string{"lbd.yaml": "lbd.yaml"},
		arguments: lbdArguments,
		apply:     lbdApply,
		rotate:    rotateLbd,
		reroute:   rerouteLbd,
	},
}

// goLoops is what a Go program takes its number of threads from.
func goLoops(s setup) []string { return []string{fmt.Sprintf("GOMAXPROCS=%d", s.Loops)} }

func lbdArguments(s setup, accessLog string) []string {
	arguments := []string{"run", "--dev", "--data-dir", s.Dir + "/data", "--listen", "http=" + s.HTTP, "--listen", "https=" + s.HTTPS, "--metrics"}
	if s.Metrics == "" {
		arguments = append(arguments, "off")
	} else {
		arguments = append(arguments, s.Metrics)
	}
	if accessLog != "" {
		arguments = append(arguments, "--access-log", accessLog)
	}
	return arguments
}

// lbdApply sends the documents once the control socket is there, and returns when they are served.
func lbdApply(ctx context.Context, l *lab, p *proxy, s setup) error {
	return l.lbctl(ctx, p, s, "apply", "-f", s.Dir+"/lbd.yaml", "--wait", "--timeout", startTimeout.String())
}

// lbctl runs on the load's core: what an operator's machine does is not the proxy's cost.
func (l *lab) lbctl(ctx context.Context, p *proxy, s setup, arguments ...string) error {
	cmd := exec.CommandContext(ctx, l.self, place{core: l.loadCore}.arguments(append([]string{p.control}, arguments...)...)...)
	cmd.Env = append(os.Environ(), "LBCTL_ENDPOINTS=unix:"+s.Dir+"/data/control.sock")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("lbctl %s: %w\n%s", arguments[0], err, out)
	}
	return nil
}

// errMissing is a contestant that this machine does not have. The others go on.
var errMissing = errors.New("not present")

// find resolves a name of the command line: NAME, NAME=PROGRAM, lbd@REVISION, lbd+SPIN.
func (l *lab) find(ctx context.Context, name string) (*proxy, error) {
	bare, program, given := strings.Cut(name, "=")
	base := bare
	if i := strings.IndexAny(bare, "@+-"); i > 0 {
		base = bare[:i]
	}
	p := &proxy{name: bare, program: program}
	for _, k := range kinds {
		if k.name == base {
			p.kind = k
		}
	}
	switch {
	case p.kind == nil:
		return nil, fmt.Errorf("unknown proxy %q", name)
	case p.kind.name == "lbd":
		if err := l.buildLbd(ctx, p); err != nil {
			return nil, err
		}
	case !given:
		found, err := exec.LookPath(base)
		if err != nil {
			return nil, fmt.Errorf("%s: %w: install it, or give %s=PROGRAM", name, errMissing, base)
		}
		p.program = found
	}
	if err := p.ask(ctx); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return p, nil
}

var versionNumber = regexp.MustCompile(`v?\d+\.\d+(?:\.\d+)?[-+~.\w]*`)

// ask gets version and TLS library from the program itself.
func (p *proxy) ask(ctx context.Context) error {
	out, err := exec.CommandContext(ctx, p.program, p.kind.version...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	text := string(out)
	firstLine, _, _ := strings.Cut(text, "\n") // further down are the versions of what it was built with
	p.version = cmp.Or(versionNumber.FindString(firstLine), moduleVersion(ctx, p.program), "unknown version")
	if p.kind.name == "lbd" {
		p.version = strings.TrimPrefix(lastLines(text, 1), "lbd ")
	}
	p.library = p.kind.libraryIn(text)
	return nil
}

// moduleVersion is what the Go tool wrote into a program that was built from a module.
func moduleVersion(ctx context.Context, program string) string {
	out, _ := exec.CommandContext(ctx, "go", "version", "-m", program).Output()
	for line := range strings.Lines(string(out)) {
		if f := strings.Fields(line); len(f) > 2 && f[0] == "mod" {
			return f[2]
		}
	}
	return ""
}

func (k *kind) libraryIn(text string) string {
	if k.library == nil {
		return "crypto/tls"
	}
	for _, pattern := range k.library {
		if m := pattern.FindStringSubmatch(text); m != nil {
			return strings.TrimSpace(m[1])
		}
	}
	return "unknown"
}

// configure fills in the proxy's templates.
func (l *lab) configure(p *proxy, s setup) error {
	for from, to := range p.kind.files {
		if err := s.write(filepath.Join(l.root, "bench", "peers", from), filepath.Join(s.Dir, to)); err != nil {
			return fmt.Errorf("write configuration: %w", err)
		}
	}
	return nil
}

// startProxy configures the proxy in its folder, starts it in its place, and returns when it serves. Without apply it is to know from an
// earlier start what it serves.
func (l *lab) startProxy(ctx context.Context, p *proxy, s setup, at place, apply bool) (*process, error) {
	if err := l.configure(p, s); err != nil {
		return nil, err
	}
	out, err := logFile(filepath.Join(s.Dir, "output.log"))
	if err != nil {
		return nil, err
	}
	defer out.Close()
	cmd := at.command(l.self, append([]string{p.program}, p.kind.arguments(s, s.AccessLog)...)...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = s.Dir, out, out
	cmd.Env = append(os.Environ(), "LBD_CONTROL=off") // not a flag: older builds of lbd do not know it
	if p.kind.environment != nil && s.Loops > 1 {
		cmd.Env = append(cmd.Env, p.kind.environment(s)...)
	}
	// What goes to standard output is an access log where the program has no file for it.
	if p.kind.name == "haproxy" && s.AccessLog != "" {
		log, err := logFile(s.AccessLog)
		if err != nil {
			return nil, err
		}
		defer log.Close()
		cmd.Stdout = log
	}
	process, err := start(p.name, cmd)
	if err != nil {
		return nil, err
	}
	if err := l.untilServing(ctx, p, s, process, apply); err != nil {
		process.stop()
		tail, _ := os.ReadFile(filepath.Join(s.Dir, "output.log"))
		return nil, fmt.Errorf("%s does not serve: %w\n%s", p.name, err, lastLines(string(tail), 5))
	}
	return process, nil
}

func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
