package plugintest

import (
	"errors"
	"fmt"
	"os"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// Fixture describes a main plugin to Behaves.
type Fixture struct {
	Plugin skel.Plugin[any]
	// Conf uses every feature of the plugin, with addresses from the IPAM plugin fake. Specs may replace fake by
	// another IPAM plugin. The network's name is "net".
	Conf Object
	// Reference is a configuration for the reference plugin, of version 1.0.0.
	Reference Object
	// AlsoInProcess runs all specs a second time with IPAM in the plugin's process. One plugin is enough, because
	// pkg/ipam does this in the same way for all plugins.
	AlsoInProcess bool
	inProcess     bool
	// Shared means that the plugin attaches with the same code as another one that has a fixture: make test runs only
	// the specs that the fixture adds, and make test-all runs all.
	Shared bool
	// HostEnd is the index of the host end in the result's interfaces.
	HostEnd int
	// NoHostEnd means that the attachment has neither a host end nor a masquerade.
	NoHostEnd bool
	// NoNeighbor means that no other machine answers on the interface's network.
	NoNeighbor bool
	// Links are the host's links when no attachment exists.
	Links []string
	// Prepare prepares the host of a spec; nil does nothing.
	Prepare func(*World)
	// ListEntries returns the kinds and values that List has for an attachment, without the masquerade.
	ListEntries func(a Attached) []string
	// InvalidKeys are keys with invalid values, which DEL and GC must ignore.
	InvalidKeys Object
	// ContraryKeys are keys with valid values that contradict Conf, which DEL must ignore.
	ContraryKeys Object

	DelVariants map[string]DelVariant // additional ways to call DEL
	Failures    map[string]Failure    // additional ways for ADD to fail
	Drifts      map[string]Drift      // additional changes that CHECK must find
}

// DelVariant is a way in which a runtime may call DEL.
type DelVariant struct {
	Before func(w *World, a Attached)
	Call   func(c *Call)
	Leaves []string // links of the container that DEL must leave
}

// Failure is a way for ADD to fail, after Prepare and Change.
type Failure struct {
	Prepare   func(w *World, cont *nstest.Host)
	Change    func(c *Call)
	Code      uint
	Message   string // part of the error's message
	IPAMAdded bool   // IPAM served its ADD, and must get its DEL
	NeedsPair bool   // only possible with a veth pair and its masquerade
}

// Drift is a change of an attachment by commands on the host or in the container, separated by semicolons. END stands
// for the host end's name in the commands and in Messages.
type Drift struct {
	Host, Cont string
	Messages   []string // parts of CHECK's error
}

// InContainer returns a Drift by commands in the container.
func InContainer(commands string, messages ...string) Drift {
	return Drift{Cont: commands, Messages: messages}
}

// OnHost returns a Drift by commands on the host.
func OnHost(commands string, messages ...string) Drift {
	return Drift{Host: commands, Messages: messages}
}

// Behaves registers the specs of the life of an attachment that each main plugin passes: all variants of DEL, all
// failures of ADD, CHECK, GC, STATUS, and attachments of the reference plugins.
func Behaves(f Fixture) bool {
	var labels Labels
	if f.Shared {
		labels = Label("slow")
	}
	f.adds()
	Describe("as each main plugin:", labels, f.behaves)
	if f.AlsoInProcess {
		f.inProcess = true
		Describe("with IPAM in process:", Label("slow"), f.behaves)
	}
	return true
}

// adds registers the specs of what the fixture adds to those of each main plugin.
func (f Fixture) adds() {
	Describe("DEL", func() { f.life().delVariants(f.DelVariants) })
	Describe("a failing ADD leaves the host and the container as they were", func() { f.life().failures(f.Failures) })
	Describe("CHECK", func() { f.life().drifts(f.Drifts) })
}

func (f Fixture) behaves() {
	Describe("ADD", func() { f.life().dns() })
	Describe("DEL", func() {
		l := f.life()
		l.delVariants(l.variants())
		l.delAlways()
		l.delOthers()
		l.delOne()
		l.delIPAM()
		l.delReleases()
	})
	var further Labels
	if f.NoHostEnd { // ADD and its rollback have the same steps as with bridge
		further = Label("slow")
	}
	Describe("a failing ADD leaves the host and the container as they were", Label("add-fails"), further, func() {
		l := f.life()
		l.failures(l.commonFailures())
		l.stopped()
		l.second()
		l.together()
	})
	Describe("CHECK", func() {
		l := f.life()
		l.drifts(drifts())
		l.check()
	})
	Describe("GC", func() {
		l := f.life()
		l.gc()
		l.gcMore()
	})
	Describe("STATUS", func() { f.life().status() })
	Describe("List", func() { f.life().list() })
	for _, ref := range nstest.QuickReferences() {
		if !ref.Has(f.Plugin.Name) {
			continue
		}
		Describe("an attachment of "+ref.Name, func() { f.life().reference(ref) })
	}
}

// life is the world of a spec: a host with a live attachment, and its snapshot.
type life struct {
	*World
	f     Fixture
	live  Attached
	clean string
}

func (f Fixture) life() *life {
	l := &life{f: f}
	BeforeEach(func() {
		l.World = NewWorld(f.Plugin)
		if f.inProcess {
			l.InProcess()
		}
		if f.Prepare != nil {
			f.Prepare(l.World)
		}
	})
	return l
}

// alive attaches the live container, whose gateways must keep answering.
func (l *life) alive() {
	BeforeEach(func() {
		l.live = l.attach("live", 2)
		l.Calls()
		l.clean = l.Snapshot()
	})
}

// Addrs returns addresses of the n-th container, of both families, with gateways.
func Addrs(n int) []string {
	return []string{fmt.Sprintf("10.1.0.%d/24 10.1.0.1", n), fmt.Sprintf("2001:db8:1::%d/64 2001:db8:1::1", n)}
}

// conf returns the fixture's configuration with additional keys; the value nil removes a key.
func (l *life) conf(more ...Object) Object { return Merge(append([]Object{l.f.Conf}, more...)...) }

func (l *life) attach(id string, n int, more ...Object) Attached {
	GinkgoHelper()
	return l.Attach(id, l.conf(more...), Addrs(n)...)
}

// beside attaches a second interface to a's container.
func (l *life) beside(a Attached, ifName string, n int, more ...Object) Attached {
	GinkgoHelper()
	b := Attached{Host: a.Host, Call: Call{ID: a.Call.ID, IfName: ifName, Netns: a.Path, Conf: l.conf(more...)}}
	l.LendAddrs(a.Call.ID, Addrs(n)...)
	b.Result = l.Add(b.Call)
	return b
}

// hostEnd returns the name of the host's link whose removal ends the attachment.
func (l *life) hostEnd(a Attached) string {
	if l.f.NoHostEnd {
		return "eth0"
	}
	return a.Result.Interfaces[l.f.HostEnd].Name
}

// pairIt registers a spec about a veth pair and its masquerade, if the plugin creates one.
func (l *life) pairIt(text string, body func()) {
	if !l.f.NoHostEnd {
		It(text, body)
	}
}

func (l *life) dns() {
	It("passes on dns of IPAM, or of the configuration instead", func() {
		l.Lend(`{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.2/24","gateway":"10.1.0.1"}],
			"dns":{"nameservers":["192.0.2.1"],"domain":"ipam"}}`)
		dns := func(id string, of any) Object { return l.Attach(id, l.conf(Object{"dns": of})).Result.DNS }
		for id, of := range map[string]any{"one": nil, "two": Object{}} {
			Expect(dns(id, of)).To(Equal(Object{"nameservers": []any{"192.0.2.1"}, "domain": "ipam"}))
		}
		Expect(dns("three", Object{"search": []string{"x"}})).To(Equal(Object{"search": []any{"x"}}))
		Expect(dns("four", Object{"search": []string{}})).To(BeNil())
	})
}

func (l *life) list() {
	It("names what DEL removes, in all networks or in one, and changes nothing", func() {
		n := 2
		l.ExpectHeld(func(id, network string) (Call, []string) {
			n++
			a := l.attach(id, n, Object{"name": network})
			held := l.f.ListEntries(a)
			for _, ip := range a.Result.IPs {
				if !l.f.NoHostEnd {
					held = append(held, "masquerade: "+Addr(ip.Address))
				}
			}
			return a.As("DEL"), held
		})
	})
}

func (l *life) works(a Attached) {
	GinkgoHelper()
	if l.f.NoNeighbor {
		Expect(Show(a.Host, "eth0").Addrs()).NotTo(BeEmpty())
		return
	}
	Expect(Ping(a.Host, "10.1.0.1") && Ping(a.Host, "2001:db8:1::1")).To(BeTrue())
}

func (l *life) isClean() {
	GinkgoHelper()
	Eventually(func() string { return l.Snapshot() }).Should(Equal(l.clean))
	l.works(l.live)
}

func without(keys ...string) func(*Call) {
	return func(c *Call) {
		for _, k := range keys {
			delete(c.Conf.(Object), k)
		}
	}
}

// WithKeys returns a change of a configuration's keys; the value nil removes a key.
func WithKeys(keys Object) func(*Call) {
	return func(c *Call) { c.Conf = Merge(c.Conf.(Object), keys) }
}

func both(changes ...func(*Call)) func(*Call) {
	return func(c *Call) {
		for _, change := range changes {
			change(c)
		}
	}
}

func at(path string) func(*Call) { return func(c *Call) { c.Netns = path } }

// ContainerIP returns a function that runs ip(8) in the container.
func ContainerIP(commands ...string) func(*World, Attached) {
	return func(_ *World, a Attached) {
		a.IP(commands...)
	}
}

// ExecUnprivileged runs the built plugin without the right to change a link.
func (w *World) ExecUnprivileged(c Call) Answer {
	GinkgoHelper()
	nstest.NeedProgram("setpriv")
	p := c.Program(w, "setpriv", "--bounding-set", "-all", "--inh-caps", "-all", nstest.Build(w.Plugin.Name))
	return Ran(w.Run(p))
}

// LockTable creates a table that only the nft process that created it may change.
func (w *World) LockTable(table string) {
	GinkgoHelper()
	// One process, so that killing it ends everything.
	script := `mkfifo "$0/in"; exec 3<>"$0/in"; echo "add table $1 { flags owner; }" >&3; exec nft -i <&3`
	w.Start(nstest.Program{Path: "sh", Args: []string{"-c", script, w.Dir, table}})
	Eventually(func() string { return w.Cmd("nft", "list", "tables") }).Should(ContainSubstring(table))
}

// do runs commands in a host, separated by semicolons, with end in place of END.
func do(h *nstest.Host, commands, end string) {
	GinkgoHelper()
	for _, command := range strings.Split(commands, ";") {
		if args := strings.Fields(strings.ReplaceAll(command, "END", end)); len(args) > 0 {
			h.Cmd(args[0], args[1:]...)
		}
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// BrokenPipe is a standard output without a reader.
type BrokenPipe struct{}

func (BrokenPipe) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

// LackOfKind registers the spec for a kernel without a kind of link, which a feature needs. ADD must report it before
// it calls IPAM, and DEL and GC must work without it.
func LackOfKind(p skel.Plugin[any], kind, feature string, conf Object) bool {
	return It("needs a kernel with the kind "+kind+": otherwise ADD is code 2 before it calls IPAM, and STATUS 50",
		Label("no-kind"), func() {
			nstest.NeedLack(feature)
			w := NewWorld(p)
			Uplink(w.Host)
			w.lacks(feature, conf)
		})
}

func (w *World) lacks(module string, conf Object) {
	GinkgoHelper()
	says := "not supported by this kernel, which may lack " + module
	c := Call{Command: "ADD", Netns: nstest.NewNetns().Path, Conf: conf}
	Expect(w.Fails(c, cni.CodeUnsupportedField)).To(ContainSubstring(says))
	c.Command = "STATUS"
	Expect(w.Fails(c, cni.CodeUnavailable)).To(ContainSubstring(says))
	Expect(w.Calls()).To(BeEmpty())
	c.Command = "DEL"
	w.Succeeds(c)
	c.Command, c.Conf = "GC", Merge(conf, Object{"cni.dev/valid-attachments": []Object{}})
	w.Succeeds(c)
}

// Refused returns the message of an ADD of container "two" that must fail before it calls IPAM, and change nothing.
func (w *World) Refused(conf Object, code uint) string {
	GinkgoHelper()
	cont := nstest.NewNetns()
	inside := cont.Snapshot("links")
	w.Calls()
	says := w.Fails(Call{Command: "ADD", ID: "two", Netns: cont.Path, Conf: conf}, code)
	Expect(w.Calls()).To(BeEmpty())
	Expect(cont.Snapshot("links")).To(Equal(inside))
	return says
}

// ExpectNothingLeft expects an ADD that fails in IPAM or later to leave nothing, and to release its addresses.
func (w *World) ExpectNothingLeft(conf Object) {
	GinkgoHelper()
	for answer, code := range map[string]uint{Refusal: cni.CodeTryAgain, "cat >/dev/null; echo {}": cni.CodeIPAM,
		"cat >/dev/null; cat <<'E'\n" + `{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.2/24"}],
			"routes":[{"dst":"10.9.0.0/16","gw":"10.77.0.1"}]}` + "\nE": cni.CodeConfig} {
		w.On("ADD", answer, "two")
		cont := nstest.NewNetns()
		w.Fails(Call{Command: "ADD", ID: "two", Netns: cont.Path, Conf: conf}, code)
		Expect(Names(cont, "")).To(BeEmpty())
		Expect(w.Calls()).To(Equal([]string{"ADD two eth0", "DEL two eth0"}))
	}
}

// ExpectEnd expects DEL and GC to remove an attachment with any information about it, but not the host's interface of
// the same name. invalid are keys with invalid values that DEL and GC must ignore.
func (w *World) ExpectEnd(conf, invalid Object, addrs ...string) {
	GinkgoHelper()
	changes := map[string]func(a Attached, c *Call){
		"no namespace path": func(_ Attached, c *Call) { c.Netns = "" },
		"no prevResult":     func(_ Attached, c *Call) { delete(c.Conf.(Object), "prevResult") },
		"invalid keys":      func(_ Attached, c *Call) { c.Conf = Merge(c.Conf.(Object), invalid) },
		"a renamed interface": func(a Attached, _ *Call) {
			IP(a.Host, "link set eth0 down")
			IP(a.Host, "link set eth0 name moved")
		},
		"GC": func(_ Attached, c *Call) {
			c.Command, c.Conf = "GC", Merge(conf, Object{"cni.dev/valid-attachments": []Object{}})
		},
	}
	for where, loses := range Elsewhere() {
		for _, path := range []string{"", "/run/netns/gone"} {
			changes[where+", CNI_NETNS="+path] = func(a Attached, c *Call) { loses(a.Host); c.Netns = path }
		}
	}
	for name, change := range changes {
		a := w.Attach("one", conf, addrs...)
		c := a.As("DEL")
		change(a, &c)
		w.Calls()
		w.Succeeds(c)
		Expect(Names(a.Host, "")).To(BeEmpty(), name)
		Expect(w.Calls()).To(Equal([]string{c.Command + " one eth0"}), name)
	}
	a := w.Attach("one", conf, addrs...)
	IP(w.Host, "link add eth0 type bridge")
	c := a.As("DEL")
	c.Netns = "/proc/thread-self/ns/net"
	w.Succeeds(c)
	Expect(Names(a.Host, "")).To(BeEmpty())
	Expect(Names(w.Host, "")).To(ContainElement("eth0"))
}
