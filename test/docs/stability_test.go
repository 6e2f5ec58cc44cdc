package docs_test

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

// frozen are the lines of a file of docs/frozen that begin so.
func frozen(file, begin string) (list []string) {
	GinkgoHelper()
	for line := range strings.Lines(read(root("docs", "frozen", file))) {
		if strings.HasPrefix(line, begin) {
			list = append(list, strings.TrimSpace(line))
		}
	}
	Expect(slices.IsSorted(list)).To(BeTrue(), file)
	return list
}

// expectFrozen has what there is and what is frozen be the same.
func expectFrozen(file, begin string, have []string) {
	GinkgoHelper()
	want := frozen(file, begin)
	slices.Sort(have)
	have = slices.Compact(have)
	gone := slices.DeleteFunc(slices.Clone(want), func(line string) bool { return slices.Contains(have, line) })
	Expect(gone).To(BeEmpty(), "docs/frozen/%s: from 1.0 on these may not go", file)
	added := slices.DeleteFunc(have, func(line string) bool { return slices.Contains(want, line) })
	Expect(added).To(BeEmpty(), "docs/frozen/%s: to be added, for good", file)
}

var _ = Describe("frozen", Label("frozen"), func() {
	It("are the keys of each plugin, their types and what a missing one means", func() {
		var have []string
		for plugin := range plugins {
			if plugin == nstest.Apart { // its keys may change until it is in the default archive
				continue
			}
			for _, k := range schemaKeys(plugin) {
				line := plugin + " " + k.path + " " + k.kind
				if k.missing != nil {
					line += " = " + plugintest.Text(k.missing)
				}
				have = append(have, line)
			}
		}
		expectFrozen("keys.txt", "", have)
	})

	It("are the codes of errors", func() {
		codes := []uint{cni.CodeIncompatibleVersion, cni.CodeUnsupportedField, cni.CodeUnknownContainer,
			cni.CodeEnvironment, cni.CodeIO, cni.CodeDecode, cni.CodeConfig, cni.CodeTryAgain, cni.CodeUnavailable, 51,
			cni.CodeExists, cni.CodeDrift, cni.CodeIPAM, cni.CodeConflict, cni.CodePortTaken, cni.CodeInternal}
		Expect(codes).To(Equal([]uint{1, 2, 3, 4, 5, 6, 7, 11, 50, 51, 100, 101, 102, 103, 104, 999}))
		var listed []string
		page := read(root("docs", "errors.md"))
		for _, m := range regexp.MustCompile(`(?m)^\| (\d+) \|`).FindAllStringSubmatch(page, -1) {
			listed = append(listed, m[1])
		}
		Expect(fmt.Sprint(listed)).To(Equal(fmt.Sprint(codes)))
	})

	It("are the exit statuses", func() {
		status := func(program, stdin string, env []string, args ...string) int {
			c := exec.Command(program, args...)
			c.Stdin, c.Env = strings.NewReader(stdin), env
			_ = c.Run()
			return c.ProcessState.ExitCode()
		}
		const entry, check = `{"cniVersion": "1.0.0", "name": "n", "type": "bridge"`, "--check-config"
		bridge, tool := nstest.Build("bridge"), nstest.Build("hawser")
		Expect(status(bridge, "{}", []string{"CNI_COMMAND=VERSION"})).To(Equal(0))
		Expect(status(bridge, "{", []string{"CNI_COMMAND=ADD"})).To(Equal(1))
		Expect(status(bridge, entry+"}", nil, check)).To(Equal(0))
		Expect(status(bridge, entry+`, "mtu": 1}`, nil, check)).To(Equal(1))
		Expect(status(bridge, "{", nil, check)).To(Equal(2))
		Expect(status(bridge, strings.Replace(entry, "bridge", "ptp", 1)+"}", nil, check)).To(Equal(3))
		Expect(status(bridge, "", nil, "--no-option")).To(Equal(2))
		for _, option := range []string{"--help", "--version"} {
			Expect(status(bridge, "", nil, option)).To(Equal(0))
			Expect(status(tool, "", nil, option)).To(Equal(0))
		}
		Expect(status(tool, "", nil, "install")).To(Equal(1))
	})

	It("are the options of the tool", func() {
		help := func(args ...string) string {
			return string(nstest.Must(exec.Command(nstest.Build("hawser"), append(args, "--help")...).Output()))
		}
		var want []string
		have := map[string]bool{}
		for _, command := range regexp.MustCompile(`(?m)^  (\w+) +[A-Z]`).FindAllStringSubmatch(help(), -1) {
			if command[1] == "completion" || command[1] == "help" {
				continue
			}
			options := regexp.MustCompile(`(?m)^ +(?:-\w, )?(--[\w-]+)`).FindAllStringSubmatch(help(command[1]), -1)
			for _, m := range options {
				have[m[1]] = true
			}
		}
		page := read(root("cmd", "hawser", "README.md"))
		Expect(strings.Join(strings.Fields(page), " ")).To(ContainSubstring(
			"`--skip-newer` from `HAWSER_SKIP_NEWER`. `--force` and `--yes` are not"))
		for _, m := range regexp.MustCompile("(?m)^\\| `(--[\\w-]+)` \\|").FindAllStringSubmatch(page, -1) {
			want = append(want, m[1])
		}
		Expect(slices.Collect(maps.Keys(have))).To(ConsistOf(append(want, "--help")))
		Expect(want).To(ContainElements("--to", "--only", "--skip", "--links", "--keep", "--force", "--loop",
			"--conf", "--path", "--cache", "--json", "--orphans"))
	})
})

