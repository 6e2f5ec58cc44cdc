package rtnl

import (
	"errors"
	"math"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
)

// Places at which a link has a qdisc: Root queues what it sends, Ingress looks at
// what it receives.
const (
	Root    = netlink.HANDLE_ROOT
	Ingress = netlink.HANDLE_INGRESS
)

const (
	rootHandle    = 1 << 16      // 1:
	ingressHandle = 0xffff << 16 // ffff:
)

// TBF is a token bucket filter: Buffer is the time, in ticks of 64 ns, in which it
// sends a burst at its rate. What waits beyond Limit is dropped.
type TBF struct {
	Rate   uint64 // bytes/s
	Buffer uint32 // ticks
	Limit  uint32 // bytes
	Peak   uint32 // bytes/s that even a burst does not exceed; 0 = any
}

// Qdisc is what a link has at one of the places.
type Qdisc struct {
	Kind   string // "" = none but the kernel's own
	Handle uint32
	TBF    TBF // of that kind
}

// IsTBF reports whether the qdisc is one that AddTBF makes.
func (q Qdisc) IsTBF() bool { return q.Kind == "tbf" && q.Handle == rootHandle }

// AddTBF gives a link a TBF at its root. The error matches EEXIST where it has a
// qdisc there.
func (c *Conn) AddTBF(index int, t TBF) error {
	return c.addQdisc(&netlink.Tbf{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Handle: rootHandle, Parent: Root},
		Rate: t.Rate, Buffer: t.Buffer, Limit: t.Limit}, "add tbf", "sch_tbf")
}

// AddIngress gives a link the qdisc that Redirect's filter needs. The error matches
// EEXIST where it has a qdisc at Ingress.
func (c *Conn) AddIngress(index int) error {
	return c.addQdisc(&netlink.Ingress{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Handle: ingressHandle,
		Parent: Ingress}}, "add ingress qdisc", "sch_ingress")
}

func (c *Conn) addQdisc(q netlink.Qdisc, what, module string) error {
	err := c.linkError(q.Attrs().LinkIndex, what, c.create(func(h *netlink.Handle) error { return h.QdiscAdd(q) }))
	return lackingKind(err, module)
}

// lackingKind names the modules in the kernel's answer where it has none of the kind of a qdisc, filter or action.
func lackingKind(err error, modules string) error {
	if errors.Is(err, unix.ENOENT) {
		return cni.Lacking(err, modules)
	}
	return err
}

// Qdisc looks at one place of a link. The library lists the qdiscs of all links.
func (c *Conn) Qdisc(index int, place uint32) (q Qdisc, err error) {
	msg := &nl.TcMsg{Ifindex: int32(index), Parent: place}
	// Without ECHO the kernel tells only those who listen.
	answers, err := c.send(unix.RTM_GETQDISC, unix.NLM_F_ACK|unix.NLM_F_ECHO, msg)
	if err == nil && len(answers) == 1 {
		q = readQdisc(answers[0])
	}
	return q, c.linkError(index, "qdisc", unless(err, unix.ENOENT))
}

// TBFs are the filters at the root of all links, by the links' indexes.
func (c *Conn) TBFs() (map[int]TBF, error) {
	answers, err := c.send(unix.RTM_GETQDISC, unix.NLM_F_DUMP, &nl.TcMsg{})
	all := map[int]TBF{}
	for _, answer := range answers {
		msg := nl.DeserializeTcMsg(answer)
		if q := readQdisc(answer); q.IsTBF() && msg.Parent == Root {
			all[int(msg.Ifindex)] = q.TBF
		}
	}
	return all, wrap("qdiscs", err)
}

func readQdisc(answer []byte) (q Qdisc) {
	msg := nl.DeserializeTcMsg(answer)
	if msg.Handle == 0 { // the kernel's own
		return q
	}
	attrs := attributes(answer[msg.Len():])
	q.Handle, q.Kind = msg.Handle, nl.BytesToString(attrs[nl.TCA_KIND])
	options := attributes(attrs[nl.TCA_OPTIONS])
	if parms := options[nl.TCA_TBF_PARMS]; q.Kind == "tbf" && len(parms) >= nl.SizeofTcTbfQopt {
		opt := nl.DeserializeTcTbfQopt(parms)
		q.TBF = TBF{Rate: uint64(opt.Rate.Rate), Buffer: opt.Buffer, Limit: opt.Limit, Peak: opt.Peakrate.Rate}
		if rate := options[nl.TCA_TBF_RATE64]; len(rate) == 8 && opt.Rate.Rate == math.MaxUint32 {
			q.TBF.Rate = nl.NativeEndian().Uint64(rate)
		}
	}
	return q
}

