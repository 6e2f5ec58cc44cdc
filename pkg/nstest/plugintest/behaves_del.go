package plugintest

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/types"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/iface"
	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// variants returns the variants of DEL: the information that the call has, and what happened to the attachment before.
func (l *life) variants() map[string]DelVariant {
	prev := func(v any) DelVariant { return DelVariant{Call: WithKeys(Object{"prevResult": v})} }
	variants := map[string]DelVariant{
		"with everything that a runtime knows":        {},
		"without prevResult":                          {Call: without("prevResult")},
		"with prevResult null":                        prev(json.RawMessage("null")),
		"with a prevResult that cannot be read":       prev(Object{"ips": 5}),
		"with a prevResult of another version":        prev(Object{"cniVersion": "9.9.9"}),
		"without CNI_NETNS":                           {Call: at("")},
		"without CNI_NETNS and prevResult":            {Call: both(at(""), without("prevResult"))},
		"with a path that does not exist":             {Call: at("/run/netns/gone")},
		"without prevResult, and with a missing path": {Call: both(at("/run/netns/gone"), without("prevResult"))},
		"with a path to a file of another kind":       {Call: at("/proc/version")},
		"with a path to another kind of namespace":    {Call: at("/proc/self/ns/mnt")},
		"with the path of the host's own namespace":   {Call: at("/proc/thread-self/ns/net")},
		"with keys that have invalid values":          {Call: WithKeys(l.f.InvalidKeys)},
		"with keys that contradict ADD's":             {Call: WithKeys(l.f.ContraryKeys)},
		"with invalid CNI_ARGS":                       {Call: func(c *Call) { c.Args = "MAC=zz;nonsense" }},
		"when the namespace no longer exists":         {Before: func(_ *World, a Attached) { a.Unpin() }},
		"when the interface no longer exists":         {Before: ContainerIP("link del eth0")},
		"when the interface was renamed": {
			Before: ContainerIP("link set eth0 down", "link set eth0 name moved")},
		"when the container changed the MAC address": {Before: ContainerIP("link set eth0 address 02:00:00:00:00:77")},
		"when the container changed the addresses": {Before: ContainerIP("addr flush dev eth0",
			"addr add 10.1.0.77/24 dev eth0")},
		"when the interface was renamed and another one has its name": {
			Before: ContainerIP("link set eth0 down", "link set eth0 name moved",
				"link add eth0 type veth peer name x"),
			Leaves: []string{"eth0", "x"}},
		"with a prevResult that has invalid indexes": prev(Object{"cniVersion": "1.0.0",
			"ips": []Object{{"address": "10.1.0.3/24", "interface": 7},
				{"address": "2001:db8:1::3/64", "interface": 0}}}),
	}
	for where, loses := range Elsewhere() {
		before := func(_ *World, a Attached) { loses(a.Host) }
		variants["when "+where] = DelVariant{Call: at("/run/netns/gone"), Before: before}
	}
	return variants
}

// Elsewhere returns the ways in which a namespace stays alive without its path. Path then refers to it. Before Linux
// 5.14, which added cookies, only the path identifies a namespace, so Elsewhere returns none.
func Elsewhere() map[string]func(*nstest.Host) {
	if !HasCookies() {
		return nil
	}
	return map[string]func(*nstest.Host){
		"only a descriptor refers to the namespace": func(h *nstest.Host) {
			f := nstest.Must(os.Open(h.Path))
			DeferCleanup(f.Close)
			h.Unpin()
			h.Path = fmt.Sprintf("/proc/self/fd/%d", f.Fd())
		},
		"only a process is in the namespace": func(h *nstest.Host) {
			process := h.Start(nstest.Program{Path: "sleep", Args: []string{"1000"}}).Process
			h.Unpin()
			h.Path = fmt.Sprintf("/proc/%d/ns/net", process.Pid)
		},
		"the namespace is mounted elsewhere": func(h *nstest.Host) {
			file := filepath.Join(GinkgoT().TempDir(), "netns")
			Expect(os.WriteFile(file, nil, 0o600)).To(Succeed())
			Expect(unix.Mount(h.Path, file, "", unix.MS_BIND, "")).To(Succeed())
			DeferCleanup(unix.Unmount, file, unix.MNT_DETACH)
			h.Unpin()
			h.Path = file
		},
	}
}

