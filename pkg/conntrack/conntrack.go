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
)

// Flow is an entry: what the first packet had, and what the answers to it have.
type Flow struct {
	Source, Destination netip.AddrPort // of the first packet, as its sender wrote it
	// ReplySource is who really answers: Destination itself unless that is translated.
	ReplySource, ReplyDestination netip.AddrPort

	id attrs // what names the entry to the kernel
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
	c, err := dial()
	if errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EAFNOSUPPORT) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("conntrack: %w", err)
	}
	defer c.close()
	flows, err := c.list(family, proto)
	if err != nil {
		return 0, fmt.Errorf("conntrack: list: %w", err)
	}
	n := 0
	var failed []error
	for _, f := range flows {
		if !match(f) {
			continue
		}
		err := c.delete(family, f)
		switch {
		case err == nil:
			n++
		case !errors.Is(err, unix.ENOENT):
			failed = append(failed, fmt.Errorf("conntrack: delete %s to %s: %w", f.Source, f.Destination, err))
		}
	}
	return n, errors.Join(failed...)
}

// dumpAttempts bounds how often a list that was interrupted by changes is read again.
const dumpAttempts = 20

func (c *conn) list(family, proto uint8) ([]Flow, error) {
	for attempt := 1; ; attempt++ {
		flows, err := c.listOnce(family, proto)
		if !errors.Is(err, unix.EINTR) || attempt == dumpAttempts {
			return flows, err
		}
	}
}

func (c *conn) listOnce(family, proto uint8) ([]Flow, error) {
	var flows []Flow
	err := c.send(request{ctGet, unix.NLM_F_DUMP, family, onlyProto(proto)}, func(body []byte) {
		// Kernels before 5.8 do not filter.
		if f, p := decode(body); p == proto && f.Destination.IsValid() && f.ReplySource.IsValid() {
			flows = append(flows, f)
		}
	})
	return flows, err
}

func (c *conn) delete(family uint8, f Flow) error {
	return c.send(request{ctDelete, unix.NLM_F_ACK, family, f.id}, nil)
}

// onlyProto is the request for the entries of one protocol.
func onlyProto(proto uint8) attrs {
	const filterProtoNum = 1 << 3 // CTA_FILTER_FLAG(CTA_PROTO_NUM)
	var protoAttr, tuple, filter, a attrs
	protoAttr.put(ctaProtoNum, []byte{proto})
	tuple.nest(ctaTupleProto, protoAttr)
	filter.u32(ctaFilterOrigFlags, filterProtoNum)
	filter.u32(ctaFilterReplyFlags, 0)
	a.nest(ctaTupleOrig, tuple)
	a.nest(ctaFilter, filter)
	return a
}

func decode(body []byte) (f Flow, proto uint8) {
	for typ, val := range attributes(body) {
		switch typ {
		case ctaTupleOrig:
			f.Source, f.Destination, proto = decodeTuple(val)
			f.id.nest(ctaTupleOrig, val)
		case ctaTupleReply:
			f.ReplySource, f.ReplyDestination, _ = decodeTuple(val)
		case ctaID, ctaZone:
			f.id.put(typ, val)
		}
	}
	return f, proto
}

func decodeTuple(b []byte) (src, dst netip.AddrPort, proto uint8) {
	var from, to netip.Addr
	var fromPort, toPort uint16
	for typ, val := range attributes(b) {
		switch typ {
		case ctaTupleIP:
			for ip, addr := range attributes(val) {
				switch ip {
				case ctaIPv4Src, ctaIPv6Src:
					from, _ = netip.AddrFromSlice(addr)
				case ctaIPv4Dst, ctaIPv6Dst:
					to, _ = netip.AddrFromSlice(addr)
				}
			}
		case ctaTupleProto:
			for field, v := range attributes(val) {
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
