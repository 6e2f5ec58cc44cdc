package faults_test

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

// The attachment that faults disturb, and the one that must not be disturbed.
const (
	victim    = "one"
	bystander = "other"
)

// lesson has the effects of an undisturbed ADD and DEL of a scenario.
type lesson struct {
	scenario
	clean  state  // before ADD, and after DEL
	whole  state  // after ADD
	shared state  // on a cold host: the state after the first DEL, which may stay
	result string // of ADD

	spare *node // an unused node, or nil
}

func learn(s scenario) *lesson {
	GinkgoHelper()
	l := &lesson{scenario: s}
	n, err := l.node()
	if err == nil {
		err = n.learn()
	}
	if err != nil {
		Fail(s.Name + ": " + err.Error())
	}
	l.leave(n)
	return l
}

// leave keeps a node in its original state for the next take.
func (l *lesson) leave(n *node) {
	if l.Cold {
		n.retire()
		return
	}
	l.spare = n
}

func (l *lesson) take() (n *node, err error) {
	making.Lock()
	n, l.spare = l.spare, nil
	making.Unlock()
	if n == nil {
		n, err = l.node()
	}
	return n, err
}

// node is a host on which a scenario is played.
type node struct {
	*lesson
	bin   string
	host  *nstest.Host
	conts map[string]*nstest.Host
	below map[string]string // results of the plugin below

	daemon *exec.Cmd // of dhcp
}

// making serializes the creation of hosts, because ginkgo's list of cleanups has no lock.
var making sync.Mutex

func (l *lesson) empty() *node {
	making.Lock()
	defer making.Unlock()
	n := &node{lesson: l, below: map[string]string{}, conts: map[string]*nstest.Host{}}
	for _, name := range nstest.Plugins() {
		n.bin = filepath.Dir(nstest.Build(name))
	}
	n.host, n.conts[victim] = nstest.NewHost(), nstest.NewNetns()
	if l.Conf["master"] != nil {
		plugintest.Uplink(n.host)
	}
	if !l.Cold {
		n.conts[bystander] = nstest.NewNetns()
	}
	if l.plugin() == "dhcp" {
		n.lend()
	}
	if l.Other != nil {
		n.administer()
	}
	return n
}

// node creates a node on which the plugin can be called.
func (l *lesson) node() (*node, error) {
	n := l.empty()
	for number, id := range []string{bystander, victim} {
		if l.Conf["device"] != nil {
			out := n.host.Run(nstest.Program{Path: "sh", Args: []string{"-ec",
				`ip link add $0 address 0a:00:00:00:00:19 type veth peer name $0p
ip link set $0 up alias "mine $0" mtu 1400; ip link set $0p up` + l.Device, id, fmt.Sprint(number)}})
			if out.Exit != 0 {
				return n, fmt.Errorf("the device: %s", out.Stderr)
			}
		}
		if n.conts[id] == nil || l.Below == nil {
			continue
		}
		p := n.program("ADD", id, "")
		p.Path, p.Stdin = filepath.Join(n.bin, l.Below["type"].(string)), n.conf(l.Below, nil)
		out := n.host.Run(p)
		if out.Exit != 0 {
			return n, fmt.Errorf("the plugin below: %s", out.Stdout)
		}
		n.below[id] = out.Stdout
	}
	if n.conts[bystander] != nil {
		if out := n.host.Run(n.program("ADD", bystander, n.below[bystander])); out.Exit != 0 {
			return n, fmt.Errorf("ADD of the bystander: %s", out.Stdout)
		}
	}
	if l.Cold {
		return n, nil
	}
	result, err := n.add() // creates the shared objects
	return n, errors.Join(err, n.del(result))
}

func (n *node) learn() error {
	n.clean = n.state()
	result, err := n.add()
	if err != nil {
		return err
	}
	n.whole, n.result = n.state(), n.normal(result)
	if err := n.del(result); err != nil {
		return err
	}
	if n.Cold {
		n.shared = n.state()
	}
	return n.isClean()
}

