package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"lbd/cluster/backup"
	"lbd/cmd/lbctl/document"
	lbdv1 "lbd/proto/lbd/v1"
)

// secretBytesMax bounds a file with a passphrase or identities.
const secretBytesMax = 64 << 10

func (c *cli) backupCommand() *cobra.Command {
	return noun("backup", "Take the cluster's intent away, and bring it back", c.backupCreate(), c.backupInspect(), c.backupRestore())
}

// opening is what opens the sealing keys in a backup.
type opening struct{ identity, passphrase string }

func (c *cli) backupCreate() *cobra.Command {
	request := &lbdv1.CreateBackupRequest{}
	var passphrase string
	var force bool
	cmd := &cobra.Command{
		Use:   "create [FILE|-]",
		Short: "Write a backup: all resources with their sealed keys, and tokens",
		Long: `Write a backup: all resources with their sealed keys, and tokens. No ticket keys, no history, no overrides.

Private keys in it are sealed. The sealing key is in it only with --recipient or --passphrase-file, encrypted; without it the
cluster's seal.key is needed to restore it elsewhere. FILE is there whole or not at all, with mode 0600; one that is there is written
over with --force only. Without FILE it is named after cluster and time.`,
		Example: `  lbctl backup create nightly.backup --recipient age1…
  lbctl backup create - --passphrase-file /root/passphrase | ssh vault 'cat >lbd.backup'`,
		Args: cobra.MaximumNArgs(1),
		RunE: c.does(func(ctx context.Context, args []string) (err error) {
			if request.Passphrase, err = readSecret("--passphrase-file", passphrase); err != nil {
				return err
			}
			path := ""
			if len(args) > 0 {
				path = args[0]
			}
			return c.call(func(cl *client) error { return c.createBackup(ctx, cl, request, path, force) })
		}),
	}
	cmd.Flags().StringArrayVar(&request.Recipients, "recipient", nil, "age1…: whose identity opens the sealing key (repeatable)")
	cmd.Flags().StringVar(&passphrase, "passphrase-file", "", "file with the passphrase that opens the sealing key")
	cmd.Flags().BoolVar(&force, "force", false, "write over a FILE that is there")
	cmd.MarkFlagsMutuallyExclusive("recipient", "passphrase-file")
	return cmd
}

// mayWrite finds nothing at the path of a backup, or a file that may be written over. Devices and the like never may: the backup
// would take their place.
func mayWrite(path string, force bool) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fail(exitUsage, "create the backup: %w", err)
	case !info.Mode().IsRegular():
		return fail(exitUsage, "create the backup: %s is there, and is no file; - is stdout", path)
	case !force:
		return fail(exitUsage, "create the backup: %s is there: name another FILE, or say --force to write over it", path)
	}
	return nil
}

func readSecret(flag, path string) (string, error) {
	if path == "" {
		return "", nil
	}
	text, err := document.ReadFile(path, secretBytesMax)
	if err != nil {
		return "", fail(exitUsage, "%s: %w", flag, err)
	}
	secret := strings.TrimRight(string(text), "\r\n")
	if secret == "" {
		return "", fail(exitUsage, "%s: %s is empty", flag, path)
	}
	return secret, nil
}

