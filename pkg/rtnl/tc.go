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

// Parents of a link's qdiscs. The qdisc at Root queues the packets that the link sends. A qdisc at Ingress has filters
// for the packets that the link receives, and cannot queue.
const (
	Root    = netlink.HANDLE_ROOT
	Ingress = netlink.HANDLE_INGRESS
)

// Leaf is the parent of the qdisc below a TBF.
const Leaf = rootHandle | 1

// Hooks are the parents of filters.
const (
	Received       = ingressHandle              // received packets, with an ingress qdisc
	ClsactReceived = netlink.HANDLE_MIN_INGRESS // received packets, with a clsact qdisc
	ClsactSent     = netlink.HANDLE_MIN_EGRESS  // sent packets, with a clsact qdisc
)

const (
	rootHandle    = 1 << 16      // 1:
	leafHandle    = 2 << 16      // 2:
	ingressHandle = 0xffff << 16 // ffff:
)

// TBF is a token bucket filter.
type TBF struct {
	Rate   uint64 // bytes/s
	Buffer uint32 // time to send a burst at Rate, in ticks of 64 ns
	Limit  uint32 // length of the queue in bytes; further packets are dropped
	Peak   uint32 // largest rate of a burst in bytes/s; 0 = no limit
	// Segment is the number of bytes that may pass in one burst at Peak; Qdisc does not return it.
	Segment uint32
}

// Qdisc is a link's qdisc at a parent.
type Qdisc struct {
	Kind   string // "" = none, or the kernel's default
	Handle uint32
	TBF    TBF // only if Kind is "tbf"
}

// IsTBF reports whether the qdisc is a TBF with the handle that AddTBF gives it.
func (q Qdisc) IsTBF() bool { return q.Kind == "tbf" && q.Handle == rootHandle }

// AddTBF adds a TBF at Root. The error matches EEXIST if the link has a qdisc there.
func (c *Conn) AddTBF(index int, t TBF) error {
	return c.addQdisc(&netlink.Tbf{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Handle: rootHandle, Parent: Root},
		Rate: t.Rate, Buffer: t.Buffer, Limit: t.Limit, Peakrate: uint64(t.Peak), Minburst: t.Segment},
		"add tbf", "sch_tbf")
}

// AddLeaf replaces the queue of a link's TBF with a qdisc of a kind, with default options. The error matches ENOENT if
// the kernel lacks the kind.
func (c *Conn) AddLeaf(index int, kind string) error {
	return c.addQdisc(&netlink.GenericQdisc{QdiscType: kind, QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index,
		Handle: leafHandle, Parent: Leaf}}, "add "+kind, "sch_"+kind)
}

// AddIngress adds an ingress qdisc, for Redirect at Received. The error matches EEXIST if the link has a qdisc there.
func (c *Conn) AddIngress(index int) error {
	return c.addQdisc(&netlink.Ingress{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Handle: ingressHandle,
		Parent: Ingress}}, "add ingress qdisc", "sch_ingress")
}

// AddClsact adds a clsact qdisc, for Redirect at ClsactReceived and ClsactSent. For EEXIST, see AddIngress.
func (c *Conn) AddClsact(index int) error {
	return c.addQdisc(&netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Handle: ingressHandle,
		Parent: Ingress}}, "add clsact qdisc", "sch_ingress")
}

func (c *Conn) addQdisc(q netlink.Qdisc, what, module string) error {
	err := c.linkError(q.Attrs().LinkIndex, what, c.retryCreate(func(h *netlink.Handle) error { return h.QdiscAdd(q) }))
	return withModules(err, module)
}

// withModules adds the modules to err if the kernel lacks the kind of a qdisc, a filter or an action.
func withModules(err error, modules string) error {
	if errors.Is(err, unix.ENOENT) {
		return cni.LacksModules(err, modules)
	}
	return err
}

// Qdisc returns the qdisc of a link at a parent. It does not use the library, which lists the qdiscs of all links.
func (c *Conn) Qdisc(index int, parent uint32) (q Qdisc, err error) {
	msg := &nl.TcMsg{Ifindex: int32(index), Parent: parent}
	// Without NLM_F_ECHO, the kernel sends the answer only to subscribers.
	answers, err := c.send(unix.RTM_GETQDISC, unix.NLM_F_ACK|unix.NLM_F_ECHO, msg)
	if err == nil && len(answers) == 1 {
		q = readQdisc(answers[0])
	}
	return q, c.linkError(index, "read qdisc", ignore(err, unix.ENOENT))
}