func (n *node) retire() {
	n.host.Unpin()
	for _, c := range n.conts {
		c.Unpin()
	}
}

// program returns a call of the plugin. prev is its prevResult, or empty.
func (n *node) program(command, id, prev string) nstest.Program {
	more := object{}
	if prev != "" {
		more["prevResult"] = json.RawMessage(prev)
	}
	if command == "GC" {
		valid := []object{}
		if n.conts[bystander] != nil {
			valid = append(valid, object{"containerID": bystander, "ifname": cmp.Or(n.IfName, "eth0")})
		}
		more["cni.dev/valid-attachments"] = valid
	}
	if id == bystander {
		more["runtimeConfig"] = nil // a host port belongs to one attachment
		if n.Conf["device"] != nil {
			more["device"] = bystander
		}
		if n.Conf["vlanId"] != nil { // unique on a link
			more["vlanId"] = 6
		}
		maps.Copy(more, n.Other)
	}
	return nstest.Program{Path: filepath.Join(n.bin, n.plugin()), Stdin: n.conf(n.Conf, more), Env: []string{
		"CNI_COMMAND=" + command, "CNI_CONTAINERID=" + id, "CNI_IFNAME=" + cmp.Or(n.IfName, "eth0"),
		"CNI_NETNS=" + n.conts[id].Path, "CNI_PATH=" + n.bin, "CNI_ARGS=",
	}}
}

// administer writes the lists of both networks into the administrator's directory, so that their policies count on the
// bridge that they share.
func (n *node) administer() {
	write := "mount -t tmpfs -o mode=755 tmpfs /etc/cni; mkdir /etc/cni/net.d"
	for i, more := range []object{nil, n.Other} {
		list := plugintest.Merge(object{"cniVersion": "1.1.0", "name": cmp.Or[any](more["name"], "pods")},
			object{"plugins": []object{n.Below, plugintest.Merge(n.Conf, more)}})
		write += fmt.Sprintf("\ncat >/etc/cni/net.d/%d.conflist <<'END'\n%s\nEND", i, plugintest.Text(list))
	}
	n.host.Cmd("sh", "-ec", write)
}

func (n *node) conf(conf, more object) string {
	return plugintest.Text(plugintest.Merge(object{"cniVersion": "1.1.0", "name": "pods"}, conf, more))
}

// add runs an undisturbed ADD, which must succeed.
func (n *node) add() (result string, err error) {
	out := n.host.Run(n.program("ADD", victim, n.below[victim]))
	if out.Exit != 0 {
		return "", fmt.Errorf("the next ADD fails: %s", out.Stdout)
	}
	return out.Stdout, nil
}

func (n *node) del(prev string) error { return n.quiet("DEL", prev) }

// quiet runs an undisturbed call other than ADD, which must succeed and print no result.
func (n *node) quiet(command, prev string) error {
	out := n.host.Run(n.program(command, victim, cmp.Or(prev, n.below[victim])))
	if out.Exit != 0 || out.Stdout != "" {
		return fmt.Errorf("%s: exit %d: %s%s", command, out.Exit, out.Stdout, out.Stderr)
	}
	return nil
}

// disturbed runs a call in which the fault happens. prev is the result of the ADD before a DEL.
func (n *node) disturbed(command string, f fault) (out outcome, prev string, err error) {
	if command == "DEL" {
		if prev, err = n.add(); err != nil {
			return outcome{}, "", err
		}
	}
	out, err = run(n.host, n.program(command, victim, cmp.Or(prev, n.below[victim])), f)
	n.rest()
	if err == nil && out.Hit == nil && out.Exit != 0 {
		err = fmt.Errorf("fails undisturbed: %s", out.Stdout)
	}
	return out, prev, err
}

