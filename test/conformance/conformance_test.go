// Package conformance_test runs cni-conformance: correct plugins pass each case, and a broken plugin fails each case.
package conformance_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
)

func TestMain(m *testing.M) {
	tries := 1
	if os.Getenv("NSTEST_REQUIRE") != "" { // a skip is a failure then, and a proxy may fail once
		tries = 3
	}
	if os.Getenv("NSTEST_STAGE") == "" { // the namespaces of the specs cannot reach the module proxy
		for _, release := range specifications {
			for try := 1; download(release).Run() != nil && try < tries; try++ {
				<-time.After(5 * time.Second)
			}
		}
	}
	nstest.Main(m)
}

func TestConformance(t *testing.T) { nstest.RunSpecs(t, "conformance") }

// The configurations of the subjects. firewall is a chained plugin, whose rules are for the addresses in prevResult.
const (
	bridge = `{"cniVersion": "1.1.0", "name": "net", "type": "bridge", "isGateway": true, "ipMasq": true,
		"capabilities": {"mac": true}, "ipam": {"type": "host-local", "subnet": "10.1.0.0/16",
		"routes": [{"dst": "0.0.0.0/0"}]}, "dns": {"nameservers": ["10.1.0.1"]}}`
	firewall = `{"cniVersion": "1.1.0", "name": "net", "type": "firewall"}`
	list     = `{"cniVersion": "1.1.0", "name": "net", "plugins": [{"type": "bridge", "isGateway": true,
		"ipam": {"type": "host-local", "subnet": "10.1.0.0/16"}}, {"type": "tuning", "mtu": 1400}]}`
)

// configs has the configuration of each subject. faulty has the name of the broken plugin if the subject is a list.
var (
	configs = map[string]string{"bridge": bridge, "firewall": firewall, "host-local": bridge, "list": list}
	faulty  = map[string]string{"list": "tuning"}
)

// suite is a run of cni-conformance.
type suite struct {
	dir  string // has the configuration and the reports
	path string // directories with plugins
}

// newSuite builds the plugins of all subjects and the program, and returns a suite that finds them.
func newSuite() suite {
	GinkgoHelper()
	for _, name := range []string{"firewall", "host-local", "tuning", "cni-conformance"} {
		nstest.Build(name)
	}
	return suite{GinkgoT().TempDir(), filepath.Dir(nstest.Build("bridge"))}
}

// run tests a subject and returns the exit status and the report. Eight attachments suffice for the concurrency case.
func (s suite) run(subject string, more ...string) (exit int, report string) {
	GinkgoHelper()
	file := filepath.Join(s.dir, "conf")
	Expect(os.WriteFile(file, []byte(cmp.Or(configs[subject], bridge)), 0o644)).To(Succeed())
	args := []string{"--path", s.path, "--parallel", "8", "--ignore", "^/run/hawser/", "--plugin", subject,
		"--config", file}
	if subject == "list" {
		args = append(args[:len(args)-4], "--list", file)
	}
	out, err := exec.Command(nstest.Build("cni-conformance"), append(args, more...)...).CombinedOutput()
	var failed *exec.ExitError
	if errors.As(err, &failed) {
		return failed.ExitCode(), string(out)
	}
	Expect(err).NotTo(HaveOccurred())
	return 0, string(out)
}

