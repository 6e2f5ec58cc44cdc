package tool

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/nlattr"
)

func traceCommand(s *session) *cobra.Command {
	var limit time.Duration
	var maxPackets int
	var source, protocol string
	c := s.command("trace PORT|ADDRESS[:PORT]", "Show how nftables rules handle packets to a port or an address",
		func(destination string) error {
			rules, err := traceRules(destination, source, protocol)
			if err != nil {
				return err
			}
			if limit <= 0 || maxPackets <= 0 {
				return errors.New("--for and --packets must be more than 0")
			}
			start := time.Now()
			ctx, done := signal.NotifyContext(s.ctx, syscall.SIGTERM, syscall.SIGINT)
			defer done()
			ctx, cancel := context.WithTimeout(ctx, limit)
			defer cancel()
			t := tracer{out: s.out, maxPackets: maxPackets, numbers: map[uint64]int{}}
			if s.json {
				t.out = io.Discard
			}
			err = tracePackets(ctx, rules, t.step)
			if errors.Is(err, unix.EPERM) {
				err = fmt.Errorf("another hawser trace is running on this node, or this one is not root: %w", err)
			}
			if err == nil && s.json {
				err = s.show(t.steps, nil)
			}
			if err != nil {
				return err
			}
			return t.summarize(destination, min(limit, time.Since(start).Round(time.Millisecond)))
		})
	c.Flags().DurationVar(&limit, "for", 10*time.Second, "the time limit")
	c.Flags().StringVar(&source, "from", "", "the source: an `address`, a port or ADDRESS:PORT")
	c.Flags().StringVar(&protocol, "protocol", "", "tcp, udp, sctp, icmp or icmpv6 (any; tcp and udp with a port)")
	c.Flags().IntVar(&maxPackets, "packets", 5, "the number of packets to follow")
	return c
}

// endpoint is the source or destination of a packet: an address, a port, or both.
type endpoint struct {
	addr netip.Addr
	port uint16
}

func parseEndpoint(text string) (e endpoint, err error) {
	if e.addr, err = netip.ParseAddr(text); err != nil {
		host, number := "", text
		if h, p, err := net.SplitHostPort(text); err == nil {
			host, number = h, p
		}
		port, err := strconv.ParseUint(number, 10, 16)
		if err != nil || port == 0 {
			return e, fmt.Errorf("%q is not an address, a port between 1 and 65535, or ADDRESS:PORT", text)
		}
		e.port = uint16(port)
		if host != "" {
			if e.addr, err = netip.ParseAddr(host); err != nil {
				return e, fmt.Errorf("%q: %q is not an address", text, host)
			}
		}
	}
	e.addr = e.addr.Unmap().WithZone("")
	return e, nil
}

// match returns expressions that match packets with this endpoint in the fields address and port.
func (e endpoint) match(address func(nft.Family) nft.Field, port nft.Field) (rule nft.Rule) {
	if e.addr.IsValid() {
		rule = nft.Rule{nft.FieldIs(address(nft.FamilyOf(e.addr)), e.addr.AsSlice())}
	}
	if e.port != 0 {
		rule = append(rule, nft.FieldIs(port, binary.BigEndian.AppendUint16(nil, e.port)))
	}
	return rule
}

// traceRules returns rules that match packets to an endpoint, from another endpoint if source is not empty. For an
// address without a port, they match both directions unless source is given.
func traceRules(destination, source, protocol string) ([]nft.Rule, error) {
	dst, err := parseEndpoint(destination)
	var src endpoint
	if err == nil && source != "" {
		src, err = parseEndpoint(source)
	}
	hasPort := dst.port != 0 || src.port != 0
	switch {
	case err != nil:
		return nil, err
	case protocol != "" && protocols[protocol] == 0:
		return nil, fmt.Errorf("--protocol: %q is not one of tcp, udp, sctp, icmp and icmpv6", protocol)
	case hasPort && strings.HasPrefix(protocol, "icmp"):
		return nil, fmt.Errorf("--protocol: %s has no ports", protocol)
	case dst.addr.IsValid() && src.addr.IsValid() && dst.addr.Is4() != src.addr.Is4():
		return nil, fmt.Errorf("%s and %s are of different address families", source, destination)
	}
	matches := []nft.Rule{append(dst.match(nft.Family.Daddr, nft.THDport), src.match(nft.Family.Saddr, nft.THSport)...)}
	if !hasPort && source == "" {
		matches = append(matches, dst.match(nft.Family.Saddr, nft.THSport))
	}
	names := []string{protocol}
	switch {
	case protocol == "" && !hasPort:
		return matches, nil
	case protocol == "":
		names = []string{"tcp", "udp"}
	}
	var rules []nft.Rule
	for _, match := range matches {
		for _, name := range names {
			rules = append(rules, append(nft.Rule{nft.FieldIs(nft.L4Proto, []byte{protocols[name]})}, match...))
		}
	}
	return rules, nil
}

