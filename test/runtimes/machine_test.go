// Package runtimes_test runs container runtimes on throw-away hosts, with our plugins as the only ones.
// Scripts/test-runtimes.sh installs the runtimes. Each spec needs real root, and cgroups that it can write.
package runtimes_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/test/pods"
)

const cgroups = "/sys/fs/cgroup"

// machine is a host on which a runtime can live, with a machine one hop away.
type machine struct {
	*nstest.Host
	outside *nstest.Host
	dir     string // for files; everybody sees it
	plugins string // the plugin directory
	cgroup  string // parent of every container's
}

// newMachine makes a host with the given plugin directory's plugins, or ours where
// that is empty. Whatever runs on it is killed at the end of the spec.
func newMachine(plugins string) *machine {
	GinkgoHelper()
	nstest.Need("realroot")
	m := &machine{Host: nstest.NewHost(), dir: GinkgoT().TempDir()}
	m.cgroup = "/hawser-" + filepath.Base(m.dir) // of this run alone: one that was killed leaves its own
	m.outside = nstest.NewOutside(m.Host)
	DeferCleanup(removeCgroups, m.cgroup)
	DeferCleanup(m.killAll)
	before := locks()
	DeferCleanup(func() { Expect(locks()).To(Equal(before), "podman's locks are the machine's own") })
	nstest.NeedOK("cgroups", m.mountCgroups())
	m.Cmd("mount", "-t", "tmpfs", "tmpfs", "/dev/shm")
	m.plugins = filepath.Join(m.dir, "bin")
	Expect(os.Mkdir(m.plugins, 0o755)).To(Succeed())
	m.install(plugins)
	return m
}

// locks are the shared memory of the containers that the machine itself has.
func locks() []string {
	GinkgoHelper()
	found := nstest.Must(filepath.Glob("/dev/shm/libpod*"))
	return found
}

// install replaces the plugins by those of a directory, or by ours, each by a rename.
func (m *machine) install(from string) {
	GinkgoHelper()
	for _, name := range nstest.Plugins() {
		path := filepath.Join(from, name)
		if from == "" {
			path = nstest.Build(name)
		}
		data, err := os.ReadFile(path)
		if from != "" && errors.Is(err, fs.ErrNotExist) { // the release does not have it
			continue
		}
		Expect(err).NotTo(HaveOccurred())
		Expect(os.WriteFile(filepath.Join(m.plugins, ".new"), data, 0o755)).To(Succeed())
		Expect(os.Rename(filepath.Join(m.plugins, ".new"), filepath.Join(m.plugins, name))).To(Succeed())
	}
}

// mountCgroups brings the cgroups of the machine, which the fresh /sys of the host
// hides, into the host's mount namespace.
func (m *machine) mountCgroups() error {
	tree, err := unix.OpenTree(unix.AT_FDCWD, cgroups, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		return fmt.Errorf("open_tree %s: %w", cgroups, err)
	}
	defer func() { _ = unix.Close(tree) }()
	m.Do(func() { err = unix.MoveMount(tree, "", unix.AT_FDCWD, cgroups, unix.MOVE_MOUNT_F_EMPTY_PATH) })
	return err
}

// removeCgroups removes what the runtimes made below a parent, deepest first.
func removeCgroups(name string) error {
	parents, err := filepath.Glob(cgroups + "/*" + name)
	if err != nil {
		return err
	}
	for _, parent := range append(parents, cgroups+name) {
		var dirs []string
		_ = filepath.WalkDir(parent, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append(dirs, path)
			}
			return nil
		})
		for _, dir := range slices.Backward(dirs) {
			Eventually(func() error { return os.Remove(dir) }).Should(Or(Succeed(), MatchError(fs.ErrNotExist)))
		}
	}
	return nil
}

// killAll kills every process with other mounts than the specs': the PID namespace is that of this run.
func (m *machine) killAll() {
	GinkgoHelper()
	own := nstest.Must(os.Readlink("/proc/1/exe"))
	self := nstest.Must(os.Readlink("/proc/self/exe"))
	Expect(own).To(Equal(self), "PID 1 is not the init of this run")
	Eventually(func() []string {
		left := foreigners()
		for _, pid := range left {
			n, _ := strconv.Atoi(pid)
			_ = unix.Kill(n, unix.SIGKILL)
		}
		return left
	}).Should(BeEmpty())
}

// reboot takes away what a machine loses when it starts again: processes, pinned
// namespaces, links, rules, /run, shared memory. The files below /var stay.
func (m *machine) reboot() {
	GinkgoHelper()
	m.killAll()
	m.Cmd("sh", "-ec", `
		# One may be left of a spec that failed.
		for netns in $(find /run/netns -name 'cni-*' -o -name 'netns-*'); do umount "$netns" || true; rm "$netns"; done
		awk '$2 ~ "^(/run|/var/lib)/(containerd|containers)/" { print $2 }' /proc/mounts |
			sort -r | xargs -r -n 1 umount
		rm -rf /run/containerd /run/containers /run/libpod /run/runc /run/hawser /run/cni /dev/shm/libpod*
		nft flush ruleset
		ip link del cni0`)
	pairs := func() string { return m.Cmd("ip", "-br", "link", "show", "type", "veth") }
	Eventually(pairs).ShouldNot(ContainSubstring("veth"))
}