var _ = Describe("correct plugins", Label("conformance"), func() {
	for _, subject := range []string{"bridge", "firewall", "host-local", "list"} {
		label := Label()
		if subject != "bridge" { // make test runs bridge only
			label = Label("slow")
		}
		It(subject+" passes", label, func() {
			exit, report := newSuite().run(subject, "--skip", "unknown-args") // Hawser rejects unknown CNI_ARGS
			Expect(exit).To(BeZero(), report)
			Expect(report).To(ContainSubstring(" 0 failed"))
		})
	}

	It("passes without root, if the kernel allows user namespaces", func() {
		s := newSuite()
		Expect(os.WriteFile(filepath.Join(s.dir, "conf"), []byte(bridge), 0o644)).To(Succeed())
		out, err := exec.Command("unshare", "--user", "--map-user=1000", "--map-group=1000",
			nstest.Build("cni-conformance"), "--path", s.path, "--plugin", "bridge", "--config",
			filepath.Join(s.dir, "conf"), "--focus", "^add/|^del/host").CombinedOutput()
		if strings.Contains(string(out), "allow user namespaces") {
			Skip(string(out))
		}
		Expect(err).NotTo(HaveOccurred(), string(out))
		Expect(string(out)).To(ContainSubstring(" 0 failed"))
	})

	It("says so if the kernel refuses the namespaces", func() {
		s := newSuite()
		Expect(os.WriteFile(filepath.Join(s.dir, "conf"), []byte(bridge), 0o644)).To(Succeed())
		out, err := exec.Command("unshare", "--user", "--map-root-user", "sh", "-c",
			`echo 0 >/proc/sys/user/max_net_namespaces; "$0" --path "$1" --plugin bridge --config "$2"; echo "exit $?"`,
			nstest.Build("cni-conformance"), s.path, filepath.Join(s.dir, "conf")).CombinedOutput()
		Expect(err).NotTo(HaveOccurred())
		Expect(string(out)).To(ContainSubstring("run as root, or allow user namespaces\nexit 2\n"))
	})

	It("the report in the man page is the real one", func() {
		s, dir := newSuite(), filepath.Join(nstest.Root(), "cmd/cni-conformance")
		page := nstest.Must(os.ReadFile(filepath.Join(dir, "README.md")))
		_, example, _ := strings.Cut(string(page), "```text\n")
		example, _, _ = strings.Cut(example, "```")
		pair := nstest.Must(os.ReadFile(filepath.Join(dir, "example/pair")))
		pair = regexp.MustCompile(`(?m)^STATUS-\* \| GC-\*\) ;;.*\n`).ReplaceAll(pair, nil)
		Expect(os.WriteFile(filepath.Join(s.dir, "pair"), pair, 0o755)).To(Succeed())
		out, _ := exec.Command(nstest.Build("cni-conformance"), "--path", s.dir, "--plugin", "pair", "--config",
			filepath.Join(dir, "example/pair.json"), "--focus", "^status/").Output()
		for part := range strings.SplitSeq(example, "...") {
			Expect(oneLine(string(out))).To(ContainSubstring(oneLine(part)))
		}
	})

	It("the example of the man page passes, also each SHOULD", Label("slow"), func() {
		dir := filepath.Join(nstest.Root(), "cmd/cni-conformance/example")
		out, err := exec.Command(nstest.Build("cni-conformance"), "--path", dir, "--plugin", "pair", "--config",
			filepath.Join(dir, "pair.json"), "--parallel", "8").CombinedOutput()
		Expect(err).NotTo(HaveOccurred(), string(out))
		Expect(string(out)).To(ContainSubstring(" 0 MUST, 0 SHOULD"))
		text := nstest.Must(os.ReadFile(filepath.Join(dir, "pair")))
		Expect(strings.Count(string(text), "\n")).To(BeNumerically("<=", 32))
	})
})

// mistakes are typical of a first plugin: parts of the example with what a newcomer might write instead, and the cases
// that report it.
var mistakes = []struct{ cases, right, wrong string }{
	{"version/(supported|echo)", `{cniVersion: $v, supportedVersions`, `{supportedVersions`},
	{"version/unsupported|error/version", `fail 1 "cniVersion`, `fail 7 "cniVersion`},
	{"error/(exit-status|undecodable)", `version=$(get .cniVersion) || fail 6 "`, `version=$(get .cniVersion) || : "`},
	{"environment/(required|names)", `[ -n "$CNI_NETNS" ] || fail 4 "CNI_NETNS is missing"`,
		`[ -n "$CNI_NETNS" ] || CNI_NETNS=/proc/1/ns/net`},
	{"environment/container-id|config/name", `grep -Eqx '[[:alnum:]][[:alnum:]_.-]*'`, `grep -Eq '[[:alnum:]]'`},
	{"add/interfaces-(listed|exist)", `interfaces: [{name: $h}, {name`, `interfaces: [{name: "host"}, {name`},
	{"version/formats|add/format", `ips: [{address: $a, interface: 1}]`, `ips: [{address: $a, interface: "eth0"}]`},
	{"add/two-interfaces", `"$CNI_CONTAINERID $CNI_IFNAME" | cksum`, `"$CNI_CONTAINERID" | cksum`},
	{"config/bad-values|del/.*", `2>/dev/null || true ;;`, `;;`},
	{"check/.*", `CHECK-*) inside`, `CHECK-*) true || inside`},
	{"gc/.*|status/.*|environment/command", `STATUS-* | GC-*) ;;`, `OTHER-*) ;;`},
}