// isClean compares the node with the state before ADD. A cold host may also have objects that all attachments share,
// even incomplete ones.
func (n *node) isClean() error { return n.state().differs(n.clean, n.shared) }

// isCleanOutside is isClean without the container.
func (n *node) isCleanOutside() error {
	return n.state().outside().differs(n.clean.outside(), n.shared)
}

// isCleanAgain is isClean after an undisturbed ADD and DEL, which have completed incomplete objects.
func (n *node) isCleanAgain() error {
	if n.Cold {
		return n.state().differs(n.shared, nil)
	}
	return n.isClean()
}

// calls returns the calls of an undisturbed ADD or DEL that the fault counts.
func (l *lesson) calls(command string, f fault) []call {
	GinkgoHelper()
	n, err := l.take()
	var out outcome
	if err == nil {
		out, _, err = n.disturbed(command, f)
	}
	if err == nil && command == "ADD" {
		err = n.del(out.Stdout)
	}
	if err != nil {
		Fail(l.Name + ": " + err.Error())
	}
	l.leave(n)
	return out.Calls
}

// state is the sorted state of a node, with one object per line after "host" or "container". Nodes with the same
// history have the same state.
type state []string

// The sections of snapshots that are compared, in addition to the switches.
var (
	ofHost      = []string{"links", "addresses", "routes", "rules", "nftables", "iptables-legacy"}
	ofContainer = []string{"links", "addresses", "routes", "rules"}
)

// switches are the sysctls that plugins write, and some that they must not.
var switches = []string{"ipv4/ip_forward", "ipv4/tcp_keepalive_time",
	"ipv4/conf/*/forwarding", "ipv4/conf/*/route_localnet", "ipv4/conf/*/arp_notify", "ipv4/conf/*/arp_filter",
	"ipv4/conf/*/rp_filter",
	"ipv6/conf/*/forwarding", "ipv6/conf/*/accept_ra", "ipv6/conf/*/accept_dad", "ipv6/conf/*/disable_ipv6",
	"ipv6/conf/*/keep_addr_on_down", "ipv6/conf/*/ndisc_notify", "ipv6/conf/*/proxy_ndp"}

func sysctls(h *nstest.Host) string {
	var b strings.Builder
	h.Do(func() {
		const dir = "/proc/sys/net/"
		for _, pattern := range switches {
			paths := []string{dir + pattern}
			if conf, name, each := strings.Cut(paths[0], "*"); each { // filepath.Glob would list each directory
				entries, _ := os.ReadDir(conf)
				paths = nil
				for _, link := range entries {
					paths = append(paths, conf+link.Name()+name)
				}
			}
			for _, path := range paths {
				if value, err := os.ReadFile(path); err == nil { // otherwise its link no longer exists
					b.WriteString(strings.TrimPrefix(path, dir) + ":" + string(value))
				}
			}
		}
	})
	return b.String()
}

// files lists the files that plugins keep on the host, with modes and lines. It omits host-local's index, which may be
// missing, and the content of the last reserved addresses, which may differ.
func files(h *nstest.Host) string {
	var b strings.Builder
	kept := func(path string, entry fs.DirEntry, err error) error {
		if err != nil || strings.HasPrefix(path, "/var/lib/cni/networks/.hawser") || nstest.IsEvidence(path) {
			return nil
		}
		info, err := entry.Info()
		if err != nil {
			return nil
		}
		fmt.Fprintln(&b, info.Mode(), path)
		if info.Mode().IsRegular() && !strings.HasPrefix(entry.Name(), "last_reserved_ip.") {
			content, _ := os.ReadFile(path)
			for line := range strings.Lines(string(content)) {
				fmt.Fprintf(&b, "%s:%s\n", path, strings.TrimSuffix(line, "\n"))
			}
		}
		return nil
	}
	h.Do(func() {
		for _, dir := range []string{"/run/hawser", "/run/cni", "/var/lib/cni"} {
			_ = filepath.WalkDir(dir, kept) // which returns no error
		}
	})
	return b.String()
}

