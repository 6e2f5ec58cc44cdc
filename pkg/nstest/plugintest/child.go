package plugintest

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
)

// ExpectLackOfKind expects that a kernel without links of a kind is told of before IPAM is asked,
// and that DEL and GC of the plugin that makes them do without.
func (w *World) ExpectLackOfKind(kind string, conf Object) {
	GinkgoHelper()
	c := Call{Command: "ADD", Netns: nstest.NewNetns().Path, Conf: conf}
	Expect(w.Fails(c, cni.CodeUnsupportedField)).To(HavePrefix(kind + ": not supported by this kernel"))
	c.Command = "STATUS"
	Expect(w.Fails(c, cni.CodeUnavailable)).To(HavePrefix(kind + ": not supported by this kernel"))
	Expect(w.Calls()).To(BeEmpty())
	c.Command = "DEL"
	w.Succeeds(c)
	c.Command, c.Conf = "GC", Merge(conf, Object{"cni.dev/valid-attachments": []Object{}})
	w.Succeeds(c)
}

// Refused is what an ADD of container "two" says that fails before IPAM is asked, and makes nothing.
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

// ExpectNothingLeft expects that nothing of an ADD is there that fails at IPAM or after it, and
// that IPAM has its addresses again.
func (w *World) ExpectNothingLeft(conf Object) {
	GinkgoHelper()
	for answer, code := range map[string]uint{Refusal: cni.CodeTryAgain, "cat >/dev/null; echo {}": cni.CodeIPAM,
		"cat >/dev/null; cat <<'E'\n" + `{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.2/24"}],
			"routes":[{"dst":"10.9.0.0/16","gw":"10.77.0.1"}]}` + "\nE": cni.CodeInternal} {
		w.On("ADD", answer, "two")
		cont := nstest.NewNetns()
		w.Fails(Call{Command: "ADD", ID: "two", Netns: cont.Path, Conf: conf}, code)
		Expect(Names(cont, "")).To(BeEmpty())
		Expect(w.Calls()).To(Equal([]string{"ADD two eth0", "DEL two eth0"}))
	}
}

// ExpectEnd expects that DEL and GC remove an attachment, whatever is known of it, and never the
// host's interface of the name; senseless are values that they must not mind.
func (w *World) ExpectEnd(conf, senseless Object, addrs ...string) {
	GinkgoHelper()
	for name, change := range map[string]func(a Attached, c *Call){
		"no namespace path": func(_ Attached, c *Call) { c.Netns = "" },
		"no prevResult":     func(_ Attached, c *Call) { delete(c.Conf.(Object), "prevResult") },
		"senseless keys":    func(_ Attached, c *Call) { c.Conf = Merge(c.Conf.(Object), senseless) },
		"a renamed interface": func(a Attached, _ *Call) {
			IP(a.Host, "link set eth0 down")
			IP(a.Host, "link set eth0 name moved")
		},
		"GC": func(_ Attached, c *Call) {
			c.Command, c.Conf = "GC", Merge(conf, Object{"cni.dev/valid-attachments": []Object{}})
		},
	} {
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
