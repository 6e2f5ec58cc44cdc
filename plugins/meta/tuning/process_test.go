package main

import (
	"flag"
	"os"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
)

var update = flag.Bool("update", false, "write the golden files anew")

// chain is a result as bridge makes it; the host's interface has the
// container's name.
const chain = `{"cniVersion":"VERSION","interfaces":[
	{"name":"cni0","mac":"02:00:00:00:00:07"},
	{"name":"eth0","mac":"02:00:00:00:00:08"},
	{"name":"eth0","mac":"02:00:00:00:00:01","sandbox":"NETNS"},
	{"name":"eth1","mac":"02:00:00:00:00:09","sandbox":"NETNS"}],
	"ips":[{"address":"10.1.2.3/24","gateway":"10.1.2.1","interface":2V4}],
	"routes":[{"dst":"0.0.0.0/0"}],"dns":{"nameservers":["10.1.0.1"]}}`

var _ = Describe("the program", func() {
	var w *world
	var program string
	BeforeEach(func() {
		w = newWorld()
		program = nstest.Build("tuning")
	})
	prev := func(version string) string {
		v4 := ""
		if version < "1" {
			v4 = `,"version":"4"`
		}
		return strings.NewReplacer("VERSION", version, "NETNS", w.cont.Path, "V4", v4).Replace(chain)
	}

	DescribeTable("prints the result in version", func(version string) {
		out := w.process(program, call{command: "ADD", version: version, prev: prev(version), conf: `"mac":"02-AA-00-00-00-01","mtu":1400`})
		Expect(out.exit).To(Equal(0), "%+v", out)
		Expect(out.stderr).To(BeEmpty())
		golden, have := filepath.Join("testdata", "add-"+version+".json"), strings.ReplaceAll(out.stdout, w.cont.Path, "NETNS")+"\n"
		if *update {
			Expect(os.WriteFile(golden, []byte(have), 0o644)).To(Succeed())
		}
		want, err := os.ReadFile(golden)
		Expect(err).NotTo(HaveOccurred())
		Expect(have).To(Equal(string(want)))
		Expect(state(w.cont, "eth0")).To(Equal("02:aa:00:00:00:01 mtu 1400 txqlen 1000"))
	},
		Entry(nil, "0.3.1"), Entry(nil, "0.4.0"), Entry(nil, "1.0.0"), Entry(nil, "1.1.0"),
	)

	DescribeTable("serves version", func(version string) {
		c := call{command: "ADD", version: version, conf: everything, prev: `{"ip4":{"ip":"10.1.2.3/24"}}`}
		if version >= "0.3" {
			c.prev = prev(version)
		}
		before := w.values()
		Expect(w.process(program, c).exit).To(Equal(0))
		c.command = "CHECK"
		if version >= "0.4" {
			c.prev = strings.ReplaceAll(c.prev, firstMAC, otherMAC)
			Expect(w.process(program, c)).To(Equal(outcome{}))
		}
		c.command = "DEL"
		Expect(w.process(program, c)).To(Equal(outcome{}))
		Expect(w.values()).To(Equal(before))
		Expect(w.files()).To(BeEmpty())
	},
		Entry(nil, "0.1.0"), Entry(nil, "0.2.0"), Entry(nil, "0.3.0"), Entry(nil, "0.3.1"),
		Entry(nil, "0.4.0"), Entry(nil, "1.0.0"), Entry(nil, "1.1.0"),
	)

	It("writes nothing that is right already where nothing can be written", func() {
		w.cont.SetSysctl("net/core/somaxconn", "77")
		w.host.Cmd("mount", "--bind", "/proc/sys", "/proc/sys")
		w.host.Cmd("mount", "-o", "remount,bind,ro", "/proc/sys")
		Expect(w.process(program, call{command: "ADD", conf: `"sysctl":{"net.core.somaxconn":"77"}`}).exit).To(Equal(0))
		out := w.process(program, call{command: "ADD", conf: `"mtu":1400,"sysctl":{"net.core.somaxconn":"78"}`})
		Expect(out.code).To(Equal(int(cni.CodeIO)))
		Expect(out.msg).To(Equal(`sysctl["net.core.somaxconn"]: sysctl net.core.somaxconn: write "78": read-only file system`))
		Expect(state(w.cont, "eth0")).To(Equal(untouched))
	})

	It("reads the administrator's allow-list", func() {
		w.host.Cmd("mount", "-t", "tmpfs", "tmpfs", "/etc")
		Expect(w.process(program, call{command: "ADD", conf: everything}).exit).To(Equal(0))
		w.host.Cmd("mkdir", "-p", "/etc/cni/tuning")
		w.host.Cmd("sh", "-c", "echo '^net.core.somaxconn$' >/etc/cni/tuning/allowlist.conf")
		Expect(w.process(program, call{command: "ADD", conf: `"sysctl":{"net.core.somaxconn":"78"}`}).exit).To(Equal(0))
		out := w.process(program, call{command: "ADD", conf: everything})
		Expect(out.code).To(Equal(int(cni.CodeConfig)))
		Expect(out.msg).To(ContainSubstring("not allowed by /etc/cni/tuning/allowlist.conf"))
	})

	It("names the container's namespace that is gone", func() {
		Expect(w.process(program, call{command: "ADD", netns: "/nowhere", prev: "none", conf: `"mtu":1400`}).code).To(Equal(int(cni.CodeUnknownContainer)))
		Expect(w.process(program, call{command: "ADD", netns: "/nowhere", conf: `"mtu":1400`}).code).To(Equal(int(cni.CodeEnvironment)))
	})
})