// createBackup receives a backup and finds it undamaged before it gets its name.
func (c *cli) createBackup(ctx context.Context, cl *client, request *lbdv1.CreateBackupRequest, path string, force bool) error {
	if path == "-" {
		if err := receiveBackup(ctx, cl, request, c.stdout); err != nil {
			return err
		}
		if request.GetPassphrase() == "" && len(request.GetRecipients()) == 0 {
			c.tellKeyNeeded(nil)
		}
		return nil
	}
	if path != "" {
		if err := mayWrite(path, force); err != nil {
			return err
		}
	}
	f, err := os.CreateTemp(filepath.Dir(cmp.Or(path, ".")), ".lbd-backup-*") // mode 0600
	if err != nil {
		return fail(exitUsage, "create the backup: %w", err)
	}
	defer os.Remove(f.Name())
	defer f.Close()
	if err := receiveBackup(ctx, cl, request, f); err != nil {
		return err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	info, _, err := backup.Read(f, nil)
	if err != nil {
		return fail(exitUnavailable, "the backup did not come whole: %w: try again", err)
	}
	path = cmp.Or(path, filepath.Base(backup.FileName(info))) // the cluster's id is the server's word
	if err := mayWrite(path, force); err != nil {
		return err
	}
	if err := errors.Join(f.Sync(), os.Rename(f.Name(), path)); err != nil {
		return fail(exitUsage, "create the backup: %w", err)
	}
	c.printBackup(info, path, "")
	if info.GetSealingKeys() == "none" && len(info.GetSealKeyIds()) > 0 {
		c.tellKeyNeeded(info.GetSealKeyIds())
	}
	return nil
}

func (c *cli) tellKeyNeeded(ids []string) {
	which := ""
	if len(ids) > 0 {
		which = " (" + strings.Join(ids, ", ") + ")"
	}
	fmt.Fprintf(c.stderr, "warning: the sealing key%s is not in it: to restore it elsewhere keep a copy of seal.key, or say --recipient or --passphrase-file\n", which)
}

func receiveBackup(ctx context.Context, cl *client, request *lbdv1.CreateBackupRequest, w io.Writer) error {
	stream, err := lbdv1.NewBackupServiceClient(cl.conn).CreateBackup(ctx, request)
	if err != nil {
		return err
	}
	for {
		piece, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if vs := violations(err); len(vs) > 0 {
			return fail(exitUsage, "%s: %s", vs[0].GetField(), vs[0].GetDescription())
		}
		if err != nil {
			return err
		}
		if _, err := w.Write(piece.GetData()); err != nil {
			return fail(exitUsage, "write the backup: %w", err)
		}
	}
}

func (c *cli) backupInspect() *cobra.Command {
	return &cobra.Command{
		Use:   "inspect FILE|-",
		Short: "Say what is in a backup, and whether it is whole",
		Long: `Say what is in a backup, and whether it is whole (exit 3 if not). It takes no node; one that answers says whether it has the
sealing keys that the backup needs.`,
		Example: "  lbctl backup inspect nightly.backup",
		Args:    cobra.ExactArgs(1),
		RunE: c.does(func(ctx context.Context, args []string) error {
			file, err := c.openBackup(args[0])
			if err != nil {
				return err
			}
			in, err := file()
			if err != nil {
				return err
			}
			info, _, err := backup.Read(in, nil)
			if err := errors.Join(err, in.Close()); err != nil {
				return fail(exitInvalid, "%s: %w", args[0], err)
			}
			known := "no node was asked"
			if err := c.call(func(cl *client) error { return c.askKeys(ctx, cl, file, info) }); err == nil {
				known = "yes"
				if !info.GetKeysKnown() {
					known = "no"
				}
			}
			c.printBackup(info, args[0], known)
			return nil
		}),
	}
}

// askKeys asks a node whether it has the keys.
func (c *cli) askKeys(ctx context.Context, cl *client, file func() (io.ReadCloser, error), info *lbdv1.BackupInfo) error {
	stream, err := lbdv1.NewBackupServiceClient(cl.conn).InspectBackup(ctx)
	if err != nil {
		return err
	}
	if err := sendBackup(file, func(b []byte) error { return stream.Send(&lbdv1.InspectBackupRequest{Data: b}) }); err != nil {
		return err
	}
	answer, err := stream.CloseAndRecv()
	info.KeysKnown = answer.GetBackup().GetKeysKnown()
	return err
}

// openBackup makes a file readable as often as it is sent; stdin is kept for that.
func (c *cli) openBackup(path string) (func() (io.ReadCloser, error), error) {
	if path != "-" {
		if info, err := os.Stat(path); err != nil || info.IsDir() {
			return nil, fail(exitUsage, "read the backup: %w", cmp.Or(err, fmt.Errorf("%s is a directory", path)))
		}
		return func() (io.ReadCloser, error) { return os.Open(path) }, nil
	}
	const stdinBytesMax = 256 << 20
	all, err := io.ReadAll(io.LimitReader(c.stdin, stdinBytesMax))
	if err != nil {
		return nil, fail(exitUsage, "read the backup: %w", err)
	}
	return func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(all)), nil }, nil
}

func sendBackup(file func() (io.ReadCloser, error), send func([]byte) error) error {
	in, err := file()
	if err != nil {
		return fail(exitUsage, "read the backup: %w", err)
	}
	defer in.Close()
	for {
		piece := make([]byte, partBytesMax)
		n, err := io.ReadFull(in, piece)
		if n > 0 && send(piece[:n]) != nil {
			return nil // the node has answered already; the answer says why
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil
		}
		if err != nil {
			return fail(exitUsage, "read the backup: %w", err)
		}
	}
}

