package conntrack

import (
	"testing"

	"github.com/vishvananda/netlink/nl"

	"github.com/hawser-cni/plugins/pkg/netlink"
)

// FuzzAnswer reads anything as an entry.
func FuzzAnswer(f *testing.F) {
	var ip, proto, tuple, body netlink.Body
	ip.Bytes(nl.CTA_IP_V4_SRC, []byte{10, 1, 0, 2})
	ip.Bytes(nl.CTA_IP_V6_DST, make([]byte, 16))
	proto.Bytes(nl.CTA_PROTO_NUM, []byte{17})
	proto.Bytes(nl.CTA_PROTO_DST_PORT, []byte{0, 53})
	tuple.Nest(nl.CTA_TUPLE_IP, ip)
	tuple.Nest(nl.CTA_TUPLE_PROTO, proto)
	body.Nest(nl.CTA_TUPLE_ORIG, tuple)
	body.Nest(nl.CTA_TUPLE_REPLY, tuple)
	body.Bytes(nl.CTA_ID, []byte{1, 2, 3, 4})
	f.Add([]byte(body))
	f.Fuzz(func(t *testing.T, data []byte) {
		flow, _ := decode(data)
		flow.Translated()
		for range netlink.Attributes(flow.id) {
		}
	})
}
