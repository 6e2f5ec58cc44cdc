package firewall

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/godbus/dbus/v5"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

// fakeFirewalld answers on a bus of its own as firewalld does.
type fakeFirewalld struct {
	mu      sync.Mutex
	sources []string // "ZONE ADDRESS"
	conn    *dbus.Conn
	asked   int           // how often a change was asked for
	denies  bool          // as polkit does where the caller may change nothing
	stuck   chan struct{} // open: nothing is answered; nil, or closed: all is
}

func (f *fakeFirewalld) refuse(format string, args ...any) *dbus.Error {
	return dbus.MakeFailedError(fmt.Errorf(format, args...))
}

func (f *fakeFirewalld) mayChange() *dbus.Error {
	f.mu.Lock()
	stuck, denies := f.stuck, f.denies
	f.asked++
	f.mu.Unlock()
	if stuck != nil {
		<-stuck
	}
	if !denies {
		return nil
	}
	return dbus.NewError(firewalldName+".NotAuthorizedException", []any{"Not Authorized: addSource, config"})
}

func (f *fakeFirewalld) deny(denies bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.denies = denies
}

// hang leaves all calls without an answer until go is called.
func (f *fakeFirewalld) hang() (resume func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stuck = make(chan struct{})
	resume = sync.OnceFunc(func() { close(f.stuck) })
	DeferCleanup(resume)
	return resume
}

// AddSource is firewalld's addSource.
func (f *fakeFirewalld) AddSource(zone, source string) (string, *dbus.Error) {
	if err := f.mayChange(); err != nil {
		return "", err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.sources {
		switch have, _, _ := strings.Cut(s, " "); {
		case s == zone+" "+source:
			return "", f.refuse("ZONE_ALREADY_SET: '%s' already bound to '%s'", source, zone)
		case strings.HasSuffix(s, " "+source):
			return "", f.refuse("ZONE_CONFLICT: '%s' already bound to '%s'", source, have)
		}
	}
	if zone == "broken" {
		return "", f.refuse("COMMAND_FAILED: 'python-nftables' failed\n\nJSON blob:\n{}")
	}
	if zone != "trusted" && zone != "work" {
		return "", f.refuse("INVALID_ZONE: %s", zone)
	}
	f.sources = append(f.sources, zone+" "+source)
	return zone, nil
}

// RemoveSource is firewalld's removeSource.
func (f *fakeFirewalld) RemoveSource(zone, source string) (string, *dbus.Error) {
	if err := f.mayChange(); err != nil {
		return "", err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	i := slices.IndexFunc(f.sources, func(s string) bool { return strings.HasSuffix(s, " "+source) })
	switch {
	case i < 0:
		return "", f.refuse("UNKNOWN_SOURCE: '%s' is not in any zone", source)
	case zone != "trusted" && zone != "work":
		return "", f.refuse("INVALID_ZONE: %s", zone)
	case f.sources[i] != zone+" "+source:
		return "", f.refuse("ZONE_CONFLICT: remove_source(%s, %s)", zone, source)
	}
	f.sources = slices.Delete(f.sources, i, i+1)
	return zone, nil
}

// QuerySource is firewalld's querySource.
func (f *fakeFirewalld) QuerySource(zone, source string) (bool, *dbus.Error) {
	return slices.Contains(f.have(), zone+" "+source), nil
}

func (f *fakeFirewalld) have() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.sources)
}

// runs starts a system bus and firewalld on it, and returns the bus's address.
func (f *fakeFirewalld) runs() string {
	GinkgoHelper()
	nstest.StartBus()
	address := os.Getenv("DBUS_SYSTEM_BUS_ADDRESS")
	f.conn = nstest.Must(dbus.Connect(address))
	DeferCleanup(func() { _ = f.conn.Close() })
	names := map[string]string{"AddSource": "addSource", "RemoveSource": "removeSource", "QuerySource": "querySource"}
	Expect(f.conn.ExportWithMap(f, names, firewalldPath, firewalldZones)).To(Succeed())
	f.starts()
	return address
}

