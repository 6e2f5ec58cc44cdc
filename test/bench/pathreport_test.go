package bench

import (
	"encoding/xml"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
)

const (
	pathBegin = "<!-- Written by make bench, data path, from here -->\n"
	plotName  = "datapath.svg" // next to the page
)

// The sides of a row of the data path.
const (
	besideOurs = 1 + iota
	besideIPTables
	besideNFTables
)

// advantage returns by how much ours are better than another side, round by round: more than 1 is better, also where
// less is better.
func (r *pathRow) advantage(side int) (ratios []float64) {
	for i := range min(len(r.values[0]), len(r.values[side])) {
		ours, other := r.values[0][i], r.values[side][i]
		if !r.rises {
			ours, other = other, ours
		}
		ratios = append(ratios, ours/other)
	}
	return ratios
}

func (r *pathRow) failed(side int) bool { return r.why[0] != "" || r.why[side] != "" }

// pathTable has all figures, each with its ratio to each side.
func (r *report) pathTable() table {
	t := table{head: []string{"network", "figure"}}
	for _, row := range r.paths {
		if len(t.head) == 2 {
			t.head = append(append(t.head, row.names[0]), row.names[besideIPTables:]...)
			for _, side := range []int{besideIPTables, besideNFTables, besideOurs} {
				t.head = append(t.head, "better than "+row.names[side])
			}
		}
		cells := append([]string{row.crowd.title(), row.figure}, row.medians()...)
		for _, side := range []int{besideIPTables, besideNFTables, besideOurs} {
			if row.failed(side) {
				cells = append(cells, "-")
			} else {
				cells = append(cells, spread(row.advantage(side)))
			}
		}
		t.rows = append(t.rows, cells)
	}
	return t
}

func (r *pathRow) medians() (cells []string) {
	for _, side := range []int{0, besideIPTables, besideNFTables} {
		if r.why[side] != "" {
			cells = append(cells, "n/a: fails")
		} else {
			cells = append(cells, grouped(median(r.values[side])))
		}
	}
	return cells
}

// better formats the advantage over the reference's better backend.
func (r *pathRow) better() string {
	var ratios []float64
	for _, side := range []int{besideIPTables, besideNFTables} {
		if a := r.advantage(side); !r.failed(side) && (ratios == nil || median(a) < median(ratios)) {
			ratios = a
		}
	}
	return spread(ratios)
}

// pageTables returns two tables with a row for each figure of a network and a column for each number of containers.
func (r *report) pageTables() (medians, ratios table) {
	var sizes []int
	for _, row := range r.paths {
		sizes = append(sizes, row.crowd.size)
	}
	slices.Sort(sizes)
	sizes = slices.Compact(sizes)
	head := []string{"network", "figure"}
	for _, size := range sizes {
		head = append(head, fmt.Sprint(size))
	}
	medians.head, ratios.head = head, append(slices.Clone(head), "noise")
	seen := map[[2]string]bool{}
	for _, row := range r.paths {
		name := [2]string{row.crowd.name, row.figure}
		if seen[name] {
			continue
		}
		seen[name] = true
		values, better, noise := name[:], slices.Clone(name[:]), []float64(nil)
		for _, size := range sizes {
			sized := r.pathRow(name[0], size, name[1])
			if sized == nil {
				values, better = append(values, "-"), append(better, "-")
				continue
			}
			values = append(values, strings.Join(sized.medians(), " / "))
			better = append(better, sized.better())
			if !sized.failed(besideOurs) {
				noise = append(noise, sized.advantage(besideOurs)...)
			}
		}
		medians.rows = append(medians.rows, values)
		ratios.rows = append(ratios.rows, append(better, spread(noise)))
	}
	return medians, ratios
}

