package dhcp

import (
	"bytes"
	"encoding/gob"
	"io"
	"math/big"
	"net"
	"reflect"
	"slices"
	"testing"
	"testing/iotest"
	"time"
	"unsafe"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
)

// Messages in which all fields are set.
var (
	wholeHead = rpcHead{ServiceMethod: methodAllocate, Seq: 1<<64 - 1, Error: "no", Details: "not at all", Code: 300}
	wholeCall = rpcCall{ContainerID: "one", Netns: "/run/netns/x", IfName: "eth0", Args: "A=B",
		StdinData: bytes.Repeat([]byte("\x00\xff{}"), 100), Exclusive: true}
	wholeResult = rpcResult{
		IPs: []rpcIP{{Address: net.IPNet{IP: net.IP{10, 9, 0, 50}, Mask: net.CIDRMask(24, 32)},
			Gateway: net.IP{10, 9, 0, 1}}, {}, {Gateway: net.ParseIP("fd00::1")}},
		Routes: []rpcRoute{{Dst: net.IPNet{IP: net.IP{0, 0, 0, 0}, Mask: net.CIDRMask(0, 32)}, GW: net.IP{10, 9, 0, 1},
			Priority: -1 << 31, Scope: new(253)}, {Priority: 1<<31 - 1, Scope: new(-129)}},
		DNS: cni.DNS{Nameservers: []string{"10.9.0.1", ""}, Domain: "example.org", Search: []string{"a", "b"},
			Options: []string{"ndots:5"}},
	}
)

// gobOf returns the stream that encoding/gob writes.
func gobOf(values ...any) []byte {
	var out bytes.Buffer
	enc := gob.NewEncoder(&out)
	for _, v := range values {
		if err := enc.Encode(v); err != nil {
			panic(err)
		}
	}
	return out.Bytes()
}

// zeroValues returns pointers to zero values of the same types.
func zeroValues(values []any) (list []any) {
	for _, v := range values {
		list = append(list, reflect.New(reflect.TypeOf(v)).Interface())
	}
	return list
}

var _ = DescribeTable("writes what encoding/gob reads, and reads what it writes", func(values ...any) {
	var ours bytes.Buffer
	Expect(writeGob(&ours, values...)).To(Succeed())
	dec, r := gob.NewDecoder(&ours), newGobReader(iotest.OneByteReader(bytes.NewReader(gobOf(values...))))
	theirs := zeroValues(values)
	for i, to := range zeroValues(values) {
		Expect(dec.Decode(theirs[i])).To(Succeed())
		Expect(theirs[i]).To(HaveValue(Equal(values[i])))
		Expect(r.read(to)).To(Succeed())
		Expect(to).To(HaveValue(Equal(values[i])))
	}
	Expect(r.read(&rpcHead{})).To(MatchError(io.EOF))
},
	Entry("a call", wholeHead, wholeCall),
	Entry("a call without anything", rpcHead{}, rpcCall{}),
	Entry("a result", rpcHead{Seq: 127}, wholeResult),
	Entry("an empty result", rpcHead{Seq: 128}, rpcResult{}),
	Entry("no result", rpcHead{Error: "e"}, struct{}{}),
	Entry("calls one after the other", wholeHead, wholeCall, rpcHead{}, rpcCall{}, wholeHead, wholeResult),
)

// node is a recursive type.
type node struct {
	Next  *node
	Seq   int
	Error []string
}

func chain(length int) (n *node) {
	for range length {
		n = &node{Next: n, Seq: 1, Error: []string{"", "x"}}
	}
	return n
}

// unknownFields has fields of every type that the reader does not know.
type unknownFields struct {
	Bool      bool
	Int       int8
	Float     float32
	Complex   complex64
	Array     [3][]string
	Bytes     [5]byte
	Map       map[string]map[int][]node
	Any       any
	Anys      []any
	More      map[string]any
	Struct    struct{ A, B []struct{ C *int } }
	Time      time.Time
	Big       *big.Int
	Chain     *node
	Interface io.Reader
}

