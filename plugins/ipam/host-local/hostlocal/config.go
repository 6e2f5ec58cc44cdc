package hostlocal

import (
	"cmp"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

// wireConfig is the part of a network configuration that host-local reads.
type wireConfig struct {
	skel.LogKey

	IPAM          wireIPAM `json:"ipam"`
	RuntimeConfig struct {
		IPs      []string      `json:"ips" help:"addresses asked for" each:"format=asked"`
		IPRanges [][]wireRange `json:"ipRanges" help:"sets of ranges, before those of ipam"`
	} `json:"runtimeConfig"`
	Args struct {
		CNI struct {
			IPs []string `json:"ips" help:"addresses asked for" each:"format=asked"`
		} `json:"cni"`
	} `json:"args"`
	Capabilities struct {
		IPRanges bool `json:"ipRanges" help:"the runtime sends ranges in runtimeConfig" default:"false"`
	} `json:"capabilities"`
}

type wireIPAM struct {
	Type string `json:"type" help:"host-local"`
	wireRange
	Ranges     [][]wireRange   `json:"ranges" help:"sets of ranges; a container gets one address of each set"`
	Routes     []cni.WireRoute `json:"routes" help:"routes, copied to the result"`
	DataDir    string          `json:"dataDir" help:"directory of the leases" default:"/var/lib/cni/networks"`
	ResolvConf string          `json:"resolvConf" help:"a file as resolv.conf(5), for the dns of the result"`

	Exclude []string `json:"exclude" help:"addresses and networks that are never given away" each:"format=network"`
	Sticky  bool     `json:"sticky" help:"give a pod the address that it had, while that is free" default:"false"`

	Reclaim *bool `json:"reclaim" help:"take back leases of containers that are gone for certain when a set is full" default:"true"`

	OnFull string `json:"statusOnExhaustion" default:"warn" schema:"enum=warn|fail empty" help:"STATUS of a full range"`
}

type wireRange struct {
	Subnet *string `json:"subnet" help:"the network, as address/length" schema:"required format=prefix"`
	Start  string  `json:"rangeStart" help:"first address to give away" schema:"format=address empty"`
	End    string  `json:"rangeEnd" help:"last address to give away" schema:"format=address empty"`
	GW     string  `json:"gateway" help:"the gateway, never given away" schema:"format=address empty"`
}

const defaultDataDir = "/var/lib/cni/networks"

// config is what ADD, CHECK and STATUS act on.
type config struct {
	dataDir      string
	resolvConf   string // empty = none
	sets         []rangeSet
	asked        []askedAddr // for each set; the zero value asks for none
	routes       []cni.Route
	failWhenFull bool
	reclaim      bool
	pod          string // whose address is remembered; empty = nobody's
}

// askedAddr is an address that the runtime asked for.
type askedAddr struct {
	addr netip.Addr
	key  string // where it was asked for
	code uint   // of an error about it: CodeConfig or CodeEnvironment
}

// parseConfig checks the configuration. Without sets the runtime is to send some: capabilities.ipRanges says so.
func parseConfig(req *skel.Request, wire wireConfig, problems *cni.Problems) *config {
	cfg := &config{
		dataDir: cmp.Or(wire.IPAM.DataDir, defaultDataDir), resolvConf: wire.IPAM.ResolvConf,
		failWhenFull: wire.IPAM.OnFull == "fail", reclaim: wire.IPAM.Reclaim == nil || *wire.IPAM.Reclaim,
	}
	if mode := wire.IPAM.OnFull; !slices.Contains([]string{"", "warn", "fail"}, mode) {
		problems.Add(cni.Refuse("ipam.statusOnExhaustion", mode, `is neither "warn" nor "fail"`))
	}
	if len(req.Network) > 255 {
		problems.Add(cni.Refuse("name", req.Network, "is longer than 255 bytes, and no directory can be called so"))
	}
	var err error
	cfg.sets, err = wire.parseSets(req.Version)
	problems.Add(err)
	exclude, err := cni.ParseNetworks("ipam.exclude", wire.IPAM.Exclude)
	problems.Add(err)
	if problems.Err() == nil {
		problems.Add(without(cfg.sets, exclude))
	}
	if wire.IPAM.Sticky {
		cfg.pod = podIn(req.Args)
	}
	cfg.routes, err = cni.ParseRoutes(wire.IPAM.Routes)
	problems.AddIn("ipam", err)
	asked, err := wire.parseAsked(req.Args)
	problems.Add(err)
	if problems.Err() == nil && len(cfg.sets) > 0 {
		cfg.asked, err = assign(cfg.sets, asked)
		problems.Add(err)
	}
	return cfg
}

// parseDataDir reads the one key that DEL and GC need, whatever is wrong with
// the others.
func parseDataDir(req *skel.Request) (string, error) {
	var wire struct {
		IPAM struct {
			DataDir string `json:"dataDir"`
		} `json:"ipam"`
	}
	err := req.Decode(&wire)
	return cmp.Or(wire.IPAM.DataDir, defaultDataDir), err
}

// parseSets lists all sets in the order that last_reserved_ip.N counts them.
func (w *wireConfig) parseSets(version string) ([]rangeSet, error) {
	var p setParser
	p.add("runtimeConfig.ipRanges", w.RuntimeConfig.IPRanges)
	if w.IPAM.Subnet != nil {
		p.sets = append(p.sets, nil)
		p.addRange("ipam", w.IPAM.wireRange)
	} else if w.IPAM.wireRange != (wireRange{}) && len(w.IPAM.Ranges) == 0 && len(w.RuntimeConfig.IPRanges) == 0 {
		p.problems.Add(cni.Refuse("ipam.subnet", nil, "is missing beside rangeStart, rangeEnd or gateway"))
	}
	p.add("ipam.ranges", w.IPAM.Ranges)
	if err := p.problems.Err(); err != nil {
		return p.sets, err
	}
	if len(p.sets) == 0 && !w.Capabilities.IPRanges {
		return nil, cni.Refuse("ipam.ranges", nil, "no ranges to give addresses from").
			Suggest(`write "ranges": [[{"subnet": "10.1.0.0/16"}]]`)
	}
	return p.sets, checkFamilies(p.sets, version)
}

// without takes what is excluded out of the sets, whose ranges become more, and smaller.
func without(sets []rangeSet, exclude []netip.Prefix) error {
	var problems cni.Problems
	for i, set := range sets {
		sets[i] = nil
		for _, r := range set {
			left := rangeSet{r}
			for _, p := range exclude {
				left = left.without(ipRange{start: p.Addr(), end: cni.LastOf(p)})
			}
			if len(left) == 0 {
				problems.Add(cni.Refuse("ipam.exclude", nil, fmt.Sprintf("leaves no address of %s, %s", r.key, r)))
			}
			sets[i] = append(sets[i], left...)
		}
	}
	return problems.Err()
}

// The keys of CNI_ARGS by which Kubernetes' runtimes name a pod.
const podSpace, podName = "K8S_POD_NAMESPACE", "K8S_POD_NAME"

// podIn is the pod that a runtime names in CNI_ARGS; empty where it names none.
func podIn(args string) string {
	values, _ := cni.ParseArgs(args, "IP", podSpace, podName) // parseAsked says what is wrong
	if values[podName] == "" {
		return ""
	}
	return values[podSpace] + "/" + values[podName]
}

// setParser collects range sets and what is wrong with them.
type setParser struct {
	sets     []rangeSet
	problems cni.Problems
}

func (p *setParser) add(path string, sets [][]wireRange) {
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
func (p *setParser) addRange(path string, w wireRange) {
	r, err := w.parse(path)
	if err != nil {
		p.problems.Add(err)
		return
	}
	set := &p.sets[len(p.sets)-1]
	if len(*set) > 0 && r.start.BitLen() != (*set)[0].start.BitLen() {
		reason := fmt.Sprintf("is not of the address family of %s", (*set)[0].subnet)
		p.problems.Add(cni.Refuse(path+".subnet", r.subnet, reason).Suggest("give each family a set of its own"))
		return
	}
	for _, other := range slices.Concat(p.sets...) {
		if r.overlaps(other) {
			p.problems.Add(cni.Refuse(path, r, fmt.Sprintf("overlaps with %s, %s", other.key, other)))
		}
	}
	*set = append(*set, r)
}

// checkFamilies keeps a result printable in versions that have room for one
// address of each family.
func checkFamilies(sets []rangeSet, version string) error {
	seen := map[int]bool{}
	for _, set := range sets {
		family := set[0].start.BitLen()
		if seen[family] && (version == "0.1.0" || version == "0.2.0") {
			return cni.Refuse("ipam.ranges", nil, fmt.Sprintf("CNI version %s does not support more than "+
				"1 address per family, and the set %s is one more", version, set)).
				Suggest("use cniVersion 0.3.0 or later")
		}
		seen[family] = true
	}
	return nil
}

// parse reads the range at path.
func (w wireRange) parse(path string) (ipRange, error) {
	if w.Subnet == nil {
		return ipRange{}, cni.Refuse(path+".subnet", nil, "is missing")
	}
	subnet, err := cni.ParsePrefix(path+".subnet", *w.Subnet)
	if err != nil {
		return ipRange{}, err
	}
	if masked := subnet.Masked(); subnet != masked {
		return ipRange{}, cni.Refuse(path+".subnet", subnet, "has host bits set, the network is "+masked.String()).
			Suggest("write %q", masked)
	}
	if most := subnet.Addr().BitLen() - 2; subnet.Bits() > most {
		return ipRange{}, cni.Refuse(path+".subnet", subnet,
			fmt.Sprintf("is too small: the network, its gateway and one address need a /%d", most))
	}
	r := newRange(path, subnet)
	var problems cni.Problems
	for _, v := range []struct {
		key, text string
		to        *netip.Addr
	}{{"rangeStart", w.Start, &r.start}, {"rangeEnd", w.End, &r.end}, {"gateway", w.GW, &r.gateway}} {
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
	refuse(!subnet.Contains(r.start), "rangeStart", r.start, outside)
	refuse(!subnet.Contains(r.end), "rangeEnd", r.end, outside)
	refuse(subnet.Contains(r.start) && r.end.Less(r.start), "rangeEnd", r.end,
		fmt.Sprintf("is before the start, %s", r.start))
	refuse(r.gateway.Is4() != subnet.Addr().Is4(), "gateway", r.gateway,
		fmt.Sprintf("is not of the address family of %s", subnet))
	return r, problems.Err()
}

// parseAsked collects the addresses that were asked for, in any place, each once.
func (w *wireConfig) parseAsked(args string) ([]askedAddr, error) {
	var problems cni.Problems
	known := []string{"IP"}
	if w.IPAM.Sticky {
		known = append(known, podSpace, podName)
	}
	values, err := cni.ParseArgs(args, known...)
	problems.Add(err)
	var list []askedAddr
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
		} else if !slices.ContainsFunc(list, func(a askedAddr) bool { return a.addr == addr }) {
			list = append(list, askedAddr{addr, key, code})
		}
	}
	if ip := values["IP"]; ip != "" {
		add("CNI_ARGS IP", cni.CodeEnvironment, ip)
	}
	for i, ip := range w.Args.CNI.IPs {
		add(fmt.Sprintf("args.cni.ips[%d]", i), cni.CodeConfig, ip)
	}
	for i, ip := range w.RuntimeConfig.IPs {
		add(fmt.Sprintf("runtimeConfig.ips[%d]", i), cni.CodeConfig, ip)
	}
	return list, problems.Err()
}

// assign finds the set of each address that was asked for: each must have one, and a set gives one address only.
func assign(sets []rangeSet, asked []askedAddr) ([]askedAddr, error) {
	bySet := make([]askedAddr, len(sets))
	for _, a := range asked {
		refuse := func(format string, args ...any) error {
			return cni.Refuse(a.key, a.addr, fmt.Sprintf(format, args...)).WithCode(a.code)
		}
		i := slices.IndexFunc(sets, func(s rangeSet) bool { _, ok := s.find(a.addr); return ok })
		switch {
		case i < 0:
			return nil, refuse("is in none of the ranges (%s): failed to allocate all requested IPs: %s",
				join(sets, ", "), a.addr)
		case sets[i].isGateway(a.addr):
			return nil, refuse("is a gateway of range set %d (%s)", i, sets[i])
		case bySet[i].addr.IsValid():
			return nil, refuse("is of range set %d (%s), which gives one address, and %s is asked for too: "+
				"failed to allocate all requested IPs: %s", i, sets[i], bySet[i].addr, a.addr)
		}
		bySet[i] = a
	}
	return bySet, nil
}

// resolvConfMax bounds what is read as resolv.conf(5), in bytes.
const resolvConfMax = 16 << 20

// readDNS reads a file as resolv.conf(5). A device or a pipe is not opened: that may start something, or never end.
func readDNS(path string) (cni.DNS, error) {
	if path == "" {
		return cni.DNS{}, nil
	}
	st, err := os.Stat(path)
	if err == nil && (!st.Mode().IsRegular() || st.Size() > resolvConfMax) {
		err = &fs.PathError{Op: "read", Path: path, Err: statefile.ErrIrregular}
	}
	var text []byte
	if err == nil && st.Size() > 0 { // a kernel file has size 0, and reading one may never end: it counts as empty
		text, err = os.ReadFile(path)
	}
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
