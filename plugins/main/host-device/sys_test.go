package main

import (
	"maps"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

// withSys puts a /sys of the spec's own before the host's: directories and, with ->, links.
func withSys(w *World, entries ...string) {
	GinkgoHelper()
	w.Cmd("mount", "-t", "tmpfs", "tmpfs", "/sys")
	for _, entry := range append(entries, "class/net/d0p") {
		path, target, isLink := strings.Cut("/sys/"+entry, " -> ")
		if !isLink {
			w.Cmd("mkdir", "-p", path)
			continue
		}
		w.Cmd("mkdir", "-p", path[:strings.LastIndex(path, "/")])
		w.Cmd("ln", "-s", target, path)
	}
}

const (
	vf  = "0000:3b:00.1"
	pci = "bus/pci/devices/" + vf + "/"
	aux = "mlx5_core.sf.4"
	far = "10000:00:02.0" // behind a VMD controller, whose domains come after the 16 bits of the firmware's
)

// id is what a runtime sends of a device plugin.
func id(deviceID string) Object {
	return Object{"device": nil, "capabilities": Object{"deviceID": true},
		"runtimeConfig": Object{"deviceID": deviceID}}
}

// both are the keys of both; nil stays.
func both(one, other Object) Object {
	all := maps.Clone(one)
	maps.Copy(all, other)
	return all
}

var _ = Describe("a device that is meant by its place in /sys", Label("device-meant"), func() {
	It("is found", func() {
		w := newWorld()
		sys := []string{pci + "net/d0", pci + "driver -> ../drivers/ixgbevf",
			"bus/pci/devices/0000:00:01.0/virtio9/net/d0", "bus/pci/devices/0000:00:01.0/driver -> virtio-pci",
			"bus/pci/devices/" + far + "/net/d0", "bus/pci/devices/" + far + "/driver -> ../drivers/ixgbevf",
			"bus/auxiliary/devices/" + aux + "/net/d0", "devices/x/y/net/d0",
			"devices/pci10000:00/" + far + "/net/d0"}
		before := links(w)
		for _, c := range []struct {
			keys Object
			says string
		}{
			{Object{"device": nil, "pciBusID": vf}, `"pciID": "` + vf},
			{Object{"device": nil, "pciBusID": "0000:00:01.0"}, `"pciID": "0000:00:01.0`},
			{Object{"device": nil, "kernelpath": "/sys/devices/x/./y/"}, ""},
			{Object{"device": nil, "hwaddr": strings.ToUpper(mac0)}, ""},
			{id(vf), `"pciID": "` + vf}, {id(aux), ""},
			{Object{"device": nil, "pciBusID": far}, `"pciID": "` + far}, {id(far), `"pciID": "` + far},
			{Object{"device": nil, "kernelpath": "/sys/devices/pci10000:00/" + far}, ""},
			{both(id(vf), Object{"pciBusID": "0000:ff:00.0"}), `"pciID": "` + vf},
			{both(id(vf), Object{"device": "d0"}), ""},
		} {
			withSys(w, sys...)
			a := attached(w, conf(c.keys))
			Expect(a.Result.Text).To(ContainSubstring(c.says))
			Expect(Show(a.Host, "net1").Address).To(Equal(mac0))
			w.Succeeds(a.As("CHECK"))
			w.Cmd("umount", "/sys")
			w.Succeeds(a.As("DEL")) // whatever became of it
			Expect(links(w)).To(Equal(before))
		}
	})

	DescribeTable("is refused", func(says string, keys Object) {
		w := newWorld()
		addDevice(w, "d1", mac0)
		withSys(w, "bus/pci/devices/0000:00:02.0/net/d0", pci+"driver -> ../ixgbe", "devices/out -> ../class",
			"class/net/net/d0", "devices/empty")
		before := links(w)
		cont := nstest.NewNetns()
		refused := Call{Command: "ADD", IfName: "net1", Netns: cont.Path, Conf: conf(Object{"device": nil}, keys)}
		Expect(w.Fails(refused, cni.CodeConfig)).To(ContainSubstring(says))
		Expect(links(w)).To(Equal(before))
	},
		Entry("an unknown name", `device: "d9"`, Object{"device": "d9"}),
		Entry("a MAC address of two", "d0, d1", Object{"hwaddr": mac0}),
		Entry("an unknown MAC address", "02:00:00:00:00:99", Object{"hwaddr": "02:00:00:00:00:99"}),
		Entry("a path that leads out of it", "/sys/class/net", Object{"kernelpath": "/sys/devices/out/net"}),
		Entry("a path to nothing", "/sys/devices/none", Object{"kernelpath": "/sys/devices/none"}),
		Entry("a path without interface", "/sys/devices/empty", Object{"kernelpath": "/sys/devices/empty"}),
		Entry("an unknown PCI device", "0000:ff:00.0", Object{"pciBusID": "0000:ff:00.0"}),
		Entry("a PCI device without driver", `"0000:00:02.0" this device has no driver`,
			Object{"pciBusID": "0000:00:02.0"}),
		Entry("a PCI device without interface", vf, id(vf)),
		Entry("an unknown auxiliary device", aux, id(aux)),
		Entry("a device ID that leads elsewhere", "a/../b", id("a/../b")),
	)

	DescribeTable("that a userspace driver has stays where it is, and gets its addresses from IPAM", func(vf string) {
		w := newWorld()
		withSys(w, "bus/pci/devices/"+vf+"/driver -> ../drivers/vfio-pci")
		before := links(w)
		a := attached(w, conf(id(vf)))
		Expect(Names(a.Host, "")).To(BeEmpty())
		Expect(links(w)).To(Equal(before))
		Expect(a.Result.Text).To(And(ContainSubstring(`"pciID": "`+vf), ContainSubstring("10.1.0.2/24"),
			Not(ContainSubstring(`"mac"`))))
		Expect(a.Result.Interfaces[0].Name).To(Equal("net1"))
		w.Succeeds(a.As("CHECK"))
		other := nstest.NewNetns()
		taken := Call{Command: "ADD", ID: "two", IfName: "net1", Netns: other.Path, Conf: conf(id(vf))}
		Expect(w.Fails(taken, cni.CodeConflict)).To(ContainSubstring(`container "one"`))
		w.Calls()
		w.Cmd("umount", "/sys")
		w.Succeeds(a.As("DEL"))
		Expect(w.Calls()).To(Equal([]string{"DEL one net1"}))
		Expect(w.Files("/run/hawser")).NotTo(ContainSubstring(".json"))
	},
		Entry(nil, vf),
		Entry(nil, far),
	)

	It("is not taken for one with a userspace driver because the configuration says so", func() {
		w := newWorld()
		a := attached(w, conf(Object{"DPDKMode": true}))
		Expect(Names(a.Host, "")).To(Equal([]string{"net1"}))
	})
})

// FuzzRecord makes up the record of a container's device, here its eth0.
func FuzzRecord(f *testing.F) {
	const record = `{"network":"net","containerID":"one","ifname":"eth0","netns":"` + FuzzNetns +
		`","identity":IDENTITY,`
	Fuzz{
		Plugin: Any(plugin()), Chained: true,
		Confs: []string{`{"cniVersion":"1.1.0","name":"net","type":"host-device","device":"d0",` +
			`"cni.dev/valid-attachments":[],"prevResult":{"cniVersion":"1.1.0","interfaces":[{"name":"eth0",` +
			`"sandbox":"` + FuzzNetns + `"}]}}`},
	}.RunRecord(f, recordDir,
		record+`"device":{"key":"device","value":"d0"},"keepsIndex":true,"link":{"Index":LINK,"Name":"d0",`+
			`"Kind":"veth","MAC":"AgAAAAAB","MTU":1500,"TxQLen":1000,"Up":true}}`,
		record+`"device":{"key":"pciBusID","value":"0000:00:01.0"},"pci":"0000:00:01.0","failed":true,`+
			`"link":{"Index":LINK,"Name":"lo","PermMAC":"AgAAAAAB","Parent":"../x","MTU":-1}}`)
}
