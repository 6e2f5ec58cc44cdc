package plugintest

import (
	"context"
	"encoding/json"
	"maps"
	"os"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/types"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// forms are the ways to call DEL, with what is known of the attachment and what happened to it.
func (l *life) forms() map[string]Form {
	prev := func(v any) Form { return Form{Call: Saying(Object{"prevResult": v})} }
	forms := map[string]Form{
		"with all that a runtime knows":                 {},
		"without prevResult":                            {Call: without("prevResult")},
		"with prevResult null":                          prev(json.RawMessage("null")),
		"with a prevResult that cannot be read":         prev(Object{"ips": 5}),
		"with a prevResult of another version":          prev(Object{"cniVersion": "9.9.9"}),
		"without CNI_NETNS":                             {Call: at("")},
		"without CNI_NETNS and prevResult":              {Call: both(at(""), without("prevResult"))},
		"with a path that leads nowhere":                {Call: at("/run/netns/gone")},
		"with a path that leads nowhere, no prevResult": {Call: both(at("/run/netns/gone"), without("prevResult"))},
		"with a path to no namespace":                   {Call: at("/proc/version")},
		"with a path to another kind of namespace":      {Call: at("/proc/self/ns/mnt")},
		"with the path of the host's own namespace":     {Call: at("/proc/thread-self/ns/net")},
		"with keys that make no sense":                  {Call: Saying(l.f.Senseless)},
		"with keys that say otherwise":                  {Call: Saying(l.f.Otherwise)},
		"with CNI_ARGS that make no sense":              {Call: func(c *Call) { c.Args = "MAC=zz;nonsense" }},
		"when the namespace is gone":                    {Before: func(_ *World, a Attached) { a.Unpin() }},
		"when the interface is gone":                    {Before: Inside("link del eth0")},
		"when the interface is renamed": {
			Before: Inside("link set eth0 down", "link set eth0 name moved")},
		"when the container took another MAC address": {Before: Inside("link set eth0 address 02:00:00:00:00:77")},
		"when the container took other addresses": {Before: Inside("addr flush dev eth0",
			"addr add 10.1.0.77/24 dev eth0")},
		"when the interface is renamed and another has it": {
			Before: Inside("link set eth0 down", "link set eth0 name moved", "link add eth0 type veth peer name x"),
			Leaves: []string{"eth0", "x"}},
		"with a prevResult whose indexes make no sense": prev(Object{"cniVersion": "1.0.0",
			"ips": []Object{{"address": "10.1.0.3/24", "interface": 7},
				{"address": "2001:db8:1::3/64", "interface": 0}}}),
	}
	maps.Copy(forms, l.f.Forms)
	return forms
}

func (l *life) delForms() {
	l.alive()
	forms := l.forms()
	for _, name := range slices.Sorted(maps.Keys(forms)) {
		f := forms[name]
		It("leaves nothing behind "+name, Label("del"), func() {
			a := l.attach("one", 3)
			if f.Before != nil {
				f.Before(l.World, a)
			}
			c := a.As("DEL")
			if f.Call != nil {
				f.Call(&c)
			}
			l.Calls()
			for range 2 {
				l.Succeeds(c)
				Expect(l.Calls()).To(Equal([]string{"DEL one eth0"}))
				l.isClean()
				if exists(a.Path) {
					Expect(Names(a.Host, "")).To(ConsistOf(f.Leaves))
				}
			}
		})
	}
}

func (l *life) delAlways() {
	It("before ADD succeeds and harms nothing", Label("del"), func() {
		cont := nstest.NewNetns()
		IP(cont, "link add eth0 type veth peer name x")
		for _, path := range []string{"", "/run/netns/gone", cont.Path} {
			l.Succeeds(Call{Command: "DEL", Netns: path, Conf: l.conf()})
		}
		Expect(Names(cont, "")).To(ConsistOf("eth0", "x"))
		l.isClean()
	})

	It("without ipam asks nobody", func() {
		c := l.attach("one", 3).As("DEL")
		without("ipam")(&c)
		l.Calls()
		l.Succeeds(c)
		Expect(l.Calls()).To(BeEmpty())
		l.isClean()
	})

	l.pairIt("leaves nothing behind on the iptables backend either", func() {
		nstest.Need("iptables")
		rules := func() string { return l.Cmd("iptables-save", "-t", "nat") + l.Cmd("ip6tables-save", "-t", "nat") }
		c := l.attach("one", 3, Object{"ipMasqBackend": "iptables"}).As("DEL")
		Expect(rules()).To(And(ContainSubstring("10.1.0.3"), ContainSubstring("2001:db8:1::3")))
		both(at(""), without("prevResult", "ipMasqBackend", "ipMasq"))(&c)
		l.Succeeds(c)
		Expect(rules()).NotTo(Or(ContainSubstring("10.1.0.3"), ContainSubstring("2001:db8:1::3")))
		l.works(l.live)
	})

	It("needs no program but the delegate", Label("del"), func() {
		c := l.attach("one", 3).As("DEL")
		ipam := Object{"ipam": Object{"type": "host-local", "subnet": "10.1.0.0/24"}}
		both(at(""), without("prevResult"), Saying(ipam))(&c)
		c.Path = strings.TrimSuffix(nstest.Build("host-local"), "/host-local")
		program := c.Program(l.World, nstest.Build(l.Plugin.Name))
		program.Env = append(program.Env, "PATH=")
		Expect(l.Run(program)).To(Equal(nstest.Output{}))
		l.isClean()
	})
}

func (l *life) delOthers() {
	It("does not touch the container that has the namespace by now", Label("others-by-now"), func() {
		a := l.attach("one", 3)
		IP(a.Host, "link del eth0")
		for _, change := range []func(*Call){both(), without("prevResult")} {
			c := a.As("DEL")
			both(at(l.live.Path), change)(&c)
			l.Succeeds(c)
			l.isClean()
			Expect(Names(l.live.Host, "")).To(Equal([]string{"eth0"}))
		}
	})

	l.pairIt("does not touch a host interface that has the name by now", func() {
		a := l.attach("one", 3)
		IP(a.Host, "link del eth0")
		IP(l.Host, "link add %s type veth peer name other", l.hostEnd(a))
		for _, path := range []string{"", a.Path} {
			c := a.As("DEL")
			c.Netns = path
			l.Succeeds(c)
		}
		Expect(Names(l.Host, "")).To(ContainElements(l.hostEnd(a), "other"))
		IP(l.Host, "link del other")
		l.isClean()
	})

	l.pairIt("does not touch a device of the host that another plugin has moved into the container", func() {
		cont := nstest.NewNetns()
		IP(l.Host, "link add d0 type veth peer name d0p")
		IP(l.Host, "link set d0 alias d0 netns %s", cont.Name)
		IP(cont, "link set d0 name eth0")
		l.Succeeds(Call{Command: "DEL", Netns: cont.Path, Conf: l.conf()})
		Expect(Names(cont, "")).To(Equal([]string{"eth0"}))
		IP(l.Host, "link del d0p")
		l.isClean()
	})

	l.pairIt("leaves the masquerade of an address that has a new owner", func() {
		a := l.attach("one", 3, Object{"macspoofchk": nil})
		l.attach("new", 3, Object{"macspoofchk": nil})
		rules := l.Snapshot("nftables")
		l.Succeeds(a.As("DEL"))
		Expect(l.Snapshot("nftables")).To(Equal(rules))
	})
}

func (l *life) delOne() {
	It("takes one of several attachments of a container, and leaves the others", Label("two-interfaces"), func() {
		one := l.attach("one", 3)
		second, other := l.beside(one, "eth1", 4), l.beside(one, "eth2", 5, Object{"name": "other"})
		for _, a := range []Attached{one, second, other} {
			l.Succeeds(a.As("CHECK"))
		}
		for i, a := range []Attached{second, other} {
			l.Succeeds(a.As("DEL"))
			Expect(Names(one.Host, "")).To(HaveLen(2 - i))
			l.Succeeds(one.As("CHECK"))
			l.works(one)
		}
		l.Succeeds(one.As("DEL"))
		l.isClean()
	})

	It("takes the attachment of one network, and leaves that of another with the same container and interface", func() {
		one := l.attach("one", 3)
		before := l.Snapshot()
		other := l.attach("one", 4, Object{"name": "other"})
		l.Succeeds(other.As("DEL"))
		Expect(Names(other.Host, "")).To(BeEmpty())
		Eventually(func() string { return l.Snapshot() }).Should(Equal(before))
		l.Succeeds(one.As("CHECK"))
	})
}

// shortages are calls that fail on the thread that looks for the interface. A socket in the container
// is opened by another one.
func (l *life) shortages() []TableEntry {
	entries := []TableEntry{Entry("no memory for a message", uint32(unix.SYS_SENDTO), unix.ENOBUFS)}
	if !l.f.Child {
		entries = append(entries, Entry("no descriptor for a socket", uint32(unix.SYS_SOCKET), unix.EMFILE))
	}
	return entries
}

func (l *life) delIPAM() {
	DescribeTable("keeps the addresses while it cannot look for the interface:", Label("address-kept"), func(
		call uint32, errno unix.Errno,
	) {
		a := l.attach("one", 3)
		l.Calls()
		whole := l.Plugin.Del
		l.Plugin.Del = func(ctx context.Context, req *skel.Request) error {
			nstest.FailCall(call, errno)
			return whole(ctx, req)
		}
		Expect(l.Fails(a.As("DEL"), cni.CodeInternal)).To(ContainSubstring("not asked to release the addresses"))
		Expect(l.Calls()).NotTo(ContainElement(HavePrefix("DEL")))
		l.Plugin.Del = whole
		l.Succeeds(a.As("DEL"))
		Expect(l.Calls()).To(Equal([]string{"DEL one eth0"}))
		l.isClean()
	}, l.shortages())

	DescribeTable("withholds the addresses while the interface cannot be deleted", Label("address-kept"), func(
		ipam string,
	) {
		a := l.attach("one", 3, Object{"ipam": Object{"type": ipam}})
		l.Calls()
		Expect(l.Powerless(a.As("DEL")).Failed(cni.CodeInternal)).To(
			And(ContainSubstring("not asked to release"), ContainSubstring(l.hostEnd(a))))
		Expect(l.Calls()).To(BeEmpty())
		l.Succeeds(a.As("DEL"))
		Expect(l.Calls()).To(Equal([]string{"DEL one eth0"}))
		l.isClean()
	},
		Entry("of a store", "whereabouts"),
		Entry("of a plugin that may need the interface", "fake"),
	)

	DescribeTable("releases the addresses when nobody answers to them any more", func(ipam string,
		seen types.GomegaMatcher) {
		a := l.attach("one", 3, Object{"ipam": Object{"type": ipam}})
		l.On("DEL", `cat >/dev/null
			{ ip -o link; nft list ruleset; nsenter --net="$CNI_NETNS" ip addr show eth0; } >"$d/seen" 2>&1; :`)
		l.Calls()
		Expect(l.Exec(a.As("DEL")).Code).To(BeZero())
		Expect(l.Calls()).To(Equal([]string{"DEL one eth0"}))
		Expect(os.ReadFile(l.Dir + "/seen")).To(
			And(ContainSubstring(l.hostEnd(l.live)), seen, Not(ContainSubstring("10.1.0.3"))))
		l.isClean()
	},
		Entry("of a store: when the interface is gone", "whereabouts", ContainSubstring(`"eth0" does not exist`)),
		Entry("of a plugin that may need the interface: when it has no address", "fake",
			MatchRegexp(`eth0[@:].*[<,]UP[,>]`)),
	)

	It("passes IPAM's error on, when all else is gone", func() {
		a := l.attach("one", 3)
		l.On("DEL", Refusal)
		Expect(l.Fails(a.As("DEL"), 11)).To(Equal("later\npool"))
		l.isClean()
	})
}