// TBFs returns the TBFs at Root of all links, by the index of the link.
func (c *Conn) TBFs() (map[int]TBF, error) {
	answers, err := c.send(unix.RTM_GETQDISC, unix.NLM_F_DUMP, &nl.TcMsg{})
	all := map[int]TBF{}
	for _, answer := range answers {
		msg := nl.DeserializeTcMsg(answer)
		if q := readQdisc(answer); q.IsTBF() && msg.Parent == Root {
			all[int(msg.Ifindex)] = q.TBF
		}
	}
	return all, wrap("list qdiscs", err)
}

func readQdisc(answer []byte) (q Qdisc) {
	msg := nl.DeserializeTcMsg(answer)
	if msg.Handle == 0 { // the kernel's default
		return q
	}
	attrs := attributes(answer[msg.Len():])
	q.Handle, q.Kind = msg.Handle, unix.ByteSliceToString(attrs[nl.TCA_KIND])
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

// DelQdisc deletes the qdisc of a link at a parent, with its filters. A missing qdisc or link is not an error.
func (c *Conn) DelQdisc(index int, parent uint32) error {
	q := &netlink.GenericQdisc{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Parent: parent}}
	err := c.retry(func(h *netlink.Handle) error { return h.QdiscDel(q) })
	// EINVAL: the link has only an ingress qdisc, and parent is not Ingress.
	return c.linkError(index, "delete qdisc", ignore(err, unix.ENOENT, unix.EINVAL, unix.ENODEV))
}

// Exempt selects packets that Redirect does not redirect.
type Exempt struct {
	Net   netip.Prefix
	IsDst bool // Net is the destination; false = the source
}

// Redirect redirects all packets at a hook of a link, except the exempt ones, to the link with the index to, which
// sends them. The link with the hook must have the hook's qdisc.
func (c *Conn) Redirect(index int, hook uint32, to int, exempt ...Exempt) error {
	f := &netlink.U32{RedirIndex: to, ClassId: netlink.MakeHandle(1, 1), FilterAttrs: redirection(index, hook)}
	for _, e := range exempt {
		f.Priority = redirection(index, hook).Priority + prefRedirect
		if err := c.addFilter(e.filter(index, hook), "exempt "+e.Net.String()); err != nil {
			return err
		}
	}
	return c.addFilter(f, "redirect")
}

func (c *Conn) addFilter(f netlink.Filter, what string) error {
	err := c.retryCreate(func(h *netlink.Handle) error { return h.FilterAdd(f) })
	return withModules(c.linkError(f.Attrs().LinkIndex, what, err), "cls_u32, act_mirred")
}

// DelRedirect deletes the filters that Redirect added, and no other filters of the link. exempt must be true if
// Redirect was called with an Exempt.
func (c *Conn) DelRedirect(index int, hook uint32, exempt bool) error {
	first := redirection(index, hook)
	filters := []netlink.FilterAttrs{first}
	if exempt {
		ip4, ip6, redirect := first, first, first
		ip4.Protocol = unix.ETH_P_IP
		ip6.Protocol, ip6.Priority = unix.ETH_P_IPV6, first.Priority+prefIPv6
		redirect.Priority = first.Priority + prefRedirect
		filters = []netlink.FilterAttrs{redirect, ip4, ip6}
	}
	var errs []error
	for _, attrs := range filters {
		err := c.retry(func(h *netlink.Handle) error { return h.FilterDel(&netlink.U32{FilterAttrs: attrs}) })
		// There may be exempt filters for only one family, or not all filters if Redirect failed.
		errs = append(errs, ignore(err, unix.ENOENT, unix.EINVAL))
	}
	return c.linkError(index, "delete filter", errors.Join(errs...))
}

// Preferences of filters, relative to the first one. The kernel tries the filters in their order: first the filters for
// exempt IPv4 packets, then the filters for exempt IPv6 packets, then the redirection. A redirection without an Exempt
// has the first preference.
const (
	prefIPv6     = 1  // exempt packets of IPv6
	prefRedirect = 2  // a redirection with exempt packets
	prefSent     = 10 // ClsactSent; with equal preferences, the kernel would list u32 filters of both hooks together
)

