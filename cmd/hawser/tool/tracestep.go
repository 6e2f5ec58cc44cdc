package tool

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/nlattr"
)

// packetStep describes what a rule, or the end of a base chain, does with a traced packet.
type packetStep struct {
	Packet  uint32 // an ID that the kernel assigns to each packet
	Table   nft.Table
	Chain   string
	Handle  uint64 // of the rule; 0 = end of the chain
	Verdict string // as nft(8) writes it: "accept", "drop", "jump x"
	IIF     int    // index of the input interface; 0 = the packet was sent by the host itself
	OIF     int    // index of the output interface; 0 = not decided yet

	// The packet at this point; zero if the kernel has reported it in an earlier step.
	Proto               byte
	Source, Destination netip.AddrPort
}

// traceTable returns the table whose rules mark packets for tracing.
func traceTable() nft.Table { return nft.Table{Family: nft.INet, Name: "hawser_trace"} }

// tracePackets marks packets that match one of the rules, at most 20 per second and rule, at the beginning of
// prerouting and output. It passes each step of these packets through all rules of the network namespace to handle,
// until handle returns false or ctx ends. The kernel deletes the marking rules with the socket (nft.AddTemporary).
func tracePackets(ctx context.Context, rules []nft.Rule, handle func(packetStep) (more bool)) error {
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

func decodeStep(e nft.Event) packetStep {
	b := e.Attrs
	s := packetStep{
		Packet: uint32(nlattr.GetNumber(b, unix.NFTA_TRACE_ID)),
		Table:  nft.Table{Family: e.Family, Name: nlattr.GetString(b, unix.NFTA_TRACE_TABLE)},
		Chain:  nlattr.GetString(b, unix.NFTA_TRACE_CHAIN),
		Handle: nlattr.GetNumber(b, unix.NFTA_TRACE_RULE_HANDLE),
		IIF:    int(nlattr.GetNumber(b, unix.NFTA_TRACE_IIF)),
		OIF:    int(nlattr.GetNumber(b, unix.NFTA_TRACE_OIF)),
	}
	verdict, policy := nlattr.Get(b, unix.NFTA_TRACE_VERDICT), nlattr.Get(b, unix.NFTA_TRACE_POLICY)
	code := nlattr.Get(verdict, unix.NFTA_VERDICT_CODE)
	if code == nil {
		code = policy
	}
	if len(code) == 4 {
		chain := nlattr.GetString(verdict, unix.NFTA_VERDICT_CHAIN)
		s.Verdict = verdictText(int32(binary.BigEndian.Uint32(code)), chain)
	}
	s.decodeHeaders(nlattr.Get(b, unix.NFTA_TRACE_NETWORK_HEADER), nlattr.Get(b, unix.NFTA_TRACE_TRANSPORT_HEADER))
	return s
}

func (s *packetStep) decodeHeaders(network, transport []byte) {
	var from, to netip.Addr
	switch {
	case len(network) >= 20 && network[0]>>4 == 4:
		s.Proto = network[9]
		from, to = netip.AddrFrom4([4]byte(network[12:])), netip.AddrFrom4([4]byte(network[16:]))
	case len(network) >= 40 && network[0]>>4 == 6:
		s.Proto = network[6]
		from, to = netip.AddrFrom16([16]byte(network[8:])), netip.AddrFrom16([16]byte(network[24:]))
	default:
		return
	}
	var ports [2]uint16
	if len(transport) >= 4 && (s.Proto == unix.IPPROTO_TCP || s.Proto == unix.IPPROTO_UDP) {
		ports = [2]uint16{binary.BigEndian.Uint16(transport), binary.BigEndian.Uint16(transport[2:])}
	}
	s.Source, s.Destination = netip.AddrPortFrom(from, ports[0]), netip.AddrPortFrom(to, ports[1])
}

func verdictText(code int32, chain string) string {
	switch code {
	case 0: // NF_DROP
		return "drop"
	case 1: // NF_ACCEPT
		return "accept"
	case unix.NFT_CONTINUE:
		return "continue"
	case unix.NFT_RETURN:
		return "return"
	case unix.NFT_JUMP:
		return "jump " + chain
	case unix.NFT_GOTO:
		return "goto " + chain
	}
	return fmt.Sprintf("verdict %d", code)
}
