package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"lbd/cmd/lbctl/document"
	lbdv1 "lbd/proto/lbd/v1"
)

func (c *cli) metricsCommand() *cobra.Command {
	var node string
	cmd := &cobra.Command{
		Use:   "metrics [PREFIX]",
		Short: "Show a node's metrics",
		Long: `Show the answering node's metrics, or another's (--node), or those whose names begin with PREFIX, in Prometheus' text format: what its --metrics address
answers, for when nobody scrapes it. Other formats list name, labels and value.`,
		Example: `  lbctl metrics lbd_requests_total`,
		Args:    cobra.MaximumNArgs(1),
		RunE: c.does(func(ctx context.Context, args []string) error {
			prefix := strings.Join(args, "")
			whose, err := oneNode(node)
			if err != nil {
				return err
			}
			return c.call(func(cl *client) error {
				answer, err := cl.system.GetMetrics(ctx, &lbdv1.GetMetricsRequest{Node: whose})
				if err != nil {
					return err
				}
				lines := metricLines(answer.GetText(), prefix)
				if len(lines) == 0 && prefix != "" {
					return fail(exitNotFound, "no metric's name begins with %q", prefix)
				}
				c.printMetrics(lines)
				return nil
			})
		}),
	}
	nodeFlag(cmd, &node)
	return cmd
}

// metricLines are the lines about metrics whose names begin so, comments included.
func metricLines(text, prefix string) []string {
	var lines []string
	for l := range strings.Lines(text) {
		l = strings.TrimRight(l, "\n")
		name := l
		if rest, ok := strings.CutPrefix(l, "# "); ok {
			_, name, _ = strings.Cut(rest, " ") // HELP or TYPE
		}
		if l != "" && strings.HasPrefix(name, prefix) {
			lines = append(lines, l)
		}
	}
	return lines
}

func (c *cli) printMetrics(lines []string) {
	values := []*document.Value{}
	var names []string
	for _, l := range lines {
		if strings.HasPrefix(l, "#") {
			continue
		}
		s := parseSample(l)
		labels := document.MapOf()
		for _, label := range s.labels {
			labels.With(label[0], document.Text(label[1]))
		}
		values = append(values, document.MapOf().With("name", document.Text(s.name)).With("labels", labels).With("value", document.Text(s.value)))
		if len(names) == 0 || names[len(names)-1] != s.name {
			names = append(names, s.name)
		}
	}
	c.print(result{value: document.ListOf(values), names: names, table: func(*table) {
		for _, l := range lines {
			fmt.Fprintln(c.stdout, l)
		}
	}})
}

// sample is one line of Prometheus' text format. The value stays text: it may be +Inf or NaN.
type sample struct {
	name   string
	labels [][2]string
	value  string
}

func parseSample(line string) sample {
	end := strings.IndexAny(line, "{ ")
	if end < 0 {
		return sample{name: line}
	}
	s, rest := sample{name: line[:end]}, line[end:]
	if rest[0] == '{' {
		rest = rest[1:]
	}
	for rest != "" && rest[0] != '}' && rest[0] != ' ' {
		name, after, ok := strings.Cut(rest, "=")
		quoted, err := strconv.QuotedPrefix(after)
		if !ok || err != nil {
			break
		}
		value, err := strconv.Unquote(quoted)
		if err != nil {
			value = quoted
		}
		s.labels = append(s.labels, [2]string{name, value})
		rest = strings.TrimPrefix(after[len(quoted):], ",")
	}
	s.value = strings.TrimSpace(strings.TrimPrefix(rest, "}"))
	return s
}