func (n *node) state() state {
	var s state
	add := func(where, text string) {
		for line := range strings.Lines(text) {
			line = element.ReplaceAllString(strings.TrimSpace(n.normal(line)), "$1")
			if !kernels.MatchString(line) {
				s = append(s, where+" "+line)
			}
		}
	}
	add("host", n.host.Snapshot(ofHost...))
	add("host", sysctls(n.host))
	add("host", n.host.Cmd("tc", "qdisc", "show"))
	add("host", files(n.host))
	add("container", n.conts[victim].Snapshot(ofContainer...))
	add("container", n.conts[victim].Cmd("tc", "qdisc", "show"))
	add("container", sysctls(n.conts[victim]))
	slices.Sort(s)
	return s
}

var (
	macs = regexp.MustCompile(`\b(?:[0-9a-f]{2}:){5}[0-9a-f]{2}\b`)
	// numbers matches values that differ between cases, such as a DHCP server's answer. A namespace's cookie may be
	// missing, because the other values also identify the namespace.
	numbers = regexp.MustCompile(`"(?:since|cookie|inode|device|link|tap|read)": ?\d+,?|` +
		`"(?:ack|server|MAC)": ?"[^"]*",?|# handle \d+`)
	// element matches an element of a set, which nft lists in any order.
	element = regexp.MustCompile(`^(?:elements = \{ )?(.*?)(?:,| \})?$`)
	// kernels matches addresses and routes that the kernel adds a little later.
	kernels = regexp.MustCompile(`fe80::|ff00::/8|dst=multicast|dst=[0-9a-f]*:.* protocol=kernel .*type=local`)
)

// normal returns text without values that differ between nodes.
func (n *node) normal(text string) string {
	for _, c := range n.conts {
		text = strings.ReplaceAll(text, `"`+c.Path+`"`, `"NETNS"`)
	}
	return numbers.ReplaceAllString(macs.ReplaceAllString(text, "MAC"), "")
}

// differs returns an error with the lines that a state has in addition to want, or lacks. It may also have the lines of
// shared, and an incomplete bridge.
func (s state) differs(want, shared state) error {
	var diff []string
	for _, line := range s {
		half := shared != nil && strings.Contains(line, "cni0")
		if !half && !slices.Contains(want, line) && !slices.Contains(shared, line) {
			diff = append(diff, "+ "+line)
		}
	}
	for _, line := range want {
		if !slices.Contains(s, line) && !superseded(line, shared) {
			diff = append(diff, "- "+line)
		}
	}
	if diff == nil {
		return nil
	}
	return errors.New(strings.Join(diff, "\n        "))
}

// superseded reports whether a line is a sysctl whose value in shared replaces its former value.
func superseded(line string, shared state) bool {
	key, _, ok := strings.Cut(line, ":")
	return ok && strings.Contains(key, " ipv") &&
		slices.ContainsFunc(shared, func(l string) bool { return strings.HasPrefix(l, key+":") })
}

func (s state) outside() state { return s.without("container ") }

func (s state) without(text string) state {
	return slices.DeleteFunc(slices.Clone(s), func(line string) bool { return strings.Contains(line, text) })
}

// environment is a defect of a host.
type environment struct {
	Prepare, Break, Repair string   // shell on the host
	Under                  []string // the program that runs the plugin while it is broken

	// Parts of the errors of ADD, of DEL, and of a DEL without an attachment while the host is broken. Empty means that
	// the call succeeds.
	ADD, DEL, Nothing string
	// Lost means that a DEL succeeds without finding the attachment.
	Lost bool
}

// broken is a node in an environment.
type broken struct {
	*node
	environment
}

