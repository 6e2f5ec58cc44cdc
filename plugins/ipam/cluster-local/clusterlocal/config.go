package clusterlocal

import (
	"cmp"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ranges"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// wireConfig is the part of a network configuration that cluster-local reads.
type wireConfig struct {
	skel.LogKey

	IPAM wireIPAM `json:"ipam"`
	ranges.Call
}

type wireIPAM struct {
	Type string `json:"type" help:"cluster-local"`
	ranges.Wire
	Ranges     [][]ranges.Wire `json:"ranges" help:"sets of ranges; a container gets one address of each set"`
	Routes     []cni.WireRoute `json:"routes" help:"routes, copied to the result" most:"1024"`
	ResolvConf string          `json:"resolvConf" help:"a file as resolv.conf(5), for the dns of the result"`
	Exclude    []string        `json:"exclude" help:"addresses and networks that are never given away" each:"format=network"`

	wirePlace
	Reclaim string `json:"reclaim" default:"deleted-nodes" schema:"enum=deleted-nodes|never empty" help:"whose leases ADD takes when a set is full"`
	OnDown  string `json:"statusOnStoreDown" default:"ignore" schema:"enum=ignore|warn|fail empty" help:"STATUS when the API server does not answer"`
}

// wirePlace has the keys that DEL and GC read, too.
type wirePlace struct {
	Space      string `json:"space" default:"default" help:"leases of one space never share an address"`
	Kubeconfig string `json:"kubeconfig" default:"/etc/kubernetes/kubelet.conf" help:"API server and credentials"`
	Node       string `json:"node" help:"who holds the leases (default: the kubelet's name in its certificate, else /etc/hostname)"`
	DataDir    string `json:"dataDir" help:"directory of the records of this node" default:"/var/lib/cni/cluster-local"`
	Guard      string `json:"guard" schema:"enum=whereabouts empty" help:"also keep nodes that run whereabouts from the addresses"`
}

// place is where leases are, and whose.
type place struct {
	space, kubeconfig, node, dataDir string
	guard                            string // empty = nobody else lends from these ranges
	keys                             placeKeys
}

// placeKeys are the keys that the configuration has for them, for errors.
type placeKeys struct{ space, kubeconfig string }

func (w wirePlace) place() place {
	return place{cmp.Or(w.Space, "default"), cmp.Or(w.Kubeconfig, "/etc/kubernetes/kubelet.conf"), w.Node,
		cmp.Or(w.DataDir, "/var/lib/cni/cluster-local"), w.Guard, placeKeys{"ipam.space", "ipam.kubeconfig"}}
}

// hostDirs are where, beside /etc, a node's own kubeconfig is. Below them may be files of containers.
var hostDirs = []string{"/var/lib/kubelet", "/var/lib/k0s", "/var/lib/rancher/k3s/agent", "/var/lib/rancher/rke2/agent",
	"/var/snap/microk8s/current/credentials"}

// hostTrees are where all files are the host's. Those of k3s, RKE2 and microk8s have what other nodes have in /etc/cni.
var hostTrees = []string{"/etc/", "/var/lib/rancher/k3s/agent/etc/", "/var/lib/rancher/rke2/agent/etc/",
	"/var/snap/microk8s/current/args/"}

// isHosts says whether nobody but the host's root can have written a file or chosen where its path leads.
func isHosts(path string) bool {
	isBelow := func(dir string) bool { return strings.HasPrefix(path, dir) }
	return filepath.Clean(path) == path &&
		(slices.ContainsFunc(hostTrees, isBelow) || slices.Contains(hostDirs, filepath.Dir(path)))
}

// checkKubeconfig refuses a file that a container may have written: it could name other files, and to whom they are
// sent.
func (p place) checkKubeconfig() error {
	if isHosts(p.kubeconfig) {
		return nil
	}
	return cni.Refuse(p.keys.kubeconfig, p.kubeconfig, "is not below "+strings.Join(hostTrees, ", ")+
		", nor a file in "+strings.Join(hostDirs, ", ")+"; a file elsewhere may be a container's")
}

// config is what ADD, CHECK and STATUS act on.
type config struct {
	place
	resolvConf  string // empty = none
	sets        []ranges.Set
	asked       []ranges.Asked // for each set; the zero value asks for none
	static      []cni.IP       // given as they are, without a lease
	routes      []cni.Route
	dns         cni.DNS
	reclaims    bool
	onStoreDown string
	pod, podUID string // namespace/name; empty = the runtime names none
}

// isSpace says whether a name can be a part of an object's name.
func isSpace(name string) bool { return isName(name, "-", 63) }

// isNode says whether a name can be a node's.
func isNode(name string) bool { return isName(name, "-.", 253) }

// isName says whether a name is of lower-case letters, digits and, but for its ends, the inner characters.
func isName(name, inner string, longest int) bool {
	const ends = "abcdefghijklmnopqrstuvwxyz0123456789"
	isOf := func(text, set string) bool { return strings.Trim(text, set) == "" }
	return name != "" && len(name) <= longest && isOf(name, ends+inner) && isOf(name[:1]+name[len(name)-1:], ends)
}

// The keys of CNI_ARGS by which Kubernetes' runtimes name a pod.
const podSpace, podName, podUID = "K8S_POD_NAMESPACE", "K8S_POD_NAME", "K8S_POD_UID"

// parseConfig checks the configuration. Without sets the runtime is to send some: capabilities.ipRanges says so.
func parseConfig(req *skel.Request, wire wireConfig, problems *cni.Problems) *config {
	cfg := &config{place: wire.IPAM.place(), resolvConf: wire.IPAM.ResolvConf,
		reclaims: wire.IPAM.Reclaim != "never", onStoreDown: wire.IPAM.OnDown}
	cfg.checkPlace(req, problems)
	if mode := wire.IPAM.Reclaim; !slices.Contains([]string{"", "deleted-nodes", "never"}, mode) {
		problems.Add(cni.Refuse("ipam.reclaim", mode, `is neither "deleted-nodes" nor "never"`))
	}
	if mode := cfg.onStoreDown; !slices.Contains([]string{"", "ignore", "warn", "fail"}, mode) {
		problems.Add(cni.Refuse("ipam.statusOnStoreDown", mode, `is none of "ignore", "warn" and "fail"`))
	}
	var err error
	cfg.sets, err = wire.Call.Parse(req.Version, wire.IPAM.Wire, wire.IPAM.Ranges)
	problems.Add(err)
	ranges.Exclude(cfg.sets, wire.IPAM.Exclude, problems)
	cfg.routes, err = cni.ParseRoutes(wire.IPAM.Routes)
	problems.AddIn("ipam", err)
	cfg.parseArgs(req.Args, wire.Call, problems)
	return cfg
}

// checkPlace refuses what cannot be a part of a path or of an object.
func (cfg *config) checkPlace(req *skel.Request, problems *cni.Problems) {
	if !isSpace(cfg.space) {
		problems.Add(cni.Refuse(cfg.keys.space, cfg.space, "is not made of 1 to 63 lower-case letters, digits and "+
			"hyphens, the first and the last no hyphen"))
	}
	if cfg.node != "" && !isNode(cfg.node) {
		problems.Add(cni.Refuse("ipam.node", cfg.node, "is no name of a node: at most 253 lower-case letters, digits, "+
			"hyphens and dots"))
	}
	if cfg.guard != "" && cfg.guard != "whereabouts" {
		problems.Add(cni.Refuse("ipam.guard", cfg.guard, `is not "whereabouts"`))
	}
	problems.Add(cfg.checkKubeconfig())
	if len(req.Network) > nameMax {
		problems.Add(cni.Refuse("name", req.Network, "is longer than 253 bytes, which an object has room for"))
	}
}

// nameMax is how long a name in an object may be.
const nameMax = 253

// parseArgs reads for which pod the call is, and which addresses it asks for.
func (cfg *config) parseArgs(args string, call ranges.Call, problems *cni.Problems) {
	values, err := cni.ParseArgs(args, "IP", podSpace, podName, podUID)
	problems.Add(err)
	for _, key := range []string{podSpace, podName, podUID} {
		if len(values[key]) > nameMax {
			problems.Add(cni.Refuse("CNI_ARGS "+key, nil, "is longer than 253 bytes").WithCode(cni.CodeEnvironment))
		}
	}
	if name := values[podName]; name != "" {
		cfg.pod, cfg.podUID = values[podSpace]+"/"+name, values[podUID]
	}
	asked, err := call.Asked(values["IP"])
	problems.Add(err)
	if problems.Err() == nil && len(cfg.sets) > 0 {
		cfg.asked, err = ranges.Assign(cfg.sets, asked)
		problems.Add(err)
	}
}

// parsePlace reads the keys that DEL and GC need, whatever is wrong with the others.
func parsePlace(req *skel.Request) (place, error) {
	var wire struct {
		IPAM wirePlace `json:"ipam"`
	}
	err := req.Decode(&wire)
	return wire.IPAM.place(), err
}
