package bench

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
)

// page is one with words before and after what is generated.
const page = "# Before\n" + pageBegin + "old\n" + pageEnd + "## After\n"

var _ = It("each plugin has rows", func() {
	var have []string
	for _, s := range scenarios() {
		for _, st := range s.steps {
			ipam, _ := st.conf(0)["ipam"].(object)
			have = append(have, st.plugin, fmt.Sprint(ipam["type"]))
		}
	}
	Expect(have).To(ContainElements(nstest.Plugins()))
})

var _ = Describe("a run", func() {
	It("prints each row, fills the page, and leaves the host alone", func() {
		dir, h := GinkgoT().TempDir(), nstest.NewHost()
		h.Cmd("sh", "-c", "mkdir "+dir+"/ours "+dir+"/peer "+dir+"/empty "+dir+"/disk")
		for _, name := range nstest.Plugins() {
			h.Cmd("cp", nstest.Build(name), dir+"/ours")
			if name != "loopback" { // the other plugins have none
				h.Cmd("cp", nstest.Build(name), dir+"/peer")
			}
		}
		Expect(exec.Command("go", "build", "-o", dir+"/empty/bridge", "./empty").Run()).To(Succeed())
		Expect(os.WriteFile(dir+"/page.md", []byte(page), 0o644)).To(Succeed())
		before := h.Snapshot()

		out := h.Run(nstest.Program{Path: "/proc/self/exe", Env: []string{"NSTEST_STAGE="}, Args: []string{
			"-ginkgo.label-filter", "rows", "-fact", "of this run", "-ours", dir + "/ours",
			"-peer", "hawser before=" + dir + "/peer", "-peer", "other=" + dir + "/peer", "-empty", dir + "/empty",
			"-copies", "2", "-work", dir + "/disk", "-n", "2", "-page", dir + "/page.md", "-table", dir + "/table",
			"-rows", `^(bridge.* against .*|dummy|loopback|portmap, 1 published|host-local, 1000 reserved|sbr.*): ` +
				`|^chain.* 8 at a time`}})
		Expect(out.Exit).To(BeZero(), out.Stdout+out.Stderr)

		Expect(h.Snapshot()).To(Equal(before))
		Expect(filepath.Glob(dir + "/disk/*")).To(BeEmpty())
		table := nstest.Must(os.ReadFile(dir + "/table"))
		Expect(out.Stdout).To(ContainSubstring(string(table)))
		written := nstest.Must(os.ReadFile(dir + "/page.md"))
		Expect(string(written)).To(And(HavePrefix("# Before\n"), HaveSuffix("## After\n"),
			Not(ContainSubstring("old"))))
		const ratio = `[0-9.]+ \([0-9.]+ to [0-9.]+\)`
		for _, line := range []string{`of this run`,
			`bridge against an empty Go program: VERSION +` + ratio + ` +- +2 `,
			`bridge, masquerade, against itself: ADD +` + ratio +
				` .* 2 / 2 +[0-9]+ / [0-9]+ +[1-9][0-9]* / [1-9][0-9]* +0 / 0$`,
			`loopback: ADD +n/a: no loopback +n/a: no loopback +2 +[0-9.]+ / - / - .* 1 / - `,
			`sbr, dual stack: ADD +` + ratio + ` .* 0 / 0 / 0$`,
			`dummy: VERSION +` + ratio,
			`dummy: ADD +(` + ratio + ` .*|n/a: no dummy in this kernel +n/a: .* 0) .* 0 / 0 / 0$`,
			`portmap, 1 published: GC +` + ratio + ` +` + ratio + ` +2 `,
			`host-local, 1000 reserved: ADD +` + ratio + ` .* 0 / 0 +0 / 0 / 0$`,
			`chain of bridge, tuning, portmap, 8 at a time: ADD +` + ratio + ` .* 0 / 0 / 0$`,
			`our failures, all rows +at most 0 +0.00 +yes`,
		} {
			Expect(string(table)).To(MatchRegexp(`(?m)^` + line))
		}
		for _, line := range []string{`- of this run`,
			`\| loopback: ADD \| n/a: no loopback \| n/a: no loopback \| [0-9.]+ / - / - \|`,
			`\| portmap, 1 published: ADD \| ` + ratio + ` \| ` + ratio + ` \| [0-9. /]+ \|`,
			`\| our failures, all rows \| at most 0 \| 0.00 \| yes`,
		} {
			Expect(string(written)).To(MatchRegexp(`(?m)^` + line))
		}
	})
})

