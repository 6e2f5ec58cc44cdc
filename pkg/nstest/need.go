package nstest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/skel"
)

// module is the first line of the go.mod in the directory that contains plugins/.
const module = "module github.com/hawser-cni/plugins\n"

// built has the plugins that this run has compiled.
var built struct {
	sync.Mutex
	paths map[string]string
}

// Build returns the path of a plugin's binary, or of hawser, which contains all plugins. The binary is in the directory
// HAWSER_BIN. Without that variable Build compiles it from this checkout, once in a run.
func Build(plugin string) string {
	ginkgo.GinkgoHelper()
	path, err := build(plugin)
	gomega.Expect(err).NotTo(gomega.HaveOccurred(), "build "+plugin)
	return path
}

func build(plugin string) (string, error) {
	ginkgo.GinkgoHelper()
	if dir := os.Getenv("HAWSER_BIN"); dir != "" && plugin != "cni-conformance" {
		path := filepath.Join(dir, plugin)
		_, err := os.Stat(path)
		if err != nil && plugin == "hawser" { // the directory has only plugins, all of them links to this program
			path = filepath.Join(dir, "..", plugin)
			_, err = os.Stat(path)
		}
		return path, err
	}
	built.Lock()
	defer built.Unlock()
	if path, ok := built.paths[plugin]; ok {
		return path, nil
	}
	sources, _ := filepath.Glob(filepath.Join(Root(), "plugins", "*", plugin))
	if plugin == "hawser" || plugin == "cni-conformance" {
		sources = []string{filepath.Join(Root(), "cmd", plugin)}
	}
	if len(sources) != 1 {
		return "", fmt.Errorf("%d directories of plugin %s", len(sources), plugin)
	}
	path := filepath.Join(run.workDir, "bin", plugin)
	args := []string{"build", "-trimpath", "-buildvcs=false", "-o", path}
	if os.Getenv("HAWSER_BIN") != "" { // build.sh has already compiled most packages with these flags
		flags, err := exec.Command(filepath.Join(Root(), "scripts", "flags.sh")).Output()
		if err != nil {
			return "", fmt.Errorf("scripts/flags.sh: %w", err)
		}
		args = append(args, strings.Fields(string(flags))...)
	}
	cmd := exec.Command("go", append(args, ".")...)
	cmd.Dir = sources[0]
	// The namespaces cannot reach the network; the module cache has the sources of the tests.
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOPROXY=off", "GOFLAGS=-mod=readonly")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	if built.paths == nil {
		built.paths = make(map[string]string)
	}
	built.paths[plugin] = path
	return path, nil
}

// Apart is the plugin that is neither in the program hawser nor in the default archive.
const Apart = "cluster-local"

// Plugins returns the sorted names of all plugins of this checkout except Apart.
func Plugins() []string {
	ginkgo.GinkgoHelper()
	mains, _ := filepath.Glob(filepath.Join(Root(), "plugins", "*", "*", "main.go"))
	var names []string
	for _, main := range mains {
		if filepath.Base(filepath.Dir(main)) == Apart {
			continue
		}
		names = append(names, filepath.Base(filepath.Dir(main)))
	}
	slices.Sort(names)
	return names
}

// Replaced returns the plugins that the reference also has.
func Replaced() []string {
	ginkgo.GinkgoHelper()
	return slices.DeleteFunc(Plugins(), func(name string) bool { return !Newest().Has(name) })
}

// Standalone returns the plugins that need no other process: all except dhcp, which needs its daemon and a server.
func Standalone() []string {
	ginkgo.GinkgoHelper()
	return slices.DeleteFunc(Plugins(), func(name string) bool { return name == "dhcp" })
}

// Root returns the top directory of the checkout that the tests run in.
func Root() string {
	ginkgo.GinkgoHelper()
	dir := Must(os.Getwd())
	for dir != "/" {
		data, _ := os.ReadFile(filepath.Join(dir, "go.mod"))
		if strings.HasPrefix(string(data), module) {
			return dir
		}
		dir = filepath.Dir(dir)
	}
	ginkgo.Fail("no directory above has a go.mod with " + module)
	return ""
}

