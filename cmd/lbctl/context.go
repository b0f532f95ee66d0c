package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"lbd/cmd/lbctl/document"
)

// contextsBytesMax bounds the file of contexts.
const contextsBytesMax = 1 << 20

func (c *cli) contextCommand() *cobra.Command {
	return noun("context", "Clusters that lbctl knows by name, and as whom it talks to them",
		c.contextList(), c.contextUse(), c.contextSet(), c.contextDelete())
}

func (c *cli) contextList() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List contexts",
		Long:  `List contexts, the current one with a star. Of tokens it shows the id alone.`,
		Example: `  lbctl context list
  lbctl context list -o yaml`,
		Args: cobra.NoArgs,
		RunE: c.does(func(context.Context, []string) error {
			all, err := c.readContexts()
			if err != nil {
				return err
			}
			c.printContexts(all)
			return nil
		}),
	}
}

func (c *cli) printContexts(all *document.Contexts) {
	values := []*document.Value{}
	var names []string
	for _, x := range all.All {
		var endpoints []*document.Value
		for _, e := range x.Endpoints {
			endpoints = append(endpoints, document.Text(e))
		}
		v := document.MapOf().With("name", document.Text(x.Name)).With("current", document.Truth(x.Name == all.Current)).
			With("endpoints", document.ListOf(endpoints)).With("ca", document.Text(x.CA))
		id, _ := tokenID(x.Token)
		for _, field := range [][2]string{{"token_id", id}, {"token_file", x.TokenFile}, {"certificate", x.Certificate}} {
			v.With(field[0], document.Text(field[1]))
		}
		values = append(values, v)
		names = append(names, x.Name)
	}
	c.print(result{value: document.ListOf(values), names: names, table: func(w *table) {
		w.row("CURRENT", "NAME", "ENDPOINTS", "CREDENTIAL", "CA")
		for _, x := range all.All {
			star := ""
			if x.Name == all.Current {
				star = "*"
			}
			w.row(star, x.Name, list(x.Endpoints), credentialWord(x), x.CA)
		}
	}})
}

// credentialWord says what a context logs in with; never a secret.
func credentialWord(x document.Context) string {
	id, _ := tokenID(x.Token)
	switch {
	case x.Token != "":
		return "token " + id
	case x.TokenFile != "":
		return "token in " + x.TokenFile
	case x.Certificate != "":
		return "certificate " + x.Certificate
	}
	return ""
}

func (c *cli) contextUse() *cobra.Command {
	var none bool
	cmd := &cobra.Command{
		Use:   "use NAME",
		Short: "Make a context the current one, which holds where nothing else is said",
		Example: `  lbctl context use prod
  lbctl context use --none`,
		Args: cobra.MaximumNArgs(1),
		RunE: c.does(func(_ context.Context, args []string) error {
			if none == (len(args) == 1) {
				return fail(exitUsage, "say which context, or --none for the local node")
			}
			all, err := c.readContexts()
			if err != nil {
				return err
			}
			all.Current = strings.Join(args, "")
			if _, ok := all.Find(all.Current); !ok && !none {
				return c.noContext(all.Current)
			}
			return c.writeContexts(all)
		}),
	}
	cmd.Flags().BoolVar(&none, "none", false, "no context is the current one: the local node is meant")
	return cmd
}

func (c *cli) noContext(name string) error {
	return fail(exitNotFound, "there is no context `%s` (`lbctl context list`)", oneLine(name))
}

func (c *cli) contextDelete() *cobra.Command {
	return &cobra.Command{
		Use:     "delete NAME",
		Short:   "Forget a context",
		Long:    `Forget a context. Its token stays valid: "lbctl token revoke" ends one.`,
		Example: `  lbctl context delete prod`,
		Args:    cobra.ExactArgs(1),
		RunE: c.does(func(_ context.Context, args []string) error {
			all, err := c.readContexts()
			if err != nil {
				return err
			}
			if _, ok := all.Find(args[0]); !ok {
				return c.noContext(args[0])
			}
			all.All = slices.DeleteFunc(all.All, func(x document.Context) bool { return x.Name == args[0] })
			if all.Current == args[0] {
				all.Current = ""
				c.say("it was the current one: the local node is meant now")
			}
			return c.writeContexts(all)
		}),
	}
}

// contextChange is what a `context set` says.
type contextChange struct {
	ca, tokenFile, certificate, key string
	tokenStdin, use                 bool
}

