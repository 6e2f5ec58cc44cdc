package ranges

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/hawser-cni/plugins/pkg/cni"
)

// Wire is a range as configurations spell it.
type Wire struct {
	Subnet *string `json:"subnet" help:"the network, as address/length" schema:"required format=prefix"`
	Start  string  `json:"rangeStart" help:"first address to give away" schema:"format=address empty"`
	End    string  `json:"rangeEnd" help:"last address to give away" schema:"format=address empty"`
	GW     string  `json:"gateway" help:"the gateway, never given away" schema:"format=address empty"`
}

// Call has the keys of a configuration by which a runtime or a user asks for addresses of one call.
type Call struct {
	RuntimeConfig struct {
		IPs      []string `json:"ips" help:"addresses asked for" each:"format=asked" most:"64"`
		IPRanges [][]Wire `json:"ipRanges" help:"sets of ranges, before those of ipam"`
	} `json:"runtimeConfig"`
	Args struct {
		CNI struct {
			IPs []string `json:"ips" help:"addresses asked for" each:"format=asked" most:"64"`
		} `json:"cni"`
	} `json:"args"`
	Capabilities struct {
		IPRanges bool `json:"ipRanges" help:"the runtime sends ranges in runtimeConfig" default:"false"`
	} `json:"capabilities"`
}

// Parse lists all sets: what the runtime sent, the single range of ipam, ipam.ranges. Without any the runtime is to
// send some: capabilities.ipRanges says so.
func (c *Call) Parse(version string, single Wire, all [][]Wire) ([]Set, error) {
	var p setParser
	for key, sets := range map[string][][]Wire{"runtimeConfig.ipRanges": c.RuntimeConfig.IPRanges, "ipam.ranges": all} {
		if n := len(slices.Concat(sets...)); n > cni.ListMax { // each is compared with all others
			return nil, cni.Refuse(key, nil, fmt.Sprintf("has %d ranges, more than %d", n, cni.ListMax))
		}
	}
	p.add("runtimeConfig.ipRanges", c.RuntimeConfig.IPRanges)
	if single.Subnet != nil {
		p.sets = append(p.sets, nil)
		p.addRange("ipam", single)
	} else if single != (Wire{}) && len(all) == 0 && len(c.RuntimeConfig.IPRanges) == 0 {
		p.problems.Add(cni.Refuse("ipam.subnet", nil, "is missing beside rangeStart, rangeEnd or gateway"))
	}
	p.add("ipam.ranges", all)
	if err := p.problems.Err(); err != nil {
		return p.sets, err
	}
	if len(p.sets) == 0 && !c.Capabilities.IPRanges {
		return nil, cni.Refuse("ipam.ranges", nil, "no ranges to give addresses from").
			Suggest(`write "ranges": [[{"subnet": "10.1.0.0/16"}]]`)
	}
	return p.sets, checkFamilies(p.sets, version)
}

// setParser collects range sets and what is wrong with them.
type setParser struct {
	sets     []Set
	problems cni.Problems
}

func (p *setParser) add(path string, sets [][]Wire) {
	for i, ranges := range sets {
		if len(ranges) == 0 {
			p.problems.Add(cni.Refuse(fmt.Sprintf("%s[%d]", path, i), nil, "is an empty set"))
		}
		p.sets = append(p.sets, nil)
		for j, w := range ranges {
			p.addRange(fmt.Sprintf("%s[%d][%d]", path, i, j), w)
		}
	}
}

// addRange adds a range to the last set.
func (p *setParser) addRange(path string, w Wire) {
	r, err := w.Parse(path)
	if err != nil {
		p.problems.Add(err)
		return
	}
	set := &p.sets[len(p.sets)-1]
	if len(*set) > 0 && r.First.BitLen() != (*set)[0].First.BitLen() {
		reason := fmt.Sprintf("is not of the address family of %s", (*set)[0].Subnet)
		p.problems.Add(cni.Refuse(path+".subnet", r.Subnet, reason).Suggest("give each family a set of its own"))
		return
	}
	for _, other := range slices.Concat(p.sets...) {
		if r.Overlaps(other) {
			p.problems.Add(cni.Refuse(path, r, fmt.Sprintf("overlaps with %s, %s", other.Key, other)))
		}
	}
	*set = append(*set, r)
}

// checkFamilies keeps a result printable in versions that have room for one
// address of each family.
func checkFamilies(sets []Set, version string) error {
	seen := map[int]bool{}
	for _, set := range sets {
		family := set[0].First.BitLen()
		if seen[family] && (version == "0.1.0" || version == "0.2.0") {
			return cni.Refuse("ipam.ranges", nil, fmt.Sprintf("CNI version %s does not support more than "+
				"1 address per family, and the set %s is one more", version, set)).
				Suggest("use cniVersion 0.3.0 or later")
		}
		seen[family] = true
	}
	return nil
}

