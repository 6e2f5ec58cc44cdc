// Package conntrack deletes entries of the kernel's connection tracking, over netlink.
//
// Translation is decided once in the life of an entry. Where a rule comes or goes under a sender that
// never pauses, which UDP permits, the sender stays with the old decision until its entry is deleted.
package conntrack

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/netlink"
)

// Flow is an entry: what the first packet had, and who answers to it.
type Flow struct {
	Source, Destination netip.AddrPort // of the first packet, as its sender wrote it
	ReplySource         netip.AddrPort // who really answers: Destination itself unless that is translated

	id []byte // what names the entry to the kernel
}

// Translated says whether the destination is translated.
func (f Flow) Translated() bool { return f.ReplySource != f.Destination }

// Delete deletes the entries of a family (AF_INET, say) and an IP protocol (IPPROTO_UDP) that match selects, and
// says how many. It reads all entries of that protocol. An entry that is gone by then is no error. A
// kernel without connection tracking over netlink has nothing to delete.
func Delete(family, proto uint8, match func(Flow) bool) (int, error) {
	sock, err := nl.Subscribe(unix.NETLINK_NETFILTER) // to nothing: it is the library's way to open a socket
	if errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EAFNOSUPPORT) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("conntrack: %w", err)
	}
	defer sock.Close()
	_ = sock.SetReceiveTimeout(&unix.Timeval{Sec: 10}) // the kernel has answered when a request is sent
	c := conn{&nl.SocketHandle{Socket: sock}, family}
	flows, err := c.list(proto)
	if errors.Is(err, unix.EINVAL) { // nfnetlink's answer for a part of it that the kernel lacks
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("conntrack: list: %w", err)
	}
	n := 0
	var failed []error
	for _, f := range flows {
		if !match(f) {
			continue
		}
		_, err := c.execute(nl.IPCTNL_MSG_CT_DELETE, unix.NLM_F_ACK, f.id)
		switch {
		case err == nil:
			n++
		case !errors.Is(err, unix.ENOENT):
			failed = append(failed, fmt.Errorf("conntrack: delete %s to %s: %w", f.Source, f.Destination, err))
		}
	}
	return n, errors.Join(failed...)
}

// conn asks about the entries of one family.
type conn struct {
	sock   *nl.SocketHandle
	family uint8
}

// list reads the entries of a protocol. The library's own list has no filter by which the kernel
// selects: of 20,000 entries it takes six times as long.
func (c conn) list(proto uint8) (flows []Flow, err error) {
	answers, err := c.execute(nl.IPCTNL_MSG_CT_GET, unix.NLM_F_DUMP, onlyProto(proto))
	for _, a := range answers {
		// Kernels before 5.8 do not filter.
		f, p := decode(a[min(nl.SizeofNfgenmsg, len(a)):])
		if p == proto && f.Destination.IsValid() && f.ReplySource.IsValid() {
			flows = append(flows, f)
		}
	}
	return flows, err
}

// execute repeats a list that changed while it was read, ten times.
func (c conn) execute(kind, flags int, attrs []byte) ([][]byte, error) {
	req := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_CTNETLINK<<8|kind, flags)
	req.Sockets, req.RetryInterrupted = map[int]*nl.SocketHandle{unix.NETLINK_NETFILTER: c.sock}, true
	req.AddData(&nl.Nfgenmsg{NfgenFamily: c.family, Version: nl.NFNETLINK_V0})
	req.AddRawData(attrs)
	return req.Execute(unix.NETLINK_NETFILTER, 0)
}

// onlyProto is the request for the entries of one protocol.
func onlyProto(proto uint8) []byte {
	// Of linux/netfilter/nfnetlink_conntrack.h, and not in the library.
	const (
		ctaFilter           = 25
		ctaFilterOrigFlags  = 1
		ctaFilterReplyFlags = 2
		filterProtoNum      = 1 << 3 // CTA_FILTER_FLAG(CTA_PROTO_NUM)
	)
	return slices.Concat(
		netlink.Nest(nl.CTA_TUPLE_ORIG,
			netlink.Nest(nl.CTA_TUPLE_PROTO, netlink.Bytes(nl.CTA_PROTO_NUM, []byte{proto}))),
		netlink.Nest(ctaFilter, netlink.Uint32(ctaFilterOrigFlags, filterProtoNum),
			netlink.Uint32(ctaFilterReplyFlags, 0)))
}

// decode reads an entry. Ports that are missing or odd are 0, addresses invalid.
func decode(body []byte) (f Flow, proto uint8) {
	for kind, value := range netlink.Attributes(body) {
		switch kind {
		case nl.CTA_TUPLE_ORIG:
			f.Source = addrPort(value, nl.CTA_IP_V4_SRC, nl.CTA_IP_V6_SRC, nl.CTA_PROTO_SRC_PORT)
			f.Destination = addrPort(value, nl.CTA_IP_V4_DST, nl.CTA_IP_V6_DST, nl.CTA_PROTO_DST_PORT)
			if number := netlink.Attribute(value, nl.CTA_TUPLE_PROTO, nl.CTA_PROTO_NUM); len(number) == 1 {
				proto = number[0]
			}
			f.id = append(f.id, netlink.Nest(kind, value)...)
		case nl.CTA_TUPLE_REPLY:
			f.ReplySource = addrPort(value, nl.CTA_IP_V4_SRC, nl.CTA_IP_V6_SRC, nl.CTA_PROTO_SRC_PORT)
		case nl.CTA_ID, nl.CTA_ZONE:
			f.id = append(f.id, netlink.Bytes(kind, value)...)
		}
	}
	return f, proto
}

// addrPort is one end of a tuple, by the attributes that it is in.
func addrPort(tuple []byte, v4, v6, port uint16) netip.AddrPort {
	addr, ok := netip.AddrFromSlice(netlink.Attribute(tuple, nl.CTA_TUPLE_IP, v4))
	if !ok {
		addr, _ = netip.AddrFromSlice(netlink.Attribute(tuple, nl.CTA_TUPLE_IP, v6))
	}
	number := append(make([]byte, 2), netlink.Attribute(tuple, nl.CTA_TUPLE_PROTO, port)...)
	return netip.AddrPortFrom(addr, binary.BigEndian.Uint16(number[len(number)-2:]))
}
