//go:build linux

// Command big prints what 10,000 certificates and 10,000 routes cost lbd: the first apply, one change, a rotation, a backup, its
// restore into another node, and a restart; each in time, and what memory, databases and log are afterwards.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"lbd/bench/node"
)

func main() {
	n := flag.Int("n", 10_000, "certificates, and routes")
	bin := flag.String("bin", "", "folder with lbd and lbctl; by default they are built")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := measure(ctx, *bin, *n); err != nil {
		fmt.Fprintln(os.Stderr, "big:", err)
		os.Exit(1)
	}
}

// small is what a node serves before it is given the rest: the listeners under their final names.
const small = `
api_version: lbd/v1
owner: dev
listeners:
  - { name: http, addresses: ["127.0.0.1:8080"], protocol: HTTP }
  - { name: https, addresses: ["127.0.0.1:8443"], protocol: HTTPS, tls: { default_certificate: default } }
pools: [{ name: default, backends: [{ address: "BACKEND" }] }]
routes: [{ name: default, listeners: [http, https], forward: { pools: [{ pool: default }] } }]
`

// bed is one measurement: a folder with documents, and a node.
type bed struct {
	ctx    context.Context
	bin    string
	folder string
	n      int
	node   *node.Node
	before usage
}

func measure(ctx context.Context, bin string, n int) error {
	work, err := os.MkdirTemp("", "lbd-big-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	if bin == "" {
		if bin = filepath.Join(work, "bin"); os.Mkdir(bin, 0o700) != nil {
			return errors.New("no folder for the programs")
		}
		if err := node.Build(ctx, bin); err != nil {
			return err
		}
	}
	b := &bed{ctx: ctx, bin: bin, folder: filepath.Join(work, "documents"), n: n}
	if err := writeDocuments(b.folder, n); err != nil {
		return err
	}
	if b.node, err = node.Start(ctx, bin, small); err != nil {
		return err
	}
	defer b.node.Close()
	return b.run(work)
}

// run walks through the table.
func (b *bed) run(work string) error {
	fmt.Printf("%d certificates and %d routes, all in one folder of documents\n\n", b.n, b.n)
	fmt.Printf("| %-34s | %9s | %9s | %9s | %9s | %9s | %9s |\n|%s\n", "", "time", "RSS MiB", "state.db", "raft.db", "grown by", "entries", strings.Repeat("---|", 7))
	if err := b.line("at first", func() error { return nil }); err != nil {
		return err
	}
	saved := filepath.Join(work, "all.backup")
	passphrase := filepath.Join(work, "passphrase")
	if err := os.WriteFile(passphrase, []byte("correct horse battery staple\n"), 0o600); err != nil {
		return err
	}
	apply := func() error { return b.lbctl("apply", "-f", ".", "--wait", "--timeout", "5m") }
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"first apply, until served", apply},
		{"the same again: nothing changes", apply},
		{"one route changed, whole folder", func() error { return errors.Join(changeRoute(b.folder, b.n/2), apply()) }},
		{"one certificate rotated", func() error {
			return b.lbctl("cert", "rotate", fmt.Sprint("c", b.n/3), "--chain", "next.pem", "--key", "next.key", "--wait")
		}},
		{"one pool of its own document", func() error { return b.lbctl("apply", "-f", filepath.Join(work, "pool.yaml"), "--wait") }},
		{"backup", func() error { return b.lbctl("backup", "create", saved, "--passphrase-file", passphrase) }},
	} {
		if step.name == "one pool of its own document" {
			if err := os.WriteFile(filepath.Join(work, "pool.yaml"), []byte(poolDocument), 0o600); err != nil {
				return err
			}
		}
		if err := b.line(step.name, step.do); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
	}
	if err := b.again("killed, until it serves again"); err != nil {
		return err
	}
	return b.restore(saved, passphrase)
}

// again restarts the node.
func (b *bed) again(name string) error {
	took, err := b.node.Again(b.ctx, b.bin)
	if err != nil {
		return err
	}
	return b.print(name, took)
}

// restore puts the backup into another node, and restarts that.
func (b *bed) restore(saved, passphrase string) error {
	info, err := os.Stat(saved)
	if err != nil {
		return err
	}
	other, err := node.Start(b.ctx, b.bin, small)
	if err != nil {
		return err
	}
	defer other.Close()
	b.node, b.before = other, usage{}
	if err := b.line("another node, at first", func() error { return nil }); err != nil {
		return err
	}
	err = b.line("restore", func() error {
		return b.lbctl("backup", "restore", saved, "--passphrase-file", passphrase, "--replace", "--timeout", "5m")
	})
	if err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	if err := b.again("killed, until it serves again"); err != nil {
		return err
	}
	fmt.Printf("\nthe backup has %.1f MiB; sizes of files in MiB as the disk has them\n", float64(info.Size())/(1<<20))
	return nil
}

func (b *bed) lbctl(args ...string) error {
	_, err := b.node.Lbctl(b.ctx, b.bin, b.folder, nil, args...)
	return err
}

// line does a step and prints what it took.
func (b *bed) line(name string, do func() error) error {
	began := time.Now()
	if err := do(); err != nil {
		return err
	}
	return b.print(name, time.Since(began))
}

// usage is what the node takes now.
type usage struct {
	resident, state, log, snapshots int64
	entries                         int64
}

func (u usage) disk() int64 { return u.state + u.log + u.snapshots }

func (b *bed) print(name string, took time.Duration) error {
	now, err := b.look()
	if err != nil {
		return err
	}
	mib := func(n int64) string { return fmt.Sprintf("%.1f", float64(n)/(1<<20)) }
	fmt.Printf("| %-34s | %9s | %9s | %9s | %9s | %9s | %9d |\n", name, took.Round(10*time.Millisecond), mib(now.resident), mib(now.state), mib(now.log),
		mib(now.disk()-b.before.disk()), now.entries-b.before.entries)
	b.before = now
	return nil
}

func (b *bed) look() (u usage, err error) {
	if u.resident, err = b.node.Resident(); err != nil {
		return u, err
	}
	u.state, u.log = onDisk(filepath.Join(b.node.Dir(), "state.db")), onDisk(filepath.Join(b.node.Dir(), "raft.db"))
	snapshots, err := filepath.Glob(filepath.Join(b.node.Dir(), "snapshots", "*", "*"))
	if err != nil {
		return u, err
	}
	for _, path := range snapshots {
		u.snapshots += onDisk(path)
	}
	text, err := b.node.Lbctl(b.ctx, b.bin, b.folder, nil, "metrics")
	if err != nil {
		return u, err
	}
	_, rest, found := strings.Cut(string(text), `lbd_raft_index{kind="last"} `)
	if !found {
		return u, errors.New("no lbd_raft_index among the metrics")
	}
	var entries float64
	_, err = fmt.Sscan(rest, &entries)
	u.entries = int64(entries)
	return u, err
}

// onDisk is what a file takes on the disk, holes left out; nothing where there is none.
func onDisk(path string) int64 {
	var st syscall.Stat_t
	if syscall.Stat(path, &st) != nil {
		return 0
	}
	return st.Blocks * 512
}