func (c *cli) printBackup(info *lbdv1.BackupInfo, path, known string) {
	c.print(result{value: document.OfAnswer(info), names: []string{path}, table: func(w *table) {
		var counts []string
		for _, kind := range slices.Sorted(maps.Keys(info.GetCounts())) {
			counts = append(counts, fmt.Sprintf("%d %s", info.GetCounts()[kind], kind))
		}
		w.row("FILE", path)
		w.row("CLUSTER", info.GetClusterId())
		w.row("REVISION", fmt.Sprint(info.GetRevision()))
		w.row("MADE", moment(info.GetCreateTime()))
		w.row("BY", "lbd "+info.GetVersion())
		w.row("HOLDS", strings.Join(counts, ", "))
		w.row("BYTES", fmt.Sprint(info.GetBytes()))
		w.row("SEALED UNDER", strings.Join(info.GetSealKeyIds(), ", "))
		w.row("SEALING KEYS IN IT", info.GetSealingKeys())
		if known != "" {
			w.row("NODE HAS THE KEYS", known)
		}
	}})
}

func (c *cli) backupRestore() *cobra.Command {
	head := &lbdv1.RestoreBackupHeader{}
	var open opening
	var wait string
	cmd := &cobra.Command{
		Use:   "restore FILE|-",
		Short: "Make everything as it was in a backup, as one revision",
		Long: `Make everything as it was in a backup, every owner's resources and the tokens, as one revision, or change nothing. It goes into
a new cluster or a running one.

Private keys are sealed anew for this cluster. Where the node lacks the sealing keys that the backup needs, --identity or
--passphrase-file opens those in the backup. What the cluster has and the backup has not is deleted with --replace only.
The revision is nobody's: an owner's rollback across it is refused (exit 6). To undo a restore, restore a backup from before it.`,
		Example: `  lbctl backup restore nightly.backup --dry-run
  lbctl backup restore nightly.backup --identity key.txt --wait -m "new site"`,
		Args: cobra.ExactArgs(1),
		RunE: c.does(func(ctx context.Context, args []string) error {
			err := checkWait(&wait, head.ValidateOnly)
			if err != nil {
				return err
			}
			if head.Identity, err = readSecret("--identity", open.identity); err != nil {
				return err
			}
			if head.Passphrase, err = readSecret("--passphrase-file", open.passphrase); err != nil {
				return err
			}
			file, err := c.openBackup(args[0])
			if err != nil {
				return err
			}
			head.RequestId = newRequestID()
			return c.call(func(cl *client) error { return c.restore(ctx, cl, head, file, wait) })
		}),
	}
	flags := cmd.Flags()
	flags.StringVar(&open.identity, "identity", "", "file with an age identity (AGE-SECRET-KEY-1…) that opens the sealing keys in the backup")
	flags.StringVar(&open.passphrase, "passphrase-file", "", "file with the passphrase that opens them")
	flags.BoolVar(&head.Replace, "replace", false, "delete what the cluster has and the backup has not")
	flags.BoolVar(&head.ValidateOnly, "dry-run", false, "report what would change, change nothing")
	flags.StringVarP(&head.Message, "message", "m", "", "kept with the revision")
	waitFlag(cmd, &wait)
	cmd.MarkFlagsMutuallyExclusive("identity", "passphrase-file")
	return cmd
}

func (c *cli) restore(ctx context.Context, cl *client, head *lbdv1.RestoreBackupHeader, file func() (io.ReadCloser, error), wait string) error {
	answer, err := retried(ctx, cl, startGrace, func() (*lbdv1.RestoreBackupResponse, error) {
		stream, err := lbdv1.NewBackupServiceClient(cl.conn).RestoreBackup(ctx)
		if err != nil {
			return nil, err
		}
		if stream.Send(&lbdv1.RestoreBackupRequest{Part: &lbdv1.RestoreBackupRequest_Header{Header: head}}) == nil {
			err = sendBackup(file, func(b []byte) error {
				return stream.Send(&lbdv1.RestoreBackupRequest{Part: &lbdv1.RestoreBackupRequest_Data{Data: b}})
			})
		}
		if err != nil {
			return nil, err
		}
		return stream.CloseAndRecv()
	})
	if vs := violations(err); len(vs) > 0 {
		if err := c.misused(vs, "message", "identity", "passphrase"); err != nil {
			return err
		}
		c.tellViolations(vs)
		return fail(exitInvalid, "nothing was restored")
	}
	if err != nil {
		return withFlag(err)
	}
	if n := answer.GetTokens(); n > 0 {
		verb := "put"
		if head.GetValidateOnly() {
			verb = "would be put"
		}
		c.say("%s %s in place", countOf(int(n), "token"), verb)
	}
	applied := &lbdv1.ApplyResponse{Revision: answer.GetRevision(), Changes: answer.GetChanges(), Warnings: answer.GetWarnings()}
	return c.finish(ctx, cl, applied, head.GetValidateOnly(), wait)
}
