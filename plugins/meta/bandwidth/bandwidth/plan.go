package bandwidth

import (
	"fmt"
	"math"
	"net"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

const (
	// unlimitedBurst, in bits: runtimes send this or more when the user set a rate alone: 2^31-1 (kubelet), 2^32-1
	// (containerd) or 2^35-9 (CRI-O).
	unlimitedBurst = 1<<31 - 1
	// latency is how long a packet may wait, at the rate.
	latency = 25_000 // µs
	// tick is the kernel's unit of time.
	tick = 64 // ns
	// frameHeader comes on top of the MTU, in bytes.
	frameHeader = 14
)

// filter is what a limit needs.
type filter struct {
	rtnl.TBF
	literal rtnl.TBF // as the reference makes it: another one where nobody chose the burst
	warning string
	codel   bool
	exempt  []rtnl.Exempt
	mac     net.HardwareAddr // of the IFB, where there is one; nil = random
}

// limits are those of an attachment. A direction without a limit has no filter.
type limits struct{ ingress, egress *filter }

// each yields the filters that there are, by the direction.
func (l limits) each(yield func(string, *filter) bool) {
	if l.ingress != nil && !yield("ingress", l.ingress) {
		return
	}
	if l.egress != nil {
		yield("egress", l.egress)
	}
}

// plan decides on the filters for a link of this MTU.
func (cfg config) plan(mtu int) (l limits, err error) {
	var problems cni.Problems
	l.ingress, err = cfg.ingress.plan(mtu, cfg.literal)
	problems.Add(err)
	l.egress, err = cfg.egress.plan(mtu, cfg.literal)
	problems.Add(err)
	for _, f := range l.each {
		for _, p := range cfg.exempt {
			f.exempt = append(f.exempt, rtnl.Exempt{Net: p, To: f == l.egress})
		}
		if f.codel = cfg.codel; f.codel {
			f.TBF, f.literal = cut(f.TBF, mtu), cut(f.literal, mtu)
		}
	}
	return l, problems.Err()
}

// cut has the filter cut what the kernel sends in one piece, up to 64 KiB, so that no packet waits longer for another
// one than a packet or a millisecond of the rate takes. A TBF does that by a second bucket.
func cut(t rtnl.TBF, mtu int) rtnl.TBF {
	const peak, largest = 1_250_000_000, 64 << 10
	if segment := max(t.Rate/1000, uint64(mtu+frameHeader)); segment < largest {
		t.Peak, t.Segment = peak, uint32(segment)
	}
	return t
}

// is compares what can be read of a TBF.
func is(have, want rtnl.TBF) bool {
	want.Segment = have.Segment
	return have == want
}

func (l limit) plan(mtu int, literally bool) (*filter, error) {
	if l.rate == 0 {
		return nil, nil
	}
	rate, burst, packet := l.rate/8, l.burst/8, uint64(mtu+frameHeader)
	f := &filter{literal: newTBF(rate, burst)}
	f.TBF = f.literal
	switch {
	case l.burst >= unlimitedBurst && !literally:
		burst = max(rate/20, 10*uint64(mtu), 64<<10)
		f.TBF = newTBF(rate, burst)
		f.warning = fmt.Sprintf("%s: %d, which runtimes say of themselves, would be no limit; taken for %d "+
			`("burst": "literal" takes it as it is)`, l.key, l.burst, 8*burst)
	case atOnce(f.TBF) >= packet:
	case rate < packet: // less than a packet a second: it is not meant to be of use
		f.warning = fmt.Sprintf("%s: %d is less than a packet of %d bytes: only shorter ones pass", l.key, l.burst,
			packet)
	default:
		reason := fmt.Sprintf("is less than a packet of %d bytes, in whole microseconds of the rate, so none of "+
			"that length would pass", packet)
		return nil, cni.Refuse(l.key, l.burst, reason).Suggest("write at least %d bits", 8*leastBurst(rate, packet))
	}
	return f, nil
}

// atOnce is how long a packet may be, as the kernel computes it.
func atOnce(t rtnl.TBF) uint64 { return uint64(float64(t.Buffer) * tick * float64(t.Rate) / 1e9) }

// leastBurst is the least one that a packet of this length passes.
func leastBurst(rate, packet uint64) uint64 {
	needed := math.Ceil(float64(packet) * 1e9 / float64(rate) / tick) // ticks
	return uint64(math.Ceil(math.Ceil(needed*tick/1000) * float64(rate) / 1e6))
}

// newTBF computes as the reference does, in bytes, up to the largest number that the kernel takes.
func newTBF(rate, burst uint64) rtnl.TBF {
	µs := math.Floor(bounded(float64(burst) * 1e6 / float64(rate)))
	return rtnl.TBF{Rate: rate, Buffer: uint32(bounded(µs * 1000 / tick)),
		Limit: uint32(bounded(math.Floor(float64(rate)*latency/1e6) + float64(burst)))}
}

func bounded(n float64) float64 { return min(n, math.MaxUint32) }
