package main

import (
	"bytes"
	"encoding/json"
	"net"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/hawser-cni/plugins/pkg/cni"
)

// FuzzAnswer has a server answer to every message with one that the fuzzer makes up, with the true
// transaction ID and MAC address. What comes of it is a lease that an interface can have, or none.
func FuzzAnswer(f *testing.F) {
	for _, options := range []string{"", "\x35\x01\x02\xff", "\x35\x01\x05\x36\x04\x0a\x09\x00\x01\x01\x04\xff" +
		"\xff\xff\x00" +
		"\x79\x05\x18\x0a\x08\x00\x0a\x21\x08\xc0\x00\x02\x00\x0a\x09\x00\x07\x77\x04\x01a\x00\xc0\x0f\x02a\n\xff"} {
		l := newLife()
		offer := l.message(dhcpv4.MessageTypeOffer, dhcpv4.WithYourIP(net.IPv4(10, 9, 0, 50)))
		message := offer.ToBytes()
		f.Add(append(message[:240:240], options...), uint8(2))
	}
	f.Fuzz(func(t *testing.T, message []byte, rounds uint8) {
		l := newLife()
		for range rounds % 16 {
			l.now = max(l.now, l.wake)
			if l.tick(l.now) == nil {
				t.Fatal("nothing is sent when it is time")
			}
			p, err := dhcpv4.FromBytes(message)
			if err != nil {
				return
			}
			p.OpCode, p.TransactionID, p.ClientHWAddr = dhcpv4.OpcodeBootReply, l.xid, ownMAC
			l.receive(l.now, p)
			if l.wake < l.now {
				t.Fatal("the machine wants to go back in time")
			}
			checkLease(t, l.lease)
		}
	})
}

func checkLease(t *testing.T, l *lease) {
	if l == nil {
		return
	}
	if l.renew > l.rebind || l.rebind >= l.expiry {
		t.Fatal("times out of order", l.renew, l.rebind, l.expiry)
	}
	res := l.result(options{DNS: true}).decode()
	for _, version := range cni.Versions() {
		out, err := res.Encode(version)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := cni.DecodeResult(out, version); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	r := record{}
	r.setLease(l)
	if again := leaseOf(r.ACK, r.Since); again == nil || again.prefix() != l.prefix() {
		t.Fatal("the record has another lease")
	}
}

// FuzzRecord reads anything as a record, and lives on with its lease as a daemon does that starts.
func FuzzRecord(f *testing.F) {
	l := newLife()
	ack := l.message(dhcpv4.MessageTypeAck, dhcpv4.WithYourIP(net.IPv4(10, 9, 0, 50)), dhcpv4.WithLeaseTime(3600),
		dhcpv4.WithNetmask(net.CIDRMask(24, 32)), dhcpv4.WithOption(dhcpv4.OptServerIdentifier(net.IPv4(10, 9, 0, 1))))
	r := record{Attachment: cni.Attachment{Network: "net", ContainerID: "one", IfName: "eth0"}, Netns: "/x", Index: 2,
		Client: l.identity}
	for _, lease := range []*lease{nil, {ack: ack, since: time.Hour}, {ack: ack, since: 1<<63 - 1}} {
		r.setLease(lease)
		data, err := json.Marshal(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var r record
		if json.Unmarshal(data, &r) != nil || !r.Plausible() {
			return
		}
		now := time.Hour
		m := machine{identity: r.Client, lease: leaseOf(r.ACK, r.Since), pauses: newLife().pauses}
		if m.lease != nil {
			m.lease.result(options{DNS: true})
			m.releasePacket().message.ToBytes()
			m.enter(rebooting, now)
		}
		for range 16 {
			now = max(now, m.wake)
			if p := m.tick(now); p != nil {
				p.message.ToBytes()
			}
		}
	})
}

// FuzzCall has the daemon read what the fuzzer sends to its socket.
func FuzzCall(f *testing.F) {
	var whole bytes.Buffer
	whole.WriteString(connect)
	if err := writeGob(&whole, rpcHead{ServiceMethod: methodAllocate}, rpcCall{ContainerID: "c"}); err != nil {
		f.Fatal(err)
	}
	f.Add(whole.Bytes())
	f.Add([]byte("CONNECT /_goRPC_ HTTP/1.0\r\nHost: x\r\n\r\n"))
	f.Add([]byte("GET / HTTP/1.0\n\n"))
	f.Fuzz(func(t *testing.T, call []byte) {
		began := time.Now()
		conn := &duplex{in: bytes.NewReader(call)}
		head, c, err := readCall(conn)
		if err == nil && head.ServiceMethod == methodAllocate {
			_, _ = parseConfig(c.StdinData, c.Args)
		}
		if time.Since(began) > time.Minute {
			t.Fatal("it takes too long")
		}
	})
}

type duplex struct {
	in *bytes.Reader
	bytes.Buffer
}

func (d *duplex) Read(p []byte) (int, error) { return d.in.Read(p) }
