package nft

import (
	"slices"
	"testing"

	"github.com/vishvananda/netlink/nl"
)

// FuzzFlow reads anything as an entry.
func FuzzFlow(f *testing.F) {
	tuple := slices.Concat(
		attrNest(nl.CTA_TUPLE_IP, attrBytes(nl.CTA_IP_V4_SRC, []byte{10, 1, 0, 2}),
			attrBytes(nl.CTA_IP_V6_DST, make([]byte, 16))),
		attrNest(nl.CTA_TUPLE_PROTO, attrBytes(nl.CTA_PROTO_NUM, []byte{17}),
			attrBytes(nl.CTA_PROTO_DST_PORT, []byte{0, 53})))
	f.Add(slices.Concat(attrNest(nl.CTA_TUPLE_ORIG, tuple), attrNest(nl.CTA_TUPLE_REPLY, tuple),
		attrBytes(nl.CTA_ID, []byte{1, 2, 3, 4})))
	f.Fuzz(func(t *testing.T, data []byte) {
		flow, _ := decodeFlow(data)
		flow.Translated()
		for range attributes(flow.id) {
		}
	})
}
