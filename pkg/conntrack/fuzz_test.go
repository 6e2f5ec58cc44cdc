package conntrack

import (
	"encoding/binary"
	"testing"

	"golang.org/x/sys/unix"
)

// FuzzAnswer reads anything as the kernel's answer.
func FuzzAnswer(f *testing.F) {
	var ip, proto, tuple, body attrs
	ip.put(ctaIPv4Src, []byte{10, 1, 0, 2})
	ip.put(ctaIPv6Dst, make([]byte, 16))
	proto.put(ctaProtoNum, []byte{17})
	proto.put(ctaProtoDstPort, []byte{0, 53})
	tuple.nest(ctaTupleIP, ip)
	tuple.nest(ctaTupleProto, proto)
	body.nest(ctaTupleOrig, tuple)
	body.nest(ctaTupleReply, tuple)
	body.put(ctaID, []byte{1, 2, 3, 4})
	f.Add(request{typ: ctGet, body: body}.encode(1))
	f.Add(request{typ: unix.NLMSG_DONE, flags: unix.NLM_F_DUMP_INTR}.encode(1))
	f.Add(request{typ: unix.NLMSG_ERROR, body: binary.NativeEndian.AppendUint32(nil, 1<<31)}.encode(1))
	f.Fuzz(func(t *testing.T, data []byte) {
		each := func(body []byte) {
			flow, _ := decode(body)
			flow.Translated()
			for range attributes(flow.id) {
			}
		}
		a := answer{seq: 1, each: each}
		a.read(data)
		if a.err != nil && !a.done {
			t.Fatal(a.err)
		}
		each(data)
	})
}