func (f *fakeFirewalld) starts() {
	GinkgoHelper()
	reply := nstest.Must(f.conn.RequestName(firewalldName, 0))
	Expect(reply).To(Equal(dbus.RequestNameReplyPrimaryOwner))
}

func (f *fakeFirewalld) stops() {
	GinkgoHelper()
	_, err := f.conn.ReleaseName(firewalldName)
	Expect(err).NotTo(HaveOccurred())
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sources = nil
}

// takes gives the container the addresses of another one, in its prevResult as well.
func (c *container) takes(other *container) {
	c.prev["ips"] = other.prev["ips"]
	c.IP("addr add "+other.addrs[0]+"/24 dev eth0", "addr add "+other.addrs[1]+"/64 dev eth0 nodad")
}

var _ = Describe("firewalld", func() {
	var w *world
	var c *container
	var f *fakeFirewalld
	asked := Object{"backend": "firewalld"}

	BeforeEach(func() {
		f = &fakeFirewalld{}
		f.runs()
		w, c = dropping()
	})

	for _, backend := range []Object{asked, {}, {"backend": ""}} {
		It("has the addresses in its zone, asked for or found", Label("firewalld"), func() {
			before := w.Snapshot("nftables")
			c.add(backend)
			Expect(f.have()).To(Equal([]string{"trusted 10.1.0.2/32", "trusted fd00:1::2/128"}))
			c.check(backend)
			Expect(w.Snapshot("nftables")).To(Equal(before))
			c.del()
			Expect(f.have()).To(BeEmpty())
			Expect(w.Files(recordDir)).NotTo(ContainSubstring(".json"))
		})
	}

	It("uses the zone of ADD in DEL, GC and CHECK", func() {
		c.add(Object{"firewalldZone": "work"})
		c.check(Object{"firewalldZone": "work"})
		Expect(c.drifts()).To(ContainSubstring("firewalldZone"))
		c.del(Object{"firewalldZone": "other"})
		Expect(f.have()).To(BeEmpty())
		c.add(Object{"firewalldZone": "work"})
		w.gc(1)
		Expect(f.have()).To(BeEmpty())
	})

	It("tells CHECK that a source is missing", func() {
		c.add()
		_, refused := f.RemoveSource("trusted", "10.1.0.2/32")
		Expect(refused).To(BeNil())
		Expect(c.drifts()).To(ContainSubstring("10.1.0.2 is not a source of zone"))
		f.stops()
		Expect(c.drifts()).To(ContainSubstring("is not running"))
	})

	It("has no address that is another container's or another machine's", Label("firewalld-sources"), func() {
		victim := w.container(1, 3)
		victim.add(Object{"backend": "nftables"})
		refuses := func(address, reason string) {
			GinkgoHelper()
			tenant := Object{"firewalldZone": "work", "prevResult": Merge(c.prev,
				Object{"ips": []Object{{"address": address, "interface": 2}}})}
			Expect(w.Fails(c.as("ADD", asked, tenant), 7)).To(ContainSubstring(reason))
			Expect(w.Warns(c.as("ADD", tenant))).To(And(ContainSubstring(reason),
				ContainSubstring("using backend nftables")))
			Expect(f.have()).To(BeEmpty())
			c.check(tenant)
			c.del(tenant)
		}
		refuses(victim.addrs[0]+"/24", `"10.1.0.3" is not an address of interface "eth0" in the container`)
		c.IP("addr add 192.0.2.66/32 dev eth0")
		refuses("192.0.2.66/32", `"192.0.2.66" belongs to another network: the host reaches it through "`)
		c.IP("addr add 192.0.2.1/32 dev eth0")
		refuses("192.0.2.1/32", `"192.0.2.1" belongs to another network: the host reaches it through "`)
	})

	It("has no address of a device without an interface, which nftables accepts", Label("firewalld-sources"), func() {
		c.IP("link del eth0")
		keys := Object{"firewalldZone": "work", "prevResult": Object{"cniVersion": "1.1.0", "interfaces": []Object{
			{"name": "eth0", "sandbox": c.Path, "pciID": "0000:00:05.0"}},
			"ips": []Object{{"address": "10.66.0.5/24", "interface": 0}}}}
		Expect(w.Warns(c.as("ADD", asked, keys))).To(And(ContainSubstring("using backend nftables"),
			ContainSubstring(`"10.66.0.5" is not an address of interface "eth0" in the container`)))
		Expect(f.have()).To(BeEmpty())
		c.check(asked, keys)
		c.del(asked, keys)
		By("an error of nftables names firewalld only in the warning")
		w.Cmd("nft", "delete table inet hawser; add table inet hawser; "+
			"add set inet hawser firewall4_v1 { type inet_service; }")
		Expect(w.Fails(c.as("ADD", asked, keys), 999)).To(HavePrefix("nftables table"))
	})

	It("has the address of a network without a gateway, or with a VLAN gateway", Label("firewalld-sources"), func() {
		w.IP("route add default via 192.0.2.2")
		keys := func(address string) Object {
			return Object{"prevResult": Merge(c.prev, Object{"ips": []Object{{"address": address, "interface": 2}}})}
		}
		c.IP("addr add 10.99.0.5/24 dev eth0")
		c.add(asked, keys("10.99.0.5/24"))
		Expect(f.have()).To(ConsistOf("trusted 10.99.0.5/32"))
		c.del(keys("10.99.0.5/24"))
		w.IP("link add br1.7 type veth peer name port7", "link set port7 master br1 up", "link set br1.7 up",
			"addr add 10.7.0.1/24 dev br1.7")
		c.IP("addr add 10.7.0.5/24 dev eth0")
		c.add(asked, keys("10.7.0.5/24"))
		Expect(f.have()).To(ConsistOf("trusted 10.7.0.5/32"))
		c.del(keys("10.7.0.5/24"))
	})

	It("has the address of a macvlan, which the host reaches through the same link or one above it",
		Label("firewalld-sources"), func() {
			w.IP("link add up0 type veth peer name out0", "link set up0 up", "link set out0 up",
				"addr add 10.66.0.1/24 dev up0")
			c.IP("link del eth0")
			w.IP("link add link up0 name mv0 type macvlan", "link set mv0 name eth0 netns "+c.Name)
			c.IP("link set eth0 up", "addr add 10.66.0.5/24 dev eth0")
			keys := Object{"prevResult": Object{"cniVersion": "1.0.0", "interfaces": []Object{{"name": "eth0",
				"sandbox": c.Path}}, "ips": []Object{{"address": "10.66.0.5/24", "interface": 0}}}}
			c.add(asked, keys)
			Expect(f.have()).To(ConsistOf("trusted 10.66.0.5/32"))
			c.del(keys)
			w.IP("link add link up0 name shim0 type macvlan", "link set shim0 up", "route add 10.66.0.5 dev shim0")
			c.add(asked, keys)
			Expect(f.have()).To(ConsistOf("trusted 10.66.0.5/32"))
			w.IP("route replace 10.66.0.5 dev br1")
			c.del(keys)
			Expect(w.Fails(c.as("ADD", asked, keys), 7)).To(ContainSubstring("belongs to another network"))

			By("but not one of a macvlan on a link that the host does not have")
			c.IP("link del eth0", "link add in0 type veth peer name in1", "link add link in0 name eth0 type macvlan",
				"link set eth0 up", "addr add 10.66.0.5/24 dev eth0")
			Expect(w.Fails(c.as("ADD", asked, keys), 7)).To(ContainSubstring("belongs to another network"))
			Expect(f.have()).To(BeEmpty())
		})

	It("refuses a zone that it does not know, or an address of another one, and nothing is left", func() {
		Expect(w.Fails(c.as("ADD", Object{"firewalldZone": "none"}), 999)).To(ContainSubstring("INVALID_ZONE"))
		Expect(w.Files(recordDir)).NotTo(ContainSubstring(".json"))
		Expect(w.Fails(c.as("ADD", Object{"firewalldZone": "broken"}), 999)).To(And(
			ContainSubstring("'python-nftables' failed; restart firewalld if its rules were flushed"),
			Not(ContainSubstring("JSON blob"))))
		_, refused := f.AddSource("work", "fd00:1::2/128")
		Expect(refused).To(BeNil())
		Expect(w.Fails(c.as("ADD"), 999)).To(ContainSubstring("ZONE_CONFLICT"))
		Expect(w.Fails(c.as("ADD", Object{"firewalldZone": "none"}), 999)).To(ContainSubstring("INVALID_ZONE"))
		Expect(f.have()).To(Equal([]string{"work fd00:1::2/128"}))
		Expect(w.Files(recordDir)).NotTo(ContainSubstring(".json"))
	})

	It("has the reference plugin's sources, which CHECK and DEL handle", Label("firewalld"), func() {
		keys := Object{"cniVersion": "1.0.0", "firewalldZone": "work"}
		w.Reference(nstest.Newest(), c.as("ADD", keys)).Added()
		c.check(keys)
		Expect(c.drifts(Object{"cniVersion": "1.0.0"})).To(ContainSubstring("10.1.0.2 is not a source of zone"))
		Expect(c.drifts(keys, Object{"backend": "iptables"})).To(ContainSubstring("CNI-FORWARD"))
		_, refused := f.RemoveSource("work", "fd00:1::2/128")
		Expect(refused).To(BeNil())
		Expect(c.drifts(keys)).To(ContainSubstring("fd00:1::2 is not a source of zone"))
		c.del(keys)
		Expect(f.have()).To(BeEmpty())
		c.del(keys, Object{"firewalldZone": 7})

		By("also where its DEL, which leaves our record, and its ADD with another address followed ours")
		c.add(keys)
		Expect(w.Reference(nstest.Newest(), c.as("DEL", keys)).Code).To(BeZero())
		next := Object{"prevResult": Merge(c.prev, Object{"cniVersion": "1.0.0",
			"ips": []Object{{"address": "10.1.0.9/24", "interface": 2}}})}
		w.Reference(nstest.Newest(), c.as("ADD", keys, next)).Added()
		c.IP("addr add 10.1.0.9/24 dev eth0")
		c.check(keys, next)
		c.del(keys, next)
		Expect(f.have()).To(BeEmpty())

		By("but not an address that a container of ours has by now")
		other := w.container(1, 3)
		other.takes(c)
		other.add(keys)
		c.del(keys)
		other.check(keys)
	})

	It("may stop and start between ADD and DEL", func() {
		c.add()
		f.stops()
		c.del()
		c.add()
		f.starts()
		c.check()
		c.del()
		Expect(w.set("firewall4_v1")).NotTo(ContainSubstring("10.1.0.2"))
		Expect(f.have()).To(BeEmpty())
	})

	It("keeps the policy of the bridge in nftables", func() {
		policy := Object{"ingressPolicy": "isolated"}
		c.add(policy)
		c.check(policy)
		Expect(w.set("firewall_policed_v1")).To(ContainSubstring("br1"))
		w.Cmd("nft", "flush", "set", "inet", "hawser", "firewall_policed_v1")
		Expect(c.drifts(policy)).To(ContainSubstring("isolated"))
		c.del()
		Expect(w.set("firewall_policed_v1")).NotTo(ContainSubstring("br1"))
	})

	It("keeps the chains of the bit that containers on nftables use, without a warning", func() {
		first, bit := w.container(1, 3), Object{"backend": "nftables", "markAcceptBit": 31}
		first.add(bit)
		c.call.Conf = Merge(c.call.Conf.(Object), Object{"name": "other"})
		Expect(w.Warns(c.as("ADD", Object{"ingressPolicy": "isolated"}))).To(BeEmpty())
		first.check(bit)
		c.check(Object{"ingressPolicy": "isolated"})
	})

	noRecord := func() {
		GinkgoHelper()
		Expect(w.Files(recordDir)).NotTo(ContainSubstring(".json"))
	}

	It("denies the right to change it: rules are in nftables, with a warning, and nothing is left",
		Label("firewalld-refuses"), func() {
			f.deny(true)
			Expect(w.Warns(c.as("ADD"))).To(And(ContainSubstring("backend nftables"),
				ContainSubstring("Not Authorized")))
			Expect(w.set("firewall4_v1")).To(ContainSubstring("10.1.0.2"))
			c.check()
			w.Fails(c.as("ADD"), 100)
			Expect(w.Warns(c.as("DEL"))).To(BeEmpty())
			noRecord()
		})

	It("denies the right to change it where it was asked for: the error names the key, and the next ADD works",
		Label("firewalld-refuses"), func() {
			f.deny(true)
			policy := Object{"ingressPolicy": "isolated"}
			Expect(w.Fails(c.as("ADD", asked, policy), 999)).To(And(HavePrefix(`backend "firewalld": `),
				ContainSubstring("Not Authorized")))
			noRecord()
			c.add(Object{"backend": "nftables"})
			c.del()
			f.deny(false)
			c.add(asked)
			f.deny(true)
			Expect(w.Warns(c.as("DEL"))).To(ContainSubstring("Not Authorized"))
			noRecord()
		})

	It("denies the removal of an address: GC warns, and the container can be added again, also in another zone",
		Label("firewalld-refuses"), func() {
			c.add(asked)
			f.deny(true)
			w.gc(1)
			noRecord()
			c.add(Object{"backend": "nftables"})
			c.check(Object{"backend": "nftables"})
			c.del()
			noRecord()
		})

	It("hangs: rules are in nftables, with a warning, and DEL undoes its late changes",
		Label("firewalld-refuses"), func() {
			resume := f.hang()
			Expect(w.Warns(c.as("ADD"))).To(And(ContainSubstring("backend nftables"), ContainSubstring("no answer")))
			c.check()
			resume()
			Eventually(f.have).Should(ConsistOf("trusted 10.1.0.2/32"))
			c.del()
			Expect(f.have()).To(BeEmpty())
			noRecord()
		})

	It("hangs: for a minute no other ADD waits for it, unless it was asked for", Label("firewalld-refuses"), func() {
		asks := func() int {
			f.mu.Lock()
			defer f.mu.Unlock()
			return f.asked
		}
		resume := f.hang()
		c.add()
		before := asks()
		d := w.container(1, 3)
		Expect(w.Warns(d.as("ADD"))).To(And(ContainSubstring("backend nftables"), ContainSubstring("no answer")))
		d.check()
		Expect(w.Warns(d.as("DEL"))).To(BeEmpty())
		Expect(asks()).To(Equal(before))
		Expect(w.Fails(d.as("ADD", asked), 11)).To(ContainSubstring("no answer on the system bus within 1s"))
		Expect(asks()).To(BeNumerically(">", before))

		By("until the minute is over")
		resume()
		w.Cmd("touch", "-d", "61 seconds ago", silenceFile)
		d.add()
		Expect(f.have()).To(ContainElement("trusted 10.1.0.3/32"))
	})

	It("hangs from DEL on: the container can be added with another backend", Label("firewalld-refuses"), func() {
		c.add(asked)
		resume := f.hang()
		Expect(w.Warns(c.as("DEL"))).To(ContainSubstring("no answer"))
		Expect(w.Warns(c.as("ADD", Object{"backend": "nftables"}))).To(ContainSubstring("no answer"))
		resume()
		c.check(Object{"backend": "nftables"})
		c.del()
		Expect(f.have()).To(BeEmpty())
		noRecord()
	})

	It("is missed by STATUS and ADD when it was asked for", func() {
		status := Call{Command: "STATUS", Conf: Object{"cniVersion": "1.1.0", "name": "net1", "type": "firewall",
			"backend": "firewalld"}}
		w.Succeeds(status)
		f.stops()
		Expect(w.Fails(status, 50)).To(ContainSubstring("is not running"))
		w.Fails(c.as("ADD", asked), 999)
		Expect(w.Files(recordDir)).NotTo(ContainSubstring(".json"))
	})

	It("is not sufficient for STATUS if a policy also needs nftables", func() {
		status := Call{Command: "STATUS", Conf: Object{"cniVersion": "1.1.0", "name": "net1", "type": "firewall",
			"backend": "firewalld", "ingressPolicy": "isolated"}}
		w.Succeeds(status)
		Expect(w.Fails(refused(status), 50)).To(ContainSubstring("not supported"))
	})
})

