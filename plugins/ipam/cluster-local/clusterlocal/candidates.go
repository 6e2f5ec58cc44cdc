package clusterlocal

import (
	"cmp"
	"crypto/sha512"
	"iter"
	"math/big"
	"net/netip"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ranges"
)

// candidates yields each address of a set once, without gateways, in an order that depends on the seed. Different pods
// begin at different addresses, so that nodes rarely compete for an address. A pod tries the same addresses on every
// node.
//
// The order is a walk with a fixed step: candidate i is the address at position (start + i*step) mod size. If step and
// size have no common divisor, the walk visits every position exactly once. For example, size 10, start 4 and step 3
// give 4 7 0 3 6 9 2 5 8 1. Therefore, the order needs no memory, even if the set has 2^64 addresses. The arithmetic
// uses big.Int because sets of IPv6 addresses can be larger than 2^64.
func candidates(set ranges.Set, seed string) iter.Seq[netip.Addr] {
	size := setSize(set)
	sum := sha512.Sum512([]byte(seed))
	position := new(big.Int).SetBytes(sum[:32])
	step := new(big.Int).SetBytes(sum[32:])
	one := big.NewInt(1)
	position.Mod(position, size)
	for step.Mod(step, size); new(big.Int).GCD(nil, nil, step, size).Cmp(one) != 0; {
		step.Add(step, one).Mod(step, size)
	}
	return func(yield func(netip.Addr) bool) {
		for n := new(big.Int); n.Cmp(size) < 0; n.Add(n, one) {
			if addr := addressAt(set, position); !set.IsGateway(addr) && !yield(addr) {
				return
			}
			position.Add(position, step).Mod(position, size)
		}
	}
}

// setSize returns the number of addresses in a set, including gateways.
func setSize(set ranges.Set) *big.Int {
	size := new(big.Int)
	for _, r := range set {
		size.Add(size, rangeSize(r))
	}
	return size
}

func rangeSize(r ranges.Range) *big.Int {
	n := new(big.Int).Sub(addrNumber(r.Last), addrNumber(r.First))
	return n.Add(n, big.NewInt(1))
}

func addrNumber(a netip.Addr) *big.Int { return new(big.Int).SetBytes(a.AsSlice()) }

// addressAt returns the address at a position of a set, counted from 0.
func addressAt(set ranges.Set, position *big.Int) netip.Addr {
	n := new(big.Int).Set(position)
	for _, r := range set {
		if length := rangeSize(r); n.Cmp(length) >= 0 {
			n.Sub(n, length)
			continue
		}
		b := n.Add(n, addrNumber(r.First)).FillBytes(make([]byte, r.First.BitLen()/8))
		addr, _ := netip.AddrFromSlice(b)
		return addr
	}
	return netip.Addr{}
}

// seedOf returns the seed for candidates. It contains the pod's name, so that a new container of the pod tries the
// same addresses first, or the container ID if the runtime does not name a pod.
func (cfg *config) seedOf(a cni.Attachment, set ranges.Set) string {
	return cfg.space + "\n" + set.String() + "\n" + cmp.Or(cfg.pod, a.ContainerID) + "\n" + a.IfName
}
