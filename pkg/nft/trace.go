package nft

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Step is what a rule, or the end of a base chain, does with a packet that is traced.
type Step struct {
	Packet  uint32 // a number that the kernel gives each packet
	Table   Table
	Chain   string
	Handle  uint64 // of the rule; 0 = the chain's end
	Verdict string // as nft writes it: "accept", "drop", "jump x"
	IIF     int    // index of the interface by which it came; 0 = it is the host's own
	OIF     int    // index of the interface by which it leaves; 0 = not decided yet

	// As the packet is at this point; the zero values where the kernel has told them before.
	Proto               byte
	Source, Destination netip.AddrPort
}

// Own says whether the rule is that of the trace itself.
func (s Step) Own() bool { return s.Table == Table{INet, traceTable} }

const (
	traceTable    = "hawser_trace"
	holdTable     = "hawser_watch"
	tracePriority = -450 // before all others: raw is -300
	traceRate     = 20   // packets a second
	tableOwner    = 2    // NFT_TABLE_F_OWNER, Linux 5.12: the table ends with the socket, however the process ends
)

// Trace marks packets that match one of the rules, at the beginning of prerouting and output, and calls each for what
// all rules of this network namespace do with them. It ends with the context, or when each returns false. The kernel
// takes the rules away when the socket is closed, also by a kill; one that cannot (before Linux 5.12) is
// ErrUnsupported.
func Trace(ctx context.Context, rules []Rule, each func(Step) bool) error {
	marks := New()
	defer marks.Close()
	mark := func() error {
		err := marks.batch(traceMessages(rules), true)
		if errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("%w: %w", err, ErrUnsupported)
		}
		return err
	}
	return listen(ctx, unix.NFNLGRP_NFTRACE, mark, func(kind uint16, f Family, b []byte) bool {
		return kind != unix.NFT_MSG_TRACE || each(decodeStep(f, b))
	})
}

// HoldNAT has the kernel go on translating the packets of connections that it translates, also while no table has a
// rule for it: it makes a table of the socket's own, which others cannot flush, with a chain that registers NAT and a
// rule without effect that registers connection tracking. It ends with c. Before Linux 5.12 there are no such tables.
func (c *Conn) HoldNAT() error {
	t := Table{INet, holdTable}
	chain := Chain{Name: "postrouting", Comment: "connections stay translated while others flush all rules",
		Hook: &Hook{"nat", Postrouting, 100}}
	return c.batch([]message{newOwnTable(t), newChain(t, chain), newRule(t, chain.Name, Rule{CtEstablished()})}, true)
}

// newOwnTable makes a table of the socket's own.
func newOwnTable(t Table) message {
	m := newTable(t)
	m.body = append(m.body, attrNet32(unix.NFTA_TABLE_FLAGS, tableOwner)...)
	return m
}

// Deletions calls each for every table, chain or rule that somebody deletes, with an empty chain for a table, until
// the context ends. What the kernel could not report, since too much came at once, is a zero Table.
func Deletions(ctx context.Context, each func(t Table, chain string)) error {
	ready := func() error { return nil }
	return listen(ctx, unix.NFNLGRP_NFTABLES, ready, func(kind uint16, f Family, b []byte) bool {
		switch kind {
		case unix.NFT_MSG_DELTABLE, lost:
			each(Table{f, textAt(b, unix.NFTA_TABLE_NAME)}, "")
		case unix.NFT_MSG_DELCHAIN:
			each(Table{f, textAt(b, unix.NFTA_CHAIN_TABLE)}, textAt(b, unix.NFTA_CHAIN_NAME))
		case unix.NFT_MSG_DELRULE:
			each(Table{f, textAt(b, unix.NFTA_RULE_TABLE)}, textAt(b, unix.NFTA_RULE_CHAIN))
		}
		return true
	})
}

// lost stands for messages that did not fit into the socket.
const lost = 0xff

