package rtnl

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// AddrCopy is an address of a link with all attributes that the kernel reports. It can be stored and added elsewhere.
type AddrCopy struct {
	Header unix.IfAddrmsg `json:"header"`
	Attrs  attrList       `json:"attrs"` // IFA_*
}

const (
	ifaProto    = 11        // IFA_PROTO, since Linux 5.18
	protoRA     = 2         // IFAPROT_KERNEL_RA
	protoKernel = 3         // IFAPROT_KERNEL_LL
	forever     = 1<<32 - 1 // lifetime of an address that does not expire, in seconds
	// addedFlags are the flags with which an address can be created. The other flags are states.
	addedFlags = unix.IFA_F_NODAD | unix.IFA_F_OPTIMISTIC | unix.IFA_F_HOMEADDRESS | unix.IFA_F_MANAGETEMPADDR |
		unix.IFA_F_NOPREFIXROUTE | unix.IFA_F_MCAUTOJOIN
)

// AddrCopies lists the addresses of a link, of both families.
func (c *Conn) AddrCopies(index int) (addrs []AddrCopy, err error) {
	msg := nl.NewIfAddrmsg(unix.AF_UNSPEC)
	msg.Index = uint32(index)
	answers, err := c.send(unix.RTM_GETADDR, unix.NLM_F_DUMP, msg)
	for _, answer := range answers {
		a := AddrCopy{Header: nl.DeserializeIfAddrmsg(answer).IfAddrmsg, Attrs: readAttrs(answer[msg.Len():])}
		// Kernels before 4.20 list the addresses of all links.
		if a.Header.Index == uint32(index) && isIP(a.Header.Family) {
			addrs = append(addrs, a)
		}
	}
	return wholeList(addrs, c.linkError(index, "list addresses", err))
}

func isIP(family uint8) bool { return family == unix.AF_INET || family == unix.AF_INET6 }

// Prefix returns the address with its prefix length, which is the length of the peer's prefix if there is a peer.
func (a AddrCopy) Prefix() netip.Prefix {
	addr := cmp.Or(addrOf(a.Attrs.value(unix.IFA_LOCAL)), addrOf(a.Attrs.value(unix.IFA_ADDRESS)))
	return netip.PrefixFrom(addr, int(a.Header.Prefixlen))
}

// Subnet returns the subnet to which the kernel adds a route: the peer's subnet if there is a peer, otherwise its own.
func (a AddrCopy) Subnet() netip.Prefix {
	return netip.PrefixFrom(addrOf(a.Attrs.value(unix.IFA_ADDRESS)), int(a.Header.Prefixlen)).Masked()
}

// IsLinkLocal6 reports whether the address is an IPv6 link-local address.
func (a AddrCopy) IsLinkLocal6() bool {
	return a.Prefix().Addr().Is6() && a.Prefix().Addr().IsLinkLocalUnicast()
}

// IsAutomatic reports whether the kernel itself creates the address when the link is up. The kernel does so for
// link-local addresses and addresses from router advertisements. IsAutomatic returns false for link-local addresses
// before Linux 5.18, because those kernels do not mark them.
func (a AddrCopy) IsAutomatic() bool {
	proto := a.Attrs.value(ifaProto)
	return a.IsAdvertised() || len(proto) == 1 && proto[0] == protoKernel
}

// IsAdvertised reports whether the address was formed from a router advertisement.
func (a AddrCopy) IsAdvertised() bool {
	proto := a.Attrs.value(ifaProto)
	isManaged := a.Has(unix.IFA_F_MANAGETEMPADDR) && !a.Has(unix.IFA_F_PERMANENT)
	return a.Header.Family == unix.AF_INET6 && isManaged || a.IsTemporary() ||
		len(proto) == 1 && proto[0] == protoRA
}

// IsTemporary reports whether the address is a temporary address, which the kernel replaces (RFC 8981).
func (a AddrCopy) IsTemporary() bool {
	return a.Header.Family == unix.AF_INET6 && a.Has(unix.IFA_F_TEMPORARY)
}

// Has reports whether the address has a flag, one of unix.IFA_F_*.
func (a AddrCopy) Has(flag uint32) bool { return number(a.Attrs.value(unix.IFA_FLAGS))&flag != 0 }

// Without returns the address without an attribute, one of unix.IFA_*.
func (a AddrCopy) Without(kind uint16) AddrCopy {
	a.Attrs = a.Attrs.without(kind)
	return a
}

// WithoutDAD returns the address with the flag nodad: the kernel adds it without duplicate address detection.
func (a AddrCopy) WithoutDAD() AddrCopy {
	flags := number(a.Attrs.value(unix.IFA_FLAGS)) | unix.IFA_F_NODAD
	a.Attrs = a.Attrs.with(unix.IFA_FLAGS, nl.Uint32Attr(flags))
	return a
}

