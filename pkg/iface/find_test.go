package iface_test

import (
	"fmt"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/iface"
	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

var _ = Describe("the collection of pairs", Label("kernel"), func() {
	It("deletes those that are not valid, however many, and nobody else's", func() {
		const dead = 40
		host := nstest.NewHost()
		attachment := func(i int) cni.Attachment {
			return cni.Attachment{Network: "net", ContainerID: fmt.Sprint("c", i), IfName: "eth0"}
		}
		var batch strings.Builder
		for i := range dead + 2 {
			a := attachment(i)
			if i == dead {
				a.Network = "other"
			}
			fmt.Fprintf(&batch, "link add end%d type veth peer name peer%d\nlink set end%d alias %q\n", i, i, i, a.Mark())
		}
		fmt.Fprintf(&batch, "link add theirs type veth peer name peer\n")
		host.Run(nstest.Program{Path: "ip", Args: []string{"-batch", "-"}, Stdin: batch.String()})
		host.Do(func() {
			conn, err := rtnl.Dial(nil)
			Expect(err).NotTo(HaveOccurred())
			defer conn.Close()
			valid := attachment(dead + 1)
			Expect(iface.Collect(conn, cni.NewSet("net", []cni.AttachmentRef{{ContainerID: valid.ContainerID,
				IfName: valid.IfName}}))).To(Succeed())
		})
		left := host.Cmd("sh", "-c",
			"ip -br link show type veth | awk '{ print $1 }' | cut -d@ -f1 | grep -v peer | sort | xargs")
		Expect(strings.Fields(left)).To(ConsistOf(fmt.Sprint("end", dead), fmt.Sprint("end", dead+1), "theirs"))
	})
})