func (c *cli) contextSet() *cobra.Command {
	var change contextChange
	var cmd *cobra.Command
	cmd = &cobra.Command{
		Use:   "set NAME",
		Short: "Make a context, or change what is said of one",
		Long: `Make a context, or change what is said of one. A token is never on the command line: it comes from stdin and is kept in the file
of contexts, or stays in a file of its own.`,
		Example: `  lbctl context set prod --endpoints 10.0.0.1:7443,10.0.0.2:7443 --ca sha256:… --token-file ~/.lbd-token --use
  lbctl token create --role viewer --expires 30d | lbctl context set prod --token-stdin`,
		Args: cobra.ExactArgs(1),
		RunE: c.does(func(_ context.Context, args []string) error {
			all, err := c.readContexts()
			if err != nil {
				return err
			}
			if fault := document.ContextNameFault(args[0]); fault != "" {
				return fail(exitUsage, "NAME %s", fault)
			}
			x, ok := all.Find(args[0])
			if !ok {
				all.All = append(all.All, document.Context{Name: args[0]})
				x = &all.All[len(all.All)-1]
			}
			if change.ca == "" && cmd.Flags().Changed("ca") {
				return fail(exitUsage, "--ca is empty: a node without a control port shows no pin (`lbd run --control HOST:PORT`)")
			}
			if err := c.changeContext(x, change); err != nil {
				return err
			}
			if change.use {
				all.Current = x.Name
			}
			if err := c.writeContexts(all); err != nil {
				return err
			}
			if all.Current != x.Name {
				c.say("`lbctl context use %s` makes it the current one", x.Name)
			}
			return nil
		}),
	}
	flags := cmd.Flags()
	flags.StringVar(&change.ca, "ca", "", "the cluster's certificate authority: sha256:… or a file in PEM")
	flags.StringVar(&change.tokenFile, "token-file", "", "file with a token, which stays there")
	flags.BoolVar(&change.tokenStdin, "token-stdin", false, "read a token from stdin and keep it")
	flags.StringVar(&change.certificate, "cert", "", "file with a client certificate in PEM, with --key")
	flags.StringVar(&change.key, "key", "", "file with its key in PEM")
	flags.BoolVar(&change.use, "use", false, "and make it the current one")
	cmd.MarkFlagsMutuallyExclusive("token-file", "token-stdin")
	cmd.MarkFlagsRequiredTogether("cert", "key")
	return cmd
}

// changeContext writes what was said into a context, if all of it is well-formed. Paths are kept such that the folder does not matter.
func (c *cli) changeContext(x *document.Context, change contextChange) (err error) {
	if len(c.endpoints) > 0 {
		x.Endpoints = nil
	}
	for _, text := range c.endpoints {
		e, err := parseEndpoint(text)
		if err == nil && e.isSocket() {
			e.address, err = filepath.Abs(e.address)
			e.text = "unix:" + e.address
		}
		if err != nil {
			return err
		}
		x.Endpoints = append(x.Endpoints, e.text)
	}
	if len(x.Endpoints) == 0 {
		return fail(exitUsage, "context `%s` is new: say --endpoints HOST:PORT of at least one node", x.Name)
	}
	if change.ca != "" {
		a, err := parseAuthority(change.ca, "--ca")
		if err != nil {
			return err
		}
		if x.CA = a.pin; x.CA == "" {
			x.CA = change.ca
		}
	}
	switch {
	case change.tokenFile != "":
		x.Token, x.TokenFile = "", change.tokenFile
	case change.tokenStdin:
		text, err := io.ReadAll(io.LimitReader(c.stdin, secretBytesMax))
		if err != nil {
			return fail(exitUsage, "read the token: %w", err)
		}
		x.TokenFile = ""
		if x.Token, err = checkToken(string(text), "stdin"); err != nil {
			return err
		}
	}
	if change.certificate != "" {
		x.Certificate, x.Key = change.certificate, change.key
	}
	paths := []*string{&x.TokenFile, &x.Certificate, &x.Key}
	if !strings.HasPrefix(x.CA, pinPrefix) {
		paths = append(paths, &x.CA)
	}
	for _, path := range paths {
		if *path == "" {
			continue
		}
		if *path, err = filepath.Abs(*path); err != nil {
			return fail(exitUsage, "%w", err)
		}
	}
	return nil
}

// readContexts reads the file of contexts. One that is not there has none.
func (c *cli) readContexts() (*document.Contexts, error) {
	path := c.contextsPath()
	if path == "" {
		return &document.Contexts{}, nil
	}
	text, err := document.ReadFile(path, contextsBytesMax)
	if errors.Is(err, fs.ErrNotExist) {
		return &document.Contexts{}, nil
	}
	if err != nil {
		return nil, fail(exitUsage, "read the contexts: %w", err)
	}
	all, problems := document.ParseContexts(document.File{Name: path, Data: text})
	if len(problems) > 0 {
		more := ""
		if len(problems) > 1 {
			more = fmt.Sprintf(" (and %d more)", len(problems)-1)
		}
		return nil, fail(exitUsage, "read the contexts: %s: %s%s", problems[0].Position, problems[0].Message, more)
	}
	holds := slices.ContainsFunc(all.All, func(x document.Context) bool { return x.Token != "" })
	if info, err := os.Stat(path); err == nil && holds && info.Mode().Perm()&0o077 != 0 {
		fmt.Fprintf(c.stderr, "warning: %s holds tokens and others may read it: chmod 600\n", path)
	}
	return all, nil
}

// writeContexts replaces the file of contexts, whole or not at all. Where it is a link, what it leads to is replaced.
func (c *cli) writeContexts(all *document.Contexts) error {
	path := c.contextsPath()
	if path == "" {
		return fail(exitUsage, "there is no place for contexts: set XDG_CONFIG_HOME or HOME")
	}
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target
	}
	if err := replaceFile(path, append([]byte(contextsLead), all.YAML()...)); err != nil {
		return fail(exitUsage, "write the contexts: %w", err)
	}
	return nil
}

const contextsLead = "# Clusters that lbctl knows. `lbctl context` rewrites this file; it may hold tokens.\n"

// replaceFile writes a file that only its owner may read.
func replaceFile(path string, text []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".lbctl-*") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(text)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
