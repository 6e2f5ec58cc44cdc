package tool

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/cmd/hawser/node"
	"github.com/hawser-cni/plugins/pkg/nft"
)

// traced is a step of a packet, as trace prints it.
type traced struct {
	Packet      int    `json:"packet"` // counted from 1
	Proto       string `json:"proto,omitempty"`
	Source      string `json:"source,omitempty"` // as the packet is here, where that was told
	Destination string `json:"destination,omitempty"`
	In          string `json:"in,omitempty"` // the interface by which it came
	Out         string `json:"out,omitempty"`
	Table       string `json:"table"`
	Chain       string `json:"chain"`
	Rule        uint64 `json:"rule,omitempty"` // its handle, as nft -a prints it; 0: the end of the chain
	Verdict     string `json:"verdict"`
}

func traceCommand(_ *node.Node, asJSON *bool) *cobra.Command {
	var limit time.Duration
	var most int
	c := &cobra.Command{
		Use: "trace PORT|ADDRESS[:PORT]", Short: "Show what nftables rules do with packets to a port or an address",
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			rules, err := traceRules(args[0])
			if err != nil {
				return err
			}
			if limit <= 0 || most <= 0 {
				return errors.New("--for and --packets must be more than 0")
			}
			ctx, cancel := context.WithTimeout(c.Context(), limit)
			defer cancel()
			t := tracer{out: c.OutOrStdout(), most: most, quiet: *asJSON, numbers: map[uint32]int{}}
			t.steps = []traced{} // [] for machines
			if err := nft.Trace(ctx, rules, t.step); err != nil {
				return err
			}
			if *asJSON {
				return writeJSON(c.OutOrStdout(), t.steps)
			}
			return t.sum(args[0], limit)
		},
	}
	c.Flags().DurationVar(&limit, "for", 10*time.Second, "how long to look")
	c.Flags().IntVar(&most, "packets", 5, "how many packets to follow")
	return c
}

// traceRules match packets to a port (of TCP or UDP), or from and to an address.
func traceRules(of string) ([]nft.Rule, error) {
	port, addr := uint64(0), netip.Addr{}
	var err error
	if addr, err = netip.ParseAddr(of); err != nil {
		host, number := "", of
		if h, p, err := net.SplitHostPort(of); err == nil {
			host, number = h, p
		}
		if port, err = strconv.ParseUint(number, 10, 16); err != nil || port == 0 {
			return nil, fmt.Errorf("%q is no port between 1 and 65535, no address and no ADDRESS:PORT", of)
		}
		if host != "" {
			if addr, err = netip.ParseAddr(host); err != nil {
				return nil, fmt.Errorf("%q: %q is no address", of, host)
			}
		}
	}
	var match nft.Rule
	addr = addr.Unmap().WithZone("")
	if addr.IsValid() {
		match = nft.Rule{nft.Is(nft.FamilyOf(addr).Daddr(), addr.AsSlice())}
	}
	if port == 0 {
		return []nft.Rule{match, {nft.Is(nft.FamilyOf(addr).Saddr(), addr.AsSlice())}}, nil
	}
	var rules []nft.Rule
	for _, proto := range []byte{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
		number := binary.BigEndian.AppendUint16(nil, uint16(port))
		rules = append(rules, append(match[:len(match):len(match)],
			nft.Is(nft.L4Proto, []byte{proto}), nft.Is(nft.THDport, number)))
	}
	return rules, nil
}

// tracer prints steps as they come, and keeps them.
type tracer struct {
	out     io.Writer
	most    int
	quiet   bool
	numbers map[uint32]int // of packets, by the kernel's
	steps   []traced
}

// step takes a step; false ends the trace: more packets than are wanted came.
func (t *tracer) step(s nft.Step) bool {
	n, known := t.numbers[s.Packet]
	if !known {
		if len(t.numbers) == t.most {
			return false
		}
		n = len(t.numbers) + 1
		t.numbers[s.Packet] = n
	}
	if s.Own() {
		return true
	}
	step := traced{
		Packet: n, In: linkName(s.IIF), Out: linkName(s.OIF), Table: s.Table.String(), Chain: s.Chain, Rule: s.Handle,
		Verdict: s.Verdict,
	}
	if s.Destination.IsValid() {
		step.Proto = map[byte]string{unix.IPPROTO_TCP: "tcp", unix.IPPROTO_UDP: "udp"}[s.Proto]
		step.Source, step.Destination = s.Source.String(), s.Destination.String()
	}
	t.steps = append(t.steps, step)
	if !t.quiet {
		step.print(t.out)
	}
	return true
}

func (s traced) print(out io.Writer) {
	if s.Destination != "" {
		fmt.Fprintf(out, "packet %d: %s %s > %s", s.Packet, s.Proto, s.Source, s.Destination)
		for _, side := range []struct{ word, link string }{{"from", s.In}, {"to", s.Out}} {
			if side.link != "" {
				fmt.Fprintf(out, " %s %s", side.word, side.link)
			}
		}
		fmt.Fprintln(out)
	}
	at := "end of the chain"
	if s.Rule != 0 {
		at = fmt.Sprintf("rule %d", s.Rule)
	}
	fmt.Fprintf(out, "packet %d:   %s, chain %s, %s: %s\n",
		s.Packet, plain(s.Table), plain(s.Chain), at, plain(s.Verdict))
}

// sum says where packets ended.
func (t *tracer) sum(of string, limit time.Duration) error {
	if len(t.steps) == 0 {
		const text = "no packet to %s met a rule within %s: none came, or only iptables-legacy has rules"
		return fmt.Errorf(text, of, limit)
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