type tracer struct {
	out        io.Writer
	maxPackets int
	numbers    map[uint64]int // number of each packet, by the kernel's ID
	steps      []traceStep
}

// step adds a step. It returns false, which ends the trace, for the first packet beyond maxPackets.
func (t *tracer) step(s traceStep) bool {
	n, known := t.numbers[s.id]
	if !known {
		if len(t.numbers) == t.maxPackets {
			return false
		}
		n = len(t.numbers) + 1
		t.numbers[s.id] = n
	}
	if s.Table != traceTable().String() {
		s.Packet = n
		t.steps = append(t.steps, s)
		s.print(t.out)
	}
	return true
}

func (s traceStep) print(out io.Writer) {
	if s.Destination != "" {
		fmt.Fprintf(out, "packet %d: %s %s > %s", s.Packet, s.Proto, s.Source, s.Destination)
		for _, side := range []struct{ word, link string }{{"from", s.In}, {"to", s.Out}} {
			if side.link != "" {
				fmt.Fprintf(out, " %s %s", side.word, side.link)
			}
		}
		fmt.Fprintln(out)
	}
	position := "end of the chain"
	if s.Rule != 0 {
		position = fmt.Sprintf("rule %d", s.Rule)
	}
	fmt.Fprintf(out, "packet %d:   %s, chain %s, %s: %s\n",
		s.Packet, plain(s.Table), plain(s.Chain), position, plain(s.Verdict))
}

func (t *tracer) summarize(destination string, limit time.Duration) error {
	if len(t.steps) == 0 {
		const text = "no packet to %s reached a rule within %s: no packet arrived, or only iptables-legacy has rules"
		return fmt.Errorf(text, destination, limit)
	}
	dropped := false
	for _, s := range t.steps {
		if s.Verdict == "drop" {
			dropped = true
			const text = "packet %d was dropped by %s, chain %s (nft -a list chain %[2]s %[3]s)\n"
			fmt.Fprintf(t.out, text, s.Packet, plain(s.Table), plain(s.Chain))
		}
	}
	if !dropped {
		fmt.Fprintln(t.out, "no rule dropped a packet")
	}
	return nil
}

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

var protocols = map[string]byte{"tcp": unix.IPPROTO_TCP, "udp": unix.IPPROTO_UDP, "sctp": unix.IPPROTO_SCTP,
	"icmp": unix.IPPROTO_ICMP, "icmpv6": unix.IPPROTO_ICMPV6}

// tracePackets marks packets that match one of the rules, at most 20 per second and rule, at the beginning of
// prerouting and output. It calls handle for each step of these packets, in all tables of the network namespace, until
// handle returns false or ctx ends. The kernel deletes the marking rules with the socket (nft.AddTemporary).
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
	var src, dst netip.Addr
	var proto byte
	switch {
	case len(network) >= 20 && network[0]>>4 == 4:
		proto = network[9]
		src, dst = netip.AddrFrom4([4]byte(network[12:])), netip.AddrFrom4([4]byte(network[16:]))
	case len(network) >= 40 && network[0]>>4 == 6:
		proto = network[6]
		src, dst = netip.AddrFrom16([16]byte(network[8:])), netip.AddrFrom16([16]byte(network[24:]))
	default:
		return
	}
	s.Source, s.Destination = src.String(), dst.String()
	hasPorts := proto == unix.IPPROTO_TCP || proto == unix.IPPROTO_UDP || proto == unix.IPPROTO_SCTP
	if hasPorts && len(transport) >= 4 {
		s.Source = netip.AddrPortFrom(src, binary.BigEndian.Uint16(transport)).String()
		s.Destination = netip.AddrPortFrom(dst, binary.BigEndian.Uint16(transport[2:])).String()
	}
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
