package tool

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/nlattr"
)

// traceStep describes what a rule, or the end of a base chain, does with a traced packet. The kernel reports the
// packet's header only in some steps.
type traceStep struct {
	Packet      int    `json:"packet"` // number of the packet, from 1
	Proto       string `json:"proto,omitempty"`
	Source      string `json:"source,omitempty"` // current source of the packet; empty = not reported by the kernel
	Destination string `json:"destination,omitempty"`
	In          string `json:"in,omitempty"` // incoming interface; empty = the packet was sent by the host itself
	Out         string `json:"out,omitempty"`
	Table       string `json:"table"`
	Chain       string `json:"chain"`
	Rule        uint64 `json:"rule,omitempty"` // handle, as nft -a prints it; 0 = end of the chain
	Verdict     string `json:"verdict"`        // as nft(8) writes it: "accept", "drop", "jump x"

	id uint64 // that the kernel assigns to the packet
}

// traceTable returns the table whose rules mark packets for tracing.
func traceTable() nft.Table { return nft.Table{Family: nft.INet, Name: "hawser_trace"} }

// protocols are the protocols that trace knows by name.
var protocols = map[string]byte{"tcp": unix.IPPROTO_TCP, "udp": unix.IPPROTO_UDP, "sctp": unix.IPPROTO_SCTP,
	"icmp": unix.IPPROTO_ICMP, "icmpv6": unix.IPPROTO_ICMPV6}

// tracePackets marks packets that match one of the rules, at most 20 per second and rule, at the beginning of
// prerouting and output. It passes each step of these packets through all rules of the network namespace to handle,
// until handle returns false or ctx ends. The kernel deletes the marking rules with the socket (nft.AddTemporary).
func tracePackets(ctx context.Context, rules []nft.Rule, handle func(traceStep) (more bool)) error {
	const priority = -450 // before all other chains: raw is -300
	const rate = 20       // packets per second
	var marking []nft.Rule
	for _, r := range rules {
		marking = append(marking, append(r[:len(r):len(r)], nft.LimitRate(rate), nft.EnableTrace()))
	}
	prerouting := nft.Hook{Type: "filter", Point: nft.Prerouting, Priority: priority}
	output := nft.Hook{Type: "filter", Point: nft.Output, Priority: priority}
	layout := nft.Layout{Table: traceTable(), Chains: []nft.Chain{
		{Name: "prerouting", Hook: &prerouting, Rules: marking}, {Name: "output", Hook: &output, Rules: marking},
	}}
	c := nft.New()
	defer c.Close()
	mark := func() error { return c.AddTemporary(layout) }
	return nft.Listen(ctx, unix.NFNLGRP_NFTRACE, mark, func(e nft.Event) bool {
		return e.Type != unix.NFT_MSG_TRACE || handle(decodeStep(e))
	})
}

func decodeStep(e nft.Event) traceStep {
	b := e.Attrs
	number := func(path ...uint16) uint64 { return nlattr.GetNumber(b, path...) }
	s := traceStep{
		id:    number(unix.NFTA_TRACE_ID),
		Table: nft.Table{Family: e.Family, Name: nlattr.GetString(b, unix.NFTA_TRACE_TABLE)}.String(),
		Chain: nlattr.GetString(b, unix.NFTA_TRACE_CHAIN),
		Rule:  number(unix.NFTA_TRACE_RULE_HANDLE),
		In:    linkName(int(number(unix.NFTA_TRACE_IIF))),
		Out:   linkName(int(number(unix.NFTA_TRACE_OIF))),
	}
	code := nlattr.Get(b, unix.NFTA_TRACE_VERDICT, unix.NFTA_VERDICT_CODE)
	if code == nil {
		code = nlattr.Get(b, unix.NFTA_TRACE_POLICY)
	}
	if len(code) == 4 {
		chain := nlattr.GetString(b, unix.NFTA_TRACE_VERDICT, unix.NFTA_VERDICT_CHAIN)
		s.Verdict = verdictText(int32(binary.BigEndian.Uint32(code)), chain)
	}
	s.decodeHeaders(nlattr.Get(b, unix.NFTA_TRACE_NETWORK_HEADER), nlattr.Get(b, unix.NFTA_TRACE_TRANSPORT_HEADER))
	return s
}

func (s *traceStep) decodeHeaders(network, transport []byte) {
	var from, to netip.Addr
	var proto byte
	switch {
	case len(network) >= 20 && network[0]>>4 == 4:
		proto = network[9]
		from, to = netip.AddrFrom4([4]byte(network[12:])), netip.AddrFrom4([4]byte(network[16:]))
	case len(network) >= 40 && network[0]>>4 == 6:
		proto = network[6]
		from, to = netip.AddrFrom16([16]byte(network[8:])), netip.AddrFrom16([16]byte(network[24:]))
	default:
		return
	}
	var ports [2]uint16
	if len(transport) >= 4 && (proto == unix.IPPROTO_TCP || proto == unix.IPPROTO_UDP) {
		ports = [2]uint16{binary.BigEndian.Uint16(transport), binary.BigEndian.Uint16(transport[2:])}
	}
	s.Source, s.Destination = netip.AddrPortFrom(from, ports[0]).String(), netip.AddrPortFrom(to, ports[1]).String()
	for name, number := range protocols {
		if number == proto {
			s.Proto = name
		}
	}
}

func linkName(index int) string {
	if index == 0 {
		return ""
	}
	link, err := net.InterfaceByIndex(index)
	if err != nil {
		return fmt.Sprintf("#%d", index)
	}
	return link.Name
}

func verdictText(code int32, chain string) string {
	text := map[int32]string{0: "drop", 1: "accept", unix.NFT_CONTINUE: "continue", unix.NFT_RETURN: "return",
		unix.NFT_JUMP: "jump " + chain, unix.NFT_GOTO: "goto " + chain}[code]
	return cmp.Or(text, fmt.Sprintf("verdict %d", code))
}
