package tool_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/containernetworking/cni/libcni"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

type collection struct {
	Source      string
	Silent      []string
	Attachments []struct {
		ContainerID, Why, Kept, Error string
		Done                          bool
	}
}

// gcNode is a node with its own plugin directory, and with runtime programs that the spec writes.
type gcNode struct {
	*machine
	plugins, bin string
}

// newGCNode makes a node whose subnet no other spec uses: gc also recognizes a container by its address.
func newGCNode(plugins, subnet string) gcNode {
	GinkgoHelper()
	g := gcNode{plugins: GinkgoT().TempDir(), bin: GinkgoT().TempDir()}
	for _, name := range []string{"bridge", "portmap", "firewall", "host-local"} {
		place(filepath.Join(plugins, name), g.plugins)
	}
	g.machine = newMachine(g.plugins, strings.ReplaceAll(usual, "10.88.0", subnet))
	return g
}

// runtime creates a containerd socket, and a crictl that lists these pods.
func (g gcNode) runtime(ids ...string) {
	GinkgoHelper()
	g.Cmd("sh", "-c", "mkdir -p /run/containerd; touch /run/containerd/containerd.sock")
	g.program("crictl", crictl(ids...))
	g.program("podman", "echo '[]'")
	g.program("ctr", ctr)
}

// ctr is a ctr program that knows no container.
const ctr = `case "$*" in *namespaces*) echo k8s.io;; esac`

// crictl returns a crictl program that lists these pods.
func crictl(ids ...string) string {
	GinkgoHelper()
	items := []map[string]string{}
	for _, id := range ids {
		items = append(items, map[string]string{"id": id})
	}
	return "echo '" + string(nstest.Must(json.Marshal(map[string]any{"items": items}))) + "'"
}

// hold keeps a descriptor of the pod's namespace open, as a process of the pod does.
func (p *pod) hold() *os.File {
	GinkgoHelper()
	held := nstest.Must(os.Open(p.Path))
	DeferCleanup(func() { _ = held.Close() })
	return held
}

func (g gcNode) program(name, text string) {
	GinkgoHelper()
	Expect(os.WriteFile(filepath.Join(g.bin, name), []byte("#!/bin/sh\n"+text+"\n"), 0o755)).To(Succeed())
}

// forgetNotes makes the leases look as if the reference had written them.
func (g gcNode) forgetNotes() {
	GinkgoHelper()
	g.Do(func() {
		for _, file := range nstest.Must(filepath.Glob("/var/lib/cni/networks/*/[0-9]*")) {
			Expect(unix.Removexattr(file, "trusted.hawser")).To(Succeed())
		}
	})
}

// dateBack makes all files of the attachments that old; a negative age dates them in the future.
func (g gcNode) dateBack(age time.Duration) {
	GinkgoHelper()
	g.Cmd("find", "/var/lib/cni", "/run/hawser", "-type", "f", "-exec", "touch", "-d",
		fmt.Sprintf("@%d", time.Now().Add(-age).Unix()), "{}", "+")
}

func (g gcNode) gc(args ...string) (c collection, exit int) {
	GinkgoHelper()
	return g.gcIn(g.bin+":"+os.Getenv("PATH"), args...)
}

func (g gcNode) gcIn(path string, args ...string) (c collection, exit int) {
	GinkgoHelper()
	return g.gcBy(nstest.Program{Path: nstest.Build("hawser"), Env: []string{"PATH=" + path}}, args...)
}

// gcWithoutNamespaces runs a gc that cannot enter a namespace.
func (g gcNode) gcWithoutNamespaces(args ...string) collection {
	GinkgoHelper()
	nstest.NeedProgram("setpriv")
	c, _ := g.gcBy(nstest.Program{Path: "setpriv", Args: []string{"--bounding-set", "-sys_admin",
		nstest.Build("hawser")}, Env: []string{"PATH=" + g.bin + ":" + os.Getenv("PATH")}}, args...)
	return c
}

// gcBy first waits until the file clock has advanced: then all files are older than 0s.
func (g gcNode) gcBy(p nstest.Program, args ...string) (c collection, exit int) {
	GinkgoHelper()
	clock := func() (t unix.Timespec) {
		Expect(unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &t)).To(Succeed())
		return t
	}
	written := clock()
	Eventually(clock).ShouldNot(Equal(written))
	p.Args = append(append(p.Args, "gc", "--json", "--path", "/opt/cni/bin"), args...)
	out := g.Run(p)
	Expect(json.Unmarshal([]byte(out.Stdout), &c)).To(Succeed(), out.Stdout+out.Stderr)
	return c, out.Exit
}

