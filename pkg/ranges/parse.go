package ranges

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

// Wire is the JSON form of a range.
type Wire struct {
	Subnet *string `json:"subnet" help:"the network, as address/length" schema:"required format=prefix"`
	Start  string  `json:"rangeStart" help:"first address to assign" schema:"format=address empty"`
	End    string  `json:"rangeEnd" help:"last address to assign" schema:"format=address empty"`
	GW     string  `json:"gateway" help:"the gateway, which is never assigned" schema:"format=address empty"`
}

// RequestKeys are the keys of a configuration with which a runtime or a user requests addresses for one call.
type RequestKeys struct {
	RuntimeConfig struct {
		IPs      []string `json:"ips" help:"requested addresses" each:"format=asked" most:"64"`
		IPRanges [][]Wire `json:"ipRanges" help:"sets of ranges, before those of ipam"`
	} `json:"runtimeConfig"`
	Args struct {
		CNI struct {
			IPs []string `json:"ips" help:"requested addresses" each:"format=asked" most:"64"`
		} `json:"cni"`
	} `json:"args"`
	Capabilities struct {
		IPRanges bool `json:"ipRanges" help:"the runtime sends ranges in runtimeConfig" default:"false"`
	} `json:"capabilities"`
}

// Parse returns all sets in this order: those that the runtime sent, the single range in ipam, and those in
// ipam.ranges. There must be a set, unless capabilities.ipRanges says that the runtime sends some.
func (k *RequestKeys) Parse(version string, single Wire, all [][]Wire) ([]Set, error) {
	var p setParser
	for key, sets := range map[string][][]Wire{"runtimeConfig.ipRanges": k.RuntimeConfig.IPRanges, "ipam.ranges": all} {
		if n := len(slices.Concat(sets...)); n > cni.ListMax { // because each range is compared with all others
			return nil, cni.Refuse(key, nil, fmt.Sprintf("has %d ranges, more than %d", n, cni.ListMax))
		}
	}
	p.add("runtimeConfig.ipRanges", k.RuntimeConfig.IPRanges)
	if single.Subnet != nil {
		p.sets = append(p.sets, nil)
		p.addRange("ipam", single)
	} else if single != (Wire{}) && len(all) == 0 && len(k.RuntimeConfig.IPRanges) == 0 {
		p.problems.Add(cni.Refuse("ipam.subnet", nil, "is missing, although rangeStart, rangeEnd or gateway is set"))
	}
	p.add("ipam.ranges", all)
	if err := p.problems.Err(); err != nil {
		return p.sets, err
	}
	if len(p.sets) == 0 && !k.Capabilities.IPRanges {
		return nil, cni.Refuse("ipam.ranges", nil, "no ranges to assign addresses from").
			Suggest(`write "ranges": [[{"subnet": "10.1.0.0/16"}]]`)
	}
	return p.sets, checkFamilies(p.sets, version)
}

// setParser collects range sets and the problems in them.
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

func (p *setParser) addRange(path string, w Wire) {
	r, err := w.Parse(path)
	if err != nil {
		p.problems.Add(err)
		return
	}
	set := &p.sets[len(p.sets)-1]
	if len(*set) > 0 && r.First.BitLen() != (*set)[0].First.BitLen() {
		reason := fmt.Sprintf("is not of the address family of %s", (*set)[0].Subnet)
		p.problems.Add(cni.Refuse(path+".subnet", r.Subnet, reason).Suggest("use a set for each family"))
		return
	}
	for _, other := range slices.Concat(p.sets...) {
		if r.Overlaps(other) {
			p.problems.Add(cni.Refuse(path, r, fmt.Sprintf("overlaps with %s, %s", other.Key, other)))
		}
	}
	*set = append(*set, r)
}

// checkFamilies refuses two sets of one family if the version's result has room for only one address of each family.
func checkFamilies(sets []Set, version string) error {
	seen := map[int]bool{}
	for _, set := range sets {
		family := set[0].First.BitLen()
		if seen[family] && (version == "0.1.0" || version == "0.2.0") {
			return cni.Refuse("ipam.ranges", nil, fmt.Sprintf("CNI version %s does not support more than "+
				"1 address per family, but there is also the set %s", version, set)).
				Suggest("use cniVersion 0.3.0 or later")
		}
		seen[family] = true
	}
	return nil
}

