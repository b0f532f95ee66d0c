package main

import (
	"maps"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// parse reads a command line and an environment as `lbd run` does.
func parse(t *testing.T, env map[string]string, args ...string) (config, error) {
	t.Helper()
	var f flags
	c := &cobra.Command{Use: "run"}
	f.register(c)
	if err := c.ParseFlags(args); err != nil {
		return config{}, err
	}
	err := f.fromEnvironment(c, func(key string) (string, bool) {
		if v, ok := env[key]; ok || key != "LBD_CONTROL" {
			return v, ok
		}
		return "off", true
	})
	if err != nil {
		return config{}, err
	}
	return f.config()
}

func TestConfig(t *testing.T) {
	dir := t.TempDir()
	cfg, err := parse(t, nil, "--data-dir", dir, "--node", "n1", "--listen", "http=127.0.0.1:80", "--listen", "https=[::1]:443", "--metrics", "off")
	if err != nil {
		t.Fatal(err)
	}
	if cfg.dataDir != dir || cfg.socket != filepath.Join(dir, "control.sock") || cfg.node != "n1" || cfg.metrics != "off" {
		t.Errorf("read %+v", cfg)
	}
	if want := map[string]string{"http": "127.0.0.1:80", "https": "[::1]:443"}; !maps.Equal(cfg.listen, want) {
		t.Errorf("listen %v, want %v", cfg.listen, want)
	}
	if cfg.dev {
		t.Error("it is a dev node")
	}
	if cfg, err = parse(t, nil, "--data-dir", dir, "--dev"); err != nil || cfg.metrics != metricsDefault || cfg.node == "" {
		t.Errorf("dev: %+v, %v", cfg, err)
	}
}

func TestConfigOfTheControlPort(t *testing.T) {
	for _, c := range []struct {
		args               []string
		control, advertise string
	}{
		{[]string{"--dev", "--control", ""}, "127.0.0.1:7443", ""},
		{[]string{"--control", "off"}, "off", ""},
		{[]string{"--dev", "--control", "off"}, "off", ""},
		{[]string{"--control", "10.0.0.1:7443"}, "10.0.0.1:7443", ""},
		{[]string{"--control", ":7443", "--advertise", "edge-1.example.com:7443"}, ":7443", "edge-1.example.com:7443"},
	} {
		cfg, err := parse(t, nil, append([]string{"--data-dir", t.TempDir()}, c.args...)...)
		if err != nil || cfg.control != c.control || cfg.advertise != c.advertise {
			t.Errorf("%v: control %q, advertise %q, %v", c.args, cfg.control, cfg.advertise, err)
		}
	}
}

// The machine's own node has its socket where everybody looks for it, whoever it runs as; another one has its own to itself.
func TestConfigOfTheSocket(t *testing.T) {
	cfg, err := parse(t, nil, "--data-dir", "/var/lib/lbd")
	if err != nil || cfg.socket != "/run/lbd/control.sock" {
		t.Errorf("socket %s, %v", cfg.socket, err)
	}
	dir := t.TempDir()
	if cfg, err = parse(t, nil, "--data-dir", dir); err != nil || cfg.socket != filepath.Join(dir, "control.sock") || cfg.socketGroup() != 0 {
		t.Errorf("socket %s for group %d, %v", cfg.socket, cfg.socketGroup(), err)
	}
}

func TestConfigEnvironment(t *testing.T) {
	dir := t.TempDir()
	env := map[string]string{
		"LBD_DATA_DIR": dir, "LBD_NODE": "from-env", "LBD_DEV": "true", "LBD_METRICS": "off",
		"LBD_LISTEN": "http=127.0.0.1:80, https=127.0.0.1:443",
	}
	cfg, err := parse(t, env)
	if err != nil {
		t.Fatal(err)
	}
	if cfg.dataDir != dir || cfg.node != "from-env" || !cfg.dev || cfg.metrics != "off" || len(cfg.listen) != 2 {
		t.Errorf("read %+v", cfg)
	}
	cfg, err = parse(t, env, "--node", "from-flag", "--listen", "http=127.0.0.1:81", "--dev=false")
	if err != nil {
		t.Fatal(err)
	}
	if cfg.node != "from-flag" || cfg.dev || !maps.Equal(cfg.listen, map[string]string{"http": "127.0.0.1:81"}) {
		t.Errorf("flags do not win: %+v", cfg)
	}
}

func TestConfigRefused(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct {
		name string
		env  map[string]string
		args []string
		want string
	}{
		{"no name", nil, []string{"--listen", "127.0.0.1:80"}, "want NAME=HOST:PORT"},
		{"empty name", nil, []string{"--listen", "=127.0.0.1:80"}, "want NAME=HOST:PORT"},
		{"no port", nil, []string{"--listen", "http=127.0.0.1"}, "missing port"},
		{"port too high", nil, []string{"--listen", "http=127.0.0.1:99999"}, "invalid port"},
		{"listener twice", nil, []string{"--listen", "http=:80", "--listen", "http=:81"}, "listener http is given :80 already"},
		{"no control port", nil, []string{"--control", ""}, "--control is missing"},
		{"no port of the control port", nil, []string{"--control", "10.0.0.1"}, "want HOST:PORT"},
		{"control port everywhere", nil, []string{"--control", "0.0.0.0:7443"}, "by --advertise HOST:PORT"},
		{"control port everywhere by IPv6", nil, []string{"--control", "[::]:7443"}, "by --advertise HOST:PORT"},
		{"control port without a host", nil, []string{"--control", ":7443"}, "by --advertise HOST:PORT"},
		{"advertised everywhere", nil, []string{"--control", ":7443", "--advertise", "0.0.0.0:7443"}, "no address that others could reach"},
		{"advertised without a port", nil, []string{"--control", ":7443", "--advertise", "edge-1"}, "--advertise edge-1"},
		{"advertised for nothing", nil, []string{"--control", "off", "--advertise", "edge-1:7443"}, "there is no control port"},
		{"no metrics address", map[string]string{"LBD_METRICS": ""}, nil, "want HOST:PORT"},
		{"slash in the node", nil, []string{"--node", "a/b"}, "--node"},
		{"long node", nil, []string{"--node", strings.Repeat("n", 64)}, "at most 63"},
		{"node in letters of another script", nil, []string{"--node", "köln"}, "ASCII"},
		{"dev from the environment", map[string]string{"LBD_DEV": "maybe"}, nil, "LBD_DEV"},
		{"log format", nil, []string{"--access-log-format", "xml"}, "want json, common or combined"},
		{"log level", nil, []string{"--log-level", "INFO"}, "want debug, info, warn or error"},
		{"log level of the environment", map[string]string{"LBD_LOG_LEVEL": "loud"}, nil, `--log-level "loud"`},
		{"no log", map[string]string{"LBD_ACCESS_LOG": ""}, nil, "want stdout, off or PATH"},
		{"listener from the environment", map[string]string{"LBD_LISTEN": "nothing"}, nil, "want NAME=HOST:PORT"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := parse(t, c.env, append([]string{"--data-dir", dir}, c.args...)...)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one with %q", err, c.want)
			}
		})
	}
}

