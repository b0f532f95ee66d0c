package main

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"lbd/cmd/lbctl/document"
	lbdv1 "lbd/proto/lbd/v1"
)

const (
	// bundleTimeout is what an archive may take where nobody says otherwise: a node that hangs in places takes its time for each.
	bundleTimeout = 2 * time.Minute
	// manifestBytesMax bounds what is read of an archive's list.
	manifestBytesMax = 1 << 20
)

func (c *cli) debugCommand() *cobra.Command {
	return noun("debug", "Look into a node that misbehaves", c.debugBundle())
}

func (c *cli) debugBundle() *cobra.Command {
	var profile time.Duration
	var node string
	cmd := &cobra.Command{
		Use:   "bundle [FILE|-]",
		Short: "Gather what is needed to understand a node, in one archive",
		Long: `Gather what is needed to understand the answering node, or another (--node), in one archive (tar, gzipped): stacks, log, flags, limits, status, doctor,
metrics, events, backends, connections, resources, revisions, audit and a heap profile; with --cpu-profile where the CPU time goes,
too. manifest.json lists the files, errors.txt what could not be had.

No private key, token or other secret is in it. The names of hosts, owners and operators, and the addresses of clients and backends
are. FILE has mode 0600; one that is there is not written over. Without FILE it is named after the time.`,
		Example: `  lbctl debug bundle
  lbctl debug bundle --cpu-profile 30s edge-1.tar.gz`,
		Args: cobra.MaximumNArgs(1),
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !cmd.Flags().Changed("timeout") {
			c.timeout = max(c.timeout, bundleTimeout)
		}
		request := &lbdv1.CollectDebugRequest{}
		if cmd.Flags().Changed("cpu-profile") {
			request.CpuProfile = durationpb.New(profile)
			c.timeout += profile
		}
		return c.does(func(ctx context.Context, args []string) error {
			whose, err := oneNode(node)
			if err != nil {
				return err
			}
			request.Node = whose
			file := "lbd-debug-" + time.Now().UTC().Format("20060102T150405Z") + ".tar.gz"
			if len(args) > 0 {
				file = args[0]
			}
			return c.call(func(cl *client) error { return c.bundle(ctx, cl, request, file) })
		})(cmd, args)
	}
	cmd.Flags().DurationVar(&profile, "cpu-profile", 0, "profile the CPU for so long, 1s to 60s (default: not at all)")
	nodeFlag(cmd, &node)
	return cmd
}

// bundle receives an archive. What has come before a failure stays: of a node that hangs it may be what tells why.
func (c *cli) bundle(ctx context.Context, cl *client, request *lbdv1.CollectDebugRequest, file string) error {
	if file == "-" {
		_, err := receiveBundle(ctx, cl, request, c.stdout)
		return c.complained(err)
	}
	f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return fail(exitUsage, "make the archive: %w", err)
	}
	defer f.Close()
	n, err := receiveBundle(ctx, cl, request, f)
	switch {
	case err != nil && n == 0:
		os.Remove(file)
		return c.complained(err)
	case err != nil:
		c.say("%s has what came before", file)
		return c.complained(err)
	}
	list, err := readManifest(f)
	if err != nil {
		return fail(exitUnavailable, "%s did not come whole: %w", file, err)
	}
	if err := f.Close(); err != nil {
		return fail(exitInternal, "write %s: %w", file, err)
	}
	c.printBundle(list, file, n)
	return nil
}

func receiveBundle(ctx context.Context, cl *client, request *lbdv1.CollectDebugRequest, w io.Writer) (n int64, err error) {
	stream, err := cl.system.CollectDebug(ctx, request)
	if err != nil {
		return 0, err
	}
	for {
		piece, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return n, nil
		}
		if err != nil {
			return n, err
		}
		if _, err := w.Write(piece.GetData()); err != nil {
			return n, fail(exitUsage, "write the archive: %w", err)
		}
		n += int64(len(piece.GetData()))
	}
}

// bundleManifest is what an archive says of itself.
type bundleManifest struct {
	Node  string
	Files []struct{ Name, Error string }
}

// readManifest reads an archive to its end, and so finds out that it is whole.
func readManifest(f io.ReadSeeker) (list bundleManifest, err error) {
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return list, err
	}
	unzipped, err := gzip.NewReader(f)
	if err != nil {
		return list, err
	}
	found := false
	for files := tar.NewReader(unzipped); ; {
		header, err := files.Next()
		if errors.Is(err, io.EOF) && found {
			return list, nil
		}
		if errors.Is(err, io.EOF) {
			return list, errors.New("it has no manifest.json")
		}
		if err != nil {
			return list, err
		}
		if path.Base(header.Name) == "manifest.json" {
			found = true
			if err := json.NewDecoder(io.LimitReader(files, manifestBytesMax)).Decode(&list); err != nil {
				return list, err
			}
		}
	}
}

func (c *cli) printBundle(list bundleManifest, file string, n int64) {
	missing := []*document.Value{}
	for _, f := range list.Files {
		if f.Error != "" {
			missing = append(missing, document.Text(f.Name))
			fmt.Fprintf(c.stderr, "warning: %s is not whole: %s\n", f.Name, oneLine(f.Error))
		}
	}
	value := document.MapOf().With("file", document.Text(file)).With("node", document.Text(list.Node)).With("bytes", document.Number(int(n))).
		With("files", document.Number(len(list.Files))).With("not_whole", document.ListOf(missing))
	c.print(result{value: value, names: []string{file}, table: func(*table) {
		fmt.Fprintf(c.stdout, "wrote %s, %d bytes: %s of node %s\n", file, n, countOf(len(list.Files), "file"), list.Node)
	}})
}
