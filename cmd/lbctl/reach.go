package main

import (
	"cmp"
	"crypto/tls"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"lbd/cmd/lbctl/document"
)

// reach is how a command line reaches its nodes, and as whom.
type reach struct {
	endpoints   []endpoint
	authority   *authority // nil: all endpoints are sockets
	token       string
	certificate *tls.Certificate // nil: none
	// from says to people where the credential comes from; empty: there is none.
	from string
}

func connectionTopic() *cobra.Command {
	return &cobra.Command{Use: "connection", Short: "How lbctl finds nodes, knows them and logs in", Long: `lbctl talks to a node's control port (HOST:PORT) or to its socket (unix:PATH). What a call needs comes from the first of these that
says it:

  1. flags                --endpoints, and what the context of --context has
  2. environment          LBCTL_ENDPOINTS, LBCTL_CA, LBCTL_TOKEN or LBCTL_TOKEN_FILE, LBCTL_CERT with LBCTL_KEY
  3. a context            of LBCTL_CONTEXT, else the current one ("lbctl context use")
  4. the local node       the socket of the node that this user started without --data-dir, else /run/lbd/control.sock

The socket of a node with a --data-dir of its own is DIR/control.sock: --endpoints unix:DIR/control.sock. "lbd run" says at its start
which one it has.

Endpoints are several by commas. They are tried in turn, and a change that a node cannot make now is repeated at the next one with
the same request id: it is made once.

Over the network the node has to prove that it is of the cluster: LBCTL_CA is "sha256:…", the pin of the cluster's own certificate
authority, or a file in PEM. With a pin any node of the cluster is as good, by whatever name it is called; with a file the host must
be in the node's certificate. There is no connection without either. "lbctl whoami" on a node's machine shows the pin.

A token goes over the network or a socket, a client certificate over the network. With both, the token counts. What a context has to
log in with goes only to nodes that it has named or whose authority it has.

Contexts are in $XDG_CONFIG_HOME/lbctl/config.yaml (default ~/.config/lbctl/config.yaml), which only its owner may read.`}
}

// source is one that says how nodes are reached. What it leaves open, the next one says.
type source struct {
	name             string // for people
	endpoints        []string
	ca               string
	token, tokenFile string
	certificate, key string
	// A context's credential goes only to nodes that it vouches for.
	isContext bool
}

// says is who says a setting: a context, or a variable.
func (s *source) says(variable string) string {
	if s.isContext {
		return s.name
	}
	return variable
}

func (s *source) logsIn() bool {
	return s.token != "" || s.tokenFile != "" || s.certificate != "" || s.key != ""
}

// reach puts together what the sources say.
func (c *cli) reach() (*reach, error) {
	if c.nodeLocal {
		return c.reachNodeLocal()
	}
	sources, err := c.sources()
	if err != nil {
		return nil, err
	}
	named, vouched := &source{endpoints: c.localSockets(os.Getuid())}, &source{}
	for i := len(sources) - 1; i >= 0; i-- {
		if len(sources[i].endpoints) > 0 {
			named = sources[i]
		}
		if sources[i].ca != "" {
			vouched = sources[i]
		}
	}
	r := &reach{}
	sockets := 0
	for _, text := range named.endpoints {
		e, err := parseEndpoint(text)
		if err != nil {
			return nil, err
		}
		r.endpoints = append(r.endpoints, e)
		if e.isSocket() {
			sockets++
		}
	}
	if sockets < len(r.endpoints) {
		if vouched.ca == "" {
			return nil, fail(exitUsage, "by what is %s known to be of your cluster? set LBCTL_CA to the cluster's pin (sha256:…, which `lbctl whoami` shows on a node's own machine), or use a context that has one (`lbctl help connection`)",
				r.endpoints[0].text)
		}
		if r.authority, err = parseAuthority(vouched.ca, vouched.says("LBCTL_CA")); err != nil {
			return nil, err
		}
	}
	for _, s := range sources {
		if s.logsIn() && (!s.isContext || s == named || s == vouched && sockets == 0) {
			return r, r.logIn(s)
		}
	}
	return r, nil
}

// sources are in the order in which they count.
func (c *cli) sources() ([]*source, error) {
	flags := &source{name: "--endpoints", endpoints: c.endpoints}
	env := c.environment()
	if c.context != "" {
		named, err := c.contextSource(c.context)
		return []*source{flags, named, env}, err
	}
	if name := c.env("LBCTL_CONTEXT"); name != "" {
		named, err := c.contextSource(name)
		return []*source{flags, env, named}, err
	}
	// A broken file of contexts stops nobody who needs none.
	if leavesOpen(flags, env) {
		current, err := c.contextSource("")
		return []*source{flags, env, current}, err
	}
	return []*source{flags, env}, nil
}