// foreigners are the processes that have other mounts than we. Our first thread may
// have been on a host, and then it stays there.
func foreigners() []string {
	mounts, err := os.Readlink("/proc/thread-self/ns/mnt")
	if err != nil {
		return nil
	}
	var out []string
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		if its, err := os.Readlink(dir + "/ns/mnt"); err == nil && its != mounts &&
			filepath.Base(dir) != strconv.Itoa(os.Getpid()) {
			out = append(out, filepath.Base(dir))
		}
	}
	return out
}

func (m *machine) traffic(published, onUplink string) pods.Traffic {
	return pods.Traffic{Host: m.Host, Outside: m.outside, Published: published, OnUplink: onUplink}
}

// collect runs GC of each plugin of the network with nothing valid, as libcni 1.3
// does: a job that the runtimes here leave to others.
func (m *machine) collect() {
	GinkgoHelper()
	var list struct{ Plugins []object }
	data := nstest.Must(os.ReadFile(filepath.Join(m.dir, "net.d", "pods.conflist")))
	Expect(json.Unmarshal(data, &list)).To(Succeed())
	for _, conf := range list.Plugins {
		conf["cniVersion"], conf["name"], conf["cni.dev/valid-attachments"] = "1.1.0", "pods", nil
		out := m.Run(nstest.Program{Path: filepath.Join(m.plugins, conf["type"].(string)), Stdin: string(encode(conf)),
			Env: []string{"CNI_COMMAND=GC", "CNI_PATH=" + m.plugins}})
		Expect(out.Exit).To(BeZero(), out.Stdout+out.Stderr)
	}
}

// check runs CHECK of a pod, with what the runtime's libcni remembers of its ADD: a
// job that the runtimes here leave to others. The namespace is named as they name it.
func (m *machine) check(conflist, id string, pod pods.Pod) (err error) {
	GinkgoHelper()
	list := nstest.Must(libcni.ConfListFromBytes([]byte(conflist)))
	m.Do(func() {
		cni := libcni.NewCNIConfig([]string{m.plugins}, nil)
		checked := 0
		for _, a := range nstest.Must(cni.GetCachedAttachments(id)) {
			if a.Network != list.Name || err != nil {
				continue
			}
			checked++
			err = cni.CheckNetworkList(context.Background(), list, &libcni.RuntimeConf{ContainerID: a.ContainerID,
				NetNS: "/var" + pod.Path, IfName: a.IfName, Args: a.CniArgs, CapabilityArgs: a.CapabilityArgs})
		}
		Expect(checked).NotTo(BeZero(), "nothing cached for "+id)
	})
	return err
}

// state is what has to be as before when everything is gone, but for the address
// that host-local gave last, which is there to be different.
func (m *machine) state() string {
	GinkgoHelper()
	files := m.Run(nstest.Program{Path: "find", Args: []string{
		"/var/lib/cni", "/run/hawser", "/run/cni", "/run/netns", "-type", "f", "!", "-path", "*/failures/*"}}).Stdout
	return m.Snapshot() + strings.Join(slices.Sorted(strings.Lines(files)), "")
}

// story is what one client is asked for, step by step. Ours must do each step; what
// the newest reference does of it is written down.
type story struct {
	client string
	theirs bool
}

// outcomes are those of each step of each client, in the order of their first run.
var outcomes []*outcome

type outcome struct{ client, step, ours, theirs string }

// told tells a story twice: with ours, and, under ALL=1, with the newest reference.
func told(client string, tell func(s story, plugins string)) {
	It("with our plugins", func() { tell(story{client, false}, "") })
	It("with the newest reference, to compare", Label("all"), func() {
		tell(story{client, true}, nstest.Newest().Dir())
	})
}

func (s story) step(what string, do func()) {
	GinkgoHelper()
	By(what)
	result := "yes"
	if !s.theirs {
		do()
	} else if err := InterceptGomegaFailure(do); err != nil {
		result = fmt.Sprintf("no: %.200s", strings.Join(strings.Fields(err.Error()), " "))
	}
	s.write(what, result)
}

// write writes down what came of a step, or a figure.
func (s story) write(what, result string) {
	for _, o := range outcomes {
		if o.client == s.client && o.step == what {
			o.note(s, result)
			return
		}
	}
	o := &outcome{client: s.client, step: what}
	o.note(s, result)
	outcomes = append(outcomes, o)
}

func (o *outcome) note(s story, result string) {
	if s.theirs {
		o.theirs = result
	} else {
		o.ours = result
	}
}

// backAndForth has ours take over what lives with the newest reference, which has it back, and ours again.
// A life changes the plugins in its middle, and ends.
func (m *machine) backAndForth(client, ours string, life func(change func())) {
	GinkgoHelper()
	s, reference := story{client: client}, nstest.Newest().Dir()
	for _, plugins := range []string{"", reference, ""} {
		step := "ours take over live pods of the newest reference: " + ours
		if plugins != "" {
			step = "the newest reference takes over live pods of ours (backend iptables)"
		}
		s.step(step, func() {
			life(func() { m.install(plugins) })
			pods.ExpectGone(m.Host)
		})
	}
	m.collect() // records of what the reference has deleted
	pods.ExpectNothingLeft(m.Host)
}