// grouped is like figure, with commas between thousands.
func grouped(x float64) string {
	s := figure(x)
	if strings.ContainsAny(s, ".-") {
		return s
	}
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

func (r *report) pathRow(name string, size int, figure string) *pathRow {
	for _, row := range r.paths {
		if row.crowd.name == name && row.crowd.size == size && row.figure == figure {
			return row
		}
	}
	return nil
}

// pathAimTable is of the aims of the data path, which guard what was reached.
func (r *report) pathAimTable() table {
	return table{head: []string{"aim", "measured", "met"}, rows: [][]string{
		r.fewAim(1, 0.85), r.fewAim(30, 0.85),
		r.manyAim(portConnections, 2), r.manyAim(portPackets, 1.9), r.growthAim(0.9),
	}}
}

// fewAim is an aim for each figure of a crowd, as a part of what the reference's better backend reaches. A figure meets
// it if its upper quartile does, which may be lower by the noise.
func (r *report) fewAim(size int, want float64) []string {
	least, measured, at := math.Inf(1), math.Inf(1), ""
	for _, row := range r.paths {
		if row.crowd.size != size || row.failed(besideOurs) || row.crowd.limit > 0 {
			continue
		}
		noise := min(1, quantile(row.advantage(besideOurs), 0.25))
		for _, side := range []int{besideIPTables, besideNFTables} {
			ratios := row.advantage(side)
			if reached := quantile(ratios, 0.75) / noise; reached < least && !row.failed(side) {
				least, measured, at = reached, median(ratios), row.crowd.name+", "+row.figure
			}
		}
	}
	text := fmt.Sprintf("%d: each figure at least %g of that on the reference's better backend, less noise", size, want)
	return aimCells(text, measured, least >= want, at)
}

const many = 1000

// manyAim is an aim for a figure among many containers, in multiples of each backend's.
func (r *report) manyAim(figure string, want float64) []string {
	least, low := math.Inf(1), math.Inf(1)
	if row := r.pathRow("bridge", many, figure); row != nil {
		for _, side := range []int{besideIPTables, besideNFTables} {
			least, low = min(least, median(row.advantage(side))), min(low, quantile(row.advantage(side), 0.25))
		}
	}
	text := fmt.Sprintf("%d: at least %g times the %s of each backend, quartiles apart", many, want, figure)
	return aimCells(text, least, least >= want && low > 1, "")
}

// growthAim is an aim for our figures among many containers, as a part of those with one.
func (r *report) growthAim(want float64) []string {
	least, at := math.Inf(1), ""
	for _, figure := range []string{portConnections, portPackets} {
		one, all := r.pathRow("bridge", 1, figure), r.pathRow("bridge", many, figure)
		if one == nil || all == nil {
			continue
		}
		if ratio := median(all.values[0]) / median(one.values[0]); !(ratio >= least) {
			least, at = ratio, figure
		}
	}
	text := fmt.Sprintf("%d: at least %g of our own connections/s and packets/s with 1", many, want)
	return aimCells(text, least, least >= want, at)
}

func aimCells(text string, value float64, met bool, at string) []string {
	if math.IsInf(value, 0) || math.IsNaN(value) {
		return []string{text, "not measured", "-"}
	}
	measured := figure(value)
	if at != "" {
		measured += " (" + at + ")"
	}
	if met {
		return []string{text, measured, "yes"}
	}
	return []string{text, measured, "**no**"}
}

func (r *report) printPaths(w io.Writer) {
	r.printTables(w, r.pathTable(), r.pathAimTable())
	for _, row := range r.paths {
		for i, why := range row.why {
			if why != "" {
				_, _ = fmt.Fprintf(w, "%s: %s: %s: %s\n", row.crowd.title(), row.figure, row.names[i], why)
			}
		}
	}
}

// writePathPage replaces the data path's part of a page, and the plot next to it.
func (r *report) writePathPage(path string) {
	var s strings.Builder
	for _, fact := range r.about()[:len(r.facts)+1] {
		s.WriteString("- " + fact + "\n")
	}
	medians, ratios := r.pageTables()
	fmt.Fprintf(&s, "- %d rounds of %v\n\n![cost of a connection and of a packet](%s)\n\n%s\n", r.pathRoundCount,
		r.pathTime, plotName, r.pathAimTable().markdown())
	fmt.Fprintf(&s, "### Ratios, by number of containers\n\n%s\n",
		ratios.markdown())
	const heading = "### Medians: Hawser / reference on iptables / reference on nftables, by number of containers"
	fmt.Fprintf(&s, "%s\n\n%s\n", heading, medians.markdown())
	replacePart(path, pathBegin, s.String())
	plot := filepath.Join(filepath.Dir(path), plotName)
	Expect(os.WriteFile(plot, []byte(r.plot()), 0o644)).To(Succeed())
}

// plot returns an SVG with the cost of a connection and of a packet against the number of containers.
func (r *report) plot() string {
	var s strings.Builder
	s.WriteString(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 800 320" font-family="sans-serif" ` +
		`font-size="13">` + "\n" + `<rect width="800" height="320" fill="white"/>` + "\n")
	for i, p := range []struct{ title, figure string }{
		{"µs per connection through a host port", portConnections},
		{"µs of CPU per packet through a host port", portCPU},
	} {
		r.panel(&s, float64(i)*400, p.title, p.figure)
	}
	s.WriteString("</svg>\n")
	return s.String()
}

// panel draws one figure of the crowds named bridge as lines from x on.
func (r *report) panel(s *strings.Builder, x float64, title, figure string) {
	const top, height, left, width = 70.0, 190.0, 60.0, 300.0
	var rows []*pathRow
	highest := 0.0
	for _, row := range r.paths {
		if row.crowd.name == "bridge" && row.figure == figure {
			rows = append(rows, row)
			for side := range row.values {
				highest = max(highest, row.cost(side))
			}
		}
	}
	fmt.Fprintf(s, `<text x="%g" y="24" font-weight="bold">%s</text>`+"\n", x+left-40, title)
	if len(rows) == 0 || highest == 0 {
		return
	}
	at := func(i int, value float64) (float64, float64) {
		step := width / float64(max(1, len(rows)-1))
		return x + left + float64(i)*step, top + height*(1-value/highest)
	}
	for _, part := range []float64{0, 0.5, 1} {
		_, y := at(0, part*highest)
		fmt.Fprintf(s, `<path d="M%g %.1fh%g" stroke="#ddd"/><text x="%g" y="%.1f" text-anchor="end">%s</text>`+"\n",
			x+left, y, width, x+left-6, y+4, trimmed(part*highest))
	}
	for i, row := range rows {
		at, y := at(i, 0)
		fmt.Fprintf(s, `<text x="%.1f" y="%g" text-anchor="middle">%s</text>`+"\n", at, y+20,
			fmt.Sprint(row.crowd.size))
	}
	fmt.Fprintf(s, `<text x="%g" y="%g" text-anchor="middle">containers</text>`+"\n", x+left+width/2, top+height+40)
	for n, side := range []int{0, besideIPTables, besideNFTables} {
		color := []string{"#0b6e4f", "#c1440e", "#6a4c93"}[n]
		var points []string
		for i, row := range rows {
			if !row.failed(side) {
				px, py := at(i, row.cost(side))
				points = append(points, fmt.Sprintf("%.1f,%.1f", px, py))
				fmt.Fprintf(s, `<circle cx="%.1f" cy="%.1f" r="3" fill="%s"/>`+"\n", px, py, color)
			}
		}
		fmt.Fprintf(s, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2"/>`+"\n",
			strings.Join(points, " "), color)
		if x == 0 {
			fmt.Fprintf(s, `<text x="%g" y="48" fill="%s">%s</text>`+"\n", 20+[]float64{0, 170, 460}[n], color,
				rows[0].names[side])
		}
	}
}

// cost returns microseconds: of a connection, or as measured.
func (r *pathRow) cost(side int) float64 {
	m := median(r.values[side])
	if math.IsNaN(m) {
		return 0
	}
	if r.rises {
		return 1e6 / m
	}
	return m
}

// trimmed formats a tick of an axis.
func trimmed(x float64) string {
	if x == 0 {
		return "0"
	}
	return figure(x)
}

var _ = Describe("the report of the data path", func() {
	measured := func(times float64) *report {
		b := &bench{options: &options{facts: []string{"a fact"}, pathRoundCount: 3}}
		for _, c := range pathCrowds() {
			for _, name := range []string{portConnections, portGigabits, portPackets, portCPU} {
				row := &pathRow{crowd: c, figure: name, rises: name != portCPU, why: make([]string, 4),
					names: []string{"hawser", "hawser again", "other on iptables", "other on nftables"}}
				for side := range 4 {
					value := 4000.0
					if side >= besideIPTables && c.size == many && row.rises {
						value /= times
					}
					row.values = append(row.values, []float64{value, value * 1.1, value * 0.9})
				}
				b.paths = append(b.paths, row)
			}
		}
		return &report{bench: b}
	}

	It("has the aims, the figures and a plot that browsers can read", func() {
		r := measured(2.5)
		dir := GinkgoT().TempDir()
		Expect(os.WriteFile(dir+"/page.md", []byte("# Before\n"+pathBegin+"old\n"+pageEnd+"## After\n"), 0o644)).
			To(Succeed())
		r.writePathPage(dir + "/page.md")
		page := string(nstest.Must(os.ReadFile(dir + "/page.md")))
		Expect(page).To(And(HavePrefix("# Before\n"), HaveSuffix("## After\n"), Not(ContainSubstring("old"))))
		Expect(page).To(MatchRegexp(`\| 1000: at least 2 times the connections/s .* \| 2.50 \| yes \|`))
		Expect(page).To(ContainSubstring("| bridge | " + portConnections + " | 1.00 (1.00 to 1.00) |" +
			" 1.00 (1.00 to 1.00) | 1.00 (1.00 to 1.00) | 2.50 (2.50 to 2.50) | 1.00 (1.00 to 1.00) |"))
		Expect(page).To(ContainSubstring("| ptp | " + portPackets + " | - | - | 4,000 / 4,000 / 4,000 | - |"))
		var svg struct {
			Lines []struct{} `xml:"polyline"`
		}
		Expect(xml.Unmarshal(nstest.Must(os.ReadFile(dir+"/"+plotName)), &svg)).To(Succeed())
		Expect(svg.Lines).To(HaveLen(6))
	})

	It("has an aim for each figure among few containers, from which the noise is taken", func() {
		r := measured(2.5)
		beside := func(part float64, noise ...float64) string {
			row := r.pathRow("bridge", 30, portGigabits)
			row.values[besideOurs] = noise
			for i, ours := range row.values[0] {
				row.values[besideNFTables][i] = ours / part
			}
			return r.pathAimTable().markdown()
		}
		even := []float64{4000, 4400, 3600}
		Expect(beside(0.9, even...)).To(ContainSubstring("less noise | 0.90 (bridge, " + portGigabits + ") | yes |"))
		Expect(beside(0.8, even...)).To(ContainSubstring("less noise | 0.80 (bridge, " + portGigabits + ") | **no** |"))
		Expect(beside(0.8, 4800, 4400, 4300)).To(ContainSubstring("| 0.80 (bridge, " + portGigabits + ") | yes |"))
	})

	It("shows an aim that is not met, and a side that fails", func() {
		r := measured(1.5)
		r.pathRow("bridge", 1, portGigabits).why[besideNFTables] = "refused"
		Expect(r.pathAimTable().markdown()).To(MatchRegexp(`\| 1000: at least 2 times .* \| 1.50 \| \*\*no\*\* \|`))
		_, ratios := r.pageTables()
		Expect(ratios.markdown()).To(ContainSubstring("| bridge | " + portGigabits + " | 1.00 (1.00 to 1.00) |"))
		var out strings.Builder
		r.printPaths(&out)
		Expect(out.String()).To(And(ContainSubstring("n/a: fails"), ContainSubstring("refused")))
	})
})