var _ = It("leads a newcomer's plugin to green by the failed cases", Label("example", "slow"), func() {
	dir := filepath.Join(nstest.Root(), "cmd/cni-conformance/example")
	right := nstest.Must(os.ReadFile(filepath.Join(dir, "pair")))
	s, left := newSuite(), slices.Clone(mistakes)
	for {
		text := string(right)
		for _, m := range left {
			Expect(strings.Count(text, m.right)).To(Equal(1), m.right)
			text = strings.Replace(text, m.right, m.wrong, 1)
		}
		Expect(os.WriteFile(filepath.Join(s.dir, "pair"), []byte(text), 0o755)).To(Succeed())
		out, _ := exec.Command(nstest.Build("cni-conformance"), "--path", s.dir, "--plugin", "pair", "--config",
			filepath.Join(dir, "pair.json"), "--skip", "^load/").CombinedOutput()
		if len(left) == 0 {
			Expect(string(out)).To(ContainSubstring(" 0 MUST, 0 SHOULD"))
			return
		}
		before := len(left)
		left = slices.DeleteFunc(left, func(m struct{ cases, right, wrong string }) bool {
			return regexp.MustCompile(`(MUST|SHOULD) +failed +(` + m.cases + ")\n").Match(out)
		})
		Expect(len(left)).To(BeNumerically("<", before), "no case reports these mistakes: %v\n%s", left, out)
	}
})

// names returns the names of all cases.
func names() []string {
	GinkgoHelper()
	out := nstest.Must(exec.Command(nstest.Build("cni-conformance"), "--cases").Output())
	all := regexp.MustCompile(`(?m)^\S+`).FindAllString(string(out), -1)
	slices.Sort(all)
	return slices.Compact(all)
}

// tried returns the cases that are tried with a broken plugin: the one in the environment variable CASE, otherwise all.
// A quick run tries every eighth, of which none waits 20 seconds for what the plugin leaves.
func tried() (names []string) {
	for i, name := range slices.Sorted(maps.Keys(broken)) {
		if one := os.Getenv("CASE"); one == name || one == "" && (i%8 == 3 || !nstest.Quick()) {
			names = append(names, name)
		}
	}
	return names
}

var _ = Describe("broken plugins", Label("broken"), func() {
	It("exist for each case", func() {
		Expect(slices.Sorted(maps.Keys(broken))).To(Equal(names()))
	})

	It("fail the case", func() {
		free := make(chan struct{}, 2*runtime.NumCPU())
		var all sync.WaitGroup
		var mu sync.Mutex
		var wrong []string
		for _, name := range tried() {
			s := newSuite()
			free <- struct{}{}
			all.Go(func() {
				defer GinkgoRecover()
				defer func() { <-free }()
				if problem := s.breaks(name, broken[name]); problem != "" {
					mu.Lock()
					wrong = append(wrong, problem)
					mu.Unlock()
				}
			})
		}
		all.Wait()
		Expect(wrong).To(BeEmpty(), "%d of %d", len(wrong), len(tried()))
	})
})

// The cases that plugins may pass that do nothing (harmless) or fail always (failure), because they do what the
// specification asks, such as to leave nothing on the host. All other cases must fail or be skipped.
const (
	harmless = `environment/args environment/unknown-args config/unknown-keys config/reserved-keys version/results
		version/formats add/output add/format del/output del/host del/packet-filter del/files del/processes del/twice
		del/never-added del/without-prev-result del/without-netns del/netns-gone del/others check/after-add
		check/output check/changes-nothing gc/succeeds gc/output gc/keeps-valid gc/other-network status/ready
		status/output load/concurrent `
	versions = `version/supported version/echo version/environment `
	failure  = `version/supported version/echo version/environment error/object error/version error/reserved-codes`
	chained  = harmless + `del/container del/interface-missing check/later-interface `
	ipam     = harmless + `config/bad-values add/ipam-abbreviated add/capabilities `
	creating = harmless + `config/bad-values add/interface-name add/existing-unharmed add/two-interfaces
		del/interface-missing check/later-interface `
	ofList = `list/check list/del list/del-without-prev-result list/del-after-partial-add list/gc`
)

