package plot

import (
	"encoding/xml"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
)

// wellFormed fails if the SVG does not parse, and returns how often each element occurs.
func wellFormed(t *testing.T, svg []byte) map[string]int {
	t.Helper()
	elements := map[string]int{}
	for d := xml.NewDecoder(strings.NewReader(string(svg))); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return elements
		}
		if err != nil {
			t.Fatalf("%v\n%s", err, svg)
		}
		if e, ok := token.(xml.StartElement); ok {
			elements[e.Name.Local]++
		}
	}
}

func TestChart(t *testing.T) {
	c := Chart{
		Title: "cost < 5 & more",
		X:     Axis{Label: "requests/s"},
		Y:     Axis{Label: "ms", Log: true},
		Lines: []Line{
			{Name: "a", Color: "#000000", Points: []Point{{0, 1, 1, 1}, {500, 30, 20, 40}, {1000, 0, 0, 0}}},
			{Name: "nothing drawable", Color: "#000000", Points: []Point{{0, 0, 0, 0}}},
		},
	}
	svg, err := c.SVG()
	if err != nil {
		t.Fatal(err)
	}
	if n := wellFormed(t, svg)["circle"]; n != 2 {
		t.Errorf("%d points drawn, want the 2 above zero", n)
	}
	if !strings.Contains(string(svg), "cost &lt; 5 &amp; more") {
		t.Error("the title is not there, or not escaped")
	}
	if strings.Contains(string(svg), "nothing drawable") || strings.Contains(string(svg), "NaN") {
		t.Error("a line without points left traces")
	}
}

func TestChartOfNothing(t *testing.T) {
	if svg, err := (Chart{Title: "x"}).SVG(); err == nil {
		t.Fatalf("drew %s", svg)
	}
}

func TestTicksSurroundTheValues(t *testing.T) {
	for _, values := range [][]float64{{0}, {3}, {0.7, 12.4}, {99_999}, {0.0004, 0.003}} {
		ticks := evenTicks(values)
		last := ticks[len(ticks)-1].At
		if ticks[0].At != 0 || last < values[len(values)-1] || len(ticks) < 2 || len(ticks) > linearTicks+2 {
			t.Errorf("even ticks for %v: %v", values, ticks)
		}
	}
	for _, values := range [][]float64{{1}, {0.3, 4000}, {10, 100}} {
		ticks := logTicks(values)
		if ticks[0].At > values[0] || ticks[len(ticks)-1].At < values[len(values)-1] || len(ticks) < 2 {
			t.Errorf("log ticks for %v: %v", values, ticks)
		}
	}
}

func TestScale(t *testing.T) {
	s := scale{log: true, from: 1, to: 100, a: 0, b: 200}
	if got := s.at(10); math.Abs(got-100) > 1e-9 {
		t.Errorf("10 is at %v, want the middle", got)
	}
	s = scale{from: 0, to: 50, a: 300, b: 100}
	if got := s.at(25); got != 200 {
		t.Errorf("25 is at %v, want 200", got)
	}
}

func TestLabel(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 0.25: "0.25", 999: "999", 2500: "2.5k", 16000: "16k", 1234: "1234"} {
		if got := label(v); got != want {
			t.Errorf("label(%v) = %q, want %q", v, got, want)
		}
	}
}

func TestFlame(t *testing.T) {
	stacks := []Stack{
		{[]string{"main", "serve", "read<T>"}, 30},
		{[]string{"main", "serve", "write"}, 60},
		{[]string{"main", "idle"}, 10},
	}
	svg, err := Flame("lbd", stacks, func(frame string) bool { return frame == "write" })
	if err != nil {
		t.Fatal(err)
	}
	// The background and a box for: all, main, serve, read, write, idle.
	if n := wellFormed(t, svg)["rect"]; n != 7 {
		t.Errorf("%d boxes, want 7", n)
	}
	for _, want := range []string{"100 samples", "serve: 90 samples, 90.00 %", "read&lt;T&gt;: 30 samples, 30.00 %"} {
		if !strings.Contains(string(svg), want) {
			t.Errorf("%q is missing", want)
		}
	}
}

func TestFlameOfNothing(t *testing.T) {
	if _, err := Flame("x", nil, func(string) bool { return false }); err == nil {
		t.Fatal("no error")
	}
}

func TestShorten(t *testing.T) {
	if got := shorten("runtime.mcall", 5); got != "runt…" {
		t.Errorf("got %q", got)
	}
	if got := shorten("main", 4); got != "main" {
		t.Errorf("got %q", got)
	}
}

func TestDots(t *testing.T) {
	d := Dots{Title: "beside lbd", Axis: "times", Mark: 1, Rows: []Row{
		{Label: "single", Dots: []Dot{{Name: "lbd", Color: "#000000", At: 1, Low: 1, High: 1}, {Name: "nginx", Color: "#111111", At: 1.3, Low: 1.1, High: 1.6}}},
		{Label: "tls", Dots: []Dot{{Name: "nginx", Color: "#111111", At: 7, Low: 6, High: 8}}},
	}}
	svg, err := d.SVG()
	if err != nil {
		t.Fatal(err)
	}
	if n := wellFormed(t, svg)["circle"]; n != 3+2 {
		t.Errorf("%d circles, want 3 dots and 2 in the legend", n)
	}
	for _, want := range []string{">0.5</text>", ">10</text>", ">single</text>"} {
		if !strings.Contains(string(svg), want) {
			t.Errorf("%s is not there", want)
		}
	}
	if svg, err := (Dots{Rows: []Row{{Label: "x"}}}).SVG(); err == nil {
		t.Errorf("drew %s of nothing", svg)
	}
}
