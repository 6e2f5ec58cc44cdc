package iface_test

import (
	"context"
	"fmt"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/iface"
	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

var _ = Describe("the claim of an attachment", Label("kernel"), func() {
	var host *nstest.Host
	var warned []string
	BeforeEach(func() { host, warned = nstest.NewHost(), nil })

	claim := func(id string) (release func(), err error) {
		host.Do(func() {
			var conn *rtnl.Conn
			if conn, err = rtnl.Dial(nil); err != nil {
				return
			}
			defer conn.Close()
			release, err = iface.Pair{Attachment: cni.Attachment{Network: "net", ContainerID: id, IfName: "eth0"}, Host: conn, Cont: conn}.
				Claim(context.Background(), func(format string, args ...any) { warned = append(warned, fmt.Sprintf(format, args...)) })
		})
		return release, err
	}

	It("is one's at a time, and nobody else's business", func() {
		release, err := claim("one")
		Expect(err).NotTo(HaveOccurred())
		_, err = claim("one")
		Expect(cni.AsError(err).Code).To(Equal(cni.CodeExists))
		other, err := claim("two")
		Expect(err).NotTo(HaveOccurred())
		release()
		again, err := claim("one")
		Expect(err).NotTo(HaveOccurred())
		again()
		other()
		Expect(warned).To(BeEmpty())
		Expect(host.Cmd("find", "/run/hawser", "-type", "f", "-printf", "%f %m %s")).To(Equal("claims 600 0"), "nobody but root can open it")
	})

	It("is done without where /run cannot be written to, with a warning", func() {
		host.Cmd("mount", "-t", "tmpfs", "-o", "ro", "tmpfs", "/run")
		release, err := claim("one")
		Expect(err).NotTo(HaveOccurred())
		release()
		Expect(warned).To(ConsistOf(ContainSubstring("read-only file system; another ADD")))
	})

	It("is no way to another's file", func() {
		host.Cmd("sh", "-ec", "mkdir -p /run/hawser; ln -s /run/other /run/hawser/claims")
		_, err := claim("one")
		Expect(err).NotTo(HaveOccurred())
		Expect(warned).To(HaveLen(1))
		Expect(host.Cmd("ls", "/run")).NotTo(ContainSubstring("other"))
	})
})
