package plot

import (
	"bytes"
	"cmp"
	"encoding/xml"
	"fmt"
	"hash/fnv"
	"slices"
)

// Stack is a call stack, outermost function first, and how often it was seen.
type Stack struct {
	Frames []string
	Count  int
}

// node is a function under one particular chain of callers.
type node struct {
	name     string
	count    int
	children map[string]*node
}

const (
	flameWidth  = 1200.0
	flameRow    = 17.0
	flameTop    = 30.0
	flameMargin = 10.0
	// Narrower boxes are not drawn, nor what is above them.
	flameWidthMin = 0.4
	charWidth     = 6.6
)

// Flame draws a flame graph: a box is as wide as the share of samples in which its function was on the stack, callees stand above
// their caller. kernel tells the kernel's functions, which get a colour of their own. No samples are an error.
func Flame(title string, stacks []Stack, kernel func(frame string) bool) ([]byte, error) {
	root := merge(stacks)
	if root.count == 0 {
		return nil, fmt.Errorf("flame graph %q has no samples", title)
	}
	depth := root.depth()
	tall := flameTop + float64(depth)*flameRow + flameMargin
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %g %g" font-family="monospace" font-size="11">`+"\n", flameWidth, tall)
	fmt.Fprintf(&b, `<rect width="%g" height="%g" fill="#ffffff"/>`+"\n", flameWidth, tall)
	text(&b, flameWidth/2, 20, "middle", "#111111", `font-size="14"`, fmt.Sprintf("%s, %d samples", title, root.count))
	perSample := (flameWidth - 2*flameMargin) / float64(root.count)
	root.draw(&b, flameMargin, tall-flameMargin-flameRow, perSample, root.count, kernel)
	b.WriteString("</svg>\n")
	return b.Bytes(), nil
}

func merge(stacks []Stack) *node {
	root := &node{name: "all", children: map[string]*node{}}
	for _, s := range stacks {
		at := root
		at.count += s.Count
		for _, frame := range s.Frames {
			child := at.children[frame]
			if child == nil {
				child = &node{name: frame, children: map[string]*node{}}
				at.children[frame] = child
			}
			child.count += s.Count
			at = child
		}
	}
	return root
}

func (n *node) depth() int {
	deepest := 0
	for _, c := range n.children {
		deepest = max(deepest, c.depth())
	}
	return deepest + 1
}

func (n *node) draw(b *bytes.Buffer, x, y, perSample float64, total int, kernel func(string) bool) {
	wide := float64(n.count) * perSample
	if wide < flameWidthMin {
		return
	}
	fmt.Fprintf(b, `<g><title>`)
	_ = xml.EscapeText(b, fmt.Appendf(nil, "%s: %d samples, %.2f %%", n.name, n.count, 100*float64(n.count)/float64(total)))
	fmt.Fprintf(b, `</title><rect x="%.2f" y="%.1f" width="%.2f" height="%g" fill="%s" stroke="#ffffff" stroke-width="0.5"/>`, x, y, wide, flameRow-1, color(n.name, kernel(n.name)))
	if room := int((wide - 4) / charWidth); room >= 3 {
		text(b, x+2, y+12, "start", "#111111", "", shorten(n.name, room))
	}
	b.WriteString("</g>\n")
	children := make([]*node, 0, len(n.children))
	for _, c := range n.children {
		children = append(children, c)
	}
	slices.SortFunc(children, func(a, b *node) int { return cmp.Compare(a.name, b.name) })
	for _, c := range children {
		c.draw(b, x, y-flameRow, perSample, total, kernel)
		x += float64(c.count) * perSample
	}
}

func shorten(name string, room int) string {
	runes := []rune(name)
	if len(runes) <= room {
		return name
	}
	return string(runes[:room-1]) + "…"
}

// color is the same for a function wherever it stands: blues for the kernel, warm colours for the program.
func color(name string, kernel bool) string {
	h := fnv.New32a()
	h.Write([]byte(name))
	v := h.Sum32()
	if kernel {
		return fmt.Sprintf("#%02x%02x%02x", 120+v%50, 165+v>>8%50, 225+v>>16%30)
	}
	return fmt.Sprintf("#%02x%02x%02x", 225+v%30, 110+v>>8%110, 60+v>>16%40)
}