var _ = Describe("useless plugins", Label("useless"), func() {
	for what, c := range map[string]struct{ subject, code, passed string }{
		"an interface plugin that does nothing": {"bridge", null, versions + creating},
		"a chained plugin that does nothing":    {"firewall", null, versions + chained},
		"an IPAM plugin that does nothing":      {"host-local", null, versions + ipam},
		"a list that does nothing":              {"list", null, versions + creating + chained + ofList},
		"an interface plugin without versions":  {"bridge", mute, creating},
		"an interface plugin that fails":        {"bridge", failing, failure},
		"a chained plugin that fails":           {"firewall", failing, failure},
		"an IPAM plugin that fails":             {"host-local", failing, failure},
		"a list that fails":                     {"list", failing, failure},
	} {
		label := Label()
		if c.subject != "firewall" {
			label = Label("slow")
		}
		It("pass no other case: "+what, label, func() {
			s := newSuite()
			for _, plugin := range []string{"bridge", "tuning", "firewall", "host-local"} {
				s.path = s.write(plugin, c.code) + ":" + filepath.Dir(nstest.Build(plugin))
			}
			tap := filepath.Join(s.dir, "tap")
			_, report := s.run(c.subject, "--spec", "1.1.0", "--tap", tap, "--skip", "^load/killed") // too fast
			text, err := os.ReadFile(tap)
			Expect(err).NotTo(HaveOccurred(), report)
			var passed []string
			for _, m := range regexp.MustCompile(`(?m)^ok \d+ - \S+ (\S+)$`).FindAllStringSubmatch(string(text), -1) {
				passed = append(passed, m[1])
			}
			slices.Sort(passed)
			may := strings.Fields(c.passed)
			slices.Sort(may)
			Expect(slices.Compact(passed)).To(Equal(slices.Compact(may)), report)
		})
	}
})

// write writes a plugin that has a fault, and returns its directory.
func (s suite) write(plugin, code string) string {
	dir := filepath.Join(s.dir, "broken")
	Expect(os.MkdirAll(dir, 0o755)).To(Succeed())
	script := preamble + code + "\nplugin\n"
	Expect(os.WriteFile(filepath.Join(dir, plugin), []byte(script), 0o755)).To(Succeed())
	return dir
}

// breaks runs a case with its broken plugin. It returns a description of the problem if the case does not fail, or if
// the exit status is not that of a failed MUST, SHOULD or MAY.
func (s suite) breaks(name string, f fault) string {
	plugin := f.subject
	if faulty[plugin] != "" {
		plugin = faulty[plugin]
	}
	s.path = s.write(plugin, f.code) + ":" + s.path
	spec := "1.1.0"
	if name == "version/without-input" {
		spec = "0.4.0" // newer versions require an input
	}
	exit, report := s.run(f.subject, "--spec", spec, "--focus", "^"+name+"$")
	m := regexp.MustCompile(`(MUST|SHOULD|MAY) +failed +` + name + "\n").FindStringSubmatch(report)
	switch {
	case m == nil:
		return fmt.Sprintf("%s does not fail: exit status %d\n%s", name, exit, report)
	case exit != map[bool]int{true: 1, false: 0}[m[1] == "MUST"]:
		return fmt.Sprintf("%s: exit status %d\n%s", name, exit, report)
	}
	return ""
}

