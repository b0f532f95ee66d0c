package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"lbd/cluster/state"
	"lbd/tls/seal"
)

// config is what the command line and the environment say; everything else is in the replicated state.
type config struct {
	dataDir string
	socket  string
	node    string
	dev     bool
	listen  map[string]string // listener name -> its address on this node
	metrics string            // host:port or "off"
	control string            // host:port or "off"
	// advertise is how others reach the control port; empty: it is what it is bound to.
	advertise   string
	auditSyslog string // path of a socket; empty: off

	accessLog       string // "off", "stdout" or a path
	accessLogFormat logFormat

	serveRevision int64 // 0: the newest

	logLevel slog.Level

	localAdmin bool // whatever cluster_settings.local_admin says

	background background // who waits until this process serves
	held       bool       // listeners accept nobody yet: another lbd does, whose place this one takes

	sealKey string // where the sealing keys are from; empty: seal.key in the data directory

	join *joining // nil: `lbd run`
}

// flags holds the command line before it is checked.
type flags struct {
	dataDir, node, metrics string

	control, advertise, auditSyslog string

	dev, localAdmin bool
	listen          []string

	detach  bool
	readyFD int

	accessLog, accessLogFormat string
	serveRevision              int64

	logLevel, sealKey string
}

const (
	metricsDefault = "127.0.0.1:9090"
	// controlDev is where a dev node has its control port unless told otherwise.
	controlDev = "127.0.0.1:7443"
)

