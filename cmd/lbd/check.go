package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"lbd/cluster"
	"lbd/cluster/state"
	"lbd/lb/loop"
	lbdv1 "lbd/proto/lbd/v1"
	"lbd/tls/seal"
)

// errFound is that a check has found an error, which it has told.
var errFound = errors.New("it would not run as it should")

// roomMin is the free disk space below which changes may soon be refused: some snapshots of a large state fit.
const roomMin = 256 << 20

func checkCommand() *cobra.Command {
	var f flags
	c := &cobra.Command{
		Use:   "check-config",
		Short: "say what would keep `lbd run` from working, and change nothing",
		Long: `Look at everything that "lbd run" with the same flags and environment would need, and tell all that is wrong at once: the flags, the
data directory and what is in it, the sealing keys, the addresses, open files, the clock. Run it as the user that lbd runs as.

Nothing is changed, and nothing is listened on. Where a node runs on the data directory its state is not read, and the addresses
are taken for its own. A --seal-key command is run.

Exit 0: it would run; there may be warnings. 1: it would not, or not serve all. 2: the flags are wrong.`,
		Example: "  lbd check-config --control 10.0.0.1:7443 && systemctl restart lbd",
		Args:    noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			wrong := f.fromEnvironment(c, os.LookupEnv)
			cfg, err := f.config()
			wrong = errors.Join(wrong, err)
			ch := &check{cfg: cfg}
			ch.run(c.Context())
			if err := printFindings(c.OutOrStdout(), ch.found); err != nil {
				return err
			}
			if wrong != nil {
				return usageError{c.CommandPath(), wrong}
			}
			if slices.ContainsFunc(ch.found, func(f *lbdv1.Finding) bool { return f.GetLevel() == lbdv1.FindingLevel_FINDING_LEVEL_ERROR }) {
				return errFound
			}
			return nil
		},
	}
	f.register(c)
	return c
}

func printFindings(w io.Writer, found []*lbdv1.Finding) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, f := range found {
		level := strings.TrimPrefix(f.GetLevel().String(), "FINDING_LEVEL_")
		text := f.GetMessage()
		if f.GetRemedy() != "" {
			text += ": " + f.GetRemedy()
		}
		fmt.Fprintf(table, "%s\t%s\t%s\n", level, f.GetCheck(), text)
	}
	return table.Flush()
}

// check is one look at a machine, in the order in which a start would meet what is wrong.
type check struct {
	cfg   config
	found []*lbdv1.Finding
	// unread is that what the data directory holds is not known.
	unread bool
}

func (c *check) add(f ...*lbdv1.Finding) { c.found = append(c.found, f...) }

func (c *check) run(ctx context.Context) {
	_, err := loop.RaiseOpenFiles()
	if err != nil {
		c.add(warning("open_files", "raise the hard limit (LimitNOFILE= in the unit)", "%v", err))
	}
	c.add(openFiles(loop.OpenFiles()))
	in := c.dataDir()
	c.sealKeys(ctx, in)
	c.addresses(in)
	c.socket(in.Running)
	c.logs()
	c.add(clockFinding(clockError()))
}

// dataDir looks at the directory and reads what is in it.
func (c *check) dataDir() cluster.Inspection {
	const name = "data_dir"
	dir := c.cfg.dataDir
	if dir == "" {
		return cluster.Inspection{} // which the flags have been blamed for
	}
	if f := directoryFinding(name, dir); f != nil {
		c.unread = true
		c.add(f)
		return cluster.Inspection{}
	}
	if info, err := os.Stat(dir); err == nil && info.Mode().Perm()&0o077 != 0 {
		c.add(warning(name, "chmod 0700 "+dir, "%s has mode %04o: others can look into it", dir, info.Mode().Perm()))
	}
	if free, _, ok := diskRoom(existing(dir)); ok && free < roomMin {
		c.add(warning(name, "make room: changes are refused when it is full", "%s: only %d MiB are free", dir, free>>20))
	}
	if err := c.cfg.checkStart(); err != nil {
		c.unread = true
		c.add(failure(name, "", "%v", err))
		return cluster.Inspection{}
	}
	in, err := cluster.Inspect(dir)
	c.unread = err != nil || in.Running
	var open *cluster.OpenError
	switch {
	case errors.As(err, &open):
		c.add(failure(name, open.Remedy, "%s: %v", open.Path, open.Err))
	case err != nil:
		c.add(failure(name, "", "%v", err))
	case in.Running:
		c.add(fine(name, "%s: a node runs on it: what it holds was not read", dir))
	case in.State == nil:
		c.add(fine(name, "%s: nothing is there yet: a first start makes a new cluster", dir))
	default:
		c.add(fine(name, "%s: revision %d of cluster %s", dir, in.State.Revision(), in.State.ClusterID()))
		c.revision(in.State)
	}
	return in
}