// HasCookies reports whether the kernel has cookies of network namespaces (Linux 5.14).
func HasCookies() bool {
	sock, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return true // so that specs try them
	}
	defer unix.Close(sock)
	_, err = unix.GetsockoptUint64(sock, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	return err == nil
}

// PathsElsewhere returns table entries: each way of Elsewhere with an empty CNI_NETNS and with a path that does not
// exist.
func PathsElsewhere() (entries []TableEntry) {
	for _, where := range slices.Sorted(maps.Keys(Elsewhere())) {
		for _, path := range []string{"", "/run/netns/gone"} {
			entries = append(entries, Entry(fmt.Sprintf("%s, CNI_NETNS=%s", where, path), Elsewhere()[where], path))
		}
	}
	return entries
}

func (l *life) delVariants(variants map[string]DelVariant) {
	l.alive()
	for _, name := range slices.Sorted(maps.Keys(variants)) {
		f := variants[name]
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
	It("succeeds before ADD, and harms nothing", Label("del"), func() {
		cont := nstest.NewNetns()
		IP(cont, "link add eth0 type veth peer name x")
		for _, path := range []string{"", "/run/netns/gone", cont.Path} {
			l.Succeeds(Call{Command: "DEL", Netns: path, Conf: l.conf()})
		}
		Expect(Names(cont, "")).To(ConsistOf("eth0", "x"))
		l.isClean()
	})

	It("calls no IPAM plugin if ipam is missing", func() {
		c := l.attach("one", 3).As("DEL")
		without("ipam")(&c)
		l.Calls()
		l.Succeeds(c)
		Expect(l.Calls()).To(BeEmpty())
		l.isClean()
	})

	l.pairIt("leaves nothing behind on the iptables backend", func() {
		nstest.Need("iptables")
		rules := func() string { return l.Cmd("iptables-save", "-t", "nat") + l.Cmd("ip6tables-save", "-t", "nat") }
		c := l.attach("one", 3, Object{"ipMasqBackend": "iptables"}).As("DEL")
		Expect(rules()).To(And(ContainSubstring("10.1.0.3"), ContainSubstring("2001:db8:1::3")))
		both(at(""), without("prevResult", "ipMasqBackend", "ipMasq"))(&c)
		l.Succeeds(c)
		Expect(rules()).NotTo(Or(ContainSubstring("10.1.0.3"), ContainSubstring("2001:db8:1::3")))
		l.works(l.live)
	})

	It("needs no program except the IPAM plugin", Label("del"), func() {
		c := l.attach("one", 3).As("DEL")
		ipam := Object{"ipam": Object{"type": "host-local", "subnet": "10.1.0.0/24"}}
		both(at(""), without("prevResult"), WithKeys(ipam))(&c)
		c.Path = strings.TrimSuffix(nstest.Build("host-local"), "/host-local")
		program := c.Program(l.World, nstest.Build(l.Plugin.Name))
		program.Env = append(program.Env, "PATH=")
		out := l.Run(program)
		Expect(out).To(Equal(nstest.Output{CPU: out.CPU}))
		l.isClean()
	})
}

func (l *life) delOthers() {
	It("does not touch another container that has the namespace path now", Label("others-by-now"), func() {
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

	l.pairIt("does not touch another host interface that has the host end's name now", func() {
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

	l.pairIt("keeps the masquerade of an address that another attachment also has", func() {
		one := l.attach("one", 3, Object{"macspoofchk": nil})
		next := l.attach("new", 3, Object{"macspoofchk": nil})
		l.Succeeds(one.As("DEL"))
		Expect(l.Cmd("nft", "list", "ruleset")).NotTo(ContainSubstring(" one eth0"))
		Expect(l.Cmd("nft", "list", "map", "inet", "hawser", "masq4_v2")).To(ContainSubstring(" new eth0"))
		l.Succeeds(next.As("CHECK"))
	})
}

func (l *life) delOne() {
	It("removes one of several attachments of a container, and keeps the others", Label("two-interfaces"), func() {
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

	It("removes the attachment of one network, and keeps that of another network with the same IDs", func() {
		one := l.attach("one", 3)
		before := l.Snapshot()
		other := l.attach("one", 4, Object{"name": "other"})
		l.Succeeds(other.As("DEL"))
		Expect(Names(other.Host, "")).To(BeEmpty())
		Eventually(func() string { return l.Snapshot() }).Should(Equal(before))
		l.Succeeds(one.As("CHECK"))
	})
}

// shortages returns system calls that fail on the thread that searches for the interface. Another thread opens the
// socket in the container.
func (l *life) shortages() []TableEntry {
	entries := []TableEntry{Entry("no memory for a message", uint32(unix.SYS_SENDTO), unix.ENOBUFS)}
	if !l.f.NoHostEnd {
		entries = append(entries, Entry("no descriptor for a socket", uint32(unix.SYS_SOCKET), unix.EMFILE))
	}
	return entries
}

func (l *life) delIPAM() {
	DescribeTable("keeps the addresses while it cannot search for the interface:", Label("address-kept"), func(
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

	DescribeTable("does not release addresses while the interface cannot be deleted, and", Label("address-kept"), func(
		ipam string,
	) {
		a := l.attach("one", 3, Object{"ipam": Object{"type": ipam}})
		l.Calls()
		Expect(l.ExecUnprivileged(a.As("DEL")).Failed(cni.CodeInternal)).To(
			And(ContainSubstring("not asked to release"), ContainSubstring(l.hostEnd(a))))
		Expect(l.Calls()).To(BeEmpty())
		l.Succeeds(a.As("DEL"))
		Expect(l.Calls()).To(Equal([]string{"DEL one eth0"}))
		l.isClean()
	},
		Entry("IPAM does not need it", "whereabouts"),
		Entry("IPAM may need it", "fake"),
	)

	It("passes on IPAM's error after it has removed everything else", func() {
		a := l.attach("one", 3)
		l.On("DEL", Refusal)
		Expect(l.Fails(a.As("DEL"), 11)).To(Equal("later\npool"))
		l.isClean()
	})
}

func (l *life) delReleases() {
	DescribeTable("releases the addresses after it has removed", func(ipam string,
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
		Entry("the interface, if IPAM does not need it", "whereabouts", ContainSubstring(`"eth0" does not exist`)),
		Entry("the interface's addresses, if IPAM may need the interface", "fake",
			MatchRegexp(`eth0[@:].*[<,]UP[,>]`)),
	)

	l.pairIt("keeps the interface for an IPAM plugin that may need it, also if its MAC address was changed", func() {
		a := l.attach("one", 3, Object{"ipam": Object{"type": "fake"}})
		IP(a.Host, "link set eth0 address 02:00:00:00:00:99") // as tuning's DEL, before this one, does
		l.On("DEL", `cat >/dev/null; nsenter --net="$CNI_NETNS" ip addr show eth0 >"$d/seen" 2>&1; :`)
		Expect(l.Exec(a.As("DEL")).Code).To(BeZero())
		Expect(os.ReadFile(l.Dir + "/seen")).To(
			And(MatchRegexp(`eth0[@:].*[<,]UP[,>]`), Not(ContainSubstring("10.1.0.3"))))
		l.isClean()
	})
}

// Answers makes IPAM return a result to the failing ADD.
func Answers(result string) func(*World, *nstest.Host) {
	return func(w *World, _ *nstest.Host) { w.Lend(result, "two") }
}

// Lends makes IPAM lend addresses to the failing ADD, in the form of Lease.
func Lends(addrs ...string) func(*World, *nstest.Host) {
	return func(w *World, _ *nstest.Host) { w.LendAddrs("two", addrs...) }
}

func does(body string) func(*World, *nstest.Host) {
	return func(w *World, _ *nstest.Host) { w.On("ADD", body, "two") }
}

func early() map[string]Failure {
	return map[string]Failure{
		"the namespace does not exist": {
			Change: at("/run/netns/none"), Code: cni.CodeUnknownContainer, Message: "CNI_NETNS"},
		"CNI_NETNS is not a namespace": {Change: at("/proc/version"), Code: cni.CodeEnvironment, Message: "CNI_NETNS"},
		"CNI_NETNS is the host's": {Change: at("/proc/thread-self/ns/net"), Code: cni.CodeEnvironment,
			Message: "CNI_NETNS"},
		"the configuration is invalid": {Change: WithKeys(Object{"mtu": 5}), Code: cni.CodeConfig, Message: "mtu: 5"},
		"IPAM's type is a path": {Change: WithKeys(Object{"ipam": Object{"type": "../fake"}}), Code: cni.CodeConfig,
			Message: `"../fake"`},
		"the IPAM plugin does not exist": {
			Change: WithKeys(Object{"ipam": Object{"type": "nowhere"}, "bridge": "unmade"}),
			Code:   cni.CodeEnvironment, Message: `no plugin "nowhere"`},
		"the interface exists": {
			Prepare: func(_ *World, cont *nstest.Host) { IP(cont, "link add eth0 type veth peer name x") },
			Code:    cni.CodeExists, Message: `"eth0"`},
		"other links have the host end's names": {Prepare: func(w *World, _ *nstest.Host) {
			for _, name := range iface.HostNames(cni.Attachment{Network: "net", ContainerID: "two", IfName: "eth0"}) {
				IP(w.Host, "link add %s type veth peer name %s", name, strings.Replace(name, "veth", "peer", 1))
			}
		}, Code: cni.CodeConflict, Message: "veth", NeedsPair: true},
	}
}

func late() map[string]Failure {
	answer := func(result, says string) Failure {
		return Failure{Prepare: Answers(result), Code: cni.CodeIPAM, Message: says, IPAMAdded: true}
	}
	lease := func(code uint, says string, addrs ...string) Failure {
		return Failure{Prepare: Lends(addrs...), Code: code, Message: says, IPAMAdded: true}
	}
	end := func(body string, code uint, says string) Failure {
		return Failure{Prepare: does(body), Code: code, Message: says, IPAMAdded: true}
	}
	const routed = `{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.3/24","gateway":"10.1.0.1"}],` +
		`"routes":[{"dst":"10.9.0.0/16",`
	return map[string]Failure{
		"IPAM returns no address":             answer(`{"cniVersion":"1.1.0","ips":[]}`, `"fake"`),
		"IPAM prints incomplete JSON":         answer(`{"ips":[{"addr`, "fake"),
		"IPAM returns an invalid route":       answer(routed+`"scope":256}]}`, "routes[0].scope: 256"),
		"IPAM returns a gateway with a zone":  lease(cni.CodeIPAM, "fe80::1%eth0", "2001:db8:1::3/64 fe80::1%eth0"),
		"IPAM's gateway is of another family": lease(cni.CodeIPAM, "10.1.0.3/24", "10.1.0.3/24 2001:db8:1::1"),
		"the kernel refuses an address": lease(cni.CodeInternal, "ff05::3/64", Addrs(3)[0],
			"ff05::3/64 2001:db8:1::1"),
		"the kernel refuses a route of IPAM": {Prepare: Answers(routed + `"gw":"10.77.0.1"}]}`), Code: cni.CodeConfig,
			Message: "10.9.0.0/16", IPAMAdded: true},
		"IPAM is killed":           end("echo dying >&2; kill -9 $$", cni.CodeInternal, "dying"),
		"IPAM refuses with a code": end(Refusal, 11, "later\npool"),
		"another program owns the masquerade's table": {Prepare: func(w *World, _ *nstest.Host) {
			w.Cmd("nft", "delete", "table", "inet", "hawser")
			w.LockTable("inet hawser")
		}, Code: cni.CodeInternal, Message: "not permitted", IPAMAdded: true, NeedsPair: true},
		"IPAM hangs until the call's deadline": hanging(),
		"IPAM refuses ADD, and its DEL fails": {Prepare: func(w *World, _ *nstest.Host) {
			w.On("ADD", Refusal, "two")
			w.On("DEL", "echo broken >&2; exit 1", "two")
		}, Code: 11, Message: "release the addresses", IPAMAdded: true},
	}
}

// hanging returns the failure of an IPAM plugin that does not answer. The deadline expires when IPAM was called and
// the interface is up, because the plugin then only waits for IPAM.
func hanging() Failure {
	var isWaiting func() bool
	return Failure{Prepare: func(w *World, cont *nstest.Host) {
		asked := w.Dir + "/asked"
		isWaiting = func() bool {
			return exists(asked) && strings.Contains(cont.Cmd("ip", "-o", "link", "show", "up"), " eth0")
		}
		w.On("ADD", "touch $d/asked; exec sleep 1000", "two")
	}, Change: func(c *Call) { c.Ctx = nstest.DeadlineWhen(func() bool { return isWaiting() }) },
		Code: cni.CodeTryAgain, Message: "fake", IPAMAdded: true}
}

// untouched returns a snapshot of a container without a value that an ADD may set permanently, because other interfaces
// of the container share it.
func untouched(h *nstest.Host) string {
	GinkgoHelper()
	lines := slices.Collect(strings.Lines(h.Snapshot()))
	shared := func(line string) bool { return strings.Contains(line, "/conf/lo/disable_ipv6") }
	return strings.Join(slices.DeleteFunc(lines, shared), "")
}

// hostAddresses returns failures of ADD for addresses that the host has.
func hostAddresses() map[string]Failure {
	hostHas := func(address string) Failure {
		return Failure{Prepare: func(w *World, _ *nstest.Host) {
			link := "lo"
			if slices.Contains(Names(w.Host, ""), "up0") { // the master of a child: on the child's network
				link = "up0"
			}
			IP(w.Host, "addr add %s dev %s", address, link)
		},
			Code: cni.CodeConflict, Message: "the host has it", IPAMAdded: true}
	}
	return map[string]Failure{
		"the host has the IPv4 address": hostHas("10.1.0.3/32"),
		"the host has the IPv6 address": hostHas("2001:db8:1::3/128"),
		"the address is one of loopback": {Prepare: Lends("127.0.0.9/24 10.1.0.1"), Code: cni.CodeConflict,
			Message: "127.0.0.9", IPAMAdded: true},
	}
}

// commonFailures returns the failures that ADD of each main plugin can have.
func (l *life) commonFailures() map[string]Failure {
	all := early()
	maps.Copy(all, late())
	if !l.f.NoNeighbor {
		maps.Copy(all, hostAddresses())
	}
	return all
}

func (l *life) failures(all map[string]Failure) {
	l.alive()
	for _, name := range slices.Sorted(maps.Keys(all)) {
		f := all[name]
		if f.NeedsPair && l.f.NoHostEnd {
			continue
		}
		var labels Labels
		if _, ok := hostAddresses()[name]; ok {
			labels = Label("host-address")
		}
		It("when "+name, labels, func() {
			cont := nstest.NewNetns()
			l.LendAddrs("two", Addrs(3)...)
			c := Call{Command: "ADD", ID: "two", Netns: cont.Path, Conf: l.conf()}
			if f.Prepare != nil {
				f.Prepare(l.World, cont)
			}
			if f.Change != nil {
				f.Change(&c)
			}
			before, inside := l.Snapshot(), untouched(cont)
			says := l.Fails(c, f.Code)
			Expect(says).To(ContainSubstring(f.Message))
			Expect(strings.Contains(says, "roll-back")).To(Equal(strings.Contains(f.Message, "release")), says)
			l.wasAsked(f.IPAMAdded)
			Eventually(func() string { return l.Snapshot() }).Should(Equal(before))
			Eventually(untouched).WithArguments(cont).Should(Equal(inside))
			l.works(l.live)
		})
	}
}

// wasAsked checks that IPAM got a DEL for "two" if it got an ADD.
func (l *life) wasAsked(asked bool) {
	GinkgoHelper()
	calls := l.Calls()
	if !asked {
		Expect(calls).To(BeEmpty())
		return
	}
	// A plugin that ends early may not have recorded its ADD.
	Expect(slices.DeleteFunc(calls,
		func(c string) bool { return c == "ADD two eth0" })).To(Equal([]string{"DEL two eth0"}))
}

func (l *life) stopped() {
	It("when no process reads the result", func() {
		cont := nstest.NewNetns()
		l.LendAddrs("two", Addrs(3)...)
		c := Call{Command: "ADD", ID: "two", Netns: cont.Path, Conf: l.conf(), Stdout: BrokenPipe{}}
		a := l.Call(c)
		Expect(a.Code).To(Equal(1))
		Expect(a.Stderr).To(ContainSubstring("broken pipe"))
		l.wasAsked(true)
		l.isClean()
		Expect(Names(cont, "")).To(BeEmpty())
	})

	It("when a signal stops it while IPAM works", func() {
		l.On("ADD", "touch $d/started; exec sleep 1000", "two")
		cont := nstest.NewNetns()
		c := Call{Command: "ADD", ID: "two", Netns: cont.Path, Conf: l.conf()}
		cmd := l.Start(c.Program(l.World, nstest.Build(l.Plugin.Name)))
		Eventually(l.Dir + "/started").Should(BeAnExistingFile())
		Expect(cmd.Process.Signal(os.Interrupt)).To(Succeed())
		Expect(cmd.Wait()).To(HaveOccurred())
		l.wasAsked(true)
		l.isClean()
		Expect(Names(cont, "")).To(BeEmpty())
	})
}

func (l *life) second() {
	It("when it is the second ADD of a live attachment", Label("add-twice"), func() {
		inside, other := l.live.Snapshot(), nstest.NewNetns()
		again := func(path string, c Object) {
			GinkgoHelper()
			l.Fails(Call{Command: "ADD", ID: "live", Netns: path, Conf: c}, cni.CodeExists)
			Expect(l.Calls()).To(BeEmpty())
		}
		again(l.live.Path, l.conf())
		again(l.live.Path, l.conf(Object{"ipMasqBackend": "iptables", "mtu": nil}))
		again(other.Path, l.conf())
		Expect(Names(other, "")).To(BeEmpty())
		l.isClean()
		Expect(l.live.Snapshot()).To(Equal(inside))
		l.live.IP("link set eth0 down", "link set eth0 name moved")
		again(l.live.Path, l.conf())
		Expect(Names(l.live.Host, "")).To(Equal([]string{"moved"}))
	})

	DescribeTable("when it is the second of an attachment whose record is", Label("add-twice"), func(spoil string) {
		inside := l.live.Snapshot()
		l.Cmd("sh", "-c", spoil)
		l.Fails(Call{Command: "ADD", ID: "live", Netns: l.live.Path, Conf: l.conf()}, cni.CodeExists)
		Expect(l.Calls()).To(BeEmpty())
		Expect(l.live.Snapshot()).To(Equal(inside))
	},
		Entry("lost", "rm -f /run/hawser/links/*.json"),
		Entry("damaged", "for f in /run/hawser/links/*.json; do [ ! -e $f ] || echo { >$f; done"),
	)

	It("when the former namespace still ends, so that a later ADD succeeds without DEL", func() {
		old := l.attach("one", 3)
		for range 8 { // the kernel ends namespaces one after the other
			other := nstest.NewNetns()
			IP(other, "link add name a type veth peer name b")
			other.Unpin()
		}
		old.Unpin()
		cont := nstest.NewNetns()
		again := Call{Command: "ADD", ID: "one", Netns: cont.Path, Conf: l.conf()}
		l.startsAgain(cont, again, l.Call(again))
	})

	l.pairIt("when the kernel still keeps the former namespace, whose end it waits for", func() {
		old := l.attach("one", 3)
		kept := nstest.Must(os.Open(old.Path))
		defer kept.Close()
		old.Unpin()
		cont := nstest.NewNetns()
		again := Call{Command: "ADD", ID: "one", Netns: cont.Path, Conf: l.conf()}
		answer := l.start(again)
		l.AwaitSubscription(Links)
		Expect(kept.Close()).To(Succeed())
		l.startsAgain(cont, again, <-answer)
	})
}

// startsAgain checks that an ADD, its CHECK and its DEL succeed. It repeats an ADD, as runtimes do, if the kernel was
// too slow because it removes other namespaces.
func (l *life) startsAgain(cont *nstest.Host, again Call, answer Answer) {
	GinkgoHelper()
	Eventually(func() Answer {
		if answer.Code != 0 {
			answer.Failed(cni.CodeExists)
			answer = l.Call(again)
		}
		return answer
	}).Should(HaveField("Code", 0))
	again.Conf = With(l.conf(), answer.Added())
	l.works(Attached{Host: cont})
	for _, again.Command = range []string{"CHECK", "DEL"} {
		l.Succeeds(again)
	}
	l.isClean()
}

// start is Exec without waiting. The channel receives the answer.
func (l *life) start(c Call) <-chan Answer {
	answer := make(chan Answer, 1)
	go func() {
		defer GinkgoRecover()
		answer <- l.Exec(c)
	}()
	return answer
}

func (l *life) together() {
	It("when another ADD of the attachment waits for IPAM, which is not called again", func() {
		l.On("ADD", "cat >/dev/null; read go <\"$d/go\"; cat <<'E'\n"+Lease(Addrs(3)...)+"\nE", "two")
		l.Cmd("mkfifo", l.Dir+"/go")
		cont := nstest.NewNetns()
		c := Call{Command: "ADD", ID: "two", Netns: cont.Path, Conf: l.conf()}
		first := l.start(c)
		calls := func() string { calls, _ := os.ReadFile(l.Dir + "/calls"); return string(calls) }
		Eventually(calls).Should(Equal("ADD two eth0\n"))
		l.Fails(c, cni.CodeExists)
		c.Netns = nstest.NewNetns().Path
		l.Fails(c, cni.CodeExists)
		Expect(os.WriteFile(l.Dir+"/go", []byte("go\n"), 0o600)).To(Succeed())
		result := (<-first).Added()
		Expect(l.Calls()).To(Equal([]string{"ADD two eth0"}))
		c.Command, c.Netns, c.Conf = "DEL", cont.Path, With(l.conf(), result)
		l.Succeeds(c)
		l.isClean()
	})

	It("when it loses against a parallel ADD of the attachment, of which exactly one succeeds", func() {
		cont := nstest.NewNetns()
		l.LendAddrs("two", Addrs(3)...)
		c := Call{Command: "ADD", ID: "two", Netns: cont.Path, Conf: l.conf()}
		var got [4]Answer
		nstest.AtOnce(len(got), func(i int) { got[i] = l.Call(c) })
		var won []Answer
		for _, a := range got {
			if a.Code == 0 {
				won = append(won, a)
			} else {
				a.Failed(cni.CodeExists)
			}
		}
		Expect(won).To(HaveLen(1))
		Expect(l.Calls()).To(Equal([]string{"ADD two eth0"}))
		c.Command, c.Conf = "CHECK", With(l.conf(), won[0].Added())
		l.Succeeds(c)
	})
}
