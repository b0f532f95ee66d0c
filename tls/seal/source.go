package seal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// Source is where a node has its sealing keys from.
type Source struct {
	kind string // "file", "credential" or "command"
	what string // path, name or command line
}

const (
	sourceFile       = "file"
	sourceCredential = "credential"
	sourceCommand    = "command"
)

const (
	// commandTimeout is what a command has to print the keys: a remote key store that is asked twice fits.
	commandTimeout = 10 * time.Second
	// commandGrace is what its output may take to end after it was killed.
	commandGrace = time.Second
)

// ParseSource reads "file:PATH", "credential:NAME" (a file of systemd's, in $CREDENTIALS_DIRECTORY) or "command:CMD", a program
// with its arguments, apart by spaces; no shell reads it. Empty is the file at the given path.
func ParseSource(text, path string) (Source, error) {
	if text == "" {
		return Source{sourceFile, path}, nil
	}
	kind, what, _ := strings.Cut(text, ":")
	switch {
	case kind == sourceFile && what != "":
		abs, err := filepath.Abs(what)
		return Source{kind, abs}, err
	case kind == sourceCredential && what != "" && filepath.Base(what) == what && what != "..":
		return Source{kind, what}, nil
	case kind == sourceCommand && len(strings.Fields(what)) > 0:
		return Source{kind, what}, nil
	}
	return Source{}, fmt.Errorf("%q is no source of sealing keys: want file:PATH, credential:NAME or command:CMD", text)
}

// String names the source, as "file /var/lib/lbd/seal.key". Of a command it tells the program alone: arguments may be secret.
func (s Source) String() string {
	if s.kind == sourceCommand {
		return s.kind + " " + strings.Fields(s.what)[0]
	}
	return s.kind + " " + s.what
}

// Writable is whether keys can be put there.
func (s Source) Writable() bool { return s.kind == sourceFile }

// load reads the keys. With create a missing file is made, with a new key.
func (s Source) load(ctx context.Context, create bool) (*Sealer, error) {
	switch s.kind {
	case sourceCredential:
		return s.loadCredential()
	case sourceCommand:
		return s.run(ctx)
	}
	if create {
		return LoadOrCreate(s.what)
	}
	return Load(s.what)
}

func (s Source) loadCredential() (*Sealer, error) {
	dir := os.Getenv("CREDENTIALS_DIRECTORY")
	if dir == "" {
		return nil, fmt.Errorf("load sealing key: credential %s: CREDENTIALS_DIRECTORY is not set: give the unit LoadCredential= or LoadCredentialEncrypted=", s.what)
	}
	text, err := os.ReadFile(filepath.Join(dir, s.what)) // systemd keeps others out: its files may have any mode
	if err != nil {
		return nil, fmt.Errorf("load sealing key: %w", err)
	}
	defer clear(text)
	sealer, err := ParseKeys(text)
	if err != nil {
		return nil, fmt.Errorf("load sealing key: credential %s: %w", s.what, err)
	}
	return sealer, nil
}

var errTooMuch = errors.New("its output is too long for sealing keys")

// run asks a command. What it says on stderr is told if it fails; what it printed never is.
func (s Source) run(ctx context.Context) (*Sealer, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	words := strings.Fields(s.what)
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	cmd.WaitDelay = commandGrace
	var printed, said limited
	cmd.Stdout, cmd.Stderr = &printed, &said
	err := cmd.Run()
	defer clear(printed.kept.Bytes())
	if ctx.Err() != nil {
		err = fmt.Errorf("no keys within %s: %w", commandTimeout, ctx.Err())
	}
	if err == nil && printed.cut {
		err = errTooMuch
	}
	if err != nil {
		if text := strings.TrimSpace(said.kept.String()); text != "" {
			err = fmt.Errorf("%w: %s", err, text)
		}
		return nil, fmt.Errorf("load sealing key: %s: %w", s, err)
	}
	sealer, err := ParseKeys(printed.kept.Bytes())
	if err != nil {
		return nil, fmt.Errorf("load sealing key: %s: %w", s, err)
	}
	return sealer, nil
}

// limited keeps the first keyFileBytesMax of what is written to it.
type limited struct {
	kept bytes.Buffer
	cut  bool
}

// Write takes everything: a writer that fails would kill the command by a signal, and hide why.
func (l *limited) Write(p []byte) (int, error) {
	room := keyFileBytesMax - l.kept.Len()
	if len(p) > room {
		l.cut = true
	}
	l.kept.Write(p[:min(len(p), room)])
	return len(p), nil
}