// Parse reads the range at path.
func (w Wire) Parse(path string) (Range, error) {
	if w.Subnet == nil {
		return Range{}, cni.Refuse(path+".subnet", nil, "is missing")
	}
	subnet, err := cni.ParsePrefix(path+".subnet", *w.Subnet)
	if err != nil {
		return Range{}, err
	}
	if masked := subnet.Masked(); subnet != masked {
		return Range{}, cni.Refuse(path+".subnet", subnet, "has host bits set, the network is "+masked.String()).
			Suggest("write %q", masked)
	}
	if most := subnet.Addr().BitLen() - 2; subnet.Bits() > most {
		return Range{}, cni.Refuse(path+".subnet", subnet,
			fmt.Sprintf("is too small: the network, its gateway and one address need a /%d", most))
	}
	r := New(path, subnet)
	var problems cni.Problems
	for _, v := range []struct {
		key, text string
		to        *netip.Addr
	}{{"rangeStart", w.Start, &r.First}, {"rangeEnd", w.End, &r.Last}, {"gateway", w.GW, &r.Gateway}} {
		if v.text != "" {
			*v.to, err = cni.ParseAddr(path+"."+v.key, v.text)
			problems.Add(err)
		}
	}
	refuse := func(wrong bool, key string, addr netip.Addr, reason string) {
		if wrong && addr.IsValid() {
			problems.Add(cni.Refuse(path+"."+key, addr, reason))
		}
	}
	outside := fmt.Sprintf("is not in the subnet %s", subnet)
	refuse(!subnet.Contains(r.First), "rangeStart", r.First, outside)
	refuse(!subnet.Contains(r.Last), "rangeEnd", r.Last, outside)
	refuse(subnet.Contains(r.First) && r.Last.Less(r.First), "rangeEnd", r.Last,
		fmt.Sprintf("is before the start, %s", r.First))
	refuse(r.Gateway.Is4() != subnet.Addr().Is4(), "gateway", r.Gateway,
		fmt.Sprintf("is not of the address family of %s", subnet))
	return r, problems.Err()
}

// Asked is an address that was asked for; the zero value is none.
type Asked struct {
	Addr netip.Addr
	Key  string // where it was asked for
	Code uint   // of an error about it: CodeConfig or CodeEnvironment
}

// Asked collects the addresses that were asked for, in any place, each once. IP is that of CNI_ARGS.
func (c *Call) Asked(ip string) ([]Asked, error) {
	var problems cni.Problems
	var list []Asked
	add := func(key string, code uint, text string) {
		// Its length, if it has one, means nothing: the range knows it.
		addr, err := cni.ParseAddr(key, text)
		if strings.Contains(text, "/") {
			var p netip.Prefix
			p, err = cni.ParsePrefix(key, text)
			addr = p.Addr()
		}
		if err != nil {
			problems.Add(cni.AsError(err).WithCode(code))
		} else if !slices.ContainsFunc(list, func(a Asked) bool { return a.Addr == addr }) {
			list = append(list, Asked{addr, key, code})
		}
	}
	if ip != "" {
		add("CNI_ARGS IP", cni.CodeEnvironment, ip)
	}
	for i, ip := range c.Args.CNI.IPs {
		add(fmt.Sprintf("args.cni.ips[%d]", i), cni.CodeConfig, ip)
	}
	for i, ip := range c.RuntimeConfig.IPs {
		add(fmt.Sprintf("runtimeConfig.ips[%d]", i), cni.CodeConfig, ip)
	}
	return list, problems.Err()
}

// Assign finds the set of each address that was asked for: each must have one, and a set gives one address only.
func Assign(sets []Set, asked []Asked) ([]Asked, error) {
	bySet := make([]Asked, len(sets))
	for _, a := range asked {
		refuse := func(format string, args ...any) error {
			return cni.Refuse(a.Key, a.Addr, fmt.Sprintf(format, args...)).WithCode(a.Code)
		}
		i := slices.IndexFunc(sets, func(s Set) bool { _, ok := s.Find(a.Addr); return ok })
		switch {
		case i < 0:
			return nil, refuse("is in none of the ranges (%s): failed to allocate all requested IPs: %s",
				Join(sets, ", "), a.Addr)
		case sets[i].IsGateway(a.Addr):
			return nil, refuse("is a gateway of range set %d (%s)", i, sets[i])
		case bySet[i].Addr.IsValid():
			return nil, refuse("is of range set %d (%s), which gives one address, and %s is asked for too: "+
				"failed to allocate all requested IPs: %s", i, sets[i], bySet[i].Addr, a.Addr)
		}
		bySet[i] = a
	}
	return bySet, nil
}
