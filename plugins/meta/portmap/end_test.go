package main

import (
	"context"
	"os"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// unpublish is a DEL of the container, after prepare has changed its thread.
func (c *container) unpublish(prepare func(*nft.Conn)) error {
	GinkgoHelper()
	var err error
	c.w.Do(func() {
		under, openErr := open(&skel.Request{Attachment: cni.Attachment{Network: c.network, ContainerID: c.id,
			IfName: c.ifName}})
		Expect(openErr).NotTo(HaveOccurred())
		defer under.nf.Close()
		defer under.host.Close()
		prepare(under.nf)
		err = under.unpublish(context.Background())
	})
	return err
}

var _ = Describe("a DEL that is repeated", Label("kernel"), func() {
	eachBackend(func(k kind) {
		It("ends the flows that the first one could not end", func() {
			nstest.Need("conntrack")
			w := newWorld()
			w.bridge(1)
			c := w.container(1, 2)
			c.add(k.config, ports("53:53/udp"))
			w.Cmd("conntrack", "-I", "-p", "udp", "-t", "300", "-s", "192.0.2.2", "--sport", "1000", "-d", "192.0.2.1",
				"--dport", "53",
				"-r", "10.1.0.2", "--reply-port-src", "53", "-q", "192.0.2.2", "--reply-port-dst", "1000")
			Expect(c.unpublish(func(nf *nft.Conn) {
				_, err := nf.Chain(table, outputChain) // it has its socket; that of conntrack is another
				Expect(err).NotTo(HaveOccurred())
				nstest.FailNetfilterSockets(unix.EMFILE)
			})).To(MatchError(ContainSubstring("conntrack")))
			Expect(w.Cmd("conntrack", "-L", "-p", "udp")).To(ContainSubstring("10.1.0.2"))
			c.del()
			Expect(w.Cmd("conntrack", "-L", "-p", "udp")).NotTo(ContainSubstring("10.1.0.2"))
			Expect(w.Files("/run/hawser/portmap")).NotTo(ContainSubstring(".json"))
		})
	})

	It("is not needed where iptables is missing and never had the host ports", func() {
		useVariant("nft")
		w := newWorld()
		w.bridge(1)
		w.Cmd("iptables-legacy-save", "-t", "nat") // makes the table
		c := w.container(1, 2)
		c.add(ports("8080:80"))
		path := os.Getenv("PATH")
		withoutPrograms()
		o := c.call("DEL")
		Expect(os.Setenv("PATH", path)).To(Succeed())
		Expect(o.exit).To(BeZero(), o.text())
		Expect(o.stderr).To(ContainSubstring(`"iptables-legacy-save": executable file not found`))
		Expect(w.Files("/run/hawser/portmap")).NotTo(ContainSubstring(".json"))
	})

	It("is needed when iptables is missing and something else failed too", func() {
		useVariant("legacy")
		w := newWorld()
		w.bridge(1)
		c := w.container(1, 2)
		c.add(kinds[2].config, ports("8080:80"))
		w.Cmd("sh", "-ec", "rm "+nft.LockPath+"; mkdir "+nft.LockPath)
		Expect(c.unpublish(func(*nft.Conn) {
			withoutPrograms()
		})).To(MatchError(And(ContainSubstring(nft.LockPath+": is a directory"),
			ContainSubstring("executable file not found"))))
	})
})

var _ = Describe("a former owner's rules", Label("kernel"), func() {
	It("go once, also when the plan has to be made again", func() {
		w := newWorld()
		w.bridge(1)
		for _, id := range []string{"c1-2", "c1-3"} { // the same attachment, another one
			old := w.container(1, 2)
			old.add(ports("8080:80"))
			old.vanish()
			c := w.container(1, 3)
			c.id = id
			// What a kill left of an ADD before the records were lost.
			mark := cni.Attachment{Network: c.network, ContainerID: c.id, IfName: c.ifName}.Mark()
			w.Cmd("nft", "add", "element", "inet", "hawser", "portmap4_v1",
				`{ tcp . 9000 comment "`+mark+`" : 10.1.0.9 . 80 }`)
			c.add(ports("8080:80", "9000:80"))
			c.check(ports("8080:80", "9000:80"))
			c.del()
			c.vanish()
		}
	})
})