// RemainingAfter returns the address with the lifetimes that remain after some seconds. ok is false if none remains.
func (a AddrCopy) RemainingAfter(seconds uint32) (_ AddrCopy, ok bool) {
	return a.withLifetimes(func(left uint32) uint32 {
		if left == forever {
			return forever
		}
		return left - min(left, seconds)
	})
}

// Permanent returns the address with a lifetime that does not end. A deprecated address remains deprecated.
func (a AddrCopy) Permanent() AddrCopy {
	a, _ = a.withLifetimes(func(left uint32) uint32 { return min(left, 1) * forever })
	return a
}

// withLifetimes changes the preferred and the valid lifetime, which are the first two fields of struct ifa_cacheinfo.
// ok is false if the valid lifetime is 0.
func (a AddrCopy) withLifetimes(change func(left uint32) uint32) (_ AddrCopy, ok bool) {
	info := bytes.Clone(a.Attrs.value(unix.IFA_CACHEINFO))
	if len(info) < 8 {
		return a, true
	}
	clear(info[8:]) // times of creation and update
	for i := range 2 {
		left := change(binary.NativeEndian.Uint32(info[4*i:]))
		if i == 0 && a.Has(unix.IFA_F_DEPRECATED) { // a permanent IPv4 address is deprecated by the flag only
			left = 0
		}
		binary.NativeEndian.PutUint32(info[4*i:], left)
	}
	a.Attrs = a.Attrs.with(unix.IFA_CACHEINFO, info)
	return a, number(info[4:8]) > 0
}

// AddAddrCopy adds the address to a link, unless the link has it.
func (c *Conn) AddAddrCopy(index int, a AddrCopy) error {
	msg := &nl.IfAddrmsg{IfAddrmsg: a.Header}
	msg.Index, msg.Flags = uint32(index), 0 // the attribute has all flags
	flags := nl.Uint32Attr(number(a.Attrs.value(unix.IFA_FLAGS)) & addedFlags)
	attrs := a.Attrs.with(unix.IFA_FLAGS, flags).encode()
	_, err := c.send(unix.RTM_NEWADDR, unix.NLM_F_ACK|unix.NLM_F_CREATE|unix.NLM_F_EXCL, msg, attrs...)
	return c.linkError(index, fmt.Sprintf("add address %s", a.Prefix()), ignore(err, unix.EEXIST))
}

// RuleCopies lists the rules of both families in their order. A message about a rule has the same layout as a message
// about a route, so that a RouteCopy can also be a rule. A kernel without routing policy has none.
func (c *Conn) RuleCopies() ([]RouteCopy, error) {
	rules, err := c.dumpRules()
	return wholeList(rules, wrap("list rules", ignore(err, unix.EOPNOTSUPP)))
}

func (c *Conn) dumpRules() (rules []RouteCopy, err error) {
	const inverted, padding = 2, 18 // FIB_RULE_INVERT, FRA_PAD
	answers, err := c.send(unix.RTM_GETRULE, unix.NLM_F_DUMP, &nl.RtMsg{})
	for _, answer := range answers {
		r := RouteCopy{Header: nl.DeserializeRtMsg(answer).RtMsg, Attrs: readAttrs(answer[unix.SizeofRtMsg:])}
		r.Header.Flags &= inverted
		if isIP(r.Header.Family) {
			rules = append(rules, r.without(padding))
		}
	}
	return rules, err
}

// RuleSrc returns the source that a rule selects. The zero Prefix means any source.
func (r RouteCopy) RuleSrc() netip.Prefix {
	return netip.PrefixFrom(addrOf(r.value(nl.FRA_SRC)), int(r.Header.Src_len))
}

// RenameLink returns a rule in which the link name link is replaced by name.
func (r RouteCopy) RenameLink(link, name string) RouteCopy {
	for _, kind := range []uint16{nl.FRA_IIFNAME, nl.FRA_OIFNAME} {
		if bytes.Equal(r.value(kind), nl.ZeroTerminated(link)) {
			r = r.with(kind, nl.ZeroTerminated(name))
		}
	}
	return r
}

// AddRuleCopy adds a rule unless there is an equal one.
func (c *Conn) AddRuleCopy(r RouteCopy) error {
	err := c.sendCopy(unix.RTM_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_EXCL, r)
	return r.ruleError("add", ignore(err, unix.EEXIST))
}

// DelRuleCopy deletes a rule.
func (c *Conn) DelRuleCopy(r RouteCopy) error {
	return r.ruleError("delete", ignore(c.sendCopy(unix.RTM_DELRULE, 0, r), unix.ENOENT))
}

// ruleError adds the rule and the operation to err.
func (r RouteCopy) ruleError(what string, err error) error {
	return wrap(fmt.Sprintf("%s rule from %s lookup %d", what, r.RuleSrc(), r.Table()), err)
}