// DelQdisc deletes what a link has at a place, with its filters. One that is gone
// already is no error, nor is a link that is.
func (c *Conn) DelQdisc(index int, place uint32) error {
	q := &netlink.GenericQdisc{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Parent: place}}
	err := c.use(func(h *netlink.Handle) error { return h.QdiscDel(q) })
	// EINVAL: it had but the ingress qdisc of another place.
	return c.linkError(index, "delete qdisc", unless(err, unix.ENOENT, unix.EINVAL, unix.ENODEV))
}

// Redirect has all that a link receives sent by another one. The link needs its
// ingress qdisc.
func (c *Conn) Redirect(index, to int) error {
	f := &netlink.U32{RedirIndex: to, ClassId: netlink.MakeHandle(1, 1), FilterAttrs: redirection(index)}
	err := c.linkError(index, "redirect", c.create(func(h *netlink.Handle) error { return h.FilterAdd(f) }))
	return lackingKind(err, "cls_u32, act_mirred")
}

// DelRedirect deletes what Redirect made, and leaves the link's other filters.
func (c *Conn) DelRedirect(index int) error {
	f := &netlink.U32{FilterAttrs: redirection(index)}
	return c.linkError(index, "delete filter", c.use(func(h *netlink.Handle) error { return h.FilterDel(f) }))
}

// redirection is what is asked first of all that a link receives.
func redirection(index int) netlink.FilterAttrs {
	return netlink.FilterAttrs{LinkIndex: index, Parent: ingressHandle, Priority: 1, Protocol: unix.ETH_P_ALL}
}

// Redirection is what a filter does with what a link receives.
type Redirection struct {
	To  int  // index of the link that sends it; 0 = that is gone, -1 = it does something else
	All bool // it does so with every packet
}

// Redirects lists what the filters of a link's ingress qdisc do, in their order.
func (c *Conn) Redirects(index int) (list []Redirection, err error) {
	var filters []netlink.Filter
	err = c.use(func(h *netlink.Handle) error {
		filters, err = h.FilterList(byIndex(index), ingressHandle)
		return err
	})
	for _, f := range filters {
		list = append(list, redirectOf(f))
	}
	return complete(list, c.linkError(index, "filters", err))
}

// redirectOf reads a filter whose actions are all the same redirection. The reference
// plugin says it twice.
func redirectOf(f netlink.Filter) Redirection {
	other := Redirection{To: -1}
	u32, ok := f.(*netlink.U32)
	if !ok || len(u32.Actions) == 0 {
		return other
	}
	r := other
	for i, a := range u32.Actions {
		mirred, ok := a.(*netlink.MirredAction)
		if !ok || mirred.MirredAction != netlink.TCA_EGRESS_REDIR || (i > 0 && mirred.Ifindex != r.To) {
			return other
		}
		r.To = mirred.Ifindex
	}
	picks := func(k netlink.TcU32Key) bool { return k.Mask != 0 }
	r.All = u32.Protocol == unix.ETH_P_ALL && u32.Sel != nil && !slices.ContainsFunc(u32.Sel.Keys, picks)
	return r
}

// ProbeQdisc is an error where the kernel lacks a kind of qdisc that needs options. It asks for one
// without any in place of what lo queues with, whatever that is. The kernel finds the kind, and
// refuses the qdisc before it touches the other one.
func (c *Conn) ProbeQdisc(kind string) error {
	const lo = 1
	msg := &nl.TcMsg{Ifindex: lo, Parent: Root}
	// These three flags together, without a handle, make a qdisc and never change one.
	flags := unix.NLM_F_ACK | unix.NLM_F_CREATE | unix.NLM_F_REPLACE | unix.NLM_F_EXCL
	_, err := c.send(unix.RTM_NEWQDISC, flags, msg, nl.NewRtAttr(nl.TCA_KIND, nl.ZeroTerminated(kind)))
	err = wrap("kind "+kind, unless(err, unix.EINVAL, unix.EEXIST)) // EEXIST: lo has one of that kind
	return lackingKind(err, "sch_"+kind)
}