// leavesOpen tells whether flags and environment need a context to be complete.
func leavesOpen(flags, env *source) bool {
	endpoints := flags.endpoints
	if len(endpoints) == 0 {
		endpoints = env.endpoints
	}
	for _, e := range endpoints {
		if !strings.HasPrefix(strings.TrimSpace(e), "unix:") && env.ca == "" {
			return true
		}
	}
	return len(endpoints) == 0
}

// environment is what LBCTL_* say.
func (c *cli) environment() *source {
	s := &source{
		name: "the environment", ca: c.env("LBCTL_CA"), token: c.env("LBCTL_TOKEN"), tokenFile: c.env("LBCTL_TOKEN_FILE"),
		certificate: c.env("LBCTL_CERT"), key: c.env("LBCTL_KEY"),
	}
	if list := c.env("LBCTL_ENDPOINTS"); list != "" {
		s.endpoints = strings.Split(list, ",")
	}
	return s
}

// env is a variable; one that is not set is empty.
func (c *cli) env(name string) string {
	v, _ := c.getenv(name)
	return strings.TrimSpace(v)
}

// localSockets is where a node on this machine answers: one that this user started, then the machine's own.
func (c *cli) localSockets(uid int) []string {
	const machine = "unix:/run/lbd/control.sock"
	if uid == 0 {
		return []string{machine}
	}
	for _, place := range [][]string{{"XDG_RUNTIME_DIR"}, {"XDG_STATE_HOME"}, {"HOME", ".local", "state"}} {
		if dir, ok := c.getenv(place[0]); ok && dir != "" {
			path := filepath.Join(append([]string{dir}, append(place[1:], "lbd", "control.sock")...)...)
			return []string{"unix:" + path, machine}
		}
	}
	return []string{machine}
}

// logIn takes a source's credential.
func (r *reach) logIn(s *source) (err error) {
	switch {
	case s.token != "" && s.tokenFile != "":
		return fail(exitUsage, "%s has a token and a file with one: leave one of them out", s.name)
	case (s.certificate == "") != (s.key == ""):
		return fail(exitUsage, "%s has a client certificate without its key, or a key without its certificate", s.name)
	case s.tokenFile != "":
		r.from = s.says("LBCTL_TOKEN_FILE") + ", " + s.tokenFile
		r.token, err = readToken(s.tokenFile)
	case s.token != "":
		r.from = s.says("LBCTL_TOKEN")
		r.token, err = checkToken(s.token, r.from)
	}
	if err != nil || s.certificate == "" {
		return err
	}
	pair, err := tls.LoadX509KeyPair(s.certificate, s.key)
	if err != nil {
		return fail(exitUsage, "read the client certificate of %s: %w", s.says("LBCTL_CERT"), err)
	}
	r.certificate = &pair
	if r.token == "" {
		r.from = s.says("LBCTL_CERT") + ", " + s.certificate
	}
	return nil
}

// readToken reads a file with a token alone.
func readToken(path string) (string, error) {
	text, err := document.ReadFile(path, secretBytesMax)
	if err != nil {
		return "", fail(exitUsage, "read the token: %w", err)
	}
	return checkToken(string(text), path)
}

// checkToken trims a token. An error does not show what is none: it may be another secret.
func checkToken(text, from string) (string, error) {
	text = strings.TrimSpace(text)
	id, rest := tokenID(text)
	if id == "" || rest == "" || strings.ContainsFunc(rest, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
		return "", fail(exitUsage, "what %s has is no token: want lbt_… as `lbctl token create` printed it", from)
	}
	return text, nil
}

// tokenID takes lbt_<id>_<secret> apart; what is no token has no id.
func tokenID(token string) (id, secret string) {
	rest, ok := strings.CutPrefix(token, "lbt_")
	id, secret, _ = strings.Cut(rest, "_")
	if !ok || strings.Trim(id, "abcdefghijklmnopqrstuvwxyz0123456789") != "" {
		return "", ""
	}
	return id, secret
}

// contextsPath is the file of contexts; empty: there is no place for one.
func (c *cli) contextsPath() string {
	if dir := c.env("XDG_CONFIG_HOME"); dir != "" {
		return filepath.Join(dir, "lbctl", "config.yaml")
	}
	if home := c.env("HOME"); home != "" {
		return filepath.Join(home, ".config", "lbctl", "config.yaml")
	}
	return ""
}

// contextSource is the context of that name, or the current one if the name is empty; that may be none.
func (c *cli) contextSource(name string) (*source, error) {
	all, err := c.readContexts()
	if err != nil {
		return nil, err
	}
	found, ok := all.Find(cmp.Or(name, all.Current))
	switch {
	case !ok && name == "":
		return &source{}, nil
	case !ok:
		return nil, fail(exitUsage, "there is no context `%s` in %s (`lbctl context list`)", oneLine(name), cmp.Or(c.contextsPath(), "$XDG_CONFIG_HOME"))
	}
	return &source{
		name: "context `" + found.Name + "`", endpoints: found.Endpoints, ca: found.CA, token: found.Token, tokenFile: found.TokenFile,
		certificate: found.Certificate, key: found.Key, isContext: true,
	}, nil
}
