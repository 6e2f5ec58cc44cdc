package tool_test

import (
	"context"
	"encoding/base64"
	"strings"
	"time"

	"github.com/containernetworking/cni/libcni"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
)

type attachment struct {
	Network, ContainerID, IfName, Pod, Netns, Orphan string
	HostEnd                                          string
	Addresses                                        []string
	Reference                                        bool
	Since                                            time.Time
	Holdings                                         []struct{ Plugin, Kind, Value, Kept string }
}

func (a attachment) held(kind string) (values []string) {
	for _, h := range a.Holdings {
		if h.Kind == kind {
			values = append(values, h.Value)
		}
	}
	return values
}

var _ = Describe("hawser ls", Label("tool-ls"), func() {
	It("does not attribute a loopback, whose origin is unknown, to the reference", func() {
		m := newMachine(ours(), usual)
		nstest.Build("loopback")
		m.list = nstest.Must(libcni.NetworkConfFromBytes([]byte(
			`{"cniVersion": "1.0.0", "name": "cni-loopback", "plugins": [{"type": "loopback"}]}`)))
		p := newPod("c1", "web-0")
		p.rt.IfName = "lo"
		m.up(p)
		Expect(m.says("ls", "--loopback")).To(And(MatchRegexp(`cni-loopback +shop/web-0 +lo `),
			Not(ContainSubstring("reference"))))
	})

	It("does not attribute another project's interface to the reference", func() {
		m := newMachine(ours(), usual)
		m.Cmd("mkdir", "/var/lib/cni/results")
		m.write("/var/lib/cni/results/cilium-c1-eth0", `{"containerId": "c1", "ifName": "eth0", "networkName": "cilium",
			"netns": "/proc/self/ns/net", "config": "`+base64.StdEncoding.EncodeToString([]byte(
			`{"cniVersion": "1.0.0", "name": "cilium", "plugins": [{"type": "cilium-cni"}]}`))+`",
			"result": {"cniVersion": "1.0.0", "ips": [{"address": "10.9.0.7/32"}]}}`)
		Expect(m.says("ls")).To(And(MatchRegexp(`cilium +c1 +eth0 +10\.9\.0\.7 `), Not(ContainSubstring("reference"))))
		Expect(asks[[]attachment](m, "ls")).To(ConsistOf(And(HaveField("Reference", false),
			HaveField("Addresses", []string{"10.9.0.7"}))))
	})

	It("treats containers of multus and of cri-dockerd as attached", func() {
		m := newMachine(nstest.Newest().Dir(), usual)
		for _, dir := range []string{"multus", "cache"} {
			m.cni = libcni.NewCNIConfigWithCacheDir([]string{"/opt/cni/bin"}, "/var/lib/cni/"+dir, nil)
			m.up(newPod(dir, dir))
		}
		Expect(m.says("doctor")).To(Equal("nothing is wrong\n"))
		Expect(m.says("ls")).To(And(ContainSubstring("shop/multus"), ContainSubstring("shop/cache")))
		m.Cmd("iptables", "-F", "CNI-FORWARD")
		Expect(m.hawser("reapply").Stdout).To(And(ContainSubstring("multus"), ContainSubstring("cache")))
	})

	It("lists attachments, with their addresses, host ends and host ports", func() {
		m := newMachine(ours(), usual)
		m.up(newPod("0123456789abcdef", "web-0", hostPort(8080, 80)))
		m.up(newPod("fedcba9876543210", "web-1"))
		all := asks[[]attachment](m, "ls")
		Expect(all).To(HaveLen(2))
		web := all[0]
		Expect([]string{web.Network, web.ContainerID, web.IfName, web.Pod, web.Orphan}).To(
			Equal([]string{"pods", "0123456789abcdef", "eth0", "shop/web-0", ""}))
		Expect(web.Reference).To(BeFalse())
		Expect(web.Since).To(BeTemporally("~", time.Now(), time.Hour))
		Expect(web.held("address")).To(Equal([]string{"10.88.0.2"}))
		Expect(web.Addresses).To(Equal([]string{"10.88.0.2"}))
		Expect(web.HostEnd).To(MatchRegexp("^veth[0-9a-f]{8}$"))
		Expect(web.held("host port")).To(ContainElement("0.0.0.0:8080/tcp to 10.88.0.2:80"))
		lines := strings.Split(strings.TrimSpace(m.says("ls")), "\n")
		Expect(lines).To(HaveLen(3))
		Expect(lines[1]).To(MatchRegexp(
			`^pods +shop/web-0 +eth0 +10\.88\.0\.2 +veth[0-9a-f]{8} +0\.0\.0\.0:8080/tcp to`))
		Expect(m.says("ls", "other")).To(HavePrefix("NETWORK "))
		Expect(asks[[]attachment](m, "ls", "other")).To(BeEmpty())
	})

	It("lists the leases of cluster-local, which is a separate program, from its records", func() {
		nstest.Build(nstest.Apart)
		m := newMachine(ours(), usual)
		m.up(newPod("c1", "web-0"))
		a := cni.Attachment{Network: "pods", ContainerID: "c1", IfName: "eth0"}
		m.Cmd("mkdir", "-p", "/var/lib/cni/cluster-local/default")
		m.write("/var/lib/cni/cluster-local/default/"+a.Hash()+".json", `{"network": "pods", "containerID": "c1",
			"ifname": "eth0", "nonce": "N", "held": ["default.10.30.0.7"]}`)
		all := asks[[]attachment](m, "ls")
		Expect(all).To(HaveLen(1))
		Expect(all[0].held("address")).To(ConsistOf("10.88.0.2", "10.30.0.7 of default"))
		Expect(m.says("ls")).To(ContainSubstring("10.30.0.7"))
	})

	It("marks attachments of the reference's plugins", func() {
		m := newMachine(nstest.Newest().Dir(), usual)
		m.up(newPod("c1", "web-0", hostPort(8080, 80)))
		all := asks[[]attachment](m, "ls")
		Expect(all).To(HaveEach(HaveField("Reference", true)))
		Expect(m.says("ls")).To(MatchRegexp(
			`pods +shop/web-0 +eth0 +10\.88\.0\.2 +veth\w+ .*created by the reference plugins`))
	})

	It("finds orphans, and gives the reason", func() {
		m := newMachine(ours(), usual)
		m.up(newPod("c1", "web-0"))
		gone := m.up(newPod("c2", "web-1"))
		gone.Unpin()
		Eventually(func() []attachment { return asks[[]attachment](m, "ls", "--orphans") }).Should(
			ConsistOf(And(HaveField("ContainerID", "c2"), HaveField("Orphan", ContainSubstring("no longer exists")))))
		m.Cmd("sh", "-c", "rm /var/lib/cni/results/*c1*; rm -r /run/hawser/firewall; nft flush ruleset")
		Expect(m.says("ls", "--orphans")).NotTo(ContainSubstring("c1"), "its ADD may be in progress")
		m.Cmd("sh", "-c", "touch -d '2 minutes ago' /var/lib/cni/networks/pods/10.*")
		Expect(m.says("ls", "--orphans")).To(ContainSubstring("c1"))
	})

	It("does not call a container an orphan if the runtime has a record of another network, as with multus", func() {
		m := newMachine(ours(), usual)
		m.up(newPod("c1", "web-0"))
		m.Cmd("sh", "-c", "rm -r /run/hawser/firewall; cd /var/lib/cni; mkdir multus; mv results multus; mkdir results")
		m.write("/var/lib/cni/results/multus-c1-eth0", `{"kind": "cniCacheV1", "containerId": "c1", "ifName": "eth0",
			"networkName": "multus"}`)
		Expect(asks[[]attachment](m, "ls")).To(HaveLen(2))
		Expect(asks[[]attachment](m, "ls", "--orphans")).To(BeEmpty())
	})

	It("recognizes that a namespace's path now belongs to another container", func() {
		m := newMachine(ours(), usual)
		one, two := newPod("c1", "web-0", hostPort(8080, 80)), newPod("c2", "web-1")
		const path = "/run/container"
		one.rt.NetNS, two.rt.NetNS = path, path
		m.Cmd("ln", "-s", one.Path, path)
		m.up(one)
		m.Cmd("ln", "-sfn", two.Path, path)
		m.up(two)
		Expect(asks[[]attachment](m, "ls", "--orphans")).To(ConsistOf(And(HaveField("ContainerID", "c1"),
			HaveField("Orphan", "its namespace "+path+" now belongs to container c2"))))
		m.Cmd("nft", "flush", "ruleset")
		Expect(m.says("reapply")).To(And(ContainSubstring("web-1"), Not(ContainSubstring("web-0"))))
		Expect(m.Cmd("nft", "list", "ruleset")).NotTo(ContainSubstring("8080"))
	})

	It("lists what it can read, but fails, if a file is damaged", func() {
		m := newMachine(ours(), usual)
		m.up(newPod("c1", "web-0"))
		m.write("/etc/cni/net.d/20-x.conflist", "{")
		m.Cmd("sh", "-c", "echo '{' >/var/lib/cni/results/x")
		out := m.hawser("ls")
		Expect(out.Exit).To(Equal(1))
		Expect(out.Stdout).To(ContainSubstring("shop/web-0"))
		Expect(out.Stderr).To(And(ContainSubstring("20-x.conflist"), ContainSubstring("results/x")))
	})
})

