//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// buildLbd builds lbd and lbctl for a proxy: from the working tree, from a revision (lbd@REVISION), with a deliberate waste of time in
// every request (lbd+DURATION), with a number of loops (lbd+Nloops), or not at all if a program is given, with lbctl beside it.
func (l *lab) buildLbd(ctx context.Context, p *proxy) error {
	if p.program != "" {
		p.control = filepath.Join(filepath.Dir(p.program), "lbctl")
		return nil
	}
	p.built = true
	bin := filepath.Join(l.work, "bin", strings.NewReplacer("/", "_", "@", "-").Replace(p.name))
	p.program, p.control = filepath.Join(bin, "lbd"), filepath.Join(bin, "lbctl")
	tree := l.root
	var flags []string
	name, variants, _ := strings.Cut(p.name, "+")
	if _, revision, ok := strings.Cut(name, "@"); ok {
		tree = filepath.Join(l.work, "tree-"+filepath.Base(bin))
		if err := command(ctx, l.root, "git", "worktree", "add", "--detach", "--force", tree, revision); err != nil {
			return err
		}
		defer command(context.WithoutCancel(ctx), l.root, "git", "worktree", "remove", "--force", tree)
	}
	if variants != "" {
		overlay, err := overlay(tree, bin, strings.Split(variants, "+"))
		if err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		flags = []string{"-overlay", overlay}
	}
	arguments := append([]string{"build"}, flags...)
	return command(ctx, tree, "go", append(arguments, "-o", bin+"/", "./cmd/lbd", "./cmd/lbctl")...)
}

// variant is a change of the source that a build overlay makes.
type variant struct {
	folder, function string
	// start is put at the start of the function's body, imports after the package clause.
	start, imports string
}

// spin is a function of package lb that runs once for each request that is forwarded, made to spin before each answer. The lab must be
// able to tell such an lbd from the real one. The clock comes from an import of its own, whatever the file imports.
func spin(d time.Duration) variant {
	return variant{"lb", "sendResponse", fmt.Sprintf(" for spinFrom := spinclock.Now(); spinclock.Since(spinFrom) < %d; {}; ", d.Nanoseconds()), `; import spinclock "time"`}
}

// loops is what lbd takes for the number of its cores, on machines that have fewer.
func loops(n int) variant {
	return variant{"lb/loop", "cores", fmt.Sprintf(" if true { return %d }; ", n), ""}
}

func parseVariant(name string) (variant, error) {
	if number, ok := strings.CutSuffix(name, "loops"); ok {
		n, err := strconv.Atoi(number)
		if err != nil || n < 1 {
			return variant{}, fmt.Errorf("%q is no number of loops", number)
		}
		return loops(n), nil
	}
	d, err := time.ParseDuration(name)
	return spin(d), err
}

// overlay makes a go build overlay of these variants, with its files in dir.
func overlay(tree, dir string, names []string) (string, error) {
	replace := map[string]string{}
	err := os.MkdirAll(dir, 0o755)
	for i, name := range names {
		v, parseErr := parseVariant(name)
		if err = errors.Join(err, parseErr); err != nil {
			return "", err
		}
		file, changed, err := v.find(tree)
		if err != nil {
			return "", err
		}
		replace[file] = filepath.Join(dir, fmt.Sprintf("variant%d-%s", i, filepath.Base(file)))
		if err := os.WriteFile(replace[file], changed, 0o600); err != nil {
			return "", err
		}
	}
	content, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	to := filepath.Join(dir, "overlay.json")
	return to, os.WriteFile(to, content, 0o600)
}

// find returns the file with the variant's function, and its changed source.
func (v variant) find(tree string) (file string, changed []byte, err error) {
	files, err := filepath.Glob(filepath.Join(tree, v.folder, "*.go"))
	if err != nil {
		return "", nil, err
	}
	for _, file := range files {
		source, err := os.ReadFile(file)
		if err != nil {
			return "", nil, err
		}
		if changed, ok := v.insert(source); ok {
			return file, changed, nil
		}
	}
	return "", nil, fmt.Errorf("no %s in %s/%s", v.function, tree, v.folder)
}

// insert changes a file's function, on the line of its brace so that line numbers stay. It reports false for a file without it.
func (v variant) insert(source []byte) ([]byte, bool) {
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, "", source, 0)
	if err != nil {
		return nil, false
	}
	for _, decl := range f.Decls {
		fn, ok := decl.(*ast.FuncDecl)
		if !ok || fn.Name.Name != v.function || fn.Body == nil {
			continue
		}
		name, body := fset.Position(f.Name.End()).Offset, fset.Position(fn.Body.Lbrace).Offset+1
		return []byte(string(source[:name]) + v.imports + string(source[name:body]) + v.start + string(source[body:])), true
	}
	return nil, false
}

// withLoops is the proxy, as it is to be started with so many loops: lbd has no setting for it, and is built.
func (l *lab) withLoops(ctx context.Context, p *proxy, n int) (*proxy, error) {
	if n == 0 || p.kind.name != "lbd" {
		return p, nil
	}
	if !p.built {
		return nil, fmt.Errorf("%s: a given program's number of loops cannot be changed", p.name)
	}
	name := fmt.Sprintf("%s+%dloops", p.name, n)
	if l.variants[name] == nil {
		v := *p
		v.name, v.program = name, ""
		if err := l.buildLbd(ctx, &v); err != nil {
			return nil, err
		}
		v.name = p.name
		if l.variants == nil {
			l.variants = map[string]*proxy{}
		}
		l.variants[name] = &v
	}
	return l.variants[name], nil
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
