package kernels_test

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
)

// remedies has the remedy for a feature that does not work on an unchanged kernel, and for a machine that lacks the
// module, program or parameter that a row names.
var remedies = map[string]string{
	"bridge, vlan":        "a kernel with `CONFIG_BRIDGE_VLAN_FILTERING`",
	"ptp, netkit":         "Linux 6.7 with `CONFIG_NETKIT`, as Debian's 6.12 has it; or the `deviceType` veth",
	"ipvlan":              "the module `ipvlan`",
	"vlan":                "the module `8021q`",
	"dummy":               "the module `dummy`",
	"vrf":                 "the module `vrf`",
	"bandwidth, fq_codel": "the module `sch_fq_codel`",

	"nf_tables":      "load it; or install iptables-legacy, which the plugins use if no backend is named",
	"nft_masq":       "load it; or omit the backend, so that the plugins use iptables",
	"nft_nat":        "load it; or omit the backend, so that the plugins use iptables",
	"nft_fib":        "load it (with `nft_fib_inet`); or omit the backend, so that the plugins use iptables",
	"xt_":            "load the modules named; or use nftables, the default",
	"ip_tables":      "load it; or use the iptables of nf_tables, or nftables",
	"sch_tbf":        "load it",
	"ifb":            "load it, or limit only what the container receives",
	"veth":           "load it; after a kernel update, modules are missing until the next boot",
	"no-iptables":    "install iptables; or use nftables, the default",
	"ipv6.disable=1": "give containers only IPv4 addresses; or disable IPv6 by sysctl instead",
}

// result is what docs/kernels has of one row.
type result struct {
	kernel, version, row string
	features             []string
	cells                map[string]string
}

func results() (all []result) {
	GinkgoHelper()
	for _, file := range nstest.Must(filepath.Glob(nstest.Root() + "/docs/kernels/*.txt")) {
		r := result{cells: map[string]string{}}
		r.kernel, r.row, _ = strings.Cut(strings.TrimSuffix(filepath.Base(file), ".txt"), "-")
		for line := range strings.Lines(string(nstest.Must(os.ReadFile(file)))) {
			line = strings.TrimSpace(line)
			if version, ok := strings.CutPrefix(line, "# "); ok {
				r.version = version
				continue
			}
			feature, text, _ := strings.Cut(line, "\t")
			r.features, r.cells[feature] = append(r.features, feature), text
		}
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b result) int {
		return cmp.Or(slices.Compare(numbers(a.kernel), numbers(b.kernel)), cmp.Compare(a.row, b.row))
	})
	return all
}

// numbers are those of a version.
func numbers(version string) (out []int) {
	for number := range strings.SplitSeq(version, ".") {
		out = append(out, nstest.Must(strconv.Atoi(number)))
	}
	return out
}

// brief is a cell of the table: the code, and the modules that the message names.
func brief(text string) string {
	code, says, failed := strings.Cut(text, ": ")
	if !failed {
		return text
	}
	if _, modules, ok := strings.Cut(says, ", which may lack "); ok {
		modules, _, _ = strings.Cut(modules, " (instead of ") // why the other backend was not taken
		return code + ": may lack " + modules
	}
	return code
}

// page is what docs/kernels.md has between its marks.
func page(all []result) string {
	GinkgoHelper()
	stock := slices.DeleteFunc(slices.Clone(all), func(r result) bool { return r.row != "stock" })
	var b strings.Builder
	b.WriteString("| feature |")
	for _, r := range stock {
		fmt.Fprintf(&b, " %s |", r.version)
	}
	b.WriteString(" where it is missing |\n|" + strings.Repeat(" --- |", len(stock)+2) + "\n")
	everywhere, others := partition(stock)
	fmt.Fprintf(&b, "| %s |%s  |\n", strings.Join(everywhere, "; "), strings.Repeat(" yes |", len(stock)))
	for _, feature := range others {
		fmt.Fprintf(&b, "| %s |", feature)
		remedy := ""
		for _, r := range stock {
			fmt.Fprintf(&b, " %s |", brief(cmp.Or(r.cells[feature], "not tried")))
			if strings.HasPrefix(r.cells[feature], "code ") {
				remedy = remedyOf(feature)
			}
		}
		fmt.Fprintf(&b, " %s |\n", remedy)
	}
	b.WriteString("\n| kernel | without | works | does not | what to do |\n| --- | --- | --- | --- | --- |\n")
	for _, r := range all {
		if r.row == "stock" {
			continue
		}
		works, lacks, remedy := 0, map[string][]string{}, ""
		for _, feature := range r.features {
			switch text := r.cells[feature]; {
			case text == "yes":
				works++
			default:
				lacks[brief(text)], remedy = append(lacks[brief(text)], feature), remedyOf(r.row)
			}
		}
		var red []string
		for _, says := range slices.Sorted(maps.Keys(lacks)) {
			red = append(red, strings.Join(lacks[says], "; ")+" ("+says+")")
		}
		fmt.Fprintf(&b, "| %s | `%s` | %d of %d | %s | %s |\n", r.kernel, r.row, works, len(r.features),
			strings.Join(red, "<br>"), remedy)
	}
	return b.String()
}

// partition returns the features that work on each kernel, and the others.
func partition(stock []result) (everywhere, others []string) {
	for _, feature := range stock[len(stock)-1].features {
		works := func(r result) bool { return r.cells[feature] == "yes" }
		if slices.IndexFunc(stock, func(r result) bool { return !works(r) }) < 0 {
			everywhere = append(everywhere, feature)
		} else {
			others = append(others, feature)
		}
	}
	return everywhere, others
}

func remedyOf(what string) string {
	GinkgoHelper()
	what, _, _ = strings.Cut(what, ", with")
	remedy := cmp.Or(remedies[what], remedies[strings.Split(what, ",")[0]])
	Expect(remedy).NotTo(BeEmpty(), "what to do about "+what)
	return remedy
}

var _ = It("the page says what the runs said, and what to do about it", Label("page"), func() {
	const begin, end = "<!-- written by make test-vm -->\n", "<!-- as far as here -->\n"
	file := nstest.Root() + "/docs/kernels.md"
	have := string(nstest.Must(os.ReadFile(file)))
	head, rest, _ := strings.Cut(have, begin)
	_, tail, found := strings.Cut(rest, end)
	Expect(found).To(BeTrue(), "the page's marks")
	want := head + begin + page(results()) + end + tail
	if os.Getenv("UPDATE") == "1" {
		Expect(os.WriteFile(file, []byte(want), 0o644)).To(Succeed())
		return
	}
	Expect(have).To(Equal(want), "UPDATE=1 writes it anew")
})
