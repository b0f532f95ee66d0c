package plot

import (
	"bytes"
	"fmt"
)

// Dots is a chart with a row for each question and a dot for each answer to it, all on one logarithmic axis.
type Dots struct {
	Title, Axis string
	// Mark is where a line goes down through all rows, in the unit of the axis.
	Mark float64
	Rows []Row
}

// Row is one question.
type Row struct {
	Label string
	Dots  []Dot
}

// Dot is one answer with its spread; Low and High equal to At draw none. All are positive.
type Dot struct {
	Name, Color   string
	At, Low, High float64
}

const (
	rowHeight              = 24.0
	labelWidth             = 250.0
	dotsTop, dotsBottom    = 70.0, 50.0
	legendStep, dotsMargin = 90.0, 24.0
)

// SVG draws the chart. One without a dot is an error.
func (d Dots) SVG() ([]byte, error) {
	values := []float64{}
	var legend []Dot
	named := map[string]bool{}
	for _, row := range d.Rows {
		for _, dot := range row.Dots {
			values = append(values, dot.Low, dot.At, dot.High)
			if !named[dot.Name] {
				named[dot.Name] = true
				legend = append(legend, dot)
			}
		}
	}
	if len(values) == 0 {
		return nil, fmt.Errorf("chart %q has no dots", d.Title)
	}
	tall := dotsTop + rowHeight*float64(len(d.Rows)) + dotsBottom
	x := newScale(Axis{Log: true, Ticks: ratioTicks(values)}, nil, labelWidth, width-dotsMargin)
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %g %g" font-family="sans-serif" font-size="12">`+"\n", width, tall)
	fmt.Fprintf(&b, `<rect width="%g" height="%g" fill="#ffffff"/>`+"\n", width, tall)
	text(&b, dotsMargin, 24, "start", "#111111", `font-size="15" font-weight="bold"`, d.Title)
	for i, dot := range legend {
		px := labelWidth + float64(i)*legendStep
		fmt.Fprintf(&b, `<circle cx="%g" cy="44" r="5" fill="%s"/>`+"\n", px, dot.Color)
		text(&b, px+10, 48, "start", "#222222", "", dot.Name)
	}
	low := tall - dotsBottom
	for _, t := range x.ticks {
		px := x.at(t.At)
		color := "#e6e6e6"
		if t.At == d.Mark {
			color = "#888888"
		}
		fmt.Fprintf(&b, `<line x1="%.1f" y1="%g" x2="%.1f" y2="%g" stroke="%s"/>`+"\n", px, dotsTop-8, px, low, color)
		text(&b, px, low+18, "middle", "#444444", "", t.Label)
	}
	text(&b, (labelWidth+width-dotsMargin)/2, tall-10, "middle", "#222222", "", d.Axis)
	for i, row := range d.Rows {
		row.draw(&b, x, dotsTop+rowHeight*(float64(i)+0.5))
	}
	b.WriteString("</svg>\n")
	return b.Bytes(), nil
}

func (r Row) draw(b *bytes.Buffer, x scale, y float64) {
	text(b, labelWidth-14, y+4, "end", "#222222", "", r.Label)
	fmt.Fprintf(b, `<line x1="%g" y1="%.1f" x2="%g" y2="%.1f" stroke="#f2f2f2"/>`+"\n", labelWidth, y, width-dotsMargin, y)
	for _, dot := range r.Dots {
		if dot.Low != dot.High {
			fmt.Fprintf(b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s" stroke-width="3" stroke-opacity="0.35"/>`+"\n", x.at(dot.Low), y, x.at(dot.High), y, dot.Color)
		}
	}
	for _, dot := range r.Dots {
		fmt.Fprintf(b, `<circle cx="%.1f" cy="%.1f" r="5" fill="%s"/>`+"\n", x.at(dot.At), y, dot.Color)
	}
}

// ratioTicks are 1, 2 and 5 times powers of ten, as far as the values reach, at least from 0.5 to 2.
func ratioTicks(values []float64) []Tick {
	least, most := 1.0, 1.0
	for _, v := range values {
		least, most = min(least, v), max(most, v)
	}
	all := []float64{0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000}
	from, to := 0, len(all)-1
	for from < 5 && all[from+1] <= least {
		from++
	}
	for to > 7 && all[to-1] >= most {
		to--
	}
	var ticks []Tick
	for _, v := range all[from : to+1] {
		ticks = append(ticks, Tick{v, label(v)})
	}
	return ticks
}
