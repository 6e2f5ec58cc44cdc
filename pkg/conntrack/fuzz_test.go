package conntrack

import (
	"slices"
	"testing"

	"github.com/vishvananda/netlink/nl"

	"github.com/hawser-cni/plugins/pkg/netlink"
)

// FuzzAnswer reads anything as an entry.
func FuzzAnswer(f *testing.F) {
	tuple := slices.Concat(
		netlink.Nest(nl.CTA_TUPLE_IP, netlink.Bytes(nl.CTA_IP_V4_SRC, []byte{10, 1, 0, 2}),
			netlink.Bytes(nl.CTA_IP_V6_DST, make([]byte, 16))),
		netlink.Nest(nl.CTA_TUPLE_PROTO, netlink.Bytes(nl.CTA_PROTO_NUM, []byte{17}),
			netlink.Bytes(nl.CTA_PROTO_DST_PORT, []byte{0, 53})))
	f.Add(slices.Concat(netlink.Nest(nl.CTA_TUPLE_ORIG, tuple), netlink.Nest(nl.CTA_TUPLE_REPLY, tuple),
		netlink.Bytes(nl.CTA_ID, []byte{1, 2, 3, 4})))
	f.Fuzz(func(t *testing.T, data []byte) {
		flow, _ := decode(data)
		flow.Translated()
		for range netlink.Attributes(flow.id) {
		}
	})
}