var _ = Describe("hawser gc", Label("tool-gc"), func() {
	lives, gone := strings.Repeat("a", 64), strings.Repeat("b", 64)
	now := []string{"--older", "0s"}

	DescribeTable("removes the remains of a sandbox that no runtime knows, although a plugin of Hawser is missing",
		func(plugins func() string, subnet string) { // containerd#12130: the mounted namespace stays, and the cache
			g := newGCNode(plugins(), subnet)
			g.runtime(lives)
			g.up(newPod(lives, "web-0", hostPort(8080, 80))).hold()
			g.up(newPod(gone, "web-1", hostPort(8081, 80)))
			full := g.Snapshot() + g.Files("/var/lib/cni")
			c, exit := g.gc(now...)
			Expect(exit).To(BeZero())
			Expect(c.Source).To(ContainSubstring("crictl /run/containerd/containerd.sock"))
			Expect(c.Attachments).To(ContainElement(And(HaveField("ContainerID", gone), HaveField("Done", false),
				HaveField("Why", ContainSubstring("no runtime knows")))))
			Expect(c.Attachments).To(ContainElement(And(HaveField("ContainerID", lives),
				HaveField("Kept", "crictl knows the container"))))
			Expect(g.Snapshot()+g.Files("/var/lib/cni")).To(Equal(full), "it was a dry run")
			c, _ = g.gc("--yes")
			Expect(c.Attachments).To(HaveEach(HaveField("Why", "")), "an ADD may be under way")

			Expect(os.Rename(filepath.Join(g.plugins, "portmap"), filepath.Join(g.bin, "portmap"))).To(Succeed())
			c, exit = g.gc(append(now, "--yes")...)
			Expect(exit).To(BeZero())
			Expect(c.Attachments).To(ContainElement(And(HaveField("ContainerID", gone), HaveField("Done", true))))
			Expect(g.Files("/var/lib/cni", "/run") + g.Cmd("nft", "list", "ruleset")).NotTo(Or(
				ContainSubstring(gone), ContainSubstring("8081")))
			Expect(g.Files("/var/lib/cni/results")).To(ContainSubstring(lives))
			Expect(g.Cmd("nft", "list", "ruleset")).To(ContainSubstring("8080"))
			c, _ = g.gc(append(now, "--yes")...)
			Expect(c.Attachments).To(HaveEach(HaveField("ContainerID", lives)))
		},
		Entry("of Hawser", ours, "10.101.1"),
		Entry("of the reference", Label("slow"), func() string { return nstest.Newest().Dir() }, "10.101.2"))

	DescribeTable("keeps only the container whose file is damaged", func(plugins func() string, net string) {
		g := newGCNode(plugins(), net)
		damaged := strings.Repeat("c", 64)
		g.runtime(lives)
		g.up(newPod(lives, "web-0")).hold()
		g.up(newPod(damaged, "web-1", hostPort(8081, 80)))
		g.up(newPod(gone, "web-2"))
		g.Cmd("truncate", "-s", "0", "/var/lib/cni/results/pods-"+damaged+"-eth0")
		g.write("/etc/cni/net.d/99-x.conflist", "{")
		Expect(g.hawser("ls", "--orphans").Stdout).NotTo(ContainSubstring(damaged[:13]))
		out := g.hawser("reapply")
		Expect(out.Exit).To(BeZero(), out.Stderr)
		Expect(out.Stderr).To(And(ContainSubstring("pods-"+damaged), ContainSubstring("99-x.conflist")))
		c, exit := g.gc(append(now, "--yes")...)
		Expect(exit).To(BeZero())
		Expect(c.Attachments).To(ConsistOf(And(HaveField("ContainerID", gone), HaveField("Done", true)),
			HaveField("ContainerID", lives),
			And(HaveField("ContainerID", damaged), HaveField("Kept", ContainSubstring("cannot be read")))))
	},
		Entry("of Hawser", ours, "10.101.10"),
		Entry("of the reference", Label("slow"), func() string { return nstest.Newest().Dir() }, "10.101.11"))

	It("queries podman if its storage exists, at the default place or another", func() {
		g := newGCNode(ours(), "10.101.16")
		g.program("podman", `echo '[{"Id": "`+lives+`"}]'`)
		g.up(newPod(lives, "web-0"))
		g.up(newPod(gone, "web-1"))
		g.Cmd("sh", "-ec", `mkdir -p /etc/containers; mount -t tmpfs none /etc/containers
			printf '[storage]\n  graphroot = "/run/data/storage"\n' >/etc/containers/storage.conf`)
		c, _ := g.gc(now...)
		Expect(c.Source).NotTo(ContainSubstring("podman"))
		for _, root := range []string{"/run/data/storage", "/var/lib/containers/storage"} {
			g.Cmd("mkdir", "-p", root)
			c, _ = g.gc(now...)
			Expect(c.Source).To(ContainSubstring("podman"), root)
			Expect(c.Attachments).To(ConsistOf(
				And(HaveField("ContainerID", lives), HaveField("Kept", "podman knows the container")),
				And(HaveField("ContainerID", gone), HaveField("Why", ContainSubstring("no runtime knows")))), root)
			g.Cmd("rmdir", root)
		}
		g.Cmd("mkdir", "-p", "/run/data/storage")
		g.program("podman", "exit 1")
		c, _ = g.gc(append(now, "--yes")...)
		Expect(c.Silent).To(ConsistOf(HavePrefix("podman: ")))
		Expect(c.Attachments).To(HaveEach(HaveField("Done", false)))
	})

	It("keeps a pod whose start takes minutes as long as its namespace exists", Label("gc-starting"), func() {
		g := newGCNode(ours(), "10.101.21")
		g.runtime() // it lists a pod when its start has ended
		p := g.up(newPod(gone, "web-0"))
		g.dateBack(10 * time.Minute)
		c, _ := g.gc("--yes")
		Expect(c.Attachments).To(ConsistOf(HaveField("Kept", ContainSubstring("its pod may be starting"))))
		g.dateBack(2 * time.Hour)
		g.Cmd("sh", "-c", "touch -d '30 minutes ago' /var/lib/cni/networks/*/10.*") // as dhcp's daemon renews a lease
		c, _ = g.gc()
		Expect(c.Attachments).To(ConsistOf(HaveField("Why", ContainSubstring("no runtime knows"))))
		g.dateBack(10 * time.Minute)
		p.Unpin()
		c, _ = g.gc("--yes")
		Expect(c.Attachments).To(ConsistOf(HaveField("Done", true)))
	})

	It("removes an attachment that a wrong clock has dated in the future, once its namespace no longer exists", func() {
		_, err := ns.Gone()
		nstest.NeedOK("a kernel that knows whether a namespace exists", err)
		g := newGCNode(ours(), "10.101.23")
		g.runtime()
		p := g.up(newPod(gone, "web-0"))
		g.dateBack(-48 * time.Hour)
		c, _ := g.gc(append(now, "--yes")...)
		Expect(c.Attachments).To(ConsistOf(HaveField("Kept", ContainSubstring("in the future"))))
		p.Unpin()
		Eventually(func() any {
			c, _ := g.gc("--yes")
			return c.Attachments
		}).Should(ConsistOf(HaveField("Done", true)))
	})

	It("queries the runtimes once for all that it removes within a second", func() { // a thousand pods took minutes
		g := newGCNode(ours(), "10.101.8")
		g.runtime()
		asked := filepath.Join(g.bin, "asked")
		g.program("crictl", "echo >>"+asked+"; "+crictl())
		for i := range 20 {
			g.up(newPod(fmt.Sprintf("%064x", i), fmt.Sprint("web-", i)))
		}
		began := time.Now()
		c, exit := g.gc(append(now, "--yes")...)
		Expect(exit).To(BeZero())
		Expect(c.Attachments).To(And(HaveLen(20), HaveEach(HaveField("Done", true))))
		// One question is for the list, and one for each of the two rounds of removal.
		Expect(len(nstest.Must(os.ReadFile(asked)))).To(BeNumerically("<=", 3+time.Since(began)/time.Second))
	})

	It("keeps a live container, and removes it once no process holds its namespace", func() {
		g := newGCNode(ours(), "10.101.3")
		p := g.up(newPod(gone, "web-0", hostPort(8080, 80)))
		held := p.hold()
		p.Unpin()
		kept := func(why string) {
			GinkgoHelper()
			was := g.Snapshot()
			c, exit := g.gc(append(now, "--yes")...)
			Expect(exit).To(BeZero())
			Expect(c.Attachments).To(HaveEach(HaveField("Kept", ContainSubstring(why))))
			Expect(g.Snapshot()).To(Equal(was))
		}
		kept("a process uses its namespace")
		g.runtime() // it does not know the container
		kept("a process uses its namespace")
		g.Cmd("sh", "-c", "rm /var/lib/cni/results/*")
		kept("a process uses its namespace")
		g.Cmd("sh", "-c", "rm -r /run/hawser")
		kept("a process uses its namespace")
		Expect(held.Close()).To(Succeed())
		Eventually(func() bool {
			c, _ := g.gc(append(now, "--yes")...)
			return len(c.Attachments) == 0
		}).Should(BeTrue())
		Expect(g.Files("/var/lib/cni/networks/pods")).NotTo(ContainSubstring(gone))
	})

	DescribeTable("keeps a container without a path, whose interface has another name and address, while it runs",
		Label("gc-lost"), func(subnet string, forget func(g gcNode)) {
			nstest.Need("macvlan")
			g := newGCNode(ours(), subnet)
			g.Cmd("cp", nstest.Build("macvlan"), g.plugins)
			list := strings.ReplaceAll(`{"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "macvlan",
				"master": "trunk", "ipam": {"type": "host-local", "subnet": "SUBNET.0/24"}}]}`, "SUBNET", subnet)
			g.write("/etc/cni/net.d/10-pods.conflist", list)
			g.list = nstest.Must(libcni.NetworkConfFromBytes([]byte(list)))
			g.Cmd("sh", "-ec", "ip link add trunk type veth peer name wire; ip link set trunk up; ip link set wire up")
			g.up(newPod(lives, "web-1")).hold()
			p := g.up(newPod(gone, "web-0"))
			held := p.hold()
			p.Cmd("sh", "-ec", "ip link set eth0 down; ip link set eth0 name net0; ip addr flush net0; "+
				"ip addr add "+subnet+".200/24 dev net0; ip link set net0 up")
			forget(g)
			p.Unpin()
			kept := func() {
				GinkgoHelper()
				was := g.Files("/var/lib/cni/networks")
				c, exit := g.gc(append(now, "--yes")...)
				Expect(exit).To(BeZero())
				Expect(c.Attachments).To(And(HaveLen(2), HaveEach(HaveField("Kept", Not(BeEmpty())))))
				Expect(g.gcWithoutNamespaces(now...).Attachments).To(HaveEach(HaveField("Kept", Not(BeEmpty()))))
				Expect(g.Files("/var/lib/cni/networks")).To(Equal(was))
			}
			kept()
			g.runtime(lives)
			kept()
			Expect(held.Close()).To(Succeed())
			Eventually(func() any {
				c, _ := g.gc(append(now, "--yes")...)
				return c.Attachments
			}).Should(ConsistOf(HaveField("ContainerID", lives)))
			Expect(g.Files("/var/lib/cni/networks/pods")).NotTo(ContainSubstring(gone))
		},
		Entry("known by its lease's note", "10.101.13", func(g gcNode) { g.Cmd("rm", "-r", "/run/hawser") }),
		Entry("known by a record", "10.101.14", func(g gcNode) { g.forgetNotes() }),
		Entry("without a note or record, as with the reference", "10.101.15", func(g gcNode) {
			g.Cmd("rm", "-r", "/run/hawser")
			g.forgetNotes()
		}))

	It("does not keep, for a namespace that it cannot read, what is certainly not in it", func() {
		g := newGCNode(ours(), "10.101.22")
		g.runtime(lives)
		g.up(newPod(lives, "web-0")).hold()
		g.up(newPod(gone, "web-1")).Unpin()
		Expect(g.gcWithoutNamespaces(now...).Attachments).To(ConsistOf(HaveField("ContainerID", lives),
			And(HaveField("ContainerID", gone), HaveField("Why", ContainSubstring("no runtime knows")))))
	})

	It("removes the loopback of an ended container, although other processes have one", func() {
		g := newGCNode(ours(), "10.101.24")
		g.runtime()
		place(nstest.Build("loopback"), g.plugins)
		list := nstest.Must(libcni.NetworkConfFromBytes([]byte(loopbackList)))
		up := func(id string) *pod {
			p := g.up(newPod(id, "web-"+id))
			lo := *p.rt
			lo.IfName, lo.CapabilityArgs = "lo", nil
			g.Do(func() { _ = nstest.Must(g.cni.AddNetworkList(context.Background(), list, &lo)) })
			return p
		}
		other := nstest.NewNetns() // of an unknown process
		other.IP("link add veth0 type veth peer name veth1", "link set veth0 up")
		g.Start(nstest.Program{Path: "nsenter", Args: []string{"--net=" + other.Path, "sleep", "600"}})
		live, ended := up(lives), up(gone)
		live.hold()
		live.Unpin()
		ended.Unpin()
		c, exit := g.gc(append(now, "--yes")...)
		Expect(exit).To(BeZero())
		isLive := And(HaveField("ContainerID", lives), HaveField("Kept", HavePrefix("a process uses its namespace")))
		isDone := And(HaveField("ContainerID", gone), HaveField("Done", true))
		Expect(c.Attachments).To(ConsistOf(isLive, isLive, isDone, isDone))
		Expect(g.Files("/var/lib/cni")).NotTo(ContainSubstring(gone))
	})

	It("finds a container without a path by its address if nothing else is recorded", func() {
		g := newGCNode(ours(), "10.101.16")
		g.up(newPod(lives, "web-1")).hold()
		g.Cmd("sh", "-c", "rm /var/lib/cni/results/*")
		p := g.up(newPod(gone, "web-0"))
		held := p.hold()
		g.Cmd("sh", "-c", "rm -r /var/lib/cni/results/* /run/hawser; nft flush ruleset")
		for _, file := range strings.Fields(g.Cmd("sh", "-c", "grep -l "+gone+" /var/lib/cni/networks/pods/*")) {
			g.Do(func() { Expect(unix.Removexattr(file, "trusted.hawser")).To(Succeed()) })
		}
		p.Unpin()
		inode := nstest.Must(held.Stat()).Sys().(*syscall.Stat_t).Ino
		c, exit := g.gc(now...)
		Expect(exit).To(BeZero())
		Expect(c.Attachments).To(ContainElement(And(HaveField("ContainerID", gone),
			HaveField("Kept", fmt.Sprintf("a process uses its namespace net:[%d]", inode)))))
	})

	It("keeps the cache file until the DEL of another project's plugin has succeeded", func() {
		list := strings.Replace(strings.ReplaceAll(usual, "10.88.0", "10.101.5"), `{"type": "firewall"}`,
			`{"type": "others"}`, 1)
		g := newGCNode(ours(), "10.101.5")
		g.list = nstest.Must(libcni.NetworkConfFromBytes([]byte(list)))
		others := filepath.Join(g.plugins, "others")
		Expect(os.WriteFile(others, []byte("#!/bin/sh\n"+
			`[ "$CNI_COMMAND" != ADD ] || echo '{"cniVersion": "1.0.0"}'`+"\n"), 0o755)).To(Succeed())
		g.runtime(lives)
		g.up(newPod(lives, "web-0"))
		g.up(newPod(gone, "web-1"))
		Expect(os.Rename(others, others+".away")).To(Succeed())
		c, exit := g.gc(append(now, "--yes")...)
		Expect(exit).To(Equal(1))
		Expect(c.Attachments).To(ContainElement(And(HaveField("ContainerID", gone), HaveField("Done", false),
			HaveField("Error", ContainSubstring(`plugin "others" is not in`)))))
		Expect(g.Files("/var/lib/cni/networks/pods")).NotTo(ContainSubstring(gone), "the address is free")
		Expect(os.Rename(others+".away", others)).To(Succeed())
		c, exit = g.gc(append(now, "--yes")...)
		Expect(exit).To(BeZero())
		Expect(c.Attachments).To(ContainElement(And(HaveField("ContainerID", gone), HaveField("Done", true))))
		Expect(g.Files("/var/lib/cni")).NotTo(ContainSubstring(gone))
	})

	It("succeeds if another gc, or the runtime, removes the cache file first", func() {
		g := newGCNode(ours(), "10.101.17")
		g.runtime()
		g.up(newPod(gone, "web-0"))
		Expect(os.Remove(filepath.Join(g.plugins, "firewall"))).To(Succeed())
		Expect(os.WriteFile(filepath.Join(g.plugins, "firewall"), []byte("#!/bin/sh\nrm /var/lib/cni/results/*\n"),
			0o755)).To(Succeed())
		c, exit := g.gc(append(now, "--yes")...)
		Expect(c.Attachments).To(ConsistOf(And(HaveField("Error", ""), HaveField("Done", true))))
		Expect(exit).To(BeZero())
	})

	It("removes the remains of a sandbox whose namespace only the dhcp daemon has open", func() {
		g := newGCNode(ours(), "10.101.18")
		place(nstest.Build("dhcp"), g.plugins)
		list := `{"cniVersion": "1.0.0", "name": "pods", "plugins": [
			{"type": "bridge", "bridge": "cni0", "ipam": {"type": "dhcp"}}]}`
		g.write("/etc/cni/net.d/10-pods.conflist", list)
		g.list = nstest.Must(libcni.NetworkConfFromBytes([]byte(list)))
		g.IP("link add cni0 type bridge", "link set cni0 up", "addr add 10.101.18.1/24 dev cni0")
		plugintest.DHCPDaemon(g.Host, g.plugins)
		plugintest.ServeDHCP(g.Host, "cni0", "10.101.18.50,10.101.18.60")
		g.runtime(lives)
		g.up(newPod(lives, "web-0")).hold()
		g.up(newPod(gone, "web-1"))
		c, exit := g.gc(append(now, "--yes")...)
		Expect(exit).To(BeZero())
		Expect(c.Attachments).To(ConsistOf(HaveField("Kept", "crictl knows the container"),
			And(HaveField("ContainerID", gone), HaveField("Done", true))))
		Expect(g.Files("/run/hawser", "/var/lib/cni")).NotTo(ContainSubstring(gone))
	})

	It("keeps what a container's process has open, even if the process is named like the dhcp daemon", func() {
		g := newGCNode(ours(), "10.101.20")
		place(nstest.Build("dhcp"), g.plugins)
		g.runtime()
		p := g.up(newPod(gone, "web-0"))
		g.Start(nstest.Program{Path: "bash", Args: []string{"-c", "exec 9<" + p.Path + "; exec unshare --net " +
			g.plugins + "/dhcp daemon -socketpath /run/other.sock"}})
		Eventually(func() string { return g.Files("/run") }).Should(ContainSubstring("other.sock"))
		c, _ := g.gc(append(now, "--yes")...)
		Expect(c.Attachments).To(ConsistOf(And(HaveField("ContainerID", gone), HaveField("Done", false))))
	})

	It("removes the remains of a container whose process ID now belongs to a process of the host", func() {
		g := newGCNode(ours(), "10.101.19")
		g.runtime()
		p := g.up(newPod(gone, "web-0"))
		p.Unpin()
		other := g.Start(nstest.Program{Path: "sleep", Args: []string{"600"}})
		file := "/var/lib/cni/results/pods-" + gone + "-eth0"
		g.Cmd("sed", "-i", fmt.Sprintf(`s|%s|/proc/%d/ns/net|g`, p.Path, other.Process.Pid), file)
		Expect(g.says("ls", "--orphans")).To(ContainSubstring("web-0"))
		out := g.hawser("reapply")
		Expect(out.Stdout + out.Stderr).To(Equal("Nothing is missing.\n"))
		c, exit := g.gc(append(now, "--yes")...)
		Expect(c.Attachments).To(ConsistOf(And(HaveField("ContainerID", gone), HaveField("Done", true))))
		Expect(exit).To(BeZero())
	})

	It("harms no container that is attached during the queries, although no process of it is visible", Label("gc-race"),
		func() {
			g := newGCNode(ours(), "10.101.6")
			g.runtime()
			g.up(newPod(gone, "web-0", hostPort(8080, 80)))
			g.Cmd("sh", "-c", "rm /var/lib/cni/results/*")
			// A DEL with this list does not remove what portmap keeps.
			list := strings.Replace(strings.ReplaceAll(usual, "10.88.0", "10.101.6"), "1.0.0", "1.1.0", 1)
			g.write("/etc/cni/net.d/10-pods.conflist", strings.Replace(list, `"portmap"`, `"tuning"`, 1))
			g.Cmd("cp", nstest.Build("tuning"), g.plugins)

			asked, answer := filepath.Join(g.bin, "asked"), filepath.Join(g.bin, "answer")
			g.Cmd("mkfifo", asked, answer)
			g.program("crictl", "echo >"+asked+"; cat "+answer+"; "+crictl())
			var added []*pod
			done := make(chan struct{})
			go func() {
				defer GinkgoRecover()
				defer close(done)
				for {
					text := nstest.Must(os.ReadFile(asked)) // waits for crictl
					if string(text) == "end" {
						return
					}
					i := len(added)
					p := g.up(newPod(fmt.Sprintf("%064x", i), fmt.Sprint("new-", i), hostPort(9000+i, 80)))
					added = append(added, p)
					Expect(os.WriteFile(answer, nil, 0)).To(Succeed())
				}
			}()
			c, exit := g.gc(append(now, "--yes")...)
			Expect(os.WriteFile(asked, []byte("end"), 0)).To(Succeed())
			Eventually(done).Should(BeClosed())
			Expect(exit).To(BeZero())
			Expect(len(added)).To(BeNumerically(">=", 2))
			for _, p := range added {
				g.Do(func() { Expect(g.cni.CheckNetworkList(context.Background(), g.list, p.rt)).To(Succeed()) })
			}
			Expect(c.Attachments).To(ContainElement(And(HaveField("ContainerID", gone), HaveField("Done", true))))
			Expect(g.Files("/var/lib/cni", "/run")).NotTo(ContainSubstring(gone))
		})

	It("queries the runtimes again before it removes the remains of a slow DEL", func() {
		g := newGCNode(ours(), "10.101.9")
		g.runtime(lives)
		g.up(newPod(lives, "web-1")).hold()
		g.up(newPod(gone, "web-0", hostPort(8080, 80)))
		g.Cmd("sh", "-c", "rm /var/lib/cni/results/*")
		// A DEL with this list keeps portmap's rules, and takes so long that a runtime can restart the container.
		list := strings.ReplaceAll(usual, "10.88.0", "10.101.9")
		g.write("/etc/cni/net.d/10-pods.conflist", strings.Replace(list, `"portmap"`, `"others"`, 1))
		g.program("again", crictl(lives, gone))
		Expect(os.WriteFile(filepath.Join(g.plugins, "others"), []byte("#!/bin/sh\nsleep 1.1; mv "+g.bin+"/again "+
			g.bin+"/crictl\n"), 0o755)).To(Succeed())
		c, exit := g.gc(append(now, "--yes")...)
		Expect(exit).To(BeZero())
		Expect(c.Attachments).To(HaveEach(HaveField("Kept", "crictl knows the container")))
		Expect(g.Cmd("nft", "list", "ruleset")).To(ContainSubstring("8080"))
		g.program("crictl", crictl(lives))
		Expect(os.WriteFile(filepath.Join(g.plugins, "others"), []byte("#!/bin/sh\n"), 0o755)).To(Succeed())
		c, _ = g.gc(append(now, "--yes")...)
		Expect(c.Attachments).To(ContainElement(HaveField("Done", true)))
		Expect(g.Cmd("nft", "list", "ruleset")).NotTo(ContainSubstring("8080"))
	})

	It("refuses to run in a PID namespace in which it sees no container", Label("gc-blind"), func() {
		g := newGCNode(ours(), "10.101.7")
		g.runtime() // the container belongs to a runtime that does not answer here
		p := g.up(newPod(gone, "web-0"))
		p.hold()
		p.Unpin()
		before := g.Files("/var/lib/cni", "/run")
		out := g.Run(nstest.Program{Path: "unshare", Args: []string{"--pid", "--fork", "--mount-proc",
			nstest.Build("hawser"), "gc", "--yes", "--older", "0s"},
			Env: []string{"PATH=" + g.bin + ":" + os.Getenv("PATH")}})
		Expect(g.Files("/var/lib/cni", "/run")).To(Equal(before))
		Expect(out.Exit).To(Equal(1), out.Stdout)
		Expect(out.Stderr).To(And(ContainSubstring("nothing was removed"), ContainSubstring("hostPID: true")))
		c, exit := g.gc(append(now, "--yes")...)
		Expect(exit).To(BeZero())
		Expect(c.Attachments).To(HaveEach(HaveField("Kept", ContainSubstring("a process uses its namespace"))))
	})

	It("queries only sockets that only root can have created, and all concurrently", Label("gc-sockets"), func() {
		g := newGCNode(ours(), "10.101.12")
		g.runtime()
		g.up(newPod(gone, "web-0"))
		listen := func(path string) {
			GinkgoHelper()
			g.Cmd("mkdir", "-p", filepath.Dir(path))
			g.Do(func() { DeferCleanup(nstest.Must(net.Listen("unix", path)).Close) })
		}
		for path, mode := range map[string]string{"/run/all": "777", "/run/group/own": "770", "/run/user": "755"} {
			listen(path + "/containerd.sock")
			g.Cmd("chmod", mode, path)
		}
		g.Do(func() { nstest.NeedOK("a second user", os.Chown("/run/user", 1000, 1000)) })
		g.Cmd("chown", "1000:1000", "/run/group")
		listen("/run/file/crio.sock")
		g.Cmd("chown", "1000", "/run/file/crio.sock")
		g.program("ctr", `case "$*" in */run/containerd/*) ;; *) exit 1; esac; `+ctr)
		c, exit := g.gc(now...)
		Expect(exit).To(BeZero())
		Expect(c.Silent).To(BeEmpty())
		Expect(c.Source).To(Equal("crictl /run/containerd/containerd.sock, ctr /run/containerd/containerd.sock"))
		Expect(c.Attachments).To(HaveEach(HaveField("Why", ContainSubstring("no runtime knows"))))

		// Each answers when the other one is asked, too.
		listen("/run/other/containerd.sock")
		meet := filepath.Join(g.bin, "meet")
		g.Cmd("mkfifo", meet)
		g.program("ctr", `case "$*" in *other*namespaces*) echo >`+meet+`;; `+
			`*namespaces*) read -r line <`+meet+`; esac; `+ctr)
		c, _ = g.gc(now...)
		Expect(c.Silent).To(BeEmpty())
		Expect(c.Source).To(ContainSubstring("ctr /run/other/containerd.sock"))

		g.program("ctr", ctr)
		g.Cmd("chmod", "777", "/run/containerd")
		c, _ = g.gc(append(now, "--yes")...)
		Expect(c.Silent).To(ConsistOf(HavePrefix("/run/containerd/containerd.sock: not trusted: /run/containerd ")))
		Expect(c.Attachments).To(HaveEach(HaveField("Kept", ContainSubstring("its namespace exists"))))
	})

	DescribeTable("queries with the programs", func(path string, isAll bool) {
		g := newGCNode(ours(), "10.101.8")
		g.up(newPod(lives, "web-0"))
		g.Cmd("sh", "-c", "mkdir -p /run/k3s/containerd; touch /run/k3s/containerd/containerd.sock")
		if path == "" {
			path = g.bin
		}
		programs := map[string]string{"crictl": crictl(lives), "ctr": ctr}
		if isAll {
			programs = map[string]string{"k3s": `[ "$1" = ctr ] || { ` + crictl(lives) + `; exit; }; ` + ctr}
		}
		g.Cmd("mkdir", "-p", path)
		for name, text := range programs {
			g.write(filepath.Join(path, name), "#!/bin/sh\n"+text+"\n")
			g.Cmd("chmod", "755", filepath.Join(path, name))
		}
		c, exit := g.gcIn(g.bin, now...)
		Expect(exit).To(BeZero())
		Expect(c.Silent).To(BeEmpty())
		const socket = "/run/k3s/containerd/containerd.sock"
		Expect(c.Source).To(Equal("crictl " + socket + ", ctr " + socket))
		Expect(c.Attachments).To(HaveEach(HaveField("Kept", "crictl knows the container")))
	},
		Entry("that k3s keeps", Label("slow"), "/var/lib/rancher/k3s/data/current/bin", false),
		Entry("that RKE2 keeps", Label("slow"), "/var/lib/rancher/rke2/bin", false),
		Entry("that are k3s itself", "", true))

	It("keeps an existing namespace if a runtime gives no answer, or may not know the container", func() {
		g := newGCNode(ours(), "10.101.4")
		g.runtime()
		g.up(newPod("0d6c3b7e-nomad", "web-0"))
		c, _ := g.gc(append(now, "--yes")...)
		Expect(c.Attachments).To(HaveEach(HaveField("Kept", ContainSubstring("its namespace exists"))))
		g.up(newPod(gone, "web-1"))
		g.program("ctr", "echo broken >&2; exit 1")
		c, _ = g.gc(append(now, "--yes")...)
		Expect(c.Silent).To(ConsistOf(ContainSubstring("broken")))
		Expect(c.Attachments).To(HaveLen(2))
		Expect(c.Attachments).To(HaveEach(HaveField("Kept", ContainSubstring("its namespace exists"))))
		g.program("ctr", ctr)
		g.program("crictl", "echo '{}'")
		c, _ = g.gc(append(now, "--yes")...)
		Expect(c.Silent).To(ConsistOf(ContainSubstring("its answer has no list of pods")))
		Expect(c.Attachments).To(HaveEach(HaveField("Kept", ContainSubstring("its namespace exists"))))
		g.program("crictl", crictl())
		g.Cmd("sh", "-c", "mkdir /run/k0s /run/other; touch /run/k0s/containerd.sock")
		g.Do(func() { DeferCleanup(nstest.Must(net.Listen("unix", "/run/other/containerd.sock")).Close) })
		g.program("ctr", `case "$*" in *k0s*|*other*) exit 1; esac; `+ctr)
		c, _ = g.gc(append(now, "--yes")...)
		Expect(c.Silent).To(ConsistOf(HavePrefix("/run/k0s/containerd.sock: ctr: "),
			HavePrefix("/run/other/containerd.sock: ctr: ")))
		Expect(c.Attachments).To(HaveEach(HaveField("Kept", ContainSubstring("its namespace exists"))))
		g.program("ctr", ctr)
		Expect(os.Remove(filepath.Join(g.bin, "crictl"))).To(Succeed()) // ctr alone tells
		g.Cmd("mkdir", "-p", "/var/lib/crio")                           // it is installed, and stopped
		c, _ = g.gc(append(now, "--yes")...)
		Expect(c.Silent).To(ConsistOf(ContainSubstring("crio.sock: does not exist")))
		Expect(c.Attachments).To(HaveEach(HaveField("Kept", ContainSubstring("its namespace exists"))))
		g.Cmd("rmdir", "/var/lib/crio")
		c, _ = g.gc(append(now, "--yes")...)
		Expect(c.Attachments).To(ContainElement(And(HaveField("ContainerID", gone), HaveField("Done", true))))
	})
})