// Reference is a release of the reference plugins.
type Reference struct {
	Name   string
	dir    string
	remedy string // how to install it
}

// before is the release before skel.Reference; scripts/reference.sh reads this line.
const before = "v1.9.1"

// References returns the releases that specs run next to Hawser, the newest last. Debian's supports neither nftables
// nor a version after 1.0.0. The release before the newest is among them if NSTEST_BEFORE is set.
func References() []Reference {
	if os.Getenv("NSTEST_BEFORE") == "" {
		return []Reference{Debian(), Newest()}
	}
	return []Reference{Debian(), Before(), Newest()}
}

// QuickReferences returns what References returns; in a [Quick] run, only the last one.
func QuickReferences() []Reference {
	all := References()
	if Quick() {
		return all[len(all)-1:]
	}
	return all
}

// Debian returns the release that Debian packages.
func Debian() Reference {
	return Reference{"Debian's reference", "/usr/lib/cni", "package containernetworking-plugins"}
}

// Newest returns the newest release, which scripts/reference.sh builds.
func Newest() Reference { return cached(skel.Reference) }

// Before returns the release before the newest, which "scripts/reference.sh before" builds.
func Before() Reference { return cached(before) }

func cached(version string) Reference {
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = err.Error() // not a directory: its name is the reason
	}
	return Reference{"the reference " + version, filepath.Join(cache, "hawser", "reference-"+version),
		"scripts/reference.sh"}
}

// Has reports whether the release has a plugin. Debian's release lacks two newer plugins, and no release has
// tc-redirect-tap.
func (r Reference) Has(plugin string) bool {
	return plugin != "tc-redirect-tap" && (r != Debian() || plugin != "dummy" && plugin != "tap")
}

// Dir returns the directory of the release's plugins. If they are not installed it skips the spec, or fails it if
// NSTEST_REQUIRE is set, because they do not depend on the kernel.
func (r Reference) Dir() string {
	ginkgo.GinkgoHelper()
	if _, err := os.Stat(filepath.Join(r.dir, "bridge")); err != nil {
		if required() {
			ginkgo.Fail(r.Name + " (" + r.remedy + "): " + err.Error())
		}
		skip(r.Name+" ("+r.remedy+")", err.Error())
	}
	return r.dir
}

// Program returns the path of a plugin of the release, with the conditions of Dir.
func (r Reference) Program(plugin string) string {
	ginkgo.GinkgoHelper()
	return filepath.Join(r.Dir(), plugin)
}

// features has the commands that try each feature of [Need]. They run in a scratch Host, in this order.
var features = map[string][]string{
	"8021q": {"ip link add veth8 type veth peer name veth9",
		"ip link add link veth8 name veth8.5 type vlan id 5"},
	"bond":            {"ip link add bond9 type bond"},
	"br_netfilter":    {"cat /proc/sys/net/bridge/bridge-nf-call-iptables"},
	"conntrack":       {"conntrack -L"},
	"dummy":           {"ip link add dummy9 type dummy"},
	"fq_codel":        {"tc qdisc add dev lo root fq_codel"},
	"ifb":             {"ip link add ifb9 type ifb"},
	"ip-netns":        {"ip netns add need", "ip netns del need"},
	"iptables":        {"iptables -t nat -S", "ip6tables -t nat -S"},
	"iptables-legacy": {"iptables-legacy -t nat -S", "ip6tables-legacy -t nat -S"},
	"iptables-nft":    {"iptables-nft -t nat -S", "ip6tables-nft -t nat -S"},
	"ipvlan":          {"ip link add veth8 type veth peer name veth9", "ip link add link veth8 name low9 type ipvlan"},
	"macsec":          {"ip link add veth8 type veth peer name veth9", "ip link add link veth8 name sec9 type macsec"},
	"macvlan":         {"ip link add veth8 type veth peer name veth9", "ip link add link veth8 name low9 type macvlan"},
	"netkit":          {"ip link add nk9 type netkit"},
	"nft":             {"nft add table inet t", "nft add chain inet t c { type filter hook input priority 0 ; }"},
	"nft-bridge": {"nft add table bridge t",
		"nft add chain bridge t c { type filter hook prerouting priority 0 ; }"},
	"nft-fib": {"nft add table inet t", "nft add chain inet t c",
		"nft add rule inet t c fib daddr type local accept"},
	"nft-owner":      {"nft add table inet t { flags owner ; }"},
	"nft-inet-nat":   {"nft add table inet t", "nft add chain inet t c { type nat hook prerouting priority -99 ; }"},
	"tap":            {"ip tuntap add tap9 mode tap"},
	"team":           {"ip link add team9 type team"},
	"tbf":            {"tc qdisc add dev lo root tbf rate 1mbit burst 10kb latency 1s"},
	"userns":         {"unshare -Ur true"},
	"vlan_filtering": {"ip link add bridge9 type bridge vlan_filtering 1"},
	"vrf":            {"ip link add vrf9 type vrf table 10"},
	"vxlan":          {"ip link add vxlan9 type vxlan id 9 dstport 4789"},
}

