package main

import (
	"fmt"
	"math"
	"slices"
)

// quantile is the value below which a part of the values lies, between neighbours in
// proportion; NaN of none.
func quantile(values []float64, part float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	at := part * float64(len(sorted)-1)
	below := int(at)
	above := min(below+1, len(sorted)-1)
	return sorted[below] + (sorted[above]-sorted[below])*(at-float64(below))
}

func median(values []float64) float64 { return quantile(values, 0.5) }

// figure writes a number with three digits, or none when there is no number.
func figure(x float64) string {
	switch {
	case math.IsNaN(x) || math.IsInf(x, 0):
		return "-"
	case x >= 100:
		return fmt.Sprintf("%.0f", x)
	case x >= 10:
		return fmt.Sprintf("%.1f", x)
	}
	return fmt.Sprintf("%.2f", x)
}

// spread is a median with the quartiles.
func spread(values []float64) string {
	if len(values) == 0 {
		return "n/a"
	}
	return fmt.Sprintf("%s (%s to %s)", figure(median(values)), figure(quantile(values, 0.25)),
		figure(quantile(values, 0.75)))
}
