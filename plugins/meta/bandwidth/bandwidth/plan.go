package bandwidth

import (
	"fmt"
	"math"
	"net"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

const (
	// unlimitedBurst is the smallest of the bursts, in bits, that runtimes send if the user sets only a rate: 2^31-1
	// (kubelet), 2^32-1 (containerd) and 2^35-9 (CRI-O).
	unlimitedBurst = 1<<31 - 1
	latency        = 25_000 // longest time that a packet may wait in the queue, in microseconds
	tick           = 64     // kernel's unit of packet time, in nanoseconds
	frameHeader    = 14     // length of the Ethernet header, in bytes, which the MTU does not include
)

// filter is the limit of one direction, as the kernel gets it: a TBF, and the networks that are exempt from it.
type filter struct {
	rtnl.TBF
	literal   rtnl.TBF // the TBF with the literal burst, as the reference creates it
	ofHostEnd rtnl.TBF // the TBF for the MTU of the host end, in CHECK and reapply
	warning   string
	codel     bool
	exempt    []rtnl.Exempt
	mac       net.HardwareAddr // MAC address of the IFB, if there is one; nil: random
}

// limits contains the filters of an attachment. The filter of a direction without a limit is nil.
type limits struct{ ingress, egress *filter }

// each yields each filter with its direction.
func (l limits) each(yield func(string, *filter) bool) {
	if l.ingress != nil && !yield("ingress", l.ingress) {
		return
	}
	if l.egress != nil {
		yield("egress", l.egress)
	}
}

// limits returns the filters for a link with this MTU.
func (cfg config) limits(mtu int) (l limits, err error) {
	var problems cni.Problems
	l.ingress, err = cfg.ingress.filter(mtu, cfg.literal)
	problems.Add(err)
	l.egress, err = cfg.egress.filter(mtu, cfg.literal)
	problems.Add(err)
	for _, f := range l.each {
		for _, p := range cfg.exempt {
			f.exempt = append(f.exempt, rtnl.Exempt{Net: p, IsDst: f == l.egress})
		}
		if f.codel = cfg.codel; f.codel {
			f.TBF, f.literal = withPeak(f.TBF, mtu), withPeak(f.literal, mtu)
		}
	}
	return l, problems.Err()
}

// withPeak returns the TBF with a peak rate of 10 Gbit/s. The kernel splits segments that are longer than the bucket of
// the peak rate, so no packet waits behind a segment of 64 KiB. The bucket has room for the bytes that the TBF's rate
// sends in a millisecond, but at least for one packet of the MTU. If that is 64 KiB or more, the TBF stays unchanged.
func withPeak(t rtnl.TBF, mtu int) rtnl.TBF {
	const peak, largest = 1_250_000_000, 64 << 10 // bytes/s, bytes
	if segment := max(t.Rate/1000, uint64(mtu+frameHeader)); segment < largest {
		t.Peak, t.Segment = peak, uint32(segment)
	}
	return t
}

// equalTBF compares two TBFs, except for the segment size, which the kernel does not report.
func equalTBF(have, want rtnl.TBF) bool {
	want.Segment = have.Segment
	return have == want
}

// filter returns the filter for a link with this MTU, or nil without a limit. It returns code 7 if the burst is so
// small that no packet of the MTU's length would pass, unless the rate is also below one such packet per second.
func (l limit) filter(mtu int, literal bool) (*filter, error) {
	if l.rate == 0 {
		return nil, nil
	}
	rate, burst, packet := l.rate/8, l.burst/8, uint64(mtu+frameHeader)
	f := &filter{literal: newTBF(rate, burst)}
	f.TBF = f.literal
	switch {
	case l.burst >= unlimitedBurst && !literal:
		burst = max(rate/20, 10*uint64(mtu), 64<<10)
		f.TBF = newTBF(rate, burst)
		f.warning = fmt.Sprintf("%s: %d is the default of the runtime and would disable the limit; using %d "+
			`(set "burst": "literal" to use it unchanged)`, l.key, l.burst, 8*burst)
	case maxPacket(f.TBF) >= packet:
	case rate < packet: // a rate below one packet per second is intended to block
		f.warning = fmt.Sprintf("%s: %d is less than a packet of %d bytes; only shorter packets pass", l.key, l.burst,
			packet)
	default:
		reason := fmt.Sprintf("is less than a packet of %d bytes after the kernel rounds it to whole microseconds of "+
			"the rate; no such packet would pass", packet)
		return nil, cni.Refuse(l.key, l.burst, reason).Suggest("use at least %d bits", 8*minBurst(rate, packet))
	}
	return f, nil
}

// maxPacket returns the length of the longest packet that passes the TBF, in bytes, as the kernel computes it.
func maxPacket(t rtnl.TBF) uint64 { return uint64(float64(t.Buffer) * tick * float64(t.Rate) / 1e9) }

// minBurst returns the smallest burst, in bytes, with which a packet of this length passes.
func minBurst(rate, packet uint64) uint64 {
	needed := math.Ceil(float64(packet) * 1e9 / float64(rate) / tick) // ticks
	return uint64(math.Ceil(math.Ceil(needed*tick/1000) * float64(rate) / 1e6))
}

// newTBF returns the TBF of a rate and a burst in bytes. It rounds as the reference does, within the kernel's limits.
func newTBF(rate, burst uint64) rtnl.TBF {
	micros := math.Floor(clamp(float64(burst) * 1e6 / float64(rate)))
	return rtnl.TBF{Rate: rate, Buffer: uint32(clamp(micros * 1000 / tick)),
		Limit: uint32(clamp(math.Floor(float64(rate)*latency/1e6) + float64(burst)))}
}

func clamp(n float64) float64 { return min(n, math.MaxUint32) }
