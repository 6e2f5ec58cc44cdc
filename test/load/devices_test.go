package load_test

import (
	"fmt"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

var _ = It("64 containers at a time take each a device of the host, and bring it home", func() {
	n := NewNode()
	pods, lists := make([]*Pod, workers), make([]List, workers)
	for i := range pods {
		name := fmt.Sprintf("d%d", i)
		IP(n.Host, "link add %s type veth peer name %sp", name, name)
		IP(n.Host, "link set %s up alias %s", name, name)
		pods[i] = NewPod("c" + name)
		lists[i] = List{{Plugin: "host-device", Keys: Object{"device": name, "ipam": HostLocal("10.88.0.0/24")}}}
	}
	before := n.Snapshot("links")
	together := func(do func(p *Pod, list List)) {
		GinkgoHelper()
		nstest.AtOnce(len(pods), func(i int) { do(pods[i], lists[i]) })
	}
	together(func(p *Pod, list List) { n.Up(p, list) })
	for i, p := range pods {
		Expect(Show(p.Host, "eth0").Ifalias).To(Equal(fmt.Sprintf("d%d", i)))
	}
	together(func(p *Pod, list List) { n.Must("DEL", p, list) })
	Expect(n.Snapshot("links")).To(Equal(before))
})

var _ = It("64 containers at a time get each a macvlan on one master", Label("kernel"), func() {
	nstest.Need("macvlan")
	n := NewNode()
	Uplink(n.Host)
	list := List{{Plugin: "macvlan", Keys: Object{"master": "up0", "ipam": HostLocal("10.88.0.0/24")}}}
	pods := make([]*Pod, workers)
	for i := range pods {
		pods[i] = NewPod(fmt.Sprintf("c%d", i))
	}
	nstest.AtOnce(workers, func(i int) { n.Up(pods[i], list) })
	macs := map[string]bool{}
	for _, p := range pods {
		macs[Show(p.Host, "eth0").Address] = true
	}
	Expect(macs).To(HaveLen(workers))
	nstest.AtOnce(workers, func(i int) { n.Must("DEL", pods[i], list) })
	for _, p := range pods {
		Expect(Names(p.Host, "")).To(BeEmpty())
	}
	Expect(n.Files("/run/hawser/links")).NotTo(ContainSubstring(".json"))
})