// hashes are of what only this run has.
var hashes = regexp.MustCompile(`[0-9a-f]{16,}`)

// leaves are the keys of a JSON document with their types.
func leaves(path string, v any) (list []string) {
	switch v := v.(type) {
	case map[string]any:
		for key, value := range v {
			list = append(list, leaves(strings.TrimPrefix(path+"."+key, "."), value)...)
		}
	case []any:
		for _, value := range v {
			list = append(list, leaves(path+"[]", value)...)
		}
	case json.Number:
		list = append(list, path+" number")
	case nil:
		list = append(list, path+" null")
	default:
		list = append(list, fmt.Sprintf("%s %T", path, v))
	}
	return list
}

// files are those that plugins keep on a host, with the keys of those that are JSON.
func files(h *nstest.Host) (list []string) {
	GinkgoHelper()
	h.Do(func() {
		for _, dir := range []string{"/run/hawser", "/run/cni", "/var/lib/cni"} {
			_ = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
				if err != nil || !e.Type().IsRegular() {
					return nil
				}
				data, name := nstest.Must(os.ReadFile(path)), hashes.ReplaceAllString(path, "HASH")
				if !json.Valid(data) || len(data) == 0 || data[0] != '{' {
					list = append(list, "file "+name)
					return nil
				}
				for _, leaf := range leaves("", parsed(string(data))) {
					list = append(list, "file "+name+" "+leaf)
				}
				return nil
			})
		}
	})
	return list
}

// kept is what plugins keep in a network namespace: sets and maps, aliases.
func kept(h *nstest.Host) (list []string) {
	GinkgoHelper()
	var rules struct{ Nftables []map[string]object }
	h.JSON(&rules, "nft", "-j", "list", "ruleset")
	for _, entry := range rules.Nftables {
		for kind, o := range entry {
			if table := fmt.Sprint(o["family"], " ", o["table"]); kind == "set" || kind == "map" {
				line := fmt.Sprint("nftables ", table, " ", kind, " ", o["name"], " ", plugintest.Text(o["type"]))
				if parts, ok := o["map"].([]any); ok { // of newer releases of nft
					o["map"] = strings.ReplaceAll(strings.Trim(fmt.Sprint(parts), "[]"), " ", " . ")
				}
				if o["map"] != nil {
					line += fmt.Sprint(" : ", o["map"])
				}
				list = append(list, line)
			}
		}
	}
	var links []struct{ Ifalias string }
	h.JSON(&links, "ip", "-j", "link")
	for _, l := range links {
		if l.Ifalias != "" {
			list = append(list, "alias "+hashes.ReplaceAllString(l.Ifalias, "HASH"))
		}
	}
	return list
}

