// Package conntrack deletes entries of the kernel's connection tracking, over netlink.
//
// Translation is decided once in the life of an entry. Where a rule comes or goes under a sender that
// never pauses, which UDP permits, the sender stays with the old decision until its entry is deleted.
package conntrack

import (
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/netlink"
)

// Flow is an entry: what the first packet had, and what the answers to it have.
type Flow struct {
	Source, Destination netip.AddrPort // of the first packet, as its sender wrote it
	// ReplySource is who really answers: Destination itself unless that is translated.
	ReplySource, ReplyDestination netip.AddrPort

	id netlink.Body // what names the entry to the kernel
}

// Translated says whether the destination is translated.
func (f Flow) Translated() bool { return f.ReplySource != f.Destination }

// Families whose entries there are.
const (
	IPv4 = unix.AF_INET
	IPv6 = unix.AF_INET6
)

// Delete deletes the entries of a family and an IP protocol (IPPROTO_UDP, say) that match selects, and
// says how many. It reads all entries of that protocol. An entry that is gone by then is no error. A
// kernel without connection tracking over netlink has nothing to delete.
func Delete(family, proto uint8, match func(Flow) bool) (int, error) {
	sock, err := netlink.Open(unix.NETLINK_NETFILTER)
	if errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EAFNOSUPPORT) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("conntrack: %w", err)
	}
	defer sock.Close()
	flows, err := list(sock, family, proto)
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
		err := remove(sock, family, f)
		switch {
		case err == nil:
			n++
		case !errors.Is(err, unix.ENOENT):
			failed = append(failed, fmt.Errorf("conntrack: delete %s to %s: %w", f.Source, f.Destination, err))
		}
	}
	return n, errors.Join(failed...)
}

func list(sock *netlink.Socket, family, proto uint8) ([]Flow, error) {
	var flows []Flow
	req := netlink.Request{Type: ctGet, Body: append(body(family), onlyProto(proto)...)}
	err := sock.Dump(req, func() { flows = flows[:0] }, func(m netlink.Message) {
		if len(m.Data) < nfgenmsgSize {
			return
		}
		// Kernels before 5.8 do not filter.
		if f, p := decode(m.Data[nfgenmsgSize:]); p == proto && f.Destination.IsValid() && f.ReplySource.IsValid() {
			flows = append(flows, f)
		}
	})
	return flows, err
}

func remove(sock *netlink.Socket, family uint8, f Flow) error {
	return sock.Do(netlink.Request{Type: ctDelete, Body: append(body(family), f.id...)})
}

// onlyProto is the request for the entries of one protocol.
func onlyProto(proto uint8) netlink.Body {
	const filterProtoNum = 1 << 3 // CTA_FILTER_FLAG(CTA_PROTO_NUM)
	var protoAttr, tuple, filter, b netlink.Body
	protoAttr.Uint8(ctaProtoNum, proto)
	tuple.Nest(ctaTupleProto, protoAttr)
	filter.Uint32(ctaFilterOrigFlags, filterProtoNum)
	filter.Uint32(ctaFilterReplyFlags, 0)
	b.Nest(ctaTupleOrig, tuple)
	b.Nest(ctaFilter, filter)
	return b
}

func decode(body []byte) (f Flow, proto uint8) {
	for typ, val := range netlink.Attributes(body) {
		switch typ {
		case ctaTupleOrig:
			f.Source, f.Destination, proto = decodeTuple(val)
			f.id.Nest(ctaTupleOrig, val)
		case ctaTupleReply:
			f.ReplySource, f.ReplyDestination, _ = decodeTuple(val)
		case ctaID, ctaZone:
			f.id.Bytes(typ, val)
		}
	}
	return f, proto
}

func decodeTuple(b []byte) (src, dst netip.AddrPort, proto uint8) {
	var from, to netip.Addr
	var fromPort, toPort uint16
	for typ, val := range netlink.Attributes(b) {
		switch typ {
		case ctaTupleIP:
			for ip, addr := range netlink.Attributes(val) {
				switch ip {
				case ctaIPv4Src, ctaIPv6Src:
					from, _ = netip.AddrFromSlice(addr)
				case ctaIPv4Dst, ctaIPv6Dst:
					to, _ = netip.AddrFromSlice(addr)
				}
			}
		case ctaTupleProto:
			for field, v := range netlink.Attributes(val) {
				switch {
				case field == ctaProtoNum && len(v) == 1:
					proto = v[0]
				case field == ctaProtoSrcPort && len(v) == 2:
					fromPort = uint16(v[0])<<8 | uint16(v[1])
				case field == ctaProtoDstPort && len(v) == 2:
					toPort = uint16(v[0])<<8 | uint16(v[1])
				}
			}
		}
	}
	return netip.AddrPortFrom(from, fromPort), netip.AddrPortFrom(to, toPort), proto
}
