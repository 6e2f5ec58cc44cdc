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

// candidates yields all addresses of a set that may be given, each once, in an order that the seed chooses: nodes that
// know nothing of each other hardly meet, and one pod asks for the same address everywhere. Number i is the one at
// (start + i * step) mod size, of a step without a common divisor with the size.
func candidates(set ranges.Set, seed string) iter.Seq[netip.Addr] {
	size := sizeOf(set)
	sum := sha512.Sum512([]byte(seed))
	at := new(big.Int).SetBytes(sum[:32])
	step := new(big.Int).SetBytes(sum[32:])
	one := big.NewInt(1)
	at.Mod(at, size)
	for step.Mod(step, size); new(big.Int).GCD(nil, nil, step, size).Cmp(one) != 0; {
		step.Add(step, one).Mod(step, size)
	}
	return func(yield func(netip.Addr) bool) {
		for n := new(big.Int); n.Cmp(size) < 0; n.Add(n, one) {
			if addr := addressAt(set, at); !set.IsGateway(addr) && !yield(addr) {
				return
			}
			at.Add(at, step).Mod(at, size)
		}
	}
}

// sizeOf is how many addresses a set has, gateways among them.
func sizeOf(set ranges.Set) *big.Int {
	size := new(big.Int)
	for _, r := range set {
		size.Add(size, lengthOf(r))
	}
	return size
}

func lengthOf(r ranges.Range) *big.Int {
	n := new(big.Int).Sub(number(r.Last), number(r.First))
	return n.Add(n, big.NewInt(1))
}

func number(a netip.Addr) *big.Int { return new(big.Int).SetBytes(a.AsSlice()) }

// addressAt is the address at a place of a set, from 0.
func addressAt(set ranges.Set, at *big.Int) netip.Addr {
	n := new(big.Int).Set(at)
	for _, r := range set {
		if length := lengthOf(r); n.Cmp(length) >= 0 {
			n.Sub(n, length)
			continue
		}
		b := n.Add(n, number(r.First)).FillBytes(make([]byte, r.First.BitLen()/8))
		addr, _ := netip.AddrFromSlice(b)
		return addr
	}
	return netip.Addr{}
}

// seedOf is what chooses the order: the pod's name, so that a new container of it asks for the same address, or else
// the container.
func (cfg *config) seedOf(a cni.Attachment, set ranges.Set) string {
	return cfg.space + "\n" + set.String() + "\n" + cmp.Or(cfg.pod, a.ContainerID) + "\n" + a.IfName
}
