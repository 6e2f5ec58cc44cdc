package faults_test

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

// environment is something that a host lacks.
type environment struct {
	Prepare, Break, Repair string   // shell on the host
	Under                  []string // the program that runs the plugin while it is broken

	// What the errors of ADD, of DEL, and of a DEL that has nothing to do say while it
	// is broken; empty: they succeed.
	ADD, DEL, Nothing string
	// Lost says that a DEL that succeeds did not see what there is.
	Lost bool
}

// broken is a node in an environment.
type broken struct {
	*node
	environment
}

// on plays ADD and DEL while something is broken, and the DEL of an ADD that was served before.
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
		Expect(n.state().differs(before, nil)).To(Succeed(), "ADD has left something")
	}
	b.call("DEL", added, e.Nothing)
	Expect(n.state().differs(before, nil)).To(Succeed(), "DEL has left something")

	b.shell(e.Repair)
	result := nstest.Must(n.add())
	b.shell(e.Break)
	b.call("DEL", result, e.DEL)
	b.shell(e.Repair)
	if e.DEL != "" || e.Lost {
		Expect(n.del(result)).To(Succeed())
	}
	Expect(n.state().differs(clean, nil)).To(Succeed(), "DEL has left something of a good ADD")
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
	// Where each plugin keeps what it must not lose.
	homes := []TableEntry{
		Entry("host-local", hostLocal, "/var/lib/cni"), Entry(tuning, tuning, "/run/cni"),
		Entry("portmap", portmap, "/run/hawser"), Entry(portmapIPT, portmapIPT, "/run/hawser"),
		Entry(bridgeIPT, bridgeIPT, "/run/hawser"),
	}
	with := func(e environment, dir string) environment {
		for _, script := range []*string{&e.Prepare, &e.Break, &e.Repair} {
			*script = strings.ReplaceAll(*script, "DIR", dir)
		}
		return e
	}
	const small = "mkdir -p DIR; mount -t tmpfs -o size=128k,mode=755 tmpfs DIR"

	DescribeTable("with a full disk: ADD says so, DEL works", Label("full-disk"), func(name, dir string) {
		with(environment{Prepare: small, Break: "head -c 200k /dev/zero >DIR/fill || true", Repair: "rm DIR/fill",
			ADD: "no space left on device"}, dir).on(name)
	}, homes)

	DescribeTable("with a read-only disk: ADD and DEL say so", Label("read-only-disk"), func(name, dir string) {
		with(environment{Prepare: small, Break: "mount -o remount,ro DIR", Repair: "mount -o remount,rw DIR",
			ADD: "read-only file system", DEL: "read-only file system"}, dir).on(name)
	}, homes)

	DescribeTable("with a directory that we have no rights to: ADD and DEL say so", Label("no-rights"), func(
		name, dir string,
	) {
		nstest.NeedProgram("setpriv")
		const rights = "-dac_override,-dac_read_search"
		with(environment{Prepare: small, Break: "chmod 000 DIR", Repair: "chmod 755 DIR",
			Under: []string{"setpriv", "--bounding-set=" + rights, "--inh-caps=" + rights},
			ADD:   "permission denied", DEL: "permission denied", Nothing: "permission denied"}, dir).on(name)
	}, homes)

	DescribeTable("with a file for a directory: ADD says so, DEL finds nothing", Label("file-for-directory"), func(
		name, dir, del string,
	) {
		with(environment{Prepare: small,
			Break:  "mkdir DIR/aside; for d in DIR/[!a]*; do mv $d DIR/aside; echo >$d; done",
			Repair: "for d in DIR/aside/*; do rm DIR/${d##*/}; mv $d DIR; done; rmdir DIR/aside",
			ADD:    "not a directory", DEL: del, Lost: true}, dir).on(name)
	},
		Entry("host-local", hostLocal, "/var/lib/cni", ""), Entry(tuning, tuning, "/run/cni", ""),
		Entry("portmap", portmap, "/run/hawser", ""), Entry(portmapIPT, portmapIPT, "/run/hawser", ""),
		Entry(bridgeIPT, bridgeIPT, "/run/hawser", ""),
	)

	DescribeTable("with a link in the place of a directory works", Label("link-for-directory"), func(name, dir string) {
		with(environment{Prepare: "mount -t tmpfs tmpfs /mnt; mkdir -p /mnt/there DIR; " +
			"rm -r DIR; ln -s /mnt/there DIR"}, dir).on(name)
	}, homes)

	const readOnlyProc = "mount --bind /proc/sys /proc/sys; mount -o remount,bind,ro /proc/sys"
	const right = "echo 1 >/proc/sys/net/ipv4/ip_forward; echo 1 >/proc/sys/net/ipv6/conf/all/forwarding"
	const wrong = "echo 0 >/proc/sys/net/ipv4/ip_forward; echo 0 >/proc/sys/net/ipv4/conf/all/route_localnet"

	DescribeTable("with a read-only /proc/sys on which all is right already works", Label("read-only-proc"), func(
		name string,
	) {
		environment{Prepare: right, Break: readOnlyProc, Repair: "umount /proc/sys"}.on(name)
	}, Entry(bridgeIPT, bridgeIPT), Entry("ptp", "ptp"))

	DescribeTable("with a read-only /proc/sys, something wrong: ADD says so, DEL works", Label("read-only-proc"), func(
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
