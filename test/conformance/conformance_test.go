// Package conformance_test runs cni-conformance: correct plugins pass each case, and a broken plugin fails each case.
package conformance_test

import (
	"cmp"
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
	"unicode/utf8"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
)

func TestMain(m *testing.M) { nstest.Main(m) }

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

// newSuite returns a suite that finds the built plugins.
func newSuite() suite {
	GinkgoHelper()
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
			nstest.Build("host-local")
			nstest.Build("tuning")
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

	It("the example of the man page passes, also each SHOULD", func() {
		dir := filepath.Join(nstest.Root(), "cmd/cni-conformance/example")
		out, err := exec.Command(nstest.Build("cni-conformance"), "--path", dir, "--plugin", "pair", "--config",
			filepath.Join(dir, "pair.json"), "--parallel", "8").CombinedOutput()
		Expect(err).NotTo(HaveOccurred(), string(out))
		Expect(string(out)).To(ContainSubstring(" 0 MUST, 0 SHOULD"))
		text, err := os.ReadFile(filepath.Join(dir, "pair"))
		Expect(err).NotTo(HaveOccurred())
		Expect(strings.Count(string(text), "\n")).To(BeNumerically("<=", 32))
	})
})

// names returns the names of all cases.
func names() []string {
	GinkgoHelper()
	out, err := exec.Command(nstest.Build("cni-conformance"), "--cases").Output()
	Expect(err).NotTo(HaveOccurred())
	all := regexp.MustCompile(`(?m)^\S+`).FindAllString(string(out), -1)
	slices.Sort(all)
	return slices.Compact(all)
}

var _ = Describe("broken plugins", Label("broken"), func() {
	It("exist for each case", func() {
		Expect(slices.Sorted(maps.Keys(broken))).To(Equal(names()))
	})

	It("fail the case", func() {
		for _, name := range []string{"bridge", "host-local", "tuning", "firewall", "cni-conformance"} {
			nstest.Build(name)
		}
		free := make(chan struct{}, 2*runtime.NumCPU())
		var all sync.WaitGroup
		var mu sync.Mutex
		var wrong []string
		for name, f := range broken {
			s := newSuite()
			free <- struct{}{}
			all.Go(func() {
				defer GinkgoRecover()
				defer func() { <-free }()
				if problem := s.breaks(name, f); problem != "" {
					mu.Lock()
					wrong = append(wrong, problem)
					mu.Unlock()
				}
			})
		}
		all.Wait()
		Expect(wrong).To(BeEmpty(), "%d of %d", len(wrong), len(broken))
	})
})

// write writes a plugin that has a fault, and returns its directory.
func (s suite) write(plugin, code string) string {
	dir := filepath.Join(s.dir, "broken")
	Expect(os.Mkdir(dir, 0o755)).To(Succeed())
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
		"50 MB of output": {
			`is CHECK && { yes | head -c 50000000; exit; }`, "^check/output$", "standard output: y y y"},
		"a message of 900 kB": {`is CHECK && { printf '{"code": 7, "msg": "'
				yes | head -c 900000 | tr '\n' ' '; echo '"}'; exit 1; }`,
			"^check/output$", "error with code 7: y y y"},
		"the same rule for each ADD": {
			`is ADD && { nft add table ip left; nft add chain ip left c; nft add rule ip left c accept; }`,
			"^del/packet-filter$", "left: nftables chain c { accept"},
		"exit status 255 for errors": {`plugin || exit 255; exit`, "^error/|^environment/(command|required)$",
			" 0 failed"},
		"unknown keys are errors": {`case $conf in *conformanceUnknownKey*) exit 1 ;; esac`, "^delegate/environment$",
			" 0 failed"},
		"no need of CNI_CONTAINERID": {
			`is ADD && [ -z "$CNI_CONTAINERID" ] && export CNI_CONTAINERID=c0`, "^error/object$", " 0 failed"},
	} {
		It("has "+what, func() {
			s := newSuite()
			nstest.Build("host-local")
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
			text, err := os.ReadFile(file)
			Expect(err).NotTo(HaveOccurred())
			report += string(text)
		}
		Expect(utf8.ValidString(report)).To(BeTrue())
		Expect(report).To(MatchRegexp(`a.b.\[31m`))
		Expect(report).NotTo(MatchRegexp(`[\x00-\x09\x0b-\x1f\x7f]|\x{ffff}`))
	})

	It("a list with disableCheck is not called with CHECK", func() {
		s := newSuite()
		nstest.Build("host-local")
		nstest.Build("tuning")
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
		text, err := os.ReadFile(tap)
		Expect(err).NotTo(HaveOccurred())
		Expect(string(text)).To(HavePrefix("TAP version 14\n1..4\nok 1 - bridge: add/output\n"))
		Expect(string(text)).To(MatchRegexp(`(?m)^not ok 2 - bridge: del/output # TODO SHOULD\n  ---\n  message: \|`))
		Expect(string(text)).To(MatchRegexp(`(?m)^not ok 3 - bridge: del/twice$`))
		text, err = os.ReadFile(junit)
		Expect(err).NotTo(HaveOccurred())
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

	It("explain wrong usage, a missing plugin and a configuration that does not work", func() {
		s := newSuite()
		for _, c := range []struct{ text, subject, flag, value string }{
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

var _ = It("quotes the specification word for word, and MUST only where it says so", Label("quotes"), func() {
	cmd := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/containernetworking/cni")
	cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod", "GOPROXY=off")
	out, err := cmd.Output()
	Expect(err).NotTo(HaveOccurred())
	text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(out)), "SPEC.md"))
	Expect(err).NotTo(HaveOccurred())
	spec := plain(string(text))
	cases, err := exec.Command(nstest.Build("cni-conformance"), "--cases", "--spec", "1.1.0").Output()
	Expect(err).NotTo(HaveOccurred())
	for line := range strings.Lines(string(cases)) {
		m := regexp.MustCompile(`^(\S+) +1\.1\.0 (MUST|SHOULD|MAY) +[^"]*: "(.*)"\n$`).FindStringSubmatch(line)
		Expect(m).NotTo(BeNil(), line)
		if m[2] == "MUST" {
			Expect(m[3]).To(MatchRegexp(`(?i)\b(must|required)\b`), m[1])
		}
		rest := spec
		for part := range strings.SplitSeq(m[3], " ... ") {
			_, after, found := strings.Cut(rest, plain(part))
			Expect(found).To(BeTrue(), "%s: the specification has no %q", m[1], part)
			rest = after
		}
	}
})