// on runs ADD and DEL on a broken host, and the DEL of an attachment from before the defect.
func (e environment) on(name string) {
	GinkgoHelper()
	l := &lesson{scenario: scenarioOf(name)}
	nstest.Need(l.Needs...)
	n := nstest.Must(l.node())
	b := broken{n, e}

	b.shell(e.Prepare)
	b.whole()
	clean := n.state()
	b.shell(e.Break)
	before := n.state()
	added := b.call("ADD", "", e.ADD)
	if e.ADD != "" {
		Expect(n.state().differs(before, nil)).To(Succeed(), "ADD left something")
	}
	b.call("DEL", added, e.Nothing)
	Expect(n.state().differs(before, nil)).To(Succeed(), "DEL left something")

	b.shell(e.Repair)
	result := nstest.Must(n.add())
	b.shell(e.Break)
	b.call("DEL", result, e.DEL)
	b.shell(e.Repair)
	if e.DEL != "" || e.Lost {
		Expect(n.del(result)).To(Succeed())
	}
	Expect(n.state().differs(clean, nil)).To(Succeed(), "DEL left something of a complete ADD")
	b.whole()
	Expect(n.state().differs(clean, nil)).To(Succeed())
}

func (b broken) shell(script string) {
	GinkgoHelper()
	b.host.Cmd("sh", "-ec", script)
}

func (b broken) whole() {
	GinkgoHelper()
	result := nstest.Must(b.add())
	Expect(b.del(result)).To(Succeed())
}

func (b broken) call(command, prev, fails string) string {
	GinkgoHelper()
	p := b.program(command, victim, cmp.Or(prev, b.below[victim]))
	if b.Under != nil {
		p.Path, p.Args = b.Under[0], append(slices.Clone(b.Under[1:]), p.Path)
	}
	a := plugintest.Ran(b.host.Run(p))
	if fails != "" {
		Expect(a.Failed(5)).To(ContainSubstring(fails))
		return ""
	}
	Expect(a.Code).To(BeZero(), a.Stdout+a.Stderr)
	return a.Stdout
}

