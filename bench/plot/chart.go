// Package plot draws the lab's charts and flame graphs as SVG that stands alone: no script, no style sheet, no font of its own.
package plot

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"math"
)

// Chart is lines over two axes.
type Chart struct {
	Title string
	X, Y  Axis
	Lines []Line
}

// Axis is one direction. Values on a logarithmic one must be positive; others are left out.
type Axis struct {
	Label string
	Log   bool
	// Ticks, if given, are the only ones, and the axis goes from the first to the last. Else they are round numbers around the data; a
	// linear axis then starts at zero.
	Ticks []Tick
}

// Tick is a labelled place on an axis.
type Tick struct {
	At    float64
	Label string
}

// Line is one series, its points in order of X.
type Line struct {
	Name   string
	Color  string // "#rrggbb"
	Points []Point
}

// Point is a value with its spread; Low and High equal to Y draw none.
type Point struct{ X, Y, Low, High float64 }

const (
	width, height            = 760.0, 420.0
	left, right, top, bottom = 70.0, 130.0, 44.0, 56.0
	linearTicks              = 6
)

// SVG draws the chart. One without any point that can be drawn is an error.
func (c Chart) SVG() ([]byte, error) {
	c.dropUndrawable()
	if len(c.Lines) == 0 {
		return nil, fmt.Errorf("chart %q has no points", c.Title)
	}
	x := newScale(c.X, c.values(func(p Point) []float64 { return []float64{p.X} }), left, width-right)
	y := newScale(c.Y, c.values(func(p Point) []float64 { return []float64{p.Low, p.Y, p.High} }), height-bottom, top)
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %g %g" font-family="sans-serif" font-size="12">`+"\n", width, height)
	fmt.Fprintf(&b, `<rect width="%g" height="%g" fill="#ffffff"/>`+"\n", width, height)
	text(&b, left, top-20, "start", "#111111", `font-size="15" font-weight="bold"`, c.Title)
	drawAxes(&b, c, x, y)
	for i, line := range c.Lines {
		drawLine(&b, line, x, y)
		drawLegend(&b, line, i)
	}
	b.WriteString("</svg>\n")
	return b.Bytes(), nil
}

// dropUndrawable removes points that a logarithmic axis has no place for, and lines without points.
func (c *Chart) dropUndrawable() {
	var lines []Line
	for _, line := range c.Lines {
		var points []Point
		for _, p := range line.Points {
			if c.X.Log && p.X <= 0 || c.Y.Log && p.Y <= 0 {
				continue
			}
			if c.Y.Log && p.Low <= 0 {
				p.Low = p.Y
			}
			points = append(points, p)
		}
		if len(points) > 0 {
			line.Points = points
			lines = append(lines, line)
		}
	}
	c.Lines = lines
}

func (c Chart) values(of func(Point) []float64) []float64 {
	var values []float64
	for _, line := range c.Lines {
		for _, p := range line.Points {
			values = append(values, of(p)...)
		}
	}
	return values
}

// scale maps values to pixels.
type scale struct {
	log      bool
	from, to float64 // values
	a, b     float64 // pixels
	ticks    []Tick
}

func newScale(axis Axis, values []float64, a, b float64) scale {
	s := scale{log: axis.Log, a: a, b: b, ticks: axis.Ticks}
	switch {
	case len(s.ticks) > 0:
	case s.log:
		s.ticks = logTicks(values)
	default:
		s.ticks = evenTicks(values)
	}
	s.from, s.to = s.ticks[0].At, s.ticks[len(s.ticks)-1].At
	return s
}

func (s scale) at(value float64) float64 {
	from, to := s.from, s.to
	if s.log {
		from, to, value = math.Log10(from), math.Log10(to), math.Log10(value)
	}
	return s.a + (value-from)/(to-from)*(s.b-s.a)
}

// evenTicks go from zero to the first round number that is not below the largest value.
func evenTicks(values []float64) []Tick {
	most := 0.0
	for _, v := range values {
		most = max(most, v)
	}
	if most == 0 {
		most = 1
	}
	step := roundUp(most / linearTicks)
	var ticks []Tick
	for i := 0; ; i++ {
		at := float64(i) * step
		ticks = append(ticks, Tick{at, label(at)})
		if at >= most {
			return ticks
		}
	}
}