// listen subscribes to a group, calls ready, and then each for every message, until that returns false or the context
// ends.
func listen(ctx context.Context, group uint, ready func() error, each func(uint16, Family, []byte) bool) error {
	events, err := nl.Subscribe(unix.NETLINK_NETFILTER, group)
	if err != nil {
		return unsupported(fmt.Errorf("netfilter socket: %w", err), err, "nfnetlink")
	}
	defer events.Close()
	defer context.AfterFunc(ctx, func() { events.Close() })()
	if err := ready(); err != nil {
		return err
	}
	for {
		messages, _, err := events.Receive()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.ENOBUFS):
			if !each(lost, 0, nil) {
				return nil
			}
		case err != nil:
			return err
		}
		for _, m := range messages {
			kind, isOurs := m.Header.Type&0xff, m.Header.Type>>8 == unix.NFNL_SUBSYS_NFTABLES
			if isOurs && len(m.Data) >= nfgenmsgSize && !each(kind, Family(m.Data[0]), m.Data[nfgenmsgSize:]) {
				return nil
			}
		}
	}
}

func traceMessages(rules []Rule) []message {
	t := Table{INet, traceTable}
	msgs := []message{newOwnTable(t)}
	for _, chain := range []Chain{{Name: "prerouting", Hook: &Hook{"filter", Prerouting, tracePriority}},
		{Name: "output", Hook: &Hook{"filter", Output, tracePriority}}} {
		msgs = append(msgs, newChain(t, chain))
		for _, r := range rules {
			msgs = append(msgs, newRule(t, chain.Name, append(r[:len(r):len(r)], limitRate(traceRate), traced())))
		}
	}
	return msgs
}

// traced marks the packet for tracing.
func traced() Stmt {
	return Stmt{text: "meta nftrace set 1", exprs: [][]byte{
		immediate(reg1, operand(unix.NFTA_IMMEDIATE_DATA, []byte{1})),
		expression("meta", attrNet32(unix.NFTA_META_KEY, unix.NFT_META_NFTRACE), attrNet32(unix.NFTA_META_SREG, reg1)),
	}}
}

// limitRate matches so many packets a second.
func limitRate(rate uint64) Stmt {
	net64 := func(v uint64) []byte { return binary.BigEndian.AppendUint64(nil, v) }
	return Stmt{text: fmt.Sprintf("limit rate %d/second", rate), exprs: [][]byte{expression("limit",
		attrBytes(unix.NFTA_LIMIT_RATE, net64(rate)), attrBytes(unix.NFTA_LIMIT_UNIT, net64(1)))}}
}

// Is matches packets whose field has this value.
func Is(f Field, value []byte) Stmt {
	text := fmt.Sprintf("%s %#x", f.text, value)
	return Stmt{text: text, proto: f.proto, exprs: [][]byte{f.load(reg1), isEqual(value)}}
}

func decodeStep(f Family, b []byte) Step {
	s := Step{
		Packet: uint32(number(b, unix.NFTA_TRACE_ID)), Table: Table{f, textAt(b, unix.NFTA_TRACE_TABLE)},
		Chain: textAt(b, unix.NFTA_TRACE_CHAIN), Handle: number(b, unix.NFTA_TRACE_RULE_HANDLE),
		IIF: int(number(b, unix.NFTA_TRACE_IIF)), OIF: int(number(b, unix.NFTA_TRACE_OIF)),
	}
	verdict, policy := attribute(b, unix.NFTA_TRACE_VERDICT), attribute(b, unix.NFTA_TRACE_POLICY)
	code := attribute(verdict, unix.NFTA_VERDICT_CODE)
	if code == nil {
		code = policy
	}
	if len(code) == 4 {
		s.Verdict = verdictText(int32(binary.BigEndian.Uint32(code)), textAt(verdict, unix.NFTA_VERDICT_CHAIN))
	}
	s.decodeHeaders(attribute(b, unix.NFTA_TRACE_NETWORK_HEADER), attribute(b, unix.NFTA_TRACE_TRANSPORT_HEADER))
	return s
}

func (s *Step) decodeHeaders(network, transport []byte) {
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
	case dropPacket:
		return "drop"
	case acceptPacket:
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