// hostile plugins break the suite's own work, and unusual ones are correct: the specification allows what they do.
var _ = Describe("hostile and unusual plugins", Label("hostile"), func() {
	for what, c := range map[string]struct{ code, focus, report string }{
		"a negative index": {`is ADD && edit '.ips[0].interface = -1'`, "^add/(format|addresses-exist)$",
			"1 failed: 1 MUST"},
		"an address that is an object": {`is ADD && edit '.ips[0].address = {}'`, "^add/format$",
			"IPs.Address has the wrong type"},
		"a sandbox that is a list": {`is ADD && edit '.interfaces += [{"name": "x", "sandbox": []}]'`,
			"^add/interfaces-exist$", "1 passed"},
		"50 MB of output": {
			`is CHECK && { yes | head -c 50000000; exit; }`, "^check/output$", "standard output: y y y"},
		"a message of 900 kB": {`is CHECK && { printf '{"code": 7, "msg": "'
				yes | head -c 900000 | tr '\n' ' '; echo '"}'; exit 1; }`,
			"^check/output$", "error with code 7: y y y"},
		"the same rule for each ADD": {
			`is ADD && { nft add table ip left; nft add chain ip left c; nft add rule ip left c accept; }`,
			"^del/packet-filter$", "left: nftables chain c { accept"},
		"a blackhole of IPv6 for each container": {
			`is ADD && ip -6 route add blackhole "fd00:5::${CNI_CONTAINERID#c}"`, "^del/host$",
			"left: route dst fd00:5::"},
		"exit status 255 for errors": {`plugin || exit 255; exit`, "^error/|^environment/(command|required)$",
			" 0 failed"},
		"unknown keys are errors": {`case $conf in *conformanceUnknownKey*) exit 1 ;; esac`, "^delegate/environment$",
			" 0 failed"},
		"no need of CNI_CONTAINERID": {
			`is ADD && [ -z "$CNI_CONTAINERID" ] && export CNI_CONTAINERID=c0`, "^error/object$", " 0 failed"},
		"one ADD at a time and code 11 for the others": {
			`is ADD && { mkdir /run/busy || { echo '{"cniVersion": "1.1.0", "code": 11, "msg": "busy"}'; exit 1; }
				answer; sleep .1; rmdir /run/busy; finish; }`, "^load/concurrent$", "1 passed"},
		"a device that all attachments share": {
			`is ADD && { ip link add shared0 type bridge 2>/dev/null; edit 'del(.interfaces[0])'; }`,
			"^add/interfaces-listed$", "1 passed"},
		"an IPv6 gateway for IPv4 and several next hops": {`is ADD && { answer; ip="ip -n $CNI_CONTAINERID"
				$ip route add 198.18.0.0/15 via inet6 fd00::1 dev eth0 onlink
				$ip route add 198.51.100.0/24 nexthop via 10.1.0.1 nexthop via 10.1.0.9
				out=$(printf '%s' "$out" | jq '.routes += [{"dst": "198.18.0.0/15", "gw": "fd00::1"},
					{"dst": "198.51.100.0/24", "gw": "10.1.0.1"}, {"dst": "198.51.100.0/24", "gw": "10.1.0.9"}]')
				finish; }`, "^add/routes-exist$", "1 passed"},
		"another gateway than in the result": {`is ADD && edit '.routes += [{"dst": "0.0.0.0/0", "gw": "10.1.0.9"}]'`,
			"^add/routes-exist$", "1 failed: 1 MUST"},
		"a shared process with another PID after each ADD": {
			`is ADD && { kill "$(cat /run/pid)" 2>/dev/null
				sleep 300 </dev/null >/dev/null 2>&1 & echo $! >/run/pid; }`, "^del/processes$", "1 passed"},
		"a GC that leaves what a capability created": {`is DEL && rm -f "$mark"
				is ADD && case $conf in *runtimeConfig*) : >"$mark" ;; esac`, "^gc/removes-stale$",
			"left: file /run/mark-"},
		"output on standard output of the suite": {`is CHECK && echo x >/proc/1/fd/1`, "^check/output$|^add/output$",
			"check/output: the process of the case failed"},
	} {
		label := Label()
		if strings.HasPrefix(c.report, "left: ") { // after 20 seconds
			label = Label("slow")
		}
		It("has "+what, label, func() {
			s := newSuite()
			s.path = s.write("bridge", c.code) + ":" + s.path
			tap, junit := filepath.Join(s.dir, "tap"), filepath.Join(s.dir, "junit")
			_, report := s.run("bridge", "--focus", c.focus, "--tap", tap, "--junit", junit)
			Expect(report).To(ContainSubstring(c.report))
			Expect(len(report)).To(BeNumerically("<", 10_000))
		})
	}

	It("writes no control characters", func() {
		s := newSuite()
		s.path = s.write("bridge", `is CHECK && { printf '\377\000\033[2J' >&2
			printf '{"code": 7, "msg": "a\\u0000b\\u001b[31m\\r- \\uffff"}'; exit 1; }`) + ":" + s.path
		tap, junit := filepath.Join(s.dir, "tap"), filepath.Join(s.dir, "junit")
		exit, report := s.run("bridge", "--focus", "^check/after-add$", "--tap", tap, "--junit", junit)
		Expect(exit).To(Equal(1), report)
		for _, file := range []string{tap, junit} {
			report += string(nstest.Must(os.ReadFile(file)))
		}
		Expect(utf8.ValidString(report)).To(BeTrue())
		Expect(report).To(MatchRegexp(`a.b.\[31m`))
		Expect(report).NotTo(MatchRegexp(`[\x00-\x09\x0b-\x1f\x7f]|\x{ffff}`))
	})

	It("skips cases about the packet filter if a program that lists it is missing", func() {
		s := newSuite()
		dir := nstest.Must(os.MkdirTemp("/dev/shm", "")) // the suite hides the machine's /tmp
		DeferCleanup(os.RemoveAll, dir)
		for _, name := range []string{"ip", "tc", "sh"} {
			program := nstest.Must(exec.LookPath(name))
			Expect(os.Symlink(program, filepath.Join(dir, name))).To(Succeed())
		}
		GinkgoT().Setenv("PATH", dir)
		exit, report := s.run("bridge", "--focus", "^(del/packet-filter|check/rules-missing|del/host)$")
		Expect(exit).To(BeZero(), report)
		Expect(report).To(MatchRegexp("skipped  del/packet-filter: the program nft is missing"))
		Expect(report).To(ContainSubstring("3 cases: 1 passed, 2 skipped, 0 failed"))
	})

	It("a list with disableCheck is not called with CHECK", func() {
		s := newSuite()
		configs["list"] = strings.Replace(list, `"name"`, `"disableCheck": true, "name"`, 1)
		DeferCleanup(func() { configs["list"] = list })
		exit, report := s.run("list", "--focus", "^check/after-add$|^list/")
		Expect(exit).To(BeZero(), report)
		Expect(report).To(ContainSubstring("check/after-add: the list disables CHECK"))
	})
})

