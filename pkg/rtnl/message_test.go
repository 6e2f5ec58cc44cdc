package rtnl

import (
	"errors"
	"fmt"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// FuzzAnswer reads anything as the kernel's answer: no panic, and no errno but
// the one in it.
func FuzzAnswer(f *testing.F) {
	f.Add(packet(unix.NLMSG_ERROR, 0, nl.Uint32Attr(0)), uint8(0))
	f.Add(packet(unix.RTM_NEWLINK, unix.NLM_F_MULTI, nl.NewIfInfomsg(0).Serialize(), attrString(unix.IFLA_IFNAME, "eth0").Serialize()), uint8(1))
	f.Add(packet(unix.RTM_NEWROUTE, 0, (&nl.RtMsg{}).Serialize(), nl.NewRtAttr(unix.RTA_MULTIPATH, make([]byte, 12)).Serialize()), uint8(2))
	f.Add(packet(unix.NLMSG_DONE, unix.NLM_F_ACK_TLVS, nl.Uint32Attr(^uint32(1)), attrString(nl.NLMSGERR_ATTR_MSG, "why").Serialize()), uint8(3))
	f.Fuzz(func(t *testing.T, data []byte, what uint8) {
		each := func(m message) {
			parseLink(m.data)
			parseAddr(m.data)
			parseRoute(m.data)
			appendVLANs(nil, m.data)
		}
		a := answer{seq: 1, each: each}
		var errno unix.Errno
		if err := a.read(data); err != nil && !errors.As(err, &errno) {
			t.Fatalf("error without an errno: %v", err)
		}
		each(message{data: data})
	})
}

func packet(kind, flags int, parts ...[]byte) []byte {
	var body []byte
	for _, p := range parts {
		body = append(body, p...)
	}
	head := nl.Uint32Attr(uint32(unix.SizeofNlMsghdr + len(body)))
	head = append(head, nl.Uint16Attr(uint16(kind))...)
	head = append(head, nl.Uint16Attr(uint16(flags))...)
	head = append(head, nl.Uint32Attr(1)...)
	head = append(head, nl.Uint32Attr(0)...)
	return append(head, body...)
}

var _ = DescribeTable("the kernel's answer is read",
	func(data []byte, wantErr string, interrupted bool) {
		a := answer{seq: 1}
		err := a.read(data)
		if wantErr == "" {
			Expect(err).NotTo(HaveOccurred())
		} else {
			Expect(err).To(MatchError(wantErr))
			Expect(errors.Is(err, unix.ENOENT)).To(BeTrue())
		}
		Expect(a.done).To(BeTrue())
		Expect(a.interrupted).To(Equal(interrupted))
	},
	Entry("acknowledged", packet(unix.NLMSG_ERROR, 0, nl.Uint32Attr(0)), "", false),
	Entry("the end of a list", packet(unix.NLMSG_DONE, 0), "", false),
	Entry("the end of an interrupted list", packet(unix.NLMSG_DONE, unix.NLM_F_DUMP_INTR, nl.Uint32Attr(0)), "", true),
	Entry("an error", packet(unix.NLMSG_ERROR, 0, failed, make([]byte, 16)), "no such file or directory", false),
	Entry("an error with an explanation after the request", packet(unix.NLMSG_ERROR, unix.NLM_F_ACK_TLVS,
		failed, packet(unix.RTM_NEWLINK, 0, make([]byte, 20)), attrString(nl.NLMSGERR_ATTR_MSG, "because").Serialize()),
		"no such file or directory (because)", false),
	Entry("an error with an explanation after the request's header", packet(unix.NLMSG_ERROR, unix.NLM_F_ACK_TLVS|unix.NLM_F_CAPPED,
		failed, packet(unix.RTM_NEWLINK, 0), attrString(nl.NLMSGERR_ATTR_MSG, "because").Serialize()),
		"no such file or directory (because)", false),
	Entry("a list that ends with an error and an explanation", packet(unix.NLMSG_DONE, unix.NLM_F_ACK_TLVS,
		failed, attrString(nl.NLMSGERR_ATTR_MSG, "because").Serialize()), "no such file or directory (because)", false),
)

var failed = nl.Uint32Attr(^uint32(unix.ENOENT) + 1)

var _ = DescribeTable("VLANs are joined into ranges", func(vlans []VLAN, want string) {
	got := ""
	for _, info := range vlanRanges(vlans) {
		got += fmt.Sprintf(" %d:%x", info.Vid, info.Flags)
	}
	Expect(got).To(Equal(want))
},
	Entry("none", nil, ""),
	Entry("one", []VLAN{{ID: 5}}, " 5:0"),
	Entry("neighbours", []VLAN{{ID: 5}, {ID: 6}, {ID: 7}}, " 5:8 7:10"),
	Entry("two neighbours", []VLAN{{ID: 5}, {ID: 6}}, " 5:8 6:10"),
	Entry("out of order and twice", []VLAN{{ID: 7}, {ID: 5}, {ID: 6}, {ID: 6}}, " 5:8 7:10"),
	Entry("a gap", []VLAN{{ID: 5}, {ID: 7}}, " 5:0 7:0"),
	Entry("a PVID alone in the middle", []VLAN{{ID: 5}, {ID: 6, PVID: true, Untagged: true}, {ID: 7}}, " 5:0 6:6 7:0"),
	Entry("other flags", []VLAN{{ID: 5}, {ID: 6}, {ID: 7, Untagged: true}, {ID: 8, Untagged: true}}, " 5:8 6:10 7:c 8:14"),
	Entry("all", func() (all []VLAN) {
		for id := uint16(1); id <= 4094; id++ {
			all = append(all, VLAN{ID: id})
		}
		return all
	}(), " 1:8 4094:10"),
)
