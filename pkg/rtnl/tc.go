package rtnl

import (
	"encoding/binary"
	"errors"
	"math"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
)

// Places at which a link has a qdisc: Root queues what it sends, Ingress looks at what it receives.
const (
	Root    = netlink.HANDLE_ROOT
	Ingress = netlink.HANDLE_INGRESS
)

// Leaf is the place of what queues below a TBF.
const Leaf = rootHandle | 1

// Hooks at which filters look at a link's packets: Received by an ingress qdisc, and both of a clsact.
const (
	Received       = ingressHandle
	ClsactReceived = netlink.HANDLE_MIN_INGRESS
	ClsactSent     = netlink.HANDLE_MIN_EGRESS
)

const (
	rootHandle    = 1 << 16      // 1:
	leafHandle    = 2 << 16      // 2:
	ingressHandle = 0xffff << 16 // ffff:
)

// TBF is a token bucket filter: Buffer is the time, in ticks of 64 ns, in which it
// sends a burst at its rate. What waits beyond Limit is dropped.
type TBF struct {
	Rate   uint64 // bytes/s
	Buffer uint32 // ticks
	Limit  uint32 // bytes
	Peak   uint32 // bytes/s that even a burst does not exceed; 0 = any
	// Segment is how many bytes pass at once at the Peak; longer packets are cut. It is not read.
	Segment uint32
}

// Qdisc is what a link has at one of the places.
type Qdisc struct {
	Kind   string // "" = none but the kernel's own
	Handle uint32
	TBF    TBF // of that kind
}

// IsTBF reports whether the qdisc is one that AddTBF makes.
func (q Qdisc) IsTBF() bool { return q.Kind == "tbf" && q.Handle == rootHandle }

// AddTBF gives a link a TBF at its root. The error matches EEXIST where it has a qdisc there.
func (c *Conn) AddTBF(index int, t TBF) error {
	return c.addQdisc(&netlink.Tbf{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Handle: rootHandle, Parent: Root},
		Rate: t.Rate, Buffer: t.Buffer, Limit: t.Limit, Peakrate: uint64(t.Peak), Minburst: t.Segment},
		"add tbf", "sch_tbf")
}

// AddLeaf gives a link's TBF a qdisc of a kind, with the kernel's options, in place of its own queue. The error
// matches ENOENT where the kernel lacks the kind.
func (c *Conn) AddLeaf(index int, kind string) error {
	return c.addQdisc(&netlink.GenericQdisc{QdiscType: kind, QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index,
		Handle: leafHandle, Parent: Leaf}}, "add "+kind, "sch_"+kind)
}

// AddIngress gives a link the qdisc that Redirect's filter needs at Received. The error matches
// EEXIST where it has a qdisc at Ingress.
func (c *Conn) AddIngress(index int) error {
	return c.addQdisc(&netlink.Ingress{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Handle: ingressHandle,
		Parent: Ingress}}, "add ingress qdisc", "sch_ingress")
}

// AddClsact is AddIngress for both hooks.
func (c *Conn) AddClsact(index int) error {
	return c.addQdisc(&netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Handle: ingressHandle,
		Parent: Ingress}}, "add clsact qdisc", "sch_ingress")
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

// DelQdisc deletes what a link has at a place, with its filters. That it, or the link, is gone already is no error.
func (c *Conn) DelQdisc(index int, place uint32) error {
	q := &netlink.GenericQdisc{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Parent: place}}
	err := c.use(func(h *netlink.Handle) error { return h.QdiscDel(q) })
	// EINVAL: it had but the ingress qdisc of another place.
	return c.linkError(index, "delete qdisc", unless(err, unix.ENOENT, unix.EINVAL, unix.ENODEV))
}

// Exempt are packets that Redirect leaves alone.
type Exempt struct {
	Net netip.Prefix
	To  bool // those to Net; else those from it
}

// Redirect has all that passes a hook of a link sent by another one, but for what is exempt. The link needs the qdisc
// of the hook.
func (c *Conn) Redirect(index int, hook uint32, to int, exempt ...Exempt) error {
	f := &netlink.U32{RedirIndex: to, ClassId: netlink.MakeHandle(1, 1), FilterAttrs: redirection(index, hook)}
	for _, e := range exempt {
		f.Priority = redirection(index, hook).Priority + prefAfter
		if err := c.addFilter(e.filter(index, hook), "exempt "+e.Net.String()); err != nil {
			return err
		}
	}
	return c.addFilter(f, "redirect")
}

func (c *Conn) addFilter(f netlink.Filter, what string) error {
	err := c.linkError(f.Attrs().LinkIndex, what, c.create(func(h *netlink.Handle) error { return h.FilterAdd(f) }))
	return lackingKind(err, "cls_u32, act_mirred")
}

// DelRedirect deletes what Redirect made, with or without something exempt, and leaves the link's other filters.
func (c *Conn) DelRedirect(index int, hook uint32, exempt bool) error {
	first := redirection(index, hook)
	filters := []netlink.FilterAttrs{first}
	if exempt {
		ip4, ip6, after := first, first, first
		ip4.Protocol = unix.ETH_P_IP
		ip6.Protocol, ip6.Priority, after.Priority = unix.ETH_P_IPV6, first.Priority+prefIPv6, first.Priority+prefAfter
		filters = []netlink.FilterAttrs{after, ip4, ip6}
	}
	var errs []error
	for _, attrs := range filters {
		err := c.use(func(h *netlink.Handle) error { return h.FilterDel(&netlink.U32{FilterAttrs: attrs}) })
		if exempt { // perhaps of one family alone, or not yet all
			err = unless(err, unix.ENOENT, unix.EINVAL)
		}
		errs = append(errs, err)
	}
	return c.linkError(index, "delete filter", errors.Join(errs...))
}