var _ = Describe("beside the reference plugin", func() {
	for _, ref := range nstest.References() {
		Context("of "+ref.Name, func() { besideReference(ref) })
	}
})

func besideReference(ref nstest.Reference) {
	// What Debian's version has; sysctls are never restored by it.
	const conf = `"mac":"02:00:00:00:00:02","promisc":true,"mtu":1400,"allmulti":true,"sysctl":{"net.core.somaxconn":"77"}`
	var w *world
	var ours, reference string
	BeforeEach(func() {
		reference = ref.Program("tuning")
		w = newWorld()
		ours = nstest.Build("tuning")
	})
	add := func(program string) string {
		GinkgoHelper()
		out := w.process(program, call{command: "ADD", version: "1.0.0", conf: conf})
		Expect(out.exit).To(Equal(0), "%+v", out)
		Expect(state(w.cont, "eth0")).To(HavePrefix(otherMAC + " mtu 1400 "))
		return w.backup("c1_eth0.json")
	}
	del := func(program, prev string) {
		GinkgoHelper()
		out := w.process(program, call{command: "DEL", version: "1.0.0", conf: conf, prev: prev})
		Expect(out.exit).To(Equal(0), "%+v", out)
		Expect(out.stderr).To(BeEmpty())
	}
	tuned := func() string { return prevResult(w.complete(call{version: "1.0.0"}), strings.ToUpper(otherMAC)) }

	It("writes the same backup", func() {
		theirs := add(reference)
		del(reference, "none")
		Expect(w.files()).To(BeEmpty())
		w.cont.SetSysctl("net/core/somaxconn", "77") // as it is left
		out := w.process(ours, call{command: "ADD", version: "1.0.0", conf: replace(conf, `,"sysctl":{"net.core.somaxconn":"77"}`, "")})
		Expect(out.exit).To(Equal(0))
		Expect(w.backup("c1_eth0.json")).To(Equal(theirs))
	})

	DescribeTable("restores what the reference changed", func(withPrev bool) {
		add(reference)
		prev := "none"
		if withPrev {
			prev = tuned()
		}
		del(ours, prev)
		Expect(state(w.cont, "eth0")).To(Equal(untouched))
		Expect(w.files()).To(BeEmpty())
		del(reference, "none")
	},
		Entry("with prevResult", true), Entry("without", false),
	)

	It("restores what the reference changed after it had removed ours with another interface", func() {
		add(ours)
		del(reference, "none")
		w.cont.Cmd("ip", "link", "del", "eth0")
		w.link(w.cont, "eth0")
		w.cont.Cmd("ip", "link", "set", "eth0", "mtu", "1450")
		add(reference)
		del(ours, tuned())
		Expect(state(w.cont, "eth0")).To(Equal(firstMAC + " mtu 1450 txqlen 1000"))
		Expect(w.files()).To(BeEmpty())
	})

	It("checks what the reference changed", func() {
		add(reference)
		Expect(w.process(ours, call{command: "CHECK", version: "1.0.0", conf: conf, prev: tuned()})).To(Equal(outcome{}))
	})

	It("leaves what the reference restores", func() {
		add(ours)
		del(reference, "none")
		Expect(state(w.cont, "eth0")).To(Equal(untouched))
		Expect(w.cont.Sysctl("net/core/somaxconn")).To(Equal("77"))
		Expect(w.files()).To(ConsistOf(HavePrefix(".hawser/")))
		del(ours, "none") // and restores what the reference does not
		Expect(w.cont.Sysctl("net/core/somaxconn")).To(Equal("4096"))
		Expect(w.files()).To(BeEmpty())
	})

	It("keeps the reference's originals in a second ADD", func() {
		first := add(reference)
		w.cont.SetSysctl("net/core/somaxconn", "4096")
		second := add(ours)
		Expect(second).To(HavePrefix(strings.TrimSuffix(first, "\n}")))
		del(ours, tuned())
		Expect(w.values()).To(HavePrefix(untouched + "\nnet/core/somaxconn=4096"))
	})

	It("forgets what the reference left of a container that is gone", func() {
		add(reference)
		w.cont.Unpin()
		del(ours, "none")
		Expect(w.files()).To(BeEmpty())
	})
}