var _ = Describe("a bus that does not answer", func() {
	It("is given up after seconds: ADD fails with code 11, DEL warns and keeps its record", Label("firewalld"), func() {
		path := filepath.Join(GinkgoT().TempDir(), "bus")
		silent := nstest.Must(net.Listen("unix", path))
		DeferCleanup(func() { _ = silent.Close() })
		f := &fakeFirewalld{}
		address := f.runs()
		w := newWorld()
		c, d := w.container(1, 2), w.container(1, 3)
		c.add()
		GinkgoT().Setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path="+path)
		Expect(w.Fails(d.as("ADD", Object{"backend": "firewalld"}), 11)).To(And(HavePrefix(`backend "firewalld": `),
			ContainSubstring("no answer")))
		Expect(strings.Count(w.Files(recordDir), ".json")).To(Equal(1), "nothing was asked")
		Expect(w.Warns(c.as("DEL"))).To(ContainSubstring("no answer"))
		GinkgoT().Setenv("DBUS_SYSTEM_BUS_ADDRESS", address)
		c.del()
		Expect(f.have()).To(BeEmpty())
	})
})

var _ = Describe("the firewalld of the distribution", Label("kernel"), func() {
	It("has the addresses in its zone from ADD to DEL, and CHECK asks it", Label("firewalld"), func() {
		nstest.NeedProgram("firewalld", "firewall-cmd")
		f := &fakeFirewalld{}
		f.runs()
		f.stops() // its name is for the other
		w := newWorld()
		c := w.container(1, 2)
		w.Start(nstest.Program{Path: "firewalld", Args: []string{"--nofork", "--nopid", "--log-target", "console",
			"--system-config", GinkgoT().TempDir()}})
		Eventually(func() int {
			return w.Run(nstest.Program{Path: "firewall-cmd", Args: []string{"--state"}}).Exit
		}).Should(BeZero())
		sources := func() []string {
			return strings.Fields(w.Cmd("firewall-cmd", "--zone=trusted", "--list-sources"))
		}
		c.add()
		Expect(sources()).To(ConsistOf("10.1.0.2/32", "fd00:1::2/128"))
		c.check()
		w.Cmd("firewall-cmd", "--zone=trusted", "--remove-source=10.1.0.2/32")
		Expect(c.drifts()).To(ContainSubstring("10.1.0.2 is not a source of zone"))
		c.del()
		Expect(sources()).To(BeEmpty())
		w.Cmd("firewall-cmd", "--zone=work", "--add-source=10.1.0.2/32")
		Expect(w.Fails(c.as("ADD", Object{"firewalldZone": "none"}), 999)).To(ContainSubstring("INVALID_ZONE"))
		Expect(w.Fails(c.as("ADD"), 999)).To(ContainSubstring("ZONE_CONFLICT"))
		Expect(w.Files(recordDir)).NotTo(ContainSubstring(".json"))
	})
})