// Need skips the spec with the kernel's error unless each of these features works on this machine. A run tries each
// feature once. A spec that needs a feature of the kernel, and not only programs, carries Label("kernel"). A spec of
// netkit also carries Label("netkit"), because it needs a newer kernel than the others. The features are those of the
// table above, sctp, and realroot (not in a user namespace).
func Need(names ...string) {
	ginkgo.GinkgoHelper()
	for _, name := range names {
		if why := missing(name); why != "" {
			skip(name, why)
		}
	}
}

// NeedBackend skips the spec unless the programs of a backend of rules are installed. Only "iptables" has programs.
func NeedBackend(backend string) {
	ginkgo.GinkgoHelper()
	if backend == "iptables" {
		Need(backend)
	}
}

// NeedLack skips the spec unless this machine lacks a feature of [Need], even if NSTEST_REQUIRE is "all".
func NeedLack(name string) {
	ginkgo.GinkgoHelper()
	if missing(name) == "" {
		skip(aKernelWithout+name, "this one has it")
	}
}

const aKernelWithout = "a kernel without "

// NeedProgram skips the spec unless each of these programs is installed.
func NeedProgram(names ...string) {
	ginkgo.GinkgoHelper()
	for _, name := range names {
		if _, err := exec.LookPath(name); err != nil {
			skip(name, err.Error())
		}
	}
}

// NeedOK skips the spec if err is not nil. err is the outcome of an operation that some machines do not support.
func NeedOK(what string, err error) {
	ginkgo.GinkgoHelper()
	if err != nil {
		skip(what, err.Error())
	}
}

// tried has the results of [Need] in this run.
var tried sync.Map

func missing(name string) string {
	ginkgo.GinkgoHelper()
	if why, ok := tried.Load(name); ok {
		return why.(string)
	}
	var err error
	switch commands, ok := features[name]; {
	case ok:
		err = try(commands)
	case name == "sctp":
		err = trySCTP()
	case name == "realroot":
		err = tryRealRoot()
	default:
		ginkgo.Fail("nstest.Need: no such feature: " + name)
	}
	why := ""
	if err != nil {
		why = err.Error()
	}
	tried.Store(name, why)
	return why
}

func try(commands []string) error {
	ginkgo.GinkgoHelper()
	h := NewHost()
	for _, c := range commands {
		args := strings.Fields(c)
		if _, err := exec.LookPath(args[0]); err != nil {
			return err
		}
		if out := h.Run(Program{Path: args[0], Args: args[1:]}); out.Exit != 0 {
			return fmt.Errorf("%s: %s", c, strings.TrimSpace(out.Stderr))
		}
	}
	return nil
}

func trySCTP() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
	if err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	return unix.Close(fd)
}

func tryRealRoot() error {
	data, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		return err
	}
	if f := strings.Fields(string(data)); len(f) != 3 || f[2] != "4294967295" {
		return fmt.Errorf("the tests run in a user namespace (uid_map %q)", strings.TrimSpace(string(data)))
	}
	return nil
}

// Hang is longer than any call takes under load, and shorter than the minute for which specs block a call that must not
// wait. Eventually also waits for Hang.
const Hang = 40 * time.Second

