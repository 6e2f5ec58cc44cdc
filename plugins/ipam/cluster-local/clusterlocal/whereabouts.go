package clusterlocal

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strings"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ranges"
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

// wireWhereabouts is the part of whereabouts' configuration that the plugin reads.
type wireWhereabouts struct {
	skel.LogKey

	IPAM wireWhereaboutsIPAM `json:"ipam"`
	ranges.RequestKeys
}

type wireWhereaboutsIPAM struct {
	Type string `json:"type" help:"whereabouts"`
	wireWhereaboutsRange
	Ranges    []wireWhereaboutsRange `json:"ipRanges" help:"ranges; a container gets one address of each"`
	Gateway   string                 `json:"gateway" help:"gateway of the addresses in its subnet, or of its family"`
	Routes    []cni.WireRoute        `json:"routes" help:"routes, copied to the result" most:"1024"`
	DNS       cni.DNS                `json:"dns" help:"resolver settings, copied to the result"`
	Addresses []struct {
		Address string `json:"address" help:"address/length"`
		Gateway string `json:"gateway" help:"its gateway"`
	} `json:"addresses" help:"addresses that are given as they are, to each container"`

	Network    string `json:"network_name" help:"the space of the leases"`
	Path       string `json:"configuration_path" help:"a file with more of these keys"`
	Kubernetes struct {
		Kubeconfig string `json:"kubeconfig" help:"API server and credentials"`
	} `json:"kubernetes"`
	Node    string `json:"node" help:"as in cluster-local"`
	DataDir string `json:"dataDir" help:"as in cluster-local"`
	Guard   string `json:"guard" help:"as in cluster-local"`

	EtcdHost json.RawMessage `json:"etcd_host"`
	EtcdUser json.RawMessage `json:"etcd_username"`
	EtcdPass json.RawMessage `json:"etcd_password"`
	EtcdKey  json.RawMessage `json:"etcd_key_file"`
	EtcdCert json.RawMessage `json:"etcd_cert_file"`
	EtcdCA   json.RawMessage `json:"etcd_ca_cert_file"`

	// Accepted and ignored.
	LeaderLease   json.RawMessage `json:"leader_lease_duration"`
	LeaderRenew   json.RawMessage `json:"leader_renew_deadline"`
	LeaderRetry   json.RawMessage `json:"leader_retry_period"`
	NodeSliceSize json.RawMessage `json:"node_slice_size"`
	Cron          json.RawMessage `json:"reconciler_cron_expression"`
	Datastore     json.RawMessage `json:"datastore"`
	Overlapping   *bool           `json:"enable_overlapping_ranges"`
	Sleep         json.RawMessage `json:"sleep_for_race"`
	LogFile       json.RawMessage `json:"log_file"`
	LogLevel      json.RawMessage `json:"log_level"`
}

type wireWhereaboutsRange struct {
	Range   string   `json:"range" help:"a network, or first-last/length"`
	Start   string   `json:"range_start" help:"first address to assign"`
	End     string   `json:"range_end" help:"last address to assign"`
	Exclude []string `json:"exclude" help:"addresses and networks that are never assigned"`
}

// flatFiles are the paths at which whereabouts looks for the rest of its configuration, in this order.
var flatFiles = []string{"/etc/kubernetes/cni/net.d/whereabouts.d/whereabouts.conf",
	"/etc/cni/net.d/whereabouts.d/whereabouts.conf", "/host/etc/cni/net.d/whereabouts.d/whereabouts.conf"}