var _ = It("what takes long is measured with the first peer and ours before alone", func() {
	sc := scenario{steps: []step{ptp()}, long: true}
	dir := GinkgoT().TempDir()
	Expect(os.WriteFile(dir+"/ptp", nil, 0o755)).To(Succeed())
	Expect(lacks(&plugins{name: "newest", dir: dir}, true, &sc, "ADD")).To(BeEmpty())
	Expect(lacks(&plugins{name: beforeName, dir: dir}, false, &sc, "ADD")).To(BeEmpty())
	Expect(lacks(&plugins{name: "other", dir: dir}, false, &sc, "ADD")).To(Equal("takes long"))
})

var _ = It("leases of dhcp are measured with the peers that have it", func() {
	dir := GinkgoT().TempDir()
	Expect(os.WriteFile(dir+"/bridge", nil, 0o755)).To(Succeed())
	sc := scenario{steps: []step{bridge()}, daemon: true}
	Expect(lacks(&plugins{name: beforeName, dir: dir}, false, &sc, "ADD")).To(Equal("no dhcp"))
	Expect(os.WriteFile(dir+"/dhcp", nil, 0o755)).To(Succeed())
	Expect(lacks(&plugins{name: beforeName, dir: dir}, false, &sc, "ADD")).To(BeEmpty())
})

var _ = DescribeTable("quantiles", func(part, want float64, values ...float64) {
	Expect(quantile(values, part)).To(BeNumerically("~", want, 1e-9))
},
	Entry("of one", 0.99, 3.0, 3.0),
	Entry("between two", 0.25, 1.5, 3.0, 1.0),
	Entry("the middle", 0.5, 2.0, 3.0, 1.0, 2.0),
	Entry("the last", 1.0, 3.0, 3.0, 1.0, 2.0),
)

var _ = It("the rows of the page are there", func() {
	var have []string
	for _, sc := range scenarios() {
		for _, verb := range sc.verbs {
			have = append(have, sc.name+": "+verb)
		}
	}
	Expect(asked()).To(HaveLen(20))
	Expect(have).To(ContainElements(asked()))
})

var _ = Describe("the aims", func() {
	It("are of rows that there are, and a missed one says so", func() {
		b := &bench{options: &options{}, own: &plugins{dir: "/dev/fd"}, others: []*plugins{{name: beforeName}}}
		for _, sc := range scenarios() {
			for _, verb := range sc.verbs {
				r := &row{scenario: sc.name, verb: verb, peers: []sample{{ratios: []float64{1.05, 1.2, 1.08}}}}
				r.own.wall, r.own.perSecond = []float64{5}, []float64{50}
				b.rows = append(b.rows, r)
			}
		}
		b.row("bridge", "ADD").peers[0] = sample{failures: 3} // cannot be compared
		b.row(portsName(10), "ADD").peers[0].ratios = nil
		for _, cells := range (&report{bench: b}).aimTable().rows {
			switch cells[0] {
			case "size of our programs / of the others'", portsName(10) + ": ADD":
				Expect(cells[3]).To(Equal("not measured"))
			case "our failures, all rows", "host-local: time with 60000 reserved / with 1",
				"portmap: time with 1000 others / with none",
				"bridge: time of CHECK with 1000 ports / with one",
				"start: time of bridge VERSION / an empty Go program's",
				"our pods a second at 64 / at 8 at a time", "bridge ADD: time / before",
				"bridge CHECK with 1000 ports: time / before", "VERSION: time / before":
				Expect(cells[3]).To(Equal("yes"), cells[0])
			default:
				Expect(cells[2:]).To(Equal([]string{"1.08", "**no**"}), cells[0])
			}
		}
	})
})
