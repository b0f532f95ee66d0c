//go:build linux

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// buildLbd builds lbd and lbctl for a proxy: from the working tree, from a revision (lbd@REVISION), with a deliberate waste of time in
// every request (lbd+DURATION), or not at all if a program is given, with lbctl beside it.
func (l *lab) buildLbd(ctx context.Context, p *proxy) error {
	if p.program != "" {
		p.control = filepath.Join(filepath.Dir(p.program), "lbctl")
		return nil
	}
	bin := filepath.Join(l.work, "bin", strings.NewReplacer("/", "_", "@", "-").Replace(p.name))
	p.program, p.control = filepath.Join(bin, "lbd"), filepath.Join(bin, "lbctl")
	tree := l.root
	var flags []string
	if _, revision, ok := strings.Cut(p.name, "@"); ok {
		tree = filepath.Join(l.work, "tree-"+filepath.Base(bin))
		if err := command(ctx, l.root, "git", "worktree", "add", "--detach", "--force", tree, revision); err != nil {
			return err
		}
		defer command(context.WithoutCancel(ctx), l.root, "git", "worktree", "remove", "--force", tree)
	}
	if _, spin, ok := strings.Cut(p.name, "+"); ok {
		overlay, err := spinOverlay(tree, l.work, spin)
		if err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		flags = []string{"-overlay", overlay}
	}
	arguments := append([]string{"build"}, flags...)
	return command(ctx, tree, "go", append(arguments, "-o", bin+"/", "./cmd/lbd", "./cmd/lbctl")...)
}

// spinIn is a function of package lb that runs once for each request that is forwarded.
const spinIn = "sendResponse"

// spinOverlay makes a go build overlay in which package lb spins for the given time before each answer. The lab must be able to tell
// such an lbd from the real one.
func spinOverlay(tree, work, spin string) (string, error) {
	d, err := time.ParseDuration(spin)
	if err != nil {
		return "", err
	}
	files, err := filepath.Glob(filepath.Join(tree, "lb", "*.go"))
	if err != nil {
		return "", err
	}
	for _, file := range files {
		source, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}
		wasteful, ok := insertSpin(source, d)
		if !ok {
			continue
		}
		replaced := filepath.Join(work, "spin-"+filepath.Base(file))
		overlay, err := json.Marshal(map[string]map[string]string{"Replace": {file: replaced}})
		if err != nil {
			return "", err
		}
		name := filepath.Join(work, "spin-overlay.json")
		if err := os.WriteFile(replaced, wasteful, 0o600); err != nil {
			return "", err
		}
		return name, os.WriteFile(name, overlay, 0o600)
	}
	return "", fmt.Errorf("no %s in %s/lb", spinIn, tree)
}

// insertSpin puts a busy loop at the start of that function, on the line of its brace so that line numbers stay. It reports false for a
// file without that function. The clock comes from an import of its own, whatever the file imports.
func insertSpin(source []byte, d time.Duration) ([]byte, bool) {
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, "", source, 0)
	if err != nil {
		return nil, false
	}
	for _, decl := range f.Decls {
		fn, ok := decl.(*ast.FuncDecl)
		if !ok || fn.Name.Name != spinIn || fn.Body == nil {
			continue
		}
		name, body := fset.Position(f.Name.End()).Offset, fset.Position(fn.Body.Lbrace).Offset+1
		out := string(source[:name]) + `; import spinclock "time"` + string(source[name:body])
		out += fmt.Sprintf(" for spinFrom := spinclock.Now(); spinclock.Since(spinFrom) < %d; {}; ", d.Nanoseconds())
		return []byte(out + string(source[body:])), true
	}
	return nil, false
}

// command runs a program of the build and returns its output as the error.
func command(ctx context.Context, dir, program string, arguments ...string) error {
	cmd := exec.CommandContext(ctx, program, arguments...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", program, strings.Join(arguments, " "), err, lastLines(string(out), 20))
	}
	return nil
}