var _ = Describe("reports", Label("reports"), func() {
	It("have the failed MUST and the failed SHOULD in TAP and JUnit XML", func() {
		s := newSuite()
		s.path = s.write("bridge", "is DEL && exit 1") + ":" + s.path
		tap, junit := filepath.Join(s.dir, "tap"), filepath.Join(s.dir, "junit")
		exit, report := s.run("bridge", "--focus", "^(del/twice|del/output|add/output|del/others)$", "--tap", tap,
			"--junit", junit)
		Expect(exit).To(Equal(1), report)
		Expect(report).To(ContainSubstring("4 cases: 1 passed, 0 skipped, 3 failed: 1 MUST, 2 SHOULD, 0 MAY"))
		text := nstest.Must(os.ReadFile(tap))
		Expect(string(text)).To(HavePrefix("TAP version 14\n1..4\nok 1 - bridge: add/output\n"))
		Expect(string(text)).To(MatchRegexp(`(?m)^not ok 2 - bridge: del/output # TODO SHOULD\n  ---\n  message: \|`))
		Expect(string(text)).To(MatchRegexp(`(?m)^not ok 3 - bridge: del/twice$`))
		text = nstest.Must(os.ReadFile(junit))
		var suites struct {
			Suites []struct {
				Tests    int        `xml:"tests,attr"`
				Failures []struct{} `xml:"testcase>failure"`
				Skipped  []struct{} `xml:"testcase>skipped"`
			} `xml:"testsuite"`
		}
		Expect(xml.Unmarshal(text, &suites)).To(Succeed())
		Expect(suites.Suites).To(HaveLen(1))
		Expect(suites.Suites[0].Tests).To(Equal(4))
		Expect(suites.Suites[0].Failures).To(HaveLen(1))
		Expect(suites.Suites[0].Skipped).To(HaveLen(2))
	})

	It("have the cases that ran if a later plugin cannot be tested", func() {
		s := newSuite()
		s.path = s.write("tuning", "is ADD && exit 1") + ":" + s.path
		tap, junit := filepath.Join(s.dir, "tap"), filepath.Join(s.dir, "junit")
		exit, report := s.run("list", "--focus", "^add/output$", "--tap", tap, "--junit", junit)
		Expect(exit).To(Equal(2), report)
		text := nstest.Must(os.ReadFile(tap))
		Expect(string(text)).To(MatchRegexp(`\n1\.\.1\nok 1 - bridge: add/output\nBail out! tuning: ADD with .* fails`))
		text = nstest.Must(os.ReadFile(junit))
		var suites struct {
			Cases []struct {
				Errors []struct{} `xml:"error"`
			} `xml:"testsuite>testcase"`
		}
		Expect(xml.Unmarshal(text, &suites)).To(Succeed())
		Expect(suites.Cases).To(HaveLen(2), string(text))
		Expect(suites.Cases[0].Errors).To(BeEmpty())
		Expect(suites.Cases[1].Errors).To(HaveLen(1))
	})

	It("say so after an interrupt", func() {
		s := newSuite()
		s.path = s.write("bridge", "is ADD && sleep 301") + ":" + s.path
		tap, conf := filepath.Join(s.dir, "tap"), filepath.Join(s.dir, "conf")
		Expect(os.WriteFile(conf, []byte(bridge), 0o644)).To(Succeed())
		cmd := exec.Command(nstest.Build("cni-conformance"), "--path", s.path, "--plugin", "bridge", "--config", conf,
			"--tap", tap)
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		Expect(cmd.Start()).To(Succeed())
		Eventually(func() error { return exec.Command("pgrep", "-fx", "sleep 301").Run() }).Should(Succeed())
		Expect(cmd.Process.Signal(os.Interrupt)).To(Succeed())
		Expect(cmd.Wait()).NotTo(Succeed())
		Expect(cmd.ProcessState.ExitCode()).To(Equal(2), out.String())
		Expect(os.ReadFile(tap)).To(ContainSubstring("Bail out! bridge: interrupted"))
	})

	It("explain wrong usage, a missing plugin and a configuration that does not work", func() {
		s := newSuite()
		for _, c := range []struct{ text, subject, flag, value string }{
			{"no case was selected; --cases prints the names", "bridge", "--focus", "^nothing$"},
			{"no executable none in", "none", "--spec", "1.1.0"},
			{"choose one of 0.4.0, 1.0.0, 1.1.0", "bridge", "--spec", "2.0.0"},
			{"ADD with the configuration fails: as interface plugin: ADD: exit status 1", "bridge", "--setup",
				"ip link add cni0 type veth peer name cni1"},
		} {
			exit, report := s.run(c.subject, c.flag, c.value)
			Expect(exit).To(Equal(2), report)
			Expect(report).To(ContainSubstring(c.text))
		}
	})
})

