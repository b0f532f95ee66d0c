package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// config is what the command line and the environment say; everything else is in the replicated state.
type config struct {
	dataDir string
	socket  string
	node    string
	dev     bool
	listen  map[string]string // listener name -> its address on this node
	metrics string            // host:port or "off"
	grace   time.Duration     // how long requests may take to end after SIGTERM

	accessLog       string // "off", "stdout" or a path
	accessLogFormat logFormat

	serveRevision int64 // 0: the newest
}

// flags holds the command line before it is checked.
type flags struct {
	dataDir, node, metrics string
	dev                    bool
	listen                 []string

	accessLog, accessLogFormat string
	serveRevision              int64
}

const (
	metricsDefault = "127.0.0.1:9090"
	graceDefault   = 30 * time.Second
)

func runCommand() *cobra.Command {
	var f flags
	c := &cobra.Command{
		Use:   "run",
		Short: "serve, until SIGTERM",
		Long: `Serve what this node's data directory holds. On an empty directory a new cluster of one node begins.

Every flag is also an environment variable (LBD_DATA_DIR, LBD_NODE, …); flags win.`,
		Example: "  lbd run --dev\n  lbd run --data-dir /srv/lbd --node edge-1",
		Args:    noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := f.fromEnvironment(c, os.LookupEnv); err != nil {
				return usageError{c.CommandPath(), err}
			}
			cfg, err := f.config()
			if err != nil {
				return usageError{c.CommandPath(), err}
			}
			return serve(c.Context(), cfg)
		},
	}
	f.register(c)
	return c
}

// register declares the flags of a command that serves.
func (f *flags) register(c *cobra.Command) {
	c.Flags().StringVar(&f.dataDir, "data-dir", "", "state, keys and control socket (default /var/lib/lbd for root, else $XDG_STATE_HOME/lbd)")
	c.Flags().StringVar(&f.node, "node", "", "this node's name (default: the host name)")
	c.Flags().BoolVar(&f.dev, "dev", false, "begin with an embedded configuration on 127.0.0.1:8080 and :8443; no grace at the end")
	c.Flags().StringArrayVar(&f.listen, "listen", nil, "NAME=HOST:PORT: where a listener is on this node (repeatable)")
	c.Flags().StringVar(&f.metrics, "metrics", metricsDefault, "HOST:PORT of Prometheus metrics, or off")
	c.Flags().StringVar(&f.accessLog, "access-log", "off", "stdout, off or PATH; a file that is moved away is opened anew within a second")
	c.Flags().StringVar(&f.accessLogFormat, "access-log-format", "json", "json, common or combined")
	c.Flags().Int64Var(&f.serveRevision, "serve-revision", 0, "serve this revision until a newer one than the newest is applied: the way out where the newest does harm")
}

// fromEnvironment fills in what the command line does not say.
func (f *flags) fromEnvironment(c *cobra.Command, lookup func(string) (string, bool)) error {
	for _, name := range []string{"data-dir", "node", "dev", "listen", "metrics", "access-log", "access-log-format", "serve-revision"} {
		key := "LBD_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
		value, ok := lookup(key)
		if !ok || c.Flags().Changed(name) {
			continue
		}
		values := []string{value}
		if name == "listen" {
			values = strings.Fields(strings.ReplaceAll(value, ",", " "))
		}
		for _, v := range values {
			if err := c.Flags().Set(name, v); err != nil {
				return fmt.Errorf("%s: %w", key, err)
			}
		}
	}
	return nil
}

func (f *flags) config() (config, error) {
	cfg := config{dev: f.dev, node: f.node, listen: map[string]string{}, metrics: f.metrics, grace: graceDefault, serveRevision: f.serveRevision}
	if cfg.serveRevision < 0 {
		return cfg, fmt.Errorf("--serve-revision %d: want the number of a revision, as `lbctl history` lists them", cfg.serveRevision)
	}
	if cfg.dev {
		cfg.grace = 0
	}
	if err := cfg.setNode(); err != nil {
		return cfg, err
	}
	if err := cfg.setAccessLog(f.accessLog, f.accessLogFormat); err != nil {
		return cfg, err
	}
	if err := cfg.setDirs(f.dataDir); err != nil {
		return cfg, err
	}
	for _, l := range f.listen {
		name, address, ok := strings.Cut(l, "=")
		if !ok || name == "" {
			return cfg, fmt.Errorf("--listen %q: want NAME=HOST:PORT, for example https=127.0.0.1:8443", l)
		}
		if err := checkAddress(address); err != nil {
			return cfg, fmt.Errorf("--listen %s: %w", l, err)
		}
		if first, twice := cfg.listen[name]; twice {
			return cfg, fmt.Errorf("--listen %s: listener %s is given %s already", l, name, first)
		}
		cfg.listen[name] = address
	}
	if cfg.metrics != "off" {
		if err := checkLoopback(cfg.metrics); err != nil {
			return cfg, fmt.Errorf("--metrics %s: %w", cfg.metrics, err)
		}
	}
	return cfg, nil
}

func (c *config) setAccessLog(where, format string) error {
	c.accessLog, c.accessLogFormat = where, logFormats[format]
	switch {
	case where == "":
		return errors.New("--access-log: want stdout, off or PATH")
	case c.accessLogFormat == nil:
		return fmt.Errorf("--access-log-format %q: want json, common or combined", format)
	}
	return nil
}

func (c *config) setNode() error {
	if c.node == "" {
		name, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("read the host name: %w; give --node NAME", err)
		}
		c.node = name
	}
	if len(c.node) > 63 || strings.ContainsFunc(c.node, func(r rune) bool { return r <= ' ' || r == '/' || r == '"' || r > '~' }) {
		return fmt.Errorf("--node %q: want at most 63 visible ASCII characters without '/' and '\"'", c.node)
	}
	return nil
}

// setDirs puts the control socket where lbctl looks for it.
func (c *config) setDirs(dataDir string) error {
	root := os.Geteuid() == 0
	switch {
	case dataDir != "":
		abs, err := filepath.Abs(dataDir)
		if err != nil {
			return err
		}
		c.dataDir, c.socket = abs, filepath.Join(abs, "control.sock")
	case root:
		c.dataDir, c.socket = "/var/lib/lbd", "/run/lbd/control.sock"
	default:
		state, err := xdgState()
		if err != nil {
			return err
		}
		c.dataDir, c.socket = filepath.Join(state, "lbd"), filepath.Join(state, "lbd", "control.sock")
		if run := os.Getenv("XDG_RUNTIME_DIR"); run != "" {
			c.socket = filepath.Join(run, "lbd", "control.sock")
		}
	}
	return nil
}

func xdgState() (string, error) {
	if s := os.Getenv("XDG_STATE_HOME"); s != "" {
		return s, nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("find a place for state: %w; give --data-dir DIR", err)
	}
	return filepath.Join(home, ".local", "state"), nil
}

func checkAddress(address string) error {
	_, port, err := net.SplitHostPort(address)
	if err == nil {
		_, err = net.LookupPort("tcp", port)
	}
	if err != nil {
		return fmt.Errorf("want HOST:PORT: %w", err)
	}
	return nil
}

var errNotLoopback = errors.New("metrics are served in the clear: only on a loopback address, for example 127.0.0.1:9090")

func checkLoopback(address string) error {
	if err := checkAddress(address); err != nil {
		return err
	}
	host, _, _ := net.SplitHostPort(address)
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return errNotLoopback
	}
	return nil
}