// roundUp returns the next of 1, 2, 2.5, 5 times a power of ten.
func roundUp(v float64) float64 {
	power := math.Pow(10, math.Floor(math.Log10(v)))
	for _, m := range []float64{1, 2, 2.5, 5} {
		if v <= m*power*(1+1e-9) {
			return m * power
		}
	}
	return 10 * power
}

// logTicks are the powers of ten around the values, at least two.
func logTicks(values []float64) []Tick {
	least, most := math.Inf(1), 0.0
	for _, v := range values {
		least, most = min(least, v), max(most, v)
	}
	from, to := math.Floor(math.Log10(least)), math.Ceil(math.Log10(most))
	to = max(to, from+1)
	var ticks []Tick
	for e := from; e <= to; e++ {
		at := math.Pow(10, e)
		ticks = append(ticks, Tick{at, label(at)})
	}
	return ticks
}

func label(v float64) string {
	if v >= 1000 && v == math.Trunc(v/100)*100 {
		return fmt.Sprintf("%gk", v/1000)
	}
	return fmt.Sprintf("%.6g", v)
}

func drawAxes(b *bytes.Buffer, c Chart, x, y scale) {
	for _, t := range x.ticks {
		px := x.at(t.At)
		fmt.Fprintf(b, `<line x1="%.1f" y1="%g" x2="%.1f" y2="%g" stroke="#e6e6e6"/>`+"\n", px, top, px, height-bottom)
		text(b, px, height-bottom+18, "middle", "#444444", "", t.Label)
	}
	for _, t := range y.ticks {
		py := y.at(t.At)
		fmt.Fprintf(b, `<line x1="%g" y1="%.1f" x2="%g" y2="%.1f" stroke="#e6e6e6"/>`+"\n", left, py, width-right, py)
		text(b, left-8, py+4, "end", "#444444", "", t.Label)
	}
	fmt.Fprintf(b, `<path d="M%g,%g V%g H%g" fill="none" stroke="#888888"/>`+"\n", left, top, height-bottom, width-right)
	text(b, (left+width-right)/2, height-14, "middle", "#222222", "", c.X.Label)
	middle := (top + height - bottom) / 2
	text(b, 18, middle, "middle", "#222222", fmt.Sprintf(`transform="rotate(-90 18 %g)"`, middle), c.Y.Label)
}

func drawLine(b *bytes.Buffer, line Line, x, y scale) {
	path := ""
	for i, p := range line.Points {
		verb := "L"
		if i == 0 {
			verb = "M"
		}
		path += fmt.Sprintf("%s%.1f,%.1f ", verb, x.at(p.X), y.at(p.Y))
	}
	fmt.Fprintf(b, `<path d="%s" fill="none" stroke="%s" stroke-width="2"/>`+"\n", path, line.Color)
	for _, p := range line.Points {
		px := x.at(p.X)
		if p.Low != p.High {
			fmt.Fprintf(b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s" stroke-opacity="0.5"/>`+"\n", px, y.at(p.Low), px, y.at(p.High), line.Color)
		}
		fmt.Fprintf(b, `<circle cx="%.1f" cy="%.1f" r="3" fill="%s"/>`+"\n", px, y.at(p.Y), line.Color)
	}
}

func drawLegend(b *bytes.Buffer, line Line, row int) {
	px, py := width-right+16, top+10+float64(row)*20
	fmt.Fprintf(b, `<line x1="%g" y1="%g" x2="%g" y2="%g" stroke="%s" stroke-width="3"/>`+"\n", px, py, px+18, py, line.Color)
	text(b, px+24, py+4, "start", "#222222", "", line.Name)
}

// text writes a label; more are further attributes.
func text(b *bytes.Buffer, x, y float64, anchor, color, more, label string) {
	fmt.Fprintf(b, `<text x="%.1f" y="%.1f" text-anchor="%s" fill="%s" %s>`, x, y, anchor, color, more)
	_ = xml.EscapeText(b, []byte(label))
	b.WriteString("</text>\n")
}