// markup matches the markup and punctuation of the specification, which plain removes because citations lack it.
var markup = regexp.MustCompile("(?m)^\\s*[-*] |\\[|\\]\\([^)]*\\)|[`*_\"“”',\\\\]")

func plain(text string) string {
	return strings.ToLower(strings.Join(strings.Fields(markup.ReplaceAllString(text, "")), " "))
}

// specifications has the release of github.com/containernetworking/cni whose SPEC.md is each version's.
var specifications = map[string]string{"0.4.0": "v0.8.1", "1.0.0": "v1.1.2", "1.1.0": "v1.3.1"}

var _ = Describe("citations", Label("quotes"), func() {
	for spec, release := range specifications {
		It("quote CNI "+spec+" word for word, and are a MUST only where it says so", func() {
			text := plain(specification(release))
			Expect(text).To(ContainSubstring("version "+spec), "the title")
			cases := nstest.Must(exec.Command(nstest.Build("cni-conformance"), "--cases", "--spec", spec).Output())
			Expect(strings.Count(string(cases), "\n")).To(BeNumerically(">", 70))
			for line := range strings.Lines(string(cases)) {
				m := regexp.MustCompile(`^(\S+) +(\S+) (MUST|SHOULD|MAY) +[^"]*: "(.*)"\n$`).FindStringSubmatch(line)
				Expect(m).NotTo(BeNil(), line)
				Expect(m[2]).To(Equal(spec))
				if m[3] == "MUST" {
					Expect(m[4]).To(MatchRegexp(`(?i)\b(must|required)\b`), m[1])
				}
				rest := text
				for part := range strings.SplitSeq(m[4], " ... ") {
					_, after, found := strings.Cut(rest, plain(part))
					Expect(found).To(BeTrue(), "%s: the specification has no %q", m[1], part)
					rest = after
				}
			}
		})
	}
})

// download returns a command that prints the directory of a release in the module cache, as JSON.
func download(release string) *exec.Cmd {
	cmd := exec.Command("go", "mod", "download", "-json", "github.com/containernetworking/cni@"+release)
	cmd.Dir, cmd.Env = os.TempDir(), append(os.Environ(), "GOFLAGS=", "GOWORK=off")
	return cmd
}

// specification returns the text of SPEC.md of a release.
func specification(release string) string {
	GinkgoHelper()
	out, err := download(release).Output()
	if err != nil {
		Skip("the module proxy did not answer: " + string(out))
	}
	var module struct{ Dir string }
	Expect(json.Unmarshal(out, &module)).To(Succeed())
	return string(nstest.Must(os.ReadFile(filepath.Join(module.Dir, "SPEC.md"))))
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }
