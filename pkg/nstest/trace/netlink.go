package trace

import (
	"encoding/binary"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// Message is a netlink message that a program sent.
type Message struct {
	Protocol int // unix.NETLINK_ROUTE
	Type     uint16
	Flags    uint16
	Index    int32 // of the link that a message about a link or an address is about; 0: none
}

func messages(protocol uint64, b []byte) (all []Message) {
	for len(b) >= unix.SizeofNlMsghdr {
		n := binary.NativeEndian.Uint32(b)
		if n < unix.SizeofNlMsghdr {
			break
		}
		m := Message{Protocol: int(protocol), Type: binary.NativeEndian.Uint16(b[4:]),
			Flags: binary.NativeEndian.Uint16(b[6:])}
		if m.Protocol == unix.NETLINK_ROUTE && m.Type < unix.RTM_NEWROUTE && len(b) >= 24 {
			m.Index = int32(binary.NativeEndian.Uint32(b[20:]))
		}
		all = append(all, m)
		b = b[min(len(b), int(n+3)&^3):]
	}
	return all
}

var (
	routeVerbs   = [4]string{"RTM_NEW", "RTM_DEL", "RTM_GET", "RTM_SET"}
	routeObjects = map[uint16]string{0: "LINK", 1: "ADDR", 2: "ROUTE", 3: "NEIGH", 4: "RULE", 5: "QDISC", 6: "TCLASS",
		7:  "TFILTER",
		16: "NETCONF", 17: "MDB", 18: "NSID", 19: "STATS", 24: "VLAN"}
	tableWords = []string{"NEWTABLE", "GETTABLE", "DELTABLE", "NEWCHAIN", "GETCHAIN", "DELCHAIN", "NEWRULE", "GETRULE",
		"DELRULE",
		"NEWSET", "GETSET", "DELSET", "NEWSETELEM", "GETSETELEM", "DELSETELEM", "NEWGEN", "GETGEN", "TRACE",
		"NEWOBJ", "GETOBJ", "DELOBJ", "GETOBJ_RESET", "NEWFLOWTABLE", "GETFLOWTABLE", "DELFLOWTABLE"}
	// The nftables and conntrack messages that ask.
	tableGets = []uint16{unix.NFT_MSG_GETTABLE, unix.NFT_MSG_GETCHAIN, unix.NFT_MSG_GETRULE, unix.NFT_MSG_GETSET,
		unix.NFT_MSG_GETSETELEM, unix.NFT_MSG_GETOBJ, unix.NFT_MSG_GETFLOWTABLE}
	flowGets = []uint16{1, 4} // IPCTNL_MSG_CT_GET, IPCTNL_MSG_CT_GET_CTRZERO
)

const firstRoute = unix.RTM_NEWLINK

// Dump says that the message asks for all there is, or for all of one link ([Message.Index]).
func (m Message) Dump() bool {
	if m.Flags&unix.NLM_F_DUMP != unix.NLM_F_DUMP {
		return false
	}
	switch subsystem, word := m.Type>>8, m.Type&0xff; m.Protocol {
	case unix.NETLINK_ROUTE:
		return m.Type >= firstRoute && (m.Type-firstRoute)%4 == 2
	case unix.NETLINK_NETFILTER:
		return subsystem == unix.NFNL_SUBSYS_NFTABLES && slices.Contains(tableGets, word) ||
			subsystem == unix.NFNL_SUBSYS_CTNETLINK && slices.Contains(flowGets, word)
	}
	return true
}

// String is the kernel's name of the message: "RTM_GETLINK dump".
func (m Message) String() string {
	s := fmt.Sprintf("protocol %d type %d", m.Protocol, m.Type)
	switch subsystem, word := m.Type>>8, m.Type&0xff; m.Protocol {
	case unix.NETLINK_ROUTE:
		if object, ok := routeObjects[(m.Type-firstRoute)/4]; ok && m.Type >= firstRoute {
			s = routeVerbs[(m.Type-firstRoute)%4] + object
		}
	case unix.NETLINK_NETFILTER:
		switch {
		case m.Type == unix.NFNL_MSG_BATCH_BEGIN:
			s = "BATCH_BEGIN"
		case m.Type == unix.NFNL_MSG_BATCH_END:
			s = "BATCH_END"
		case subsystem == unix.NFNL_SUBSYS_NFTABLES && int(word) < len(tableWords):
			s = "NFT_" + tableWords[word]
		case subsystem == unix.NFNL_SUBSYS_CTNETLINK:
			s = fmt.Sprintf("CT message %d", word)
		}
	}
	if m.Index != 0 {
		s += fmt.Sprintf(" of link %d", m.Index)
	}
	if m.Dump() {
		s += " dump"
	}
	return s
}