// TestExitCodes holds what scripts read: a wrong command line is 2, a start that fails is 1.
func TestExitCodes(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	writeFile(t, file, "not a directory")
	for _, c := range []struct {
		want int
		args []string
	}{
		{0, []string{"version"}},
		{0, []string{"--help"}},
		{2, []string{"frob"}},
		{2, []string{"run", "frob"}},
		{2, []string{"run", "--frob"}},
		{2, []string{"run", "--listen", "x"}},
		{2, []string{"version", "x"}},
		{2, []string{"run", "--data-dir", file, "--metrics", "off", "--control", ""}},
		{1, []string{"run", "--data-dir", file, "--metrics", "off", "--control", "off"}},
	} {
		if got := run(c.args); got != c.want {
			t.Errorf("lbd %v: exit code %d, want %d", c.args, got, c.want)
		}
	}
}

// What is wrong is told at once, each on a line of its own.
func TestConfigTellsAll(t *testing.T) {
	_, err := parse(t, nil, "--data-dir", t.TempDir(), "--listen", "x", "--listen", "y", "--metrics", "z", "--seal-key", "q", "--log-level", "", "--serve-revision", "-1")
	if err == nil {
		t.Fatal("no error")
	}
	lines := strings.Split(err.Error(), "\n")
	for i, want := range []string{"--serve-revision -1", `--listen "x"`, `--listen "y"`, "--metrics z", `--log-level ""`, "--seal-key: "} {
		if i >= len(lines) || !strings.HasPrefix(lines[i], want) {
			t.Errorf("line %d of %q, want %s", i, lines, want)
		}
	}
}