// docs/runtimes.md summarizes this table.
var _ = AfterSuite(func() {
	path := os.Getenv("HAWSER_TABLE")
	if path == "" {
		return
	}
	var b strings.Builder
	for _, o := range outcomes {
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", o.client, o.step, o.ours, o.theirs)
	}
	Expect(os.WriteFile(path, []byte(b.String()), 0o644)).To(Succeed())
})

func TestMain(m *testing.M) { nstest.Main(m) }

func TestRuntimes(t *testing.T) { nstest.RunSpecs(t, "runtimes: real runtimes with our plugins") }

// debian is the network as the reference plugins have it: three addresses, so that
// new pods have to get those of old ones.
var debian = pods.Network{Last: "10.88.0.4"}

var _ = Describe("a node under running pods", func() {
	DescribeTable("goes from the reference plugins to ours and back", Label("upgrade"), func(
		ref nstest.Reference, dir func() string, backend string, back, v6 bool,
	) {
		reference := ref.Dir()
		nstest.Need("iptables")
		theirs := debian
		theirs.IPv6 = v6
		ours := theirs
		ours.Backend = backend
		c := newContainerd(newMachine(reference), dir(), theirs.Conflist())
		client, server := c.upgradedTwo()

		c.install("")
		c.reconfigure(ours.Conflist())
		c.ready()
		c.expectMinded(ours.Conflist(), client, server)
		c.traffic("8080", "").Expect(client.Pod, server.Pod)
		_, err := c.run("greedy", tcp(8080, 80))
		Expect(err).To(MatchError(ContainSubstring("8080")), "the reference's rules hold the port")
		c.end(c.all()...)
		pods.ExpectNothingLeft(c.Host)

		client, server = c.upgradedTwo()
		c.expectMinded(ours.Conflist(), client, server)
		if !back {
			c.end(c.all()...)
			pods.ExpectNothingLeft(c.Host)
			return
		}
		c.install(reference)
		c.reconfigure(theirs.Conflist())
		c.ready()
		// Not the server: Debian's portmap fails in CHECK of its own host ports too.
		Expect(c.check(theirs.Conflist(), client.id, client.Pod)).To(Succeed())
		c.traffic("8080", "").Expect(client.Pod, server.Pod)
		c.end(c.all()...)
		pods.ExpectGone(c.Host)
		c.upgradedTwo()
		c.end(c.all()...)
		pods.ExpectGone(c.Host)

		c.install("") // the records of pods that the reference has deleted are in nobody's way
		c.reconfigure(ours.Conflist())
		c.ready()
		c.upgradedTwo()
		c.end(c.all()...)
		c.collect()
		pods.ExpectNothingLeft(c.Host)
	},
		Entry("containerd 1.6, our backend nftables, to ours only", nstest.Debian(), func() string { return "" }, "",
			false, false),
		Entry("containerd 1.6, our backend iptables, and back", nstest.Newest(), func() string { return "" },
			"iptables", true, false),
		Entry("containerd 2, our backend nftables, to ours only, IPv4 and IPv6", nstest.Newest(), built, "", false,
			true),
		Entry("containerd 2, our backend iptables, and back, IPv4 and IPv6", nstest.Debian(), built, "iptables", true,
			true),
	)

	It("that goes back with pods of the nftables backend stops them at the second try, and leaves elements", func() {
		reference := nstest.Debian().Dir()
		nstest.Need("iptables")
		c := newContainerd(newMachine(""), "", debian.Conflist())
		id, pod := c.start("pod", tcp(8080, 80))
		c.install(reference)
		Expect(c.stop(id)).To(MatchError(ContainSubstring("does not exist")))
		c.end(id)
		Expect(c.Cmd("nft", "list", "table", "inet", "hawser")).To(ContainSubstring(pod.Addr))
		c.install("")
		c.collect()
		pods.ExpectNothingLeft(c.Host)
	})
})

// upgradedTwo starts two pods and looks at their traffic.
func (d *daemon) upgradedTwo() (client, server sandboxed) {
	GinkgoHelper()
	client.id, client.Pod = d.start("client")
	server.id, server.Pod = d.start("server", tcp(8080, 80), udp(8080, 80))
	d.traffic("8080", "").Expect(client.Pod, server.Pod)
	return client, server
}

// expectMinded runs CHECK of both, and again when something is missing.
func (d *daemon) expectMinded(conflist string, client, server sandboxed) {
	GinkgoHelper()
	d.expectChecked(conflist, client, server)
	server.Cmd("ip", "route", "del", "default")
	Expect(d.check(conflist, server.id, server.Pod)).To(MatchError(ContainSubstring("0.0.0.0/0")))
	server.Cmd("ip", "route", "add", "default", "via", "10.88.0.1", "dev", "eth0")
}
