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
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

var update = flag.Bool("update", false, "write the golden files anew")

// chain is a result as bridge makes it; the host's interface has the container's name.
const chain = `{"cniVersion":"VERSION","interfaces":[
	{"name":"cni0","mac":"02:00:00:00:00:07"},
	{"name":"eth0","mac":"02:00:00:00:00:08"},
	{"name":"eth0","mac":"02:00:00:00:00:01","sandbox":"NETNS"},
	{"name":"eth1","mac":"02:00:00:00:00:09","sandbox":"NETNS"}],
	"ips":[{"address":"10.1.2.3/24","gateway":"10.1.2.1","interface":2V4}],
	"routes":[{"dst":"0.0.0.0/0"}],"dns":{"nameservers":["10.1.0.1"]}}`

// exec runs the built program.
func (w *world) exec(command string, c call) Answer {
	GinkgoHelper()
	c.Command = command
	return w.Exec(w.call(c))
}

var _ = Describe("the program", func() {
	var w *world
	BeforeEach(func() { w = newWorld() })
	prev := func(version string) string {
		v4 := ""
		if version < "1" {
			v4 = `,"version":"4"`
		}
		return strings.NewReplacer("VERSION", version, "NETNS", w.cont.Path, "V4", v4).Replace(chain)
	}

	DescribeTable("prints the result in version", func(version string) {
		a := w.exec("ADD", call{version: version, prev: prev(version), keys: `"mac":"02-AA-00-00-00-01","mtu":1400`})
		Expect(a.Code).To(BeZero(), "%+v", a)
		Expect(a.Stderr).To(BeEmpty())
		golden, have := filepath.Join("testdata", "add-"+version+".json"), strings.ReplaceAll(a.Stdout, w.cont.Path,
			"NETNS")+"\n"
		if *update {
			Expect(os.WriteFile(golden, []byte(have), 0o644)).To(Succeed())
		}
		want := nstest.Must(os.ReadFile(golden))
		Expect(have).To(Equal(string(want)))
		Expect(state(w.cont, "eth0")).To(Equal("02:aa:00:00:00:01 mtu 1400 txqlen 1000"))
	},
		Entry(nil, "0.3.1"), Entry(nil, "0.4.0"), Entry(nil, "1.0.0"), Entry(nil, "1.1.0"),
	)

	It("writes nothing that is right already where nothing can be written", func() {
		w.cont.SetSysctl("net/core/somaxconn", "77")
		w.Cmd("mount", "--bind", "/proc/sys", "/proc/sys")
		w.Cmd("mount", "-o", "remount,bind,ro", "/proc/sys")
		Expect(w.exec("ADD", call{keys: `"sysctl":{"net.core.somaxconn":"77"}`}).Code).To(BeZero())
		Expect(w.exec("ADD", call{keys: `"mtu":1400,"sysctl":{"net.core.somaxconn":"78"}`}).Failed(cni.CodeIO)).
			To(HavePrefix(`sysctl["net.core.somaxconn"]: sysctl net.core.somaxconn: write "78": read-only file system`))
		Expect(state(w.cont, "eth0")).To(Equal(untouched))
	})

	It("reads the administrator's allow-list", func() {
		w.Cmd("mount", "-t", "tmpfs", "tmpfs", "/etc")
		Expect(w.exec("ADD", call{keys: everything}).Code).To(BeZero())
		w.Cmd("mkdir", "-p", "/etc/cni/tuning")
		w.Cmd("sh", "-c", "echo '^net.core.somaxconn$' >/etc/cni/tuning/allowlist.conf")
		Expect(w.exec("ADD", call{keys: `"sysctl":{"net.core.somaxconn":"78"}`}).Code).To(BeZero())
		Expect(w.exec("ADD", call{keys: everything}).Failed(cni.CodeConfig)).
			To(ContainSubstring("not allowed by /etc/cni/tuning/allowlist.conf"))
	})

	It("names the container's namespace that is gone", func() {
		gone := Call{Netns: "/nowhere"}
		w.exec("ADD", call{Call: gone, prev: "none", keys: `"mtu":1400`}).Failed(cni.CodeUnknownContainer)
		w.exec("ADD", call{Call: gone, keys: `"mtu":1400`}).Failed(cni.CodeEnvironment)
	})
})

var _ = Describe("beside the reference plugin", func() {
	for _, ref := range nstest.References() {
		Context("of "+ref.Name, func() { besideReference(ref) })
	}
})

func besideReference(ref nstest.Reference) {
	// What Debian's version has; sysctls are never restored by it.
	const keys = `"mac":"02:00:00:00:00:02","promisc":true,"mtu":1400,"allmulti":true,` +
		`"sysctl":{"net.core.somaxconn":"77"}`
	type program = func(command string, c call) Answer
	var w *world
	var ours, reference program
	BeforeEach(func() {
		w = newWorld()
		ours = w.exec
		reference = func(command string, c call) Answer {
			c.Command = command
			return w.Reference(ref, w.call(c))
		}
	})
	add := func(by program) string {
		GinkgoHelper()
		a := by("ADD", call{version: "1.0.0", keys: keys})
		Expect(a.Code).To(BeZero(), "%+v", a)
		Expect(state(w.cont, "eth0")).To(HavePrefix(otherMAC + " mtu 1400 "))
		return w.backup()
	}
	del := func(by program, prev string) {
		GinkgoHelper()
		a := by("DEL", call{version: "1.0.0", keys: keys, prev: prev})
		Expect(a.Code).To(BeZero(), "%+v", a)
		Expect(a.Stderr).To(BeEmpty())
	}
	tuned := func() string {
		return `{"cniVersion":"1.0.0","interfaces":[{"name":"eth0","mac":"` + strings.ToUpper(otherMAC) +
			`","sandbox":"` + w.cont.Path + `"}]}`
	}

	It("writes the same backup", func() {
		theirs := add(reference)
		del(reference, "none")
		Expect(w.files()).To(BeEmpty())
		Expect(add(ours)).To(Equal(theirs))
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
		IP(w.cont, "link del eth0")
		w.link(w.cont, "eth0")
		IP(w.cont, "link set eth0 mtu 1450")
		add(reference)
		del(ours, tuned())
		Expect(state(w.cont, "eth0")).To(Equal(firstMAC + " mtu 1450 txqlen 1000"))
		Expect(w.files()).To(BeEmpty())
	})

	It("checks what the reference changed", func() {
		add(reference)
		Expect(ours("CHECK", call{version: "1.0.0", keys: keys, prev: tuned()})).To(Equal(Answer{}))
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
		Expect(second).To(Equal(first))
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
