package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// unpublish is a DEL of the container, after prepare has changed its thread.
func (c *container) unpublish(prepare func(*call)) error {
	GinkgoHelper()
	var err error
	c.w.Do(func() {
		a := cni.Attachment{Network: c.network, ContainerID: c.id, IfName: c.ifName}
		under, openErr := open(&skel.Request{Attachment: a})
		Expect(openErr).NotTo(HaveOccurred())
		defer under.close()
		prepare(under)
		err = under.unpublish(context.Background(), a)
	})
	return err
}

var _ = Describe("a DEL that is repeated", Label("kernel"), func() {
	eachKind(func(k kind) {
		It("ends the flows that the first one could not end", func() {
			nstest.Need("conntrack")
			w := newWorld()
			w.bridge(1)
			c := w.container(1, 2)
			c.add(k.config, ports("53:53/udp"))
			w.Cmd("conntrack", "-I", "-p", "udp", "-t", "300", "-s", "192.0.2.2", "--sport", "1000", "-d", "192.0.2.1", "--dport", "53",
				"-r", "10.1.0.2", "--reply-port-src", "53", "-q", "192.0.2.2", "--reply-port-dst", "1000")
			Expect(c.unpublish(func(under *call) {
				_, err := under.nf.HasTable(table) // it has its socket; that of conntrack is another
				Expect(err).NotTo(HaveOccurred())
				nstest.FailNetfilterSockets(unix.EMFILE)
			})).To(MatchError(ContainSubstring("conntrack")))
			Expect(w.Cmd("conntrack", "-L", "-p", "udp")).To(ContainSubstring("10.1.0.2"))
			c.del()
			Expect(w.Cmd("conntrack", "-L", "-p", "udp")).NotTo(ContainSubstring("10.1.0.2"))
			Expect(w.Files("/run/hawser/portmap")).NotTo(ContainSubstring(".json"))
		})

		if k.variant == "legacy" {
			return // its iptables makes the call by which the next one is killed
		}
		It("hands the ports on when the first one was killed before that", func() {
			binary := nstest.Build("portmap")
			w := newWorld()
			w.bridge(1)
			w.bridge(2)
			first := w.container(1, 2)
			second := first.second("eth1", 2, 2)
			second.serve(80)
			first.add(k.config, ports("8080:80"))
			second.add(k.config, ports("8080:80"))
			in, err := json.Marshal(conf(object{"name": "net1"}))
			Expect(err).NotTo(HaveOccurred())
			cmd := exec.Command(binary)
			cmd.Stdin = bytes.NewReader(in)
			cmd.Env = []string{"CNI_COMMAND=DEL", "CNI_CONTAINERID=" + first.id, "CNI_IFNAME=eth0", "CNI_PATH=/x", "PATH=" + os.Getenv("PATH")}
			w.Do(func() {
				nstest.KillAtCall(unix.SYS_STATFS) // of the heir's namespace
				err = cmd.Run()
			})
			Expect(err).To(MatchError(ContainSubstring("bad system call")))
			Expect(w.Snapshot("nftables", "iptables-legacy")).NotTo(ContainSubstring("10.1.0.2:80"))
			first.del()
			Expect(w.reach(8080)).To(Equal("192.0.2.2"))
			second.check(k.config, ports("8080:80"))
		})
	})

	It("is needed when iptables is missing and something else failed too", func() {
		useVariant("legacy")
		w := newWorld()
		w.bridge(1)
		c := w.container(1, 2)
		c.add(kinds[2].config, ports("8080:80"))
		w.Cmd("sh", "-ec", "rm "+nft.DefaultLock+"; mkdir "+nft.DefaultLock)
		Expect(c.unpublish(func(*call) {
			withoutPrograms()
		})).To(MatchError(And(ContainSubstring(nft.DefaultLock+": is a directory"), ContainSubstring("executable file not found"))))
	})
})

var _ = Describe("a dead owner's rules", Label("kernel"), func() {
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
			w.Cmd("nft", "add", "element", "inet", "hawser", "portmap4_v1", `{ tcp . 9000 comment "`+mark+`" : 10.1.0.9 . 80 }`)
			c.add(ports("8080:80", "9000:80"))
			c.check(ports("8080:80", "9000:80"))
			c.del()
			c.vanish()
		}
	})
})
