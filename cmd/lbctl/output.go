package main

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"unicode"

	"lbd/cmd/lbctl/document"
)

// format is what -o asks for.
type format struct {
	name string
	path document.Path
}

// moreFormats annotates a verb with a format that it alone has.
const moreFormats = "formats"

// parseFormat reads -o; more is what the verb has beside the formats of all.
func parseFormat(s, more string) (format, error) {
	if path, ok := strings.CutPrefix(s, "jsonpath="); ok {
		p, err := document.ParsePath(path)
		return format{"jsonpath", p}, err
	}
	switch s {
	case "table", "wide", "json", "yaml", "name", "jsonl":
		return format{name: s}, nil
	}
	known := "table, wide, json, yaml, name, jsonl, jsonpath=PATH"
	if more != "" {
		if s == more {
			return format{name: s}, nil
		}
		known += ", " + more
	}
	return format{}, fmt.Errorf("unknown output %q (%s)", s, known)
}

// result is an answer in all its forms.
type result struct {
	// The answer: a list, or one thing.
	value *document.Value
	// kind/name of what is in it.
	names []string
	table func(w *table)
}

// print writes an answer as -o asks.
func (c *cli) print(r result) {
	switch c.format.name {
	case "json":
		c.stdout.Write(r.value.IndentedJSON())
	case "yaml":
		c.stdout.Write(r.value.YAML())
	case "jsonl":
		for _, e := range r.value.Elements() {
			fmt.Fprintf(c.stdout, "%s\n", e.JSON())
		}
	case "jsonpath":
		values, err := r.value.Select(c.format.path)
		if err != nil {
			c.misread = fail(exitUsage, "-o %s: %w", c.output, err)
		}
		for _, v := range values {
			fmt.Fprintln(c.stdout, v)
		}
	case "name":
		for _, n := range r.names {
			fmt.Fprintln(c.stdout, n)
		}
	default:
		w := &table{w: tabwriter.NewWriter(c.stdout, 0, 0, 2, ' ', 0), wide: c.format.name == "wide"}
		r.table(w)
		w.flush()
	}
}

// table lines up columns. The last columns of a row may be for -o wide alone.
type table struct {
	w    *tabwriter.Writer
	wide bool
}

// row writes one row. An empty cell is a dash, so that columns can be counted.
func (t *table) row(cells ...string) {
	for i, c := range cells {
		cells[i] = cmp.Or(strings.Map(visible, c), "-")
	}
	io.WriteString(t.w, strings.Join(cells, "\t")+"\n")
}

// visible keeps what a terminal would obey out of a table.
func visible(r rune) rune {
	if unicode.IsControl(r) {
		return ' '
	}
	return r
}

// wideRow is a row with more columns for -o wide.
func (t *table) wideRow(cells []string, more ...string) {
	if t.wide {
		cells = append(cells, more...)
	}
	t.row(cells...)
}

// list is the short form of several words in a cell.
func list(words []string) string {
	const shown = 3
	if len(words) > shown {
		return fmt.Sprintf("%s,… (%d)", strings.Join(words[:shown], ","), len(words))
	}
	return strings.Join(words, ",")
}

// flush ends the alignment: rows after it have widths of their own.
func (t *table) flush() { t.w.Flush() }