type failure struct {
	Pod, ContainerID, Plugin, Command, Msg, Step, Now, Advice string
	Count                                                     int
	Doctor                                                    []string
}

var _ = Describe("hawser why", Label("tool-why"), func() {
	It("gives the reason why a removed pod had no network", func() {
		m := newMachine(ours(), usual)
		m.up(newPod("c1", "web-0", hostPort(8080, 80)))
		bad := newPod("0badbadbad", "web-1", hostPort(8080, 80))
		for range 2 {
			Expect(m.add(bad)).NotTo(Succeed())
			Expect(m.del(bad)).To(Succeed())
		}
		bad.Unpin()
		for _, of := range []string{"last", "shop/web-1", "web-1", "0badb"} {
			found := asks[[]failure](m, "why", of)
			Expect(found).To(HaveLen(1), of)
			Expect(found[0]).To(And(HaveField("Plugin", "portmap"), HaveField("Count", 2),
				HaveField("Pod", "shop/web-1"),
				HaveField("Msg", ContainSubstring(`held on 0.0.0.0 by network "pods", container "c1"`)),
				HaveField("Step", "plugin 2 of 3 in /etc/cni/net.d/10-pods.conflist"),
				HaveField("Now", "it has no holdings")))
		}
		Expect(m.says("why", "web-1")).To(MatchRegexp(
			`(?s)^pod: +shop/web-1\n.*failed: +ADD at .*, 2 times since .*code 104: .*what to do: `))
	})

	It("says whether the container is attached now", func() {
		m := newMachine(ours(), usual)
		one := m.up(newPod("c1", "web-0", hostPort(8080, 80)))
		two := newPod("c2c2", "web-1", hostPort(8080, 80))
		Expect(m.add(two)).NotTo(Succeed())
		Expect(m.del(two)).To(Succeed())
		Expect(m.del(one)).To(Succeed())
		m.up(two)
		Expect(asks[[]failure](m, "why", "c2c2")).To(HaveEach(
			HaveField("Now", "the container is attached: a later call succeeded")))
	})

	It("compares an old record with the current state", func() {
		m := newMachine(ours(), usual)
		m.up(newPod("c1", "web-0", hostPort(8080, 80)))
		m.Cmd("cp", listFile, "/run/good")
		Expect(m.add(newPod("c2c2", "web-1", hostPort(8080, 80)))).NotTo(Succeed())
		m.Cmd("sh", "-ec", edit("firewall", "firewal"))
		Expect(asks[[]failure](m, "why", "web-1")[0]).To(And(HaveField("Doctor", ConsistOf(HavePrefix(
			`missing-plugin: `))), HaveField("Now", "its objects still exist: no runtime has a record of it")))
		m.Cmd("cp", "/run/good", listFile)
		again := m.up(newPod("c3c3", "web-1"))
		Expect(asks[[]failure](m, "why", "web-1")).To(HaveExactElements(And(HaveField("Doctor", BeEmpty()),
			HaveField("Now", HavePrefix("the container is attached: a later call succeeded, as container c3c3")),
			HaveField("Advice", ""))))
		again.Cmd("ip", "link", "set", "eth0", "down")
		m.Do(func() { Expect(m.cni.CheckNetworkList(context.Background(), m.list, again.rt)).NotTo(Succeed()) })
		Expect(asks[[]failure](m, "why", "c3c3")).To(HaveExactElements(And(
			HaveField("Now", "the container is attached"),
			HaveField("Doctor", ConsistOf(HavePrefix("drift: "))))))
	})

	It("prints the name and the message of the IPAM plugin", func() {
		m := newMachine(ours(), strings.ReplaceAll(usual, "10.88.0.0/24", "10.88.0.0/30"))
		m.up(newPod("c1", "web-0"))
		Expect(m.add(newPod("c2c2", "web-1"))).NotTo(Succeed())
		found := asks[[]failure](m, "why", "web-1")
		Expect(found).To(HaveExactElements(And(HaveField("Plugin", "host-local"),
			HaveField("Msg", ContainSubstring("no IP addresses available")))))
	})

	It("prints what would make a call fail if no plugin of Hawser could leave a record", func() {
		m := newMachine(nstest.Newest().Dir(), usual)
		m.Cmd("sh", "-ec", second("more", "10.99.0.0/30"))
		m.up(newPod("c1c1", "web-0"))
		says := func(of, what string) {
			GinkgoHelper()
			out := m.hawser("why", of)
			Expect([]any{out.Exit, out.Stdout}).To(Equal([]any{1, ""}))
			Expect(out.Stderr).To(And(HavePrefix(
				`hawser: no failed call for "`+of+`" is recorded in /`), ContainSubstring(
				"\nhawser: other projects' plugins and missing programs leave no records\n"), HaveSuffix(what+"\n")))
		}
		says("web-0", "hawser: libcni has a record of pod shop/web-0 on \"pods\": the container is attached\n"+
			"hawser: current findings of doctor that may be the reason:\nhawser: none")
		m.Cmd("sh", "-ec", "cp "+listFile+" /run/good; "+without("portmap"))
		Expect(m.add(newPod("c2c2", "web-1"))).NotTo(Succeed())
		const missing = `hawser: missing-plugin: /etc/cni/net.d/10-pods.conflist, network "pods": ` +
			`plugin "portmap" is not in /opt/cni/bin:/usr/lib/cni:/usr/libexec/cni; install it: hawser install --to ` +
			"/opt/cni/bin, or remove it from the list; without it DEL fails"
		says("web-1", "may be the reason:\n"+missing)
		m.Cmd("sh", "-ec", "umount /opt/cni/bin; mkdir -p /var/lib/cni/networks/more; "+
			`printf 'x\r\neth0' >/var/lib/cni/networks/more/10.99.0.2`)
		says("last", "are leased; hawser ls more lists the owners; release stale leases (hawser gc --yes), or add a "+
			"range")
		says("c1c1", "may be the reason:\nhawser: none")
	})

})
