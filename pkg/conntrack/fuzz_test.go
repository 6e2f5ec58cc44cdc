package conntrack

import (
	"testing"

	"github.com/hawser-cni/plugins/pkg/netlink"
)

// FuzzAnswer reads anything as an entry.
func FuzzAnswer(f *testing.F) {
	var ip, proto, tuple, body netlink.Body
	ip.Bytes(ctaIPv4Src, []byte{10, 1, 0, 2})
	ip.Bytes(ctaIPv6Dst, make([]byte, 16))
	proto.Bytes(ctaProtoNum, []byte{17})
	proto.Bytes(ctaProtoDstPort, []byte{0, 53})
	tuple.Nest(ctaTupleIP, ip)
	tuple.Nest(ctaTupleProto, proto)
	body.Nest(ctaTupleOrig, tuple)
	body.Nest(ctaTupleReply, tuple)
	body.Bytes(ctaID, []byte{1, 2, 3, 4})
	f.Add([]byte(body))
	f.Fuzz(func(t *testing.T, data []byte) {
		flow, _ := decode(data)
		flow.Translated()
		for range netlink.Attributes(flow.id) {
		}
	})
}