var _ = Describe("a host", Label("kernel"), func() {
	const hostLocal, tuning, bridgeIPT = "host-local, first on the host", "tuning", "bridge, iptables"
	const portmap, portmapIPT = "portmap, first on the host", "portmap, iptables, first on the host"
	// The directories in which plugins keep leases and records.
	homes := []TableEntry{
		Entry("host-local", hostLocal, "/var/lib/cni"), Entry(tuning, Label("slow"), tuning, "/run/cni"),
		Entry("portmap", portmap, "/run/hawser"), Entry(portmapIPT, Label("slow"), portmapIPT, "/run/hawser"),
		Entry(bridgeIPT, Label("slow"), bridgeIPT, "/run/hawser"),
	}
	with := func(e environment, dir string) environment {
		for _, script := range []*string{&e.Prepare, &e.Break, &e.Repair} {
			*script = strings.ReplaceAll(*script, "DIR", dir)
		}
		return e
	}
	const small = "mkdir -p DIR; mount -t tmpfs -o size=128k,mode=755 tmpfs DIR"

	DescribeTable("with a full disk makes ADD fail, DEL work:", Label("full-disk"), func(name, dir string) {
		with(environment{Prepare: small, Break: "head -c 200k /dev/zero >DIR/fill || true", Repair: "rm DIR/fill",
			ADD: "no space left on device"}, dir).on(name)
	}, homes)

	DescribeTable("with a read-only disk makes ADD and DEL fail:", Label("read-only-disk"), func(name, dir string) {
		with(environment{Prepare: small, Break: "mount -o remount,ro DIR", Repair: "mount -o remount,rw DIR",
			ADD: "read-only file system", DEL: "read-only file system"}, dir).on(name)
	}, homes)

	DescribeTable("with a forbidden directory makes ADD and DEL fail:", Label("no-rights"), func(
		name, dir string,
	) {
		nstest.NeedProgram("setpriv")
		const rights = "-dac_override,-dac_read_search"
		with(environment{Prepare: small, Break: "chmod 000 DIR", Repair: "chmod 755 DIR",
			Under: []string{"setpriv", "--bounding-set=" + rights, "--inh-caps=" + rights},
			ADD:   "permission denied", DEL: "permission denied", Nothing: "permission denied"}, dir).on(name)
	}, homes)

	DescribeTable("with a file for a directory makes ADD fail, DEL find nothing:", Label("file-for-directory"), func(
		name, dir, del string,
	) {
		with(environment{Prepare: small,
			Break:  "mkdir DIR/aside; for d in DIR/[!a]*; do mv $d DIR/aside; echo >$d; done",
			Repair: "for d in DIR/aside/*; do rm DIR/${d##*/}; mv $d DIR; done; rmdir DIR/aside",
			ADD:    "not a directory", DEL: del, Lost: true}, dir).on(name)
	},
		Entry("host-local", hostLocal, "/var/lib/cni", ""), Entry(tuning, Label("slow"), tuning, "/run/cni", ""),
		Entry("portmap", portmap, "/run/hawser", ""), Entry(portmapIPT, Label("slow"), portmapIPT, "/run/hawser", ""),
		Entry(bridgeIPT, Label("slow"), bridgeIPT, "/run/hawser", ""),
	)

	DescribeTable("with a link for a directory works:", Label("link-for-directory"), func(name, dir string) {
		with(environment{Prepare: "mount -t tmpfs tmpfs /mnt; mkdir -p /mnt/there DIR; " +
			"rm -r DIR; ln -s /mnt/there DIR"}, dir).on(name)
	}, homes)

	const readOnlyProc = "mount --bind /proc/sys /proc/sys; mount -o remount,bind,ro /proc/sys"
	const right = "echo 1 >/proc/sys/net/ipv4/ip_forward; echo 1 >/proc/sys/net/ipv6/conf/all/forwarding"
	const wrong = "echo 0 >/proc/sys/net/ipv4/ip_forward; echo 0 >/proc/sys/net/ipv4/conf/all/route_localnet"

	DescribeTable("with a read-only /proc/sys that has the required values works:", Label("read-only-proc"), func(
		name string,
	) {
		environment{Prepare: right, Break: readOnlyProc, Repair: "umount /proc/sys"}.on(name)
	}, Entry(bridgeIPT, bridgeIPT), Entry("ptp", "ptp"))

	DescribeTable("with a wrong, read-only /proc/sys makes ADD fail, DEL work:", Label("read-only-proc"), func(
		name string,
	) {
		environment{Break: wrong + "; " + readOnlyProc, Repair: "umount /proc/sys; " + right,
			ADD: "read-only file system"}.on(name)
	}, Entry("bridge", "bridge, first on the host"), Entry("ptp", "ptp, first on the host"))

	It("without /run and /var works", Label("no-run"), func() {
		n := nstest.Must(learn(scenarioOf("bridge, first on the host")).node())
		n.host.Cmd("sh", "-ec", `mount -t tmpfs tmpfs /mnt
			for d in proc sys $(dirname "$1"); do mkdir -p /mnt/$d; mount --rbind /$d /mnt/$d; done`,
			"sh", n.bin+"/bridge")
		inside := n.conts[victim].Start(nstest.Program{Path: "sleep", Args: []string{"60"}})
		call := func(command, prev string) string {
			p := n.program(command, victim, prev)
			p.Path, p.Args = "chroot", []string{"/mnt", p.Path}
			p.Env = append(p.Env, fmt.Sprintf("CNI_NETNS=/proc/%d/ns/net", inside.Process.Pid))
			a := plugintest.Ran(n.host.Run(p))
			Expect(a.Code).To(BeZero(), a.Stdout+a.Stderr)
			return a.Stdout
		}
		call("DEL", "")
		call("DEL", call("ADD", ""))
		Expect(n.isClean()).To(Succeed())
	})
})