func runCommand() *cobra.Command {
	var f flags
	c := &cobra.Command{
		Use:   "run",
		Short: "serve, until SIGTERM",
		Long: `Serve what this node's data directory holds. On an empty directory a new cluster of one node begins. Where another lbd
serves the same data directory, this one takes its place without losing a connection: that is an upgrade.

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
			if f.detach {
				return detach()
			}
			return serve(c.Context(), cfg)
		},
	}
	f.register(c)
	c.Flags().BoolVar(&f.detach, "detach", false, "run in the background: return once the node serves, or has failed to; where another lbd runs on the data directory, once this one has its place")
	c.Flags().IntVar(&f.readyFD, "ready-fd", 0, "a descriptor that is told so")
	_ = c.Flags().MarkHidden("ready-fd") // fails for no flag of that name
	return c
}

// register declares the flags of a command that serves.
func (f *flags) register(c *cobra.Command) {
	c.Flags().StringVar(&f.dataDir, "data-dir", "", "state, keys and control socket (default /var/lib/lbd for root, else $XDG_STATE_HOME/lbd)")
	c.Flags().StringVar(&f.node, "node", "", "this node's name (default: the host name)")
	c.Flags().BoolVar(&f.dev, "dev", false, "begin with an embedded configuration on 127.0.0.1:8080 and :8443; no grace at the end")
	c.Flags().StringArrayVar(&f.listen, "listen", nil, "NAME=HOST:PORT: where a listener is on this node (repeatable)")
	c.Flags().StringVar(&f.control, "control", "", "HOST:PORT of the control port, for lbctl on other machines, or off: then there is the socket alone (default with --dev 127.0.0.1:7443; else required)")
	c.Flags().StringVar(&f.advertise, "advertise", "", "HOST:PORT by which others reach the control port (default: --control)")
	c.Flags().StringVar(&f.metrics, "metrics", metricsDefault, "HOST:PORT of Prometheus metrics, or off; on another than a loopback address with TLS, for a viewer's token")
	c.Flags().StringVar(&f.auditSyslog, "audit-syslog", "", "PATH of a syslog socket that gets a copy of each refused call, for example /dev/log")
	c.Flags().StringVar(&f.accessLog, "access-log", "off", "stdout, off or PATH; a file that is moved away is opened anew within a second")
	c.Flags().StringVar(&f.accessLogFormat, "access-log-format", "json", "json, common or combined")
	c.Flags().StringVar(&f.logLevel, "log-level", "info", "debug, info, warn or error: how much the node's own log (stderr) says; lbctl logs --level changes it while the node runs")
	c.Flags().StringVar(&f.sealKey, "seal-key", "", "where the sealing keys are from: file:PATH, credential:NAME (systemd's) or command:CMD, which prints them (default: seal.key in the data directory)")
	c.Flags().BoolVar(&f.localAdmin, "local-admin", false, "the control socket's users are admins whatever cluster_settings.local_admin says: the way back in where nobody has an admin's token any more")
	c.Flags().Int64Var(&f.serveRevision, "serve-revision", 0, "serve this revision until a newer one than the newest is applied: the way out where the newest does harm")
}

// fromEnvironment fills in what the command line does not say. It tells all that is wrong with it.
func (f *flags) fromEnvironment(c *cobra.Command, lookup func(string) (string, bool)) error {
	var errs []error
	for _, name := range []string{"data-dir", "node", "dev", "listen", "control", "advertise", "metrics", "audit-syslog", "access-log", "access-log-format", "log-level", "seal-key", "local-admin", "serve-revision"} {
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
				errs = append(errs, fmt.Errorf("%s: %w", key, err))
			}
		}
	}
	return errors.Join(errs...)
}

// config checks all that is said, and tells all that is wrong with it: one error each, joined.
func (f *flags) config() (config, error) {
	cfg := config{
		dev: f.dev, node: f.node, listen: map[string]string{}, metrics: f.metrics,
		auditSyslog: f.auditSyslog, sealKey: f.sealKey, localAdmin: f.localAdmin,
	}
	var err error
	cfg.background, err = startedBy(f.readyFD)
	return cfg, errors.Join(
		err,
		cfg.setServeRevision(f.serveRevision),
		cfg.setNode(),
		cfg.setAccessLog(f.accessLog, f.accessLogFormat),
		cfg.setDirs(f.dataDir),
		cfg.setListen(f.listen),
		cfg.checkMetrics(),
		cfg.setLogLevel(f.logLevel),
		cfg.checkSealKey(),
		cfg.setControl(f.control, f.advertise),
	)
}

func (c *config) setServeRevision(revision int64) error {
	if c.serveRevision = revision; revision < 0 {
		return fmt.Errorf("--serve-revision %d: want the number of a revision, as `lbctl history` lists them", revision)
	}
	return nil
}

func (c *config) setListen(listen []string) error {
	var errs []error
	for _, l := range listen {
		name, address, ok := strings.Cut(l, "=")
		if !ok || name == "" {
			errs = append(errs, fmt.Errorf("--listen %q: want NAME=HOST:PORT, for example https=127.0.0.1:8443", l))
			continue
		}
		if err := checkAddress(address); err != nil {
			errs = append(errs, fmt.Errorf("--listen %s: %w", l, err))
			continue
		}
		if first, twice := c.listen[name]; twice {
			errs = append(errs, fmt.Errorf("--listen %s: listener %s is given %s already", l, name, first))
			continue
		}
		c.listen[name] = address
	}
	return errors.Join(errs...)
}

func (c *config) checkMetrics() error {
	if c.metrics == "off" {
		return nil
	}
	if err := checkAddress(c.metrics); err != nil {
		return fmt.Errorf("--metrics %s: %w", c.metrics, err)
	}
	return nil
}

func (c *config) setLogLevel(word string) (err error) {
	c.logLevel, err = parseLogLevel(word)
	return err
}

func (c *config) checkSealKey() error {
	if _, err := seal.ParseSource(c.sealKey, sealKeyFile); err != nil {
		return fmt.Errorf("--seal-key: %w", err)
	}
	return nil
}

// setControl checks where the control port is, and that others can know it.
func (c *config) setControl(control, advertise string) error {
	if c.control, c.advertise = control, advertise; control == "" && c.dev {
		c.control = controlDev
	}
	switch {
	case c.control == "":
		return errors.New("--control is missing: want HOST:PORT for lbctl on other machines, for example 10.0.0.1:7443, or off for the control socket alone")
	case c.control == "off" && advertise != "":
		return fmt.Errorf("--advertise %s: there is no control port with --control off", advertise)
	case c.control == "off":
		return nil
	}
	if err := checkAddress(c.control); err != nil {
		return fmt.Errorf("--control %s: %w", c.control, err)
	}
	if advertise == "" {
		if host, _, _ := net.SplitHostPort(c.control); wildcard(host) {
			return fmt.Errorf("--control %s: that is every address of this machine: say by --advertise HOST:PORT which one others reach", c.control)
		}
		return nil
	}
	if err := checkAddress(advertise); err != nil {
		return fmt.Errorf("--advertise %s: %w", advertise, err)
	}
	if host, _, _ := net.SplitHostPort(advertise); wildcard(host) {
		return fmt.Errorf("--advertise %s: that is no address that others could reach", advertise)
	}
	return nil
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
	if fault := state.NodeNameFault(c.node); fault != "" {
		return fmt.Errorf("--node %s", fault)
	}
	return nil
}

// The machine's own node, whoever it runs as: others than its user call by this socket.
const (
	machineDir    = "/var/lib/lbd"
	machineSocket = "/run/lbd/control.sock"
	machineGroup  = "lbd"
)

// socketGroup is whom the control socket is shared with: the machine's own with the members of group lbd, if there is one; no other
// socket with anybody (0).
func (c *config) socketGroup() uint32 {
	if c.socket != machineSocket {
		return 0
	}
	group, err := user.LookupGroup(machineGroup)
	if err != nil {
		return 0
	}
	gid, err := strconv.ParseUint(group.Gid, 10, 32)
	if err != nil {
		return 0
	}
	return uint32(gid)
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
		if abs == machineDir {
			c.socket = machineSocket
		}
	case root:
		c.dataDir, c.socket = machineDir, machineSocket
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

// isLoopback tells whether only this machine reaches an address. A name counts as what it is by convention.
func isLoopback(address string) bool {
	host, _, _ := net.SplitHostPort(address)
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