// Parse parses the range, whose key in the configuration is path.
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
		dst       *netip.Addr
	}{{"rangeStart", w.Start, &r.First}, {"rangeEnd", w.End, &r.Last}, {"gateway", w.GW, &r.Gateway}} {
		if v.text != "" {
			*v.dst, err = cni.ParseAddr(path+"."+v.key, v.text)
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

// Requested is a requested address. The zero value means that no address is requested.
type Requested struct {
	Addr netip.Addr
	Key  string // the key of the request
	Code uint   // code of an error about it: CodeConfig or CodeEnvironment
}

// Requested returns the addresses that any key requests, each once. ip is the value of IP in CNI_ARGS.
func (k *RequestKeys) Requested(ip string) ([]Requested, error) {
	var problems cni.Problems
	var list []Requested
	add := func(key string, code uint, text string) {
		// A prefix length is accepted and ignored, because the length of the subnet applies.
		addr, err := cni.ParseAddr(key, text)
		if strings.Contains(text, "/") {
			var p netip.Prefix
			p, err = cni.ParsePrefix(key, text)
			addr = p.Addr()
		}
		if err != nil {
			problems.Add(cni.AsError(err).WithCode(code))
		} else if !slices.ContainsFunc(list, func(a Requested) bool { return a.Addr == addr }) {
			list = append(list, Requested{addr, key, code})
		}
	}
	if ip != "" {
		add("CNI_ARGS IP", cni.CodeEnvironment, ip)
	}
	for i, ip := range k.Args.CNI.IPs {
		add(fmt.Sprintf("args.cni.ips[%d]", i), cni.CodeConfig, ip)
	}
	for i, ip := range k.RuntimeConfig.IPs {
		add(fmt.Sprintf("runtimeConfig.ips[%d]", i), cni.CodeConfig, ip)
	}
	return list, problems.Err()
}

// Assign returns the requested address of each set. Each address must be in a set, and each set can have only one.
func Assign(sets []Set, requested []Requested) ([]Requested, error) {
	bySet := make([]Requested, len(sets))
	for _, a := range requested {
		refuse := func(format string, args ...any) error {
			return cni.Refuse(a.Key, a.Addr, fmt.Sprintf(format, args...)).WithCode(a.Code)
		}
		i := slices.IndexFunc(sets, func(s Set) bool { _, ok := s.RangeOf(a.Addr); return ok })
		switch {
		case i < 0:
			return nil, refuse("is in none of the ranges (%s): failed to allocate all requested IPs: %s",
				Join(sets, ", "), a.Addr)
		case sets[i].IsGateway(a.Addr):
			return nil, refuse("is a gateway of range set %d (%s)", i, sets[i])
		case bySet[i].Addr.IsValid():
			return nil, refuse("is in range set %d (%s), which provides one address, and %s is also requested: "+
				"failed to allocate all requested IPs: %s", i, sets[i], bySet[i].Addr, a.Addr)
		}
		bySet[i] = a
	}
	return bySet, nil
}

// ReadDNS parses a file in the format of resolv.conf(5). Without a path it returns nothing.
func ReadDNS(path string) (cni.DNS, error) {
	if path == "" {
		return cni.DNS{}, nil
	}
	text, err := statefile.ReadRegular(path)
	if err != nil {
		return cni.DNS{}, fmt.Errorf("ipam.resolvConf: %w", err)
	}
	return parseDNS(string(text)), nil
}

func parseDNS(text string) (dns cni.DNS) {
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) < 2 || f[0][0] == '#' || f[0][0] == ';' {
			continue
		}
		switch f[0] {
		case "nameserver":
			dns.Nameservers = append(dns.Nameservers, f[1])
		case "domain":
			dns.Domain = f[1]
		case "search":
			dns.Search = append(dns.Search, f[1:]...)
		case "options":
			dns.Options = append(dns.Options, f[1:]...)
		}
	}
	return dns
}