// futureHead is a header that a newer peer could send: with fields in another order and many unknown ones.
type futureHead struct {
	Code          uint16
	Before        unknownFields
	Seq           uint32
	ServiceMethod *string
	After         unknownFields
	Error         string
}

type newerResult struct {
	DNS    struct{ More, Search, Nameservers []string }
	Before unknownFields
	Routes []*newerRoute
	IPs    []struct {
		Interface *int
		Gateway   net.IP
		Address   net.IPNet
	}
	Sandbox map[string][]net.IPNet
}

type newerRoute struct {
	MTU, AdvMSS, Priority int
	Table, Scope          *int
	GW                    []byte
}

func init() {
	gob.Register(&node{})
	gob.Register(unknownFields{})
	gob.Register(&bytes.Reader{})
	gob.Register(map[string]any{})
}

func fullSurplus() unknownFields {
	return unknownFields{Bool: true, Int: -100, Float: 1.5, Complex: 1 + 300i, Array: [3][]string{{"a"}, {}, {"b",
		"c"}},
		Bytes: [5]byte{1}, Map: map[string]map[int][]node{"a": {1: {*chain(2)}, 2: nil}}, Any: chain(3),
		Anys: []any{1, "x", unknownFields{Int: 1}, map[string]any{"a": 2.5}}, More: map[string]any{"m": "n"},
		Struct: struct{ A, B []struct{ C *int } }{B: []struct{ C *int }{{}, {new(5)}}}, Time: time.Unix(1, 2),
		Big: big.NewInt(1 << 60), Chain: chain(100)}
}

func newerMessages() (futureHead, newerResult) {
	head := futureHead{Code: 9, Before: fullSurplus(), Seq: 77, ServiceMethod: new("DHCP.Allocate"), Error: "oh"}
	head.After.Any = map[string]any{"k": []byte("v")}
	res := newerResult{Before: fullSurplus(), Sandbox: map[string][]net.IPNet{"": {{}}},
		Routes: []*newerRoute{{MTU: 5, Priority: 6, Table: new(7), Scope: new(8), GW: []byte{10, 0, 0, 1}}, {}}}
	res.DNS.Search, res.DNS.More = []string{"s"}, []string{"m"}
	res.IPs = append(res.IPs, res.IPs...)
	res.IPs = append(res.IPs, struct {
		Interface *int
		Gateway   net.IP
		Address   net.IPNet
	}{new(1), net.IP{10, 0, 0, 1}, net.IPNet{IP: net.IP{10, 0, 0, 2}, Mask: net.CIDRMask(8, 32)}})
	return head, res
}

var _ = It("skips the fields that only a newer peer knows", func() {
	newer, newerRes := newerMessages()
	r := newGobReader(bytes.NewReader(gobOf(newer, newerRes)))
	var head rpcHead
	Expect(r.read(&head)).To(Succeed())
	Expect(head).To(Equal(rpcHead{ServiceMethod: "DHCP.Allocate", Seq: 77, Error: "oh", Code: 9}))
	var res rpcResult
	Expect(r.read(&res)).To(Succeed())
	Expect(res).To(Equal(rpcResult{DNS: cni.DNS{Search: []string{"s"}},
		Routes: []rpcRoute{{Priority: 6, Scope: new(8), GW: net.IP{10, 0, 0, 1}}, {}},
		IPs: []rpcIP{{Gateway: net.IP{10, 0, 0, 1},
			Address: net.IPNet{IP: net.IP{10, 0, 0, 2}, Mask: net.CIDRMask(8, 32)}}}}))
})