// Preferences of the filters. That of the first is 1 for a redirection, or for what is exempt of IPv4.
const (
	prefIPv6  = 1  // after that, what is exempt of IPv6
	prefAfter = 2  // then a redirection from which something is exempt
	prefSent  = 10 // a list of u32 filters has those of both hooks where they have the same preference
)

// redirection is what is asked first of all that passes a hook of a link.
func redirection(index int, hook uint32) netlink.FilterAttrs {
	attrs := netlink.FilterAttrs{LinkIndex: index, Parent: hook, Priority: 1, Protocol: unix.ETH_P_ALL}
	if hook == ClsactSent {
		attrs.Priority += prefSent
	}
	return attrs
}

// Offsets of the source's address in a header; the destination's follows it.
const (
	sourceIPv4 = 12
	sourceIPv6 = 8
)

// filter matches the address, four bytes with each key. It has no action: the packet passes.
func (e Exempt) filter(index int, hook uint32) *netlink.U32 {
	attrs := redirection(index, hook)
	attrs.Protocol = unix.ETH_P_IP
	offset, addr := sourceIPv4, e.Net.Addr().AsSlice()
	if e.Net.Addr().Is6() {
		attrs.Protocol, offset = unix.ETH_P_IPV6, sourceIPv6
		attrs.Priority += prefIPv6
	}
	if e.To {
		offset += len(addr)
	}
	sel := &netlink.TcU32Sel{Flags: netlink.TC_U32_TERMINAL}
	mask := net.CIDRMask(e.Net.Bits(), 8*len(addr))
	for i := 0; i == 0 || i < len(addr) && mask[i] != 0; i += 4 {
		sel.Keys = append(sel.Keys, netlink.TcU32Key{Mask: binary.BigEndian.Uint32(mask[i:]),
			Val: binary.BigEndian.Uint32(addr[i:]), Off: int32(offset + i)})
	}
	sel.Nkeys = uint8(len(sel.Keys))
	return &netlink.U32{FilterAttrs: attrs, Sel: sel}
}

// exemptOf reads what filter made. It has no Net where the filter is another one.
func exemptOf(f *netlink.U32) (e Exempt) {
	size, offset := 4, sourceIPv4
	if f.Protocol == unix.ETH_P_IPV6 {
		size, offset = 16, sourceIPv6
	}
	if f.Sel == nil || len(f.Actions) > 0 || len(f.Sel.Keys) == 0 || len(f.Sel.Keys) > size/4 {
		return e
	}
	addr, mask := make([]byte, size), make([]byte, size)
	for i, k := range f.Sel.Keys {
		binary.BigEndian.PutUint32(addr[4*i:], k.Val)
		binary.BigEndian.PutUint32(mask[4*i:], k.Mask)
	}
	ip, _ := netip.AddrFromSlice(addr)
	bits, _ := net.IPMask(mask).Size()
	e = Exempt{Net: netip.PrefixFrom(ip, bits), To: int(f.Sel.Keys[0].Off) == offset+size}
	again := e.filter(f.LinkIndex, f.Parent)
	if again.Protocol != f.Protocol || !slices.Equal(again.Sel.Keys, f.Sel.Keys) {
		return Exempt{}
	}
	return e
}

// Redirection is what a filter does with what a link receives.
type Redirection struct {
	To  int  // index of the link that sends it; 0 = that is gone, -1 = it does something else
	All bool // it does so with every packet
	// Exempt are the packets that it lets pass before a redirection.
	Exempt Exempt
}

// Redirects lists what the filters at a hook of a link do, in their order.
func (c *Conn) Redirects(index int, hook uint32) (list []Redirection, err error) {
	var filters []netlink.Filter
	err = c.use(func(h *netlink.Handle) error {
		filters, err = h.FilterList(byIndex(index), hook)
		return err
	})
	for _, f := range filters {
		list = append(list, redirectOf(f))
	}
	return complete(list, c.linkError(index, "filters", err))
}

// redirectOf reads a filter whose actions are all the same redirection. The reference plugin says it twice.
func redirectOf(f netlink.Filter) Redirection {
	other := Redirection{To: -1}
	u32, ok := f.(*netlink.U32)
	if !ok {
		return other
	}
	if len(u32.Actions) == 0 {
		other.Exempt = exemptOf(u32)
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

// ProbeQdisc is an error where the kernel lacks a kind of qdisc: "tbf", which needs options, or "fq_codel". It asks for
// one without any, or with no flows, in place of what lo queues with, whatever that is. The kernel finds the kind, and
// refuses the qdisc before it touches the other one.
func (c *Conn) ProbeQdisc(kind string) error {
	const lo = 1
	msg := &nl.TcMsg{Ifindex: lo, Parent: Root}
	attrs := []*nl.RtAttr{nl.NewRtAttr(nl.TCA_KIND, nl.ZeroTerminated(kind))}
	if kind == "fq_codel" {
		options := nl.NewRtAttr(nl.TCA_OPTIONS, nil)
		options.AddRtAttr(nl.TCA_FQ_CODEL_FLOWS, nl.Uint32Attr(0))
		attrs = append(attrs, options)
	}
	// These three flags together, without a handle, make a qdisc and never change one.
	flags := unix.NLM_F_ACK | unix.NLM_F_CREATE | unix.NLM_F_REPLACE | unix.NLM_F_EXCL
	_, err := c.send(unix.RTM_NEWQDISC, flags, msg, attrs...)
	err = wrap("kind "+kind, unless(err, unix.EINVAL, unix.EEXIST)) // EEXIST: lo has one of that kind
	return lackingKind(err, "sch_"+kind)
}
