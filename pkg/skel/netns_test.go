package skel_test

import (
	"os"
	"path/filepath"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// own is the namespace of a thread that runs us; /proc/self is that of the
// thread that the process began with, which need not be the same.
const own = "/proc/thread-self/ns/net"

// ownForms are ways to name the plugin's own namespace.
func ownForms() []string {
	GinkgoHelper()
	nstest.NewNetns() // skips where we may not mount either
	link := filepath.Join(GinkgoT().TempDir(), "link")
	Expect(os.Symlink(own, link)).To(Succeed())
	pin := filepath.Join(GinkgoT().TempDir(), "pin")
	Expect(os.WriteFile(pin, nil, 0o644)).To(Succeed())
	Expect(unix.Mount(own, pin, "", unix.MS_BIND, "")).To(Succeed())
	DeferCleanup(unix.Unmount, pin, unix.MNT_DETACH)
	return []string{own, link, pin}
}

// noNetns are paths where something is, but no network namespace.
func noNetns() []string {
	file := filepath.Join(GinkgoT().TempDir(), "file")
	Expect(os.WriteFile(file, nil, 0o644)).To(Succeed())
	return []string{file, "/proc/self/ns/mnt", "/dev/null", "/proc/self/status", "/tmp"}
}

// gone are paths where nothing is.
func gone() []string {
	dir := GinkgoT().TempDir()
	dangling := filepath.Join(dir, "dangling")
	Expect(os.Symlink(filepath.Join(dir, "nothing"), dangling)).To(Succeed())
	ended := nstest.NewNetns()
	ended.Unpin()
	return []string{filepath.Join(dir, "nothing"), dangling, ended.Path, "/proc/0/ns/net"}
}

const confPrev = `{"cniVersion": "1.1.0", "name": "net1", "prevResult": {}}`

var _ = Describe("CNI_NETNS", func() {
	attachTo := func(command, path, conf string) request {
		return request{command: command, id: "c1", netns: path, ifname: "eth0", conf: conf}
	}

	It("that is our own is refused before the handler runs", Label("own-namespace"), func() {
		for _, path := range ownForms() {
			for _, command := range []string{"ADD", "CHECK"} {
				attachTo(command, path, conf1).run(forbidden()).expectError(cni.CodeEnvironment,
					ContainSubstring("CNI_NETNS: network namespace %q: is the plugin's own", path))
			}
		}
	})

	DescribeTable("that is our own is taken when asked to", func(value string, taken bool) {
		nstest.NewNetns()
		for _, command := range []string{"ADD", "CHECK", "DEL"} {
			r := attachTo(command, own, conf1)
			r.more = []string{"CNI_NETNS_OVERRIDE=" + value}
			a := r.run(probe(func(q *skel.Request) error {
				Expect(q.NS != nil).To(Equal(taken))
				return nil
			}))
			Expect(a.code == 0).To(Equal(taken || command == "DEL"), a.stdout)
		}
	},
		Entry("1", "1", true), Entry("true", "true", true), Entry("TRUE", "TRUE", true),
		Entry("empty", "", false), Entry("0", "0", false), Entry("false", "false", false), Entry("yes", "yes", false),
	)

	It("that is gone is code 3 on a first ADD only: elsewhere there is something to clean up", Label("code-3"), func() {
		for _, path := range gone() {
			names := ContainSubstring("CNI_NETNS: network namespace %q", path)
			attachTo("ADD", path, conf1).run(forbidden()).expectError(cni.CodeUnknownContainer, names)
			attachTo("ADD", path, confPrev).run(forbidden()).expectError(cni.CodeEnvironment, names)
			attachTo("CHECK", path, conf1).run(forbidden()).expectError(cni.CodeEnvironment, names)
			attachTo("CHECK", path, confPrev).run(forbidden()).expectError(cni.CodeEnvironment, names)
		}
	})

	It("that is no namespace is code 4", func() {
		nstest.NewNetns()
		for _, path := range noNetns() {
			for _, command := range []string{"ADD", "CHECK"} {
				attachTo(command, path, conf1).run(forbidden()).expectError(cni.CodeEnvironment,
					And(ContainSubstring("CNI_NETNS: network namespace %q", path),
						ContainSubstring("not a network namespace")))
			}
		}
	})

	It("is no reason for DEL to fail: without a container there is nothing to do in it", func() {
		unused := func(q *skel.Request) error { Expect(q.NS).To(BeNil()); return nil }
		for _, path := range append(gone(), "") {
			attachTo("DEL", path, conf1).run(probe(unused)).expectSilence()
		}
		for _, path := range append(noNetns(), ownForms()...) {
			a := attachTo("DEL", path, conf1).run(probe(unused))
			Expect(a.stderr).To(And(ContainSubstring("CNI_NETNS: network namespace %q", path),
				ContainSubstring("taken for gone")))
			Expect(answer{code: a.code, stdout: a.stdout}).To(Equal(answer{}))
		}
	})

	It("is open for DEL where it is there", func() {
		attach("DEL").run(probe(func(q *skel.Request) error {
			Expect(q.NS).NotTo(BeNil())
			return nil
		})).expectSilence()
	})

	It("is never looked at by IPAM plugins, GC and STATUS", Label("ipam-namespace"), func() {
		blind := probe(func(q *skel.Request) error { Expect(q.NS).To(BeNil()); return nil })
		ipam := blind
		ipam.IPAM = true
		for _, path := range append(append(gone(), noNetns()...), own) {
			Expect(attachTo("ADD", path, conf1).run(ipam).document()).To(HaveKey("ips"))
			attachTo("CHECK", path, conf1).run(ipam).expectSilence()
			attachTo("DEL", path, conf1).run(ipam).expectSilence()
			attachTo("STATUS", path, conf1).run(blind).expectSilence()
			attachTo("GC", path,
				`{"cniVersion": "1.1.0", "name": "x", "cni.dev/valid-attachments": []}`).run(blind).expectSilence()
		}
	})

	It("is closed when the call is over, and leaves no descriptor when it is refused", func() {
		open := func() int {
			list := nstest.Must(os.ReadDir("/proc/self/fd"))
			return len(list)
		}
		r := attach("ADD")
		r.run(probe(func(*skel.Request) error { return nil }))
		before := open()
		for range 20 {
			r.run(probe(func(*skel.Request) error { return errHandler }))
			attachTo("ADD", own, conf1).run(forbidden())
		}
		Expect(open()).To(BeNumerically("<", before+20))
	})
})

var _ = Describe("DEL", func() {
	It("takes a prevResult that cannot be read for none, and says so", func() {
		r := attach("DEL")
		r.conf = `{"cniVersion": "1.0.0", "name": "net1", "prevResult": {"cniVersion": "9.9.9"}}`
		a := r.run(probe(func(q *skel.Request) error { Expect(q.PrevResult).To(BeNil()); return nil }))
		Expect(a.code).To(BeZero())
		Expect(a.stdout).To(BeEmpty())
		Expect(a.stderr).To(ContainSubstring(`prevResult.cniVersion: "9.9.9"`))
	})
})
