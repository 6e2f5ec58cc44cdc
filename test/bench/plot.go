package main

import (
	"fmt"
	"image/color"
	"math"
	"os"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// points are ratios with their quartiles, one below the other.
type points struct{ samples []*sample }

func (p points) Len() int { return len(p.samples) }

func (p points) XY(i int) (x, y float64) { return median(p.samples[i].ratios), float64(i) }

func (p points) XError(i int) (below, above float64) {
	r := p.samples[i].ratios
	return quantile(r, 0.25) - median(r), quantile(r, 0.75) - median(r)
}

// writePlot draws each row's ratio against the first of the others with its quartiles, on a
// logarithmic scale.
func writePlot(path string, b *bench) error {
	var shown points
	var names []string
	for _, r := range slices.Backward(b.rows) {
		if len(r.peers[0].ratios) > 0 {
			shown.samples = append(shown.samples, &r.peers[0])
			names = append(names, r.scenario+": "+r.verb)
		}
	}
	if len(names) == 0 {
		return fmt.Errorf("plot: nothing was measured")
	}
	p := plot.New()
	p.Title.Text = fmt.Sprintf("How many times faster than %s, with quartiles", b.others[0].name)
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, tens{}
	p.NominalY(names...)
	p.Add(plotter.NewGrid())
	dots, err := plotter.NewScatter(shown)
	if err != nil {
		return err
	}
	dots.GlyphStyle = draw.GlyphStyle{Color: color.RGBA{B: 0xa0, A: 0xff}, Radius: vg.Points(2.5),
		Shape: draw.CircleGlyph{}}
	bars, err := plotter.NewXErrorBars(shown)
	if err != nil {
		return err
	}
	same, err := plotter.NewLine(plotter.XYs{{X: 1, Y: -0.5}, {X: 1, Y: float64(len(names)) - 0.5}})
	if err != nil {
		return err
	}
	p.Add(same, bars, dots)
	p.X.Min, p.X.Max = p.X.Min/1.2, p.X.Max*1.2
	canvas := vgsvg.New(20*vg.Centimeter, vg.Length(len(names))*0.42*vg.Centimeter+3*vg.Centimeter)
	p.Draw(draw.New(canvas))
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	if _, err := canvas.WriteTo(f); err != nil {
		_ = f.Close()
		return err
	}
	return f.Close()
}

// tens are the marks 1, 10, 100 and, without words, those in between.
type tens struct{}

func (tens) Ticks(from, to float64) (ticks []plot.Tick) {
	for exponent := math.Floor(math.Log10(from)); exponent <= math.Ceil(math.Log10(to)); exponent++ {
		for n := 1.0; n < 10; n++ {
			value, label := n*math.Pow(10, exponent), ""
			if n == 1 || n == 2 || n == 5 {
				label = fmt.Sprint(value)
			}
			if value >= from && value <= to {
				ticks = append(ticks, plot.Tick{Value: value, Label: label})
			}
		}
	}
	return ticks
}
