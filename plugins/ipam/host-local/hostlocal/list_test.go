package hostlocal

import (
	"os"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

var _ = Describe("List", func() {
	It("has the leases until DEL, and changes nothing", func() {
		n := networkIn("/var/lib/cni/networks", slash24)
		n.ExpectHeld(func(id, network string) (Call, []string) {
			c := n.call("ADD", id)
			c.Conf = strings.Replace(c.Conf.(string), `"net"`, `"`+network+`"`, 1)
			return c, []string{"address: " + addresses(n.Add(c))[0]}
		})
	})

	It("includes leases of a configured directory, with and without an owner", func() {
		n := newNetwork(slash24)
		Expect(n.add("one")).To(Equal([]string{"10.1.2.2"}))
		for name, content := range map[string]string{"10.1.2.7": "old", "10.1.2.8": "for a printer", "10.1.2.9": "\x00",
			"010.1.2.10": "x", "notes": "y"} {
			Expect(os.WriteFile(n.path(name), []byte(content), 0o600)).To(Succeed())
		}
		Expect(os.Mkdir(n.path("10.1.2.11"), 0o700)).To(Succeed())
		Expect(Held(n.Holdings(n.call("ADD", "").Conf.(string)))).To(ConsistOf("net one eth0 address: 10.1.2.2",
			"net old  address: 10.1.2.7", "net   address: 10.1.2.9"))
		Expect(n.Holdings("")).To(BeEmpty())
	})
})