// revision is whether there is the one that --serve-revision asks for.
func (c *check) revision(st *state.State) {
	if c.cfg.serveRevision <= 0 {
		return
	}
	if _, err := c.cfg.firstChoice(st, slog.New(slog.DiscardHandler)); err != nil {
		c.add(failure("serve_revision", "", "%v", err))
	}
}

// directoryFinding says why files cannot be made in a directory; nil: they can, or a start can make it.
func directoryFinding(name, dir string) *lbdv1.Finding {
	const remedy = "check its owner and mode, and that its disk is mounted and writable"
	info, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		above := existing(dir)
		if err := writable(above); err != nil {
			return failure(name, remedy, "%s cannot be made in %s: %v", dir, above, err)
		}
		return nil
	case err != nil:
		return failure(name, remedy, "%v", err)
	case !info.IsDir():
		return failure(name, "choose another place", "%s is no directory", dir)
	}
	if err := writable(dir); err != nil {
		return failure(name, remedy, "%s: %v", dir, err)
	}
	return nil
}

// existing is the nearest directory at or above a path that is there.
func existing(dir string) string {
	for {
		if _, err := os.Stat(dir); err == nil || filepath.Dir(dir) == dir {
			return dir
		}
		dir = filepath.Dir(dir)
	}
}

// sealKeys looks whether what is stored can be opened.
func (c *check) sealKeys(ctx context.Context, in cluster.Inspection) {
	const name = "seal_key"
	source, err := seal.ParseSource(c.cfg.sealKey, filepath.Join(c.cfg.dataDir, sealKeyFile))
	if err != nil || c.cfg.dataDir == "" {
		return // which the flags have been blamed for
	}
	needed := map[string]bool{}
	if in.State != nil {
		needed = neededKeys(in.State)
	}
	ring, err := seal.OpenRing(ctx, source, false)
	switch {
	case errors.Is(err, fs.ErrNotExist) && source.Writable() && len(needed) == 0 && !in.Running:
		if !c.unread {
			c.add(fine(name, "%s: the next start makes it", source))
		}
		return
	case err != nil:
		c.add(failure(name, "put it back from a copy, or mend --seal-key", "%v", err))
		return
	}
	has := ring.Sealer().KeyIDs()
	found := len(c.found)
	for id, present := range needed {
		switch {
		case slices.Contains(has, id):
		case present:
			c.add(failure(name, "add its line from a copy", "%s has no sealing key %s, under which stored secrets are", source, id))
		default:
			c.add(warning(name, "add its line from a copy, if there is one", "%s has no sealing key %s: what the history has under it cannot be rolled back to", source, id))
		}
	}
	if len(c.found) == found {
		c.add(fine(name, "%s: %s", source, strings.Join(has, ", ")))
	}
}

// logs looks at what lbd would write to beside its data.
func (c *check) logs() {
	if where := c.cfg.accessLog; where != "" && where != "off" && where != "stdout" {
		if f := fileFinding("access_log", where); f != nil {
			c.add(f)
		} else {
			c.add(fine("access_log", "%s", where))
		}
	}
	if path := c.cfg.auditSyslog; path != "" {
		if _, err := os.Stat(path); err != nil {
			c.add(warning("audit_syslog", "start the syslog daemon, or mend --audit-syslog", "%v", err))
		}
	}
}

// fileFinding says why a file cannot be added to; nil: it can.
func fileFinding(name, path string) *lbdv1.Finding {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	switch {
	case err == nil:
		_ = f.Close()
		return nil
	case errors.Is(err, fs.ErrNotExist):
		dir := filepath.Dir(path)
		if err := writable(dir); err != nil {
			return failure(name, "make its directory, and give it to the user that lbd runs as", "%s: %v", dir, err)
		}
		return nil
	}
	return failure(name, "give it to the user that lbd runs as", "%v", err)
}