var _ = DescribeTable("refuses", func(message any, says string) {
	var stream []byte
	if bytes, ok := message.(string); ok {
		stream = []byte(bytes)
	} else {
		stream = gobOf(message)
	}
	Expect(newGobReader(bytes.NewReader(stream)).read(&rpcHead{})).To(MatchError(ContainSubstring(says)))
},
	Entry("a string for a number", struct{ Seq string }{"1"}, "a value of type 6 is not a uint64"),
	Entry("a signed number for an unsigned one", struct{ Seq int }{1}, "a value of type 2 is not a uint64"),
	Entry("bytes for a string", struct{ Error []byte }{[]byte("x")}, "a value of type 5 is not a string"),
	Entry("a struct for a string", struct{ Error node }{}, "is not a string"),
	Entry("a list for a number", struct{ Code []string }{[]string{""}}, "is not a uint"),
	Entry("a struct with other fields only", struct{ Other string }{"x"}, `"" has no field of dhcp.rpcHead`),
	Entry("a value that is not a struct", []uint{1}, "is not a dhcp.rpcHead"),
	Entry("values that are nested too deep", struct {
		Seq   uint
		Chain *node
	}{1, chain(maxGobDepth)}, "values are nested more than"),
	Entry("a length beyond the end", "\xf8\x7f\xff\xff\xff\xff\xff\xff\xff\x00", "unexpected EOF"),
	Entry("an integer of 9 bytes", "\xf7111111111", "more than 64 bits"),
	Entry("an empty message", "\x00", "EOF"),
	Entry("a type without a description", "\x05\xff\x84\x01\x01\x00", "is not a dhcp.rpcHead"),
	Entry("a second description of a type", "\x04\x1f\x02\x00\x00", "described twice"),
	Entry("an empty description", "\x03\xff\x83\x00", "incompletely"),
)

var _ = It("reads as many routes as a server can send", func() {
	dst := net.IPNet{IP: net.IP{0, 0, 0, 0}, Mask: net.CIDRMask(0, 32)}
	route := rpcRoute{Dst: dst, GW: net.IP{10, 9, 0, 1}, Priority: 1, Scope: new(1)}
	whole := rpcResult{IPs: wholeResult.IPs, Routes: slices.Repeat([]rpcRoute{route}, 64<<10/5)}
	var res rpcResult
	Expect(newGobReader(bytes.NewReader(gobOf(whole))).read(&res)).To(Succeed())
	Expect(res).To(Equal(whole))
})

var _ = It("refuses what would take much memory", func() {
	var stream bytes.Buffer
	Expect(writeGob(&stream, rpcResult{IPs: make([]rpcIP, 1<<20)})).To(Succeed())
	var res rpcResult
	Expect(newGobReader(&stream).read(&res)).To(MatchError("more than 262144 values"))
	Expect(cap(res.IPs) * int(unsafe.Sizeof(rpcIP{}))).To(BeNumerically("<", 32<<20))
})

// FuzzGob reads the same stream with gobReader and with encoding/gob. If both succeed, the values must be equal.
func FuzzGob(f *testing.F) {
	newer, newerRes := newerMessages()
	f.Add(gobOf(wholeHead, wholeCall), uint8(0))
	f.Add(gobOf(rpcHead{Seq: 1}, wholeResult), uint8(1))
	f.Add(gobOf(newer, newerRes), uint8(1))
	f.Add(gobOf(newer, struct{}{}), uint8(2))
	f.Fuzz(func(t *testing.T, stream []byte, kind uint8) {
		values := []any{rpcHead{}, []any{rpcCall{}, rpcResult{}, struct{}{}}[kind%3]}
		dec, r := gob.NewDecoder(bytes.NewReader(stream)), newGobReader(bytes.NewReader(stream))
		theirs := zeroValues(values)
		for i, to := range zeroValues(values) {
			if r.read(to) != nil || dec.Decode(theirs[i]) != nil {
				return
			}
			if ours := gobOf(to); !bytes.Equal(ours, gobOf(theirs[i])) {
				t.Fatalf("%+v, but encoding/gob reads %+v", to, theirs[i])
			}
		}
	})
}