var _ = Describe("frozen is what other versions read, as", Label("frozen"), func() {
	ipam := func(n int) object { return plugintest.HostLocal(fmt.Sprintf("10.%d.0.0/24", n)) }
	lists := map[string]plugintest.List{
		"usual": append(plugintest.Usual("").With("bridge", object{"macspoofchk": true}), plugintest.Step{
			Plugin: "bandwidth", Keys: object{"egressRate": 8000000, "egressBurst": 800000}}),
		"iptables":    plugintest.Usual("iptables").Only("bridge"),
		"child":       {{Plugin: "macvlan", Keys: object{"master": "up0", "ipam": ipam(2)}}, {Plugin: "sbr"}},
		"host-device": {{Plugin: "host-device", Keys: object{"device": "ens5", "ipam": ipam(3)}}},
		"inside": {{Plugin: "macvlan", Keys: object{"master": "up0", "ipam": ipam(4)}},
			{Plugin: "bandwidth", Keys: object{"ingressRate": 8000000, "ingressBurst": 800000}}},
		"tap": {{Plugin: "ptp", Keys: object{"ipam": ipam(5)}}, {Plugin: "tc-redirect-tap"}},
	}
	for _, name := range slices.Sorted(maps.Keys(lists)) {
		It(name+" leaves it", Label("kernel"), func() {
			needs := map[string][]string{"usual": {"nft-inet-nat", "nft-bridge", "iptables", "ifb", "tbf"},
				"iptables": {"iptables"}, "child": {"macvlan"}, "inside": {"macvlan", "tbf"}}
			nstest.Need(needs[name]...)
			w := plugintest.NewNode()
			plugintest.Uplink(w.Host)
			w.Cmd("ip", "link", "add", "ens5", "type", "veth", "peer", "ens5p")
			pod := w.Up(plugintest.NewPod("c1"), lists[name])
			var have []string
			for _, line := range slices.Concat(files(w.Host), kept(w.Host), kept(pod.Host)) {
				have = append(have, name+": "+line)
			}
			if !plugintest.HasCookies() {
				for _, line := range frozen("host.txt", name+":") {
					if strings.HasSuffix(line, ".cookie number") {
						have = append(have, line)
					}
				}
			}
			expectFrozen("host.txt", name+":", have)
		})
	}

	It("a line of the log", func() {
		page := read(root("docs", "log.md"))
		list := plugintest.Usual("").Only("bridge")
		w := plugintest.NewNode()
		w.Env = []string{"HAWSER_LOG=/run/log", "TRACESTATE=a=b", "BAGGAGE=a=b",
			"TRACEPARENT=00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
		pod := w.Up(plugintest.NewPod("c1"), list)
		Expect(w.Chain("ADD", pod, list).Code).NotTo(BeZero())
		known := map[string]bool{}
		for _, line := range strings.Split(strings.TrimSpace(w.Cmd("cat", "/run/log")), "\n") {
			for key := range parsed(line).(object) {
				known[key] = true
				Expect(page).To(MatchRegexp("(?m)^\\|[^|]*`" + key + "`"))
			}
		}
		Expect(slices.Sorted(maps.Keys(known))).To(Equal([]string{"baggage", "cniVersion", "containerID", "error",
			"ifname", "ms", "network", "pid", "plugin", "result", "time", "traceparent", "tracestate", "verb",
			"version"}))
	})
})