// readWhereabouts decodes the first existing flat file, and then the configuration, which overrides the file's keys.
func readWhereabouts(req *skel.Request) (w wireWhereabouts, err error) {
	if err := req.Decode(&w); err != nil {
		return w, err
	}
	files := flatFiles
	if w.IPAM.Path != "" {
		if err := checkHostFile("ipam.configuration_path", w.IPAM.Path); err != nil {
			return w, err
		}
		files = append([]string{w.IPAM.Path}, files...)
	}
	for _, file := range files {
		text, err := statefile.ReadRegular(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		var flat wireWhereabouts
		if err == nil && cni.Unmarshal(text, &flat.IPAM) != nil { // the decoder's error would quote the file
			err = errors.New("is not JSON with these keys")
		}
		if err != nil {
			return w, cni.Refuse("ipam.configuration_path", file, fmt.Sprintf("cannot be read: %v", err))
		}
		// The decoder would merge an element of the configuration's list with the file's element of the same number.
		if w.IPAM.Ranges != nil {
			flat.IPAM.Ranges = nil
		}
		if w.IPAM.Routes != nil {
			flat.IPAM.Routes = nil
		}
		if w.IPAM.Addresses != nil {
			flat.IPAM.Addresses = nil
		}
		return flat, req.Decode(&flat)
	}
	return w, nil
}

func (w wireWhereabouts) place() place {
	p := wirePlace{Space: w.IPAM.Network, Node: w.IPAM.Node, DataDir: w.IPAM.DataDir, Guard: w.IPAM.Guard,
		Kubeconfig: cmp.Or(w.IPAM.Kubernetes.Kubeconfig, flatKubeconfig)}.place()
	p.keys = placeKeys{"ipam.network_name", "ipam.kubernetes.kubeconfig"}
	return p
}

// flatKubeconfig is the kubeconfig that whereabouts' DaemonSet writes.
const flatKubeconfig = "/etc/cni/net.d/whereabouts.d/whereabouts.kubeconfig"

func parseWhereaboutsPlace(req *skel.Request) (place, error) {
	w, err := readWhereabouts(req)
	return w.place(), err
}

func parseWhereabouts(req *skel.Request) (*config, error) {
	w, err := readWhereabouts(req)
	if err == nil {
		err = cni.CheckSizes(w)
	}
	if err != nil {
		return nil, err
	}
	var problems cni.Problems
	for key, value := range map[string]json.RawMessage{"etcd_host": w.IPAM.EtcdHost, "etcd_username": w.IPAM.EtcdUser,
		"etcd_password": w.IPAM.EtcdPass, "etcd_key_file": w.IPAM.EtcdKey, "etcd_cert_file": w.IPAM.EtcdCert,
		"etcd_ca_cert_file": w.IPAM.EtcdCA} {
		if text := string(value); text != "" && text != "null" && text != `""` {
			problems.Add(cni.Refuse("ipam."+key, nil, "etcd is not supported; remove the key to store the leases in "+
				"the Kubernetes API"))
		}
	}
	if w.IPAM.Overlapping != nil && !*w.IPAM.Overlapping {
		problems.Add(cni.Refuse("ipam.enable_overlapping_ranges", "false", "is not supported; use different values "+
			"of network_name for networks that may have the same addresses"))
	}
	cfg := &config{place: w.place(), reclaims: true, dns: w.IPAM.DNS}
	cfg.checkPlace(req, &problems)
	cfg.routes, err = cni.ParseRoutes(w.IPAM.Routes)
	problems.AddIn("ipam", err)
	cfg.sets, err = w.IPAM.sets()
	problems.Add(err)
	cfg.staticIPs, err = w.IPAM.staticIPs()
	problems.Add(err)
	cfg.parseArgs(req.Args, w.RequestKeys, &problems)
	return cfg, problems.Err()
}

func (w wireWhereaboutsIPAM) sets() (sets []ranges.Set, err error) {
	var problems cni.Problems
	add := func(path string, wire wireWhereaboutsRange) {
		r, err := wire.parse(path)
		problems.Add(err)
		exclude, wrong := parseExclude(path+".exclude", wire.Exclude)
		problems.Add(wrong)
		if err != nil || wrong != nil {
			return
		}
		left := ranges.Set{r}.Subtract(exclude)
		if len(left) == 0 {
			problems.Add(cni.Refuse(path+".exclude", nil, fmt.Sprintf("excludes all addresses of %s", r)))
		}
		sets = append(sets, left)
	}
	if w.Range != "" {
		add("ipam", w.wireWhereaboutsRange)
	}
	for i, wire := range w.Ranges {
		add(fmt.Sprintf("ipam.ipRanges[%d]", i), wire)
	}
	if w.Range == "" && len(w.Ranges)+len(w.Addresses) == 0 {
		problems.Add(cni.Refuse("ipam.range", nil, "is missing"))
	}
	if w.Gateway != "" {
		gateway, err := cni.ParseAddr("ipam.gateway", w.Gateway)
		if problems.Add(err); problems.Err() == nil {
			problems.Add(setGateway(sets, gateway))
		}
	}
	return sets, problems.Err()
}

// setGateway sets the gateway of all ranges whose subnet contains it or, if there are none, of all ranges of its
// family.
func setGateway(sets []ranges.Set, gateway netip.Addr) error {
	for _, matches := range []func(netip.Prefix) bool{
		func(p netip.Prefix) bool { return p.Contains(gateway) },
		func(p netip.Prefix) bool { return p.Addr().BitLen() == gateway.BitLen() },
	} {
		found := len(sets) == 0
		for _, set := range sets {
			for i := range set {
				if matches(set[i].Subnet) {
					set[i].Gateway, found = gateway, true
				}
			}
		}
		if found {
			return nil
		}
	}
	return cni.Refuse("ipam.gateway", gateway, "has another address family than all ranges")
}

// parseExclude parses addresses and networks. It ignores the host bits of networks.
func parseExclude(key string, texts []string) ([]netip.Prefix, error) {
	networks := slices.Clone(texts)
	for i, text := range texts {
		if p, err := netip.ParsePrefix(text); err == nil {
			networks[i] = p.Masked().String()
		}
	}
	return cni.ParseNetworks(key, networks)
}

// parse parses a range: a network, whose host bits it ignores, or first-last/length. The range excludes the network
// address and the broadcast address.
func (w wireWhereaboutsRange) parse(path string) (r ranges.Range, err error) {
	text, start, end := w.Range, w.Start, w.End
	if first, last, isInterval := strings.Cut(text, "-"); isInterval {
		addr, _, _ := strings.Cut(last, "/")
		text, start, end = last, first, addr
	}
	subnet, err := cni.ParsePrefix(path+".range", strings.TrimSpace(text))
	if err != nil {
		return r, err
	}
	r = ranges.New(path+".range", subnet.Masked())
	r.Gateway = netip.Addr{}
	usable := r
	var problems cni.Problems
	for _, v := range []struct {
		key, text string
		addr      *netip.Addr
	}{{"range_start", start, &r.First}, {"range_end", end, &r.Last}} {
		if v.text == "" {
			continue
		}
		*v.addr, err = cni.ParseAddr(path+"."+v.key, strings.TrimSpace(v.text))
		if err == nil && !subnet.Contains(*v.addr) {
			err = cni.Refuse(path+"."+v.key, *v.addr, fmt.Sprintf("is not in %s", subnet.Masked()))
		}
		problems.Add(err)
	}
	if r.First.Less(usable.First) {
		r.First = usable.First
	}
	if usable.Last.Less(r.Last) {
		r.Last = usable.Last
	}
	if problems.Err() == nil && (!r.First.IsValid() || r.Last.Less(r.First)) {
		problems.Add(cni.Refuse(path+".range", w.Range, "has no address, or its end is before its start"))
	}
	return r, problems.Err()
}

// staticIPs returns the addresses that every container gets, without a lease.
func (w wireWhereaboutsIPAM) staticIPs() (ips []cni.IP, err error) {
	var problems cni.Problems
	for i, a := range w.Addresses {
		var ip cni.IP
		key := fmt.Sprintf("ipam.addresses[%d]", i)
		ip.Address, err = cni.ParsePrefix(key+".address", a.Address)
		problems.Add(err)
		if a.Gateway != "" {
			ip.Gateway, err = cni.ParseAddr(key+".gateway", a.Gateway)
			problems.Add(err)
		}
		ips = append(ips, ip)
	}
	return ips, problems.Err()
}