// Patience returns d multiplied by NSTEST_SLOWNESS, for deadlines on slow machines such as an emulated processor.
func Patience(d time.Duration) time.Duration {
	if f, err := strconv.ParseFloat(os.Getenv("NSTEST_SLOWNESS"), 64); err == nil && f > 1 {
		return time.Duration(float64(d) * f)
	}
	return d
}

// UseVariant makes the names "iptables", "ip6tables" and so on mean the programs of a variant, "nft" or "legacy", until
// the end of the spec.
func UseVariant(variant string) {
	ginkgo.GinkgoHelper()
	Need("iptables-" + variant)
	dir := ginkgo.GinkgoT().TempDir()
	for _, program := range []string{"iptables", "ip6tables"} {
		for _, suffix := range []string{"", "-restore", "-save"} {
			real := Must(exec.LookPath(program + "-" + variant + suffix))
			gomega.Expect(os.Symlink(real, filepath.Join(dir, program+suffix))).To(gomega.Succeed())
		}
	}
	ginkgo.GinkgoT().Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

// Variant labels specs that run on each variant of iptables. Specs on legacy are labeled "slow", because the plugins
// write the same rules on both variants.
func Variant(variant string) ginkgo.Labels {
	if variant == "legacy" {
		return ginkgo.Label("slow")
	}
	return nil
}

// WithPrograms runs fn with a PATH that has only these programs.
func WithPrograms(names []string, fn func()) {
	ginkgo.GinkgoHelper()
	dir, path := ginkgo.GinkgoT().TempDir(), os.Getenv("PATH")
	for _, name := range names {
		gomega.Expect(os.Symlink(Must(exec.LookPath(name)), filepath.Join(dir, name))).To(gomega.Succeed())
	}
	defer func() { gomega.Expect(os.Setenv("PATH", path)).To(gomega.Succeed()) }()
	gomega.Expect(os.Setenv("PATH", dir)).To(gomega.Succeed())
	fn()
}

// WithoutPrograms runs fn with a PATH that has no programs.
func WithoutPrograms(fn func()) {
	ginkgo.GinkgoHelper()
	WithPrograms(nil, fn)
}

// skip ends the spec; [watchSkips] decides whether that is a failure.
func skip(what, why string) {
	ginkgo.GinkgoHelper()
	if why == noMain {
		ginkgo.Fail(why)
	}
	ginkgo.Skip(fmt.Sprintf("needs %s: %s", what, why))
}

// watchSkips logs a skipped spec, or fails it if NSTEST_REQUIRE does not allow the skip. It runs after each spec, so
// that no spec skips silently.
func watchSkips(report ginkgo.SpecReport) {
	reason := report.Failure.Message
	// A spec that a filter left out has no reason.
	if report.State.String() != "skipped" || reason == "" {
		return
	}
	switch {
	case strings.HasPrefix(reason, "needs "+aKernelWithout):
	case os.Getenv("NSTEST_REQUIRE") == "all":
		ginkgo.Fail(reason + " (NSTEST_REQUIRE=all)")
	case required() && !slices.Contains(report.Labels(), "kernel"):
		ginkgo.Fail(reason + ` (NSTEST_REQUIRE=1, and the spec is not labelled "kernel")`)
	}
	logSkip(report.FullText(), reason)
}

// required reports whether a missing requirement that does not depend on the kernel is a failure.
func required() bool {
	strict := os.Getenv("NSTEST_REQUIRE")
	return strict != "" && strict != "0"
}

// logSkip adds a line to the file from which the end of a run lists the skipped specs. It uses one write in append mode
// because several packages run at the same time.
func logSkip(spec, reason string) {
	path := os.Getenv("NSTEST_SKIPLOG")
	if path == "" {
		return
	}
	f := Must(os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644))
	defer func() { _ = f.Close() }()
	reason = strings.ReplaceAll(reason, "\n", " ")
	gomega.Expect(fmt.Fprintf(f, "%s\t%s\t%s\n", os.Args[0], spec, reason)).Error().NotTo(gomega.HaveOccurred())
}