// redirection returns the attributes of the first filter at a hook of a link, which matches all protocols.
func redirection(index int, hook uint32) netlink.FilterAttrs {
	attrs := netlink.FilterAttrs{LinkIndex: index, Parent: hook, Priority: 1, Protocol: unix.ETH_P_ALL}
	if hook == ClsactSent {
		attrs.Priority += prefSent
	}
	return attrs
}

// Offsets of the source address in the IP header. The destination address follows it.
const (
	sourceIPv4 = 12
	sourceIPv6 = 8
)

// filter returns a filter that matches the address, with a key for each four bytes. It has no action, so that a
// matching packet passes and the kernel tries no later filter.
func (e Exempt) filter(index int, hook uint32) *netlink.U32 {
	attrs := redirection(index, hook)
	attrs.Protocol = unix.ETH_P_IP
	offset, addr := sourceIPv4, e.Net.Addr().AsSlice()
	if e.Net.Addr().Is6() {
		attrs.Protocol, offset = unix.ETH_P_IPV6, sourceIPv6
		attrs.Priority += prefIPv6
	}
	if e.IsDst {
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

// exemptOf returns the Exempt whose method filter returns f. It returns the zero Exempt for any other filter.
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
	e = Exempt{Net: netip.PrefixFrom(ip, bits), IsDst: int(f.Sel.Keys[0].Off) == offset+size}
	expected := e.filter(f.LinkIndex, f.Parent)
	if expected.Protocol != f.Protocol || !slices.Equal(expected.Sel.Keys, f.Sel.Keys) {
		return Exempt{}
	}
	return e
}

// Redirection is the effect of a filter.
type Redirection struct {
	Target int    // index of the link that gets the packets; 0 = it no longer exists, -1 = the filter does not redirect
	All    bool   // the filter matches every packet
	Exempt Exempt // packets that the filter exempts from a redirection; zero = none
}

// Redirects lists the effects of the filters at a hook of a link, in their order.
func (c *Conn) Redirects(index int, hook uint32) (list []Redirection, err error) {
	var filters []netlink.Filter
	err = c.retry(func(h *netlink.Handle) error {
		filters, err = h.FilterList(byIndex(index), hook)
		return err
	})
	for _, f := range filters {
		list = append(list, redirectOf(f))
	}
	return wholeList(list, c.linkError(index, "list filters", err))
}

// redirectOf returns the effect of a filter. It redirects if all its actions are the same redirection, because the
// reference plugin's filter has that action twice.
func redirectOf(f netlink.Filter) Redirection {
	other := Redirection{Target: -1}
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
		if !ok || mirred.MirredAction != netlink.TCA_EGRESS_REDIR || (i > 0 && mirred.Ifindex != r.Target) {
			return other
		}
		r.Target = mirred.Ifindex
	}
	isSelective := func(k netlink.TcU32Key) bool { return k.Mask != 0 }
	r.All = u32.Protocol == unix.ETH_P_ALL && u32.Sel != nil && !slices.ContainsFunc(u32.Sel.Keys, isSelective)
	return r
}

// ProbeQdisc returns an error if the kernel lacks a kind of qdisc, "tbf" or "fq_codel". It requests an invalid qdisc at
// Root of lo: a tbf without options, or an fq_codel without flows. A kernel with the kind refuses the qdisc before it
// changes lo's current qdisc.
func (c *Conn) ProbeQdisc(kind string) error {
	const lo = 1
	msg := &nl.TcMsg{Ifindex: lo, Parent: Root}
	attrs := []*nl.RtAttr{nl.NewRtAttr(nl.TCA_KIND, nl.ZeroTerminated(kind))}
	if kind == "fq_codel" {
		options := nl.NewRtAttr(nl.TCA_OPTIONS, nil)
		options.AddRtAttr(nl.TCA_FQ_CODEL_FLOWS, nl.Uint32Attr(0))
		attrs = append(attrs, options)
	}
	// With these three flags and without a handle, the request can only create a qdisc, never change one.
	flags := unix.NLM_F_ACK | unix.NLM_F_CREATE | unix.NLM_F_REPLACE | unix.NLM_F_EXCL
	_, err := c.send(unix.RTM_NEWQDISC, flags, msg, attrs...)
	err = wrap("kind "+kind, ignore(err, unix.EINVAL, unix.EEXIST)) // EEXIST: lo has one of that kind
	return withModules(err, "sch_"+kind)
}
