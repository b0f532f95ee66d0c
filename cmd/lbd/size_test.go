package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const (
	funcLinesMax = 70  // a flow that fits on one screen
	fileLinesMax = 500 // a noun or a phase, read top to bottom
)

// tooLong lists what is over the limits today. It may only shrink: an entry that is no longer needed fails the test too.
var tooLong = []string{}

func TestSizes(t *testing.T) {
	root := filepath.Join("..", "..")
	var over []string
	walkGo(t, root, func(file, dir string) {
		if strings.HasSuffix(file, ".pb.go") || strings.HasSuffix(file, "_test.go") {
			return
		}
		src, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(src), "\n"); n > fileLinesMax {
			over = append(over, file)
			t.Logf("%s: %d lines", file, n)
		}
		over = append(over, longFuncs(t, file, src)...)
	})
	for _, o := range over {
		if !slices.Contains(tooLong, o) {
			t.Errorf("%s is over the limit (function %d lines, file %d)", o, funcLinesMax, fileLinesMax)
		}
	}
	for _, o := range tooLong {
		if !slices.Contains(over, o) {
			t.Errorf("%s is within the limits now: take it off the list", o)
		}
	}
}

func longFuncs(t *testing.T, file string, src []byte) []string {
	set := token.NewFileSet()
	f, err := parser.ParseFile(set, file, src, 0)
	if err != nil {
		t.Fatal(err)
	}
	var over []string
	for _, d := range f.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok {
			continue
		}
		if n := set.Position(fn.End()).Line - set.Position(fn.Pos()).Line + 1; n > funcLinesMax {
			over = append(over, fmt.Sprintf("%s:%s", file, fn.Name.Name))
			t.Logf("%s: %s has %d lines", file, fn.Name.Name, n)
		}
	}
	return over
}
