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

type wireConfig struct {
	skel.LogKey

	IPAM wireIPAM `json:"ipam"`
	ranges.RequestKeys
}

type wireIPAM struct {
	Type string `json:"type" help:"cluster-local"`
	ranges.Wire
	Ranges     [][]ranges.Wire `json:"ranges" help:"sets of ranges; a container gets one address of each set"`
	Routes     []cni.WireRoute `json:"routes" help:"routes, copied to the result" most:"1024"`
	ResolvConf string          `json:"resolvConf" help:"file in the format of resolv.conf(5) that sets the dns of the result"`
	Exclude    []string        `json:"exclude" help:"addresses and networks that are never assigned" each:"format=network"`

	wirePlace
	Reclaim string `json:"reclaim" default:"deleted-nodes" schema:"enum=deleted-nodes|never empty" help:"whose leases ADD takes when a set is full"`
	OnDown  string `json:"statusOnStoreDown" default:"ignore" schema:"enum=ignore|warn|fail empty" help:"STATUS when the API server does not answer"`
}

// wirePlace has the keys that DEL and GC also read.
type wirePlace struct {
	Space      string `json:"space" default:"default" help:"leases of one space never share an address"`
	Kubeconfig string `json:"kubeconfig" default:"/etc/kubernetes/kubelet.conf" help:"API server and credentials"`
	Node       string `json:"node" help:"who holds the leases (default: the kubelet's name in its certificate, else /etc/hostname)"`
	DataDir    string `json:"dataDir" help:"directory of the records of this node" default:"/var/lib/cni/cluster-local"`
	Guard      string `json:"guard" schema:"enum=whereabouts empty" help:"also keep nodes that run whereabouts from the addresses"`
}

// place identifies where the leases and records are, and the node that owns them.
type place struct {
	space, kubeconfig, node, dataDir string
	guard                            string // empty: no other plugin uses the ranges
	keys                             placeKeys
}

// placeKeys are the names of the configuration's keys, for errors.
type placeKeys struct{ space, kubeconfig string }

func (w wirePlace) place() place {
	return place{cmp.Or(w.Space, "default"), cmp.Or(w.Kubeconfig, "/etc/kubernetes/kubelet.conf"), w.Node,
		cmp.Or(w.DataDir, "/var/lib/cni/cluster-local"), w.Guard, placeKeys{"ipam.space", "ipam.kubeconfig"}}
}

// hostDirs are directories, besides those in hostTrees, that contain a node's own kubeconfig. Their subdirectories
// may contain files of containers.
var hostDirs = []string{"/var/lib/kubelet", "/var/lib/k0s", "/var/lib/rancher/k3s/agent", "/var/lib/rancher/rke2/agent",
	"/var/snap/microk8s/current/credentials"}

// hostTrees are directories below which no container can write. The last three contain the files of k3s, RKE2 and
// microk8s that other distributions have in /etc/cni.
var hostTrees = []string{"/etc/", "/var/lib/rancher/k3s/agent/etc/", "/var/lib/rancher/rke2/agent/etc/",
	"/var/snap/microk8s/current/args/"}

// checkHostFile returns an error unless only the host's root can have written the file at path or a symbolic link in
// the path. key is the key that names the file. A container's kubeconfig could name any file of the host as a token,
// and a server to send it to.
func checkHostFile(key, path string) error {
	isBelowPath := func(dir string) bool { return strings.HasPrefix(path, dir) }
	if filepath.Clean(path) == path &&
		(slices.ContainsFunc(hostTrees, isBelowPath) || slices.Contains(hostDirs, filepath.Dir(path))) {
		return nil
	}
	return cni.Refuse(key, path, "is not below "+strings.Join(hostTrees, ", ")+", nor a file in "+
		strings.Join(hostDirs, ", ")+"; a container may have written a file elsewhere")
}

type config struct {
	place
	resolvConf  string // empty: none
	sets        []ranges.Set
	requested   []ranges.Requested // for each set; the zero value asks for none
	staticIPs   []cni.IP           // given as they are, without a lease
	routes      []cni.Route
	dns         cni.DNS
	reclaims    bool
	onStoreDown string
	pod, podUID string // namespace/name; empty = the runtime names none
}

// isSpace reports whether a name can be part of an object's name.
func isSpace(name string) bool { return isName(name, "-", 63) }

func isNode(name string) bool { return isName(name, "-.", 253) }

// isName reports whether a name consists of lower-case letters, digits and the characters of inner, and neither begins
// nor ends with a character of inner.
func isName(name, inner string, maxLen int) bool {
	const ends = "abcdefghijklmnopqrstuvwxyz0123456789"
	isOf := func(text, set string) bool { return strings.Trim(text, set) == "" }
	return name != "" && len(name) <= maxLen && isOf(name, ends+inner) && isOf(name[:1]+name[len(name)-1:], ends)
}

// The keys of CNI_ARGS with which Kubernetes' runtimes identify a pod.
const podSpace, podName, podUID = "K8S_POD_NAMESPACE", "K8S_POD_NAME", "K8S_POD_UID"

// parseConfig returns empty sets only if capabilities.ipRanges announces that the runtime sends them.
func parseConfig(req *skel.Request, wire wireConfig, problems *cni.Problems) *config {
	cfg := &config{place: wire.IPAM.place(), resolvConf: wire.IPAM.ResolvConf,
		reclaims: wire.IPAM.Reclaim != "never", onStoreDown: wire.IPAM.OnDown}
	cfg.checkPlace(req, problems)
	if mode := wire.IPAM.Reclaim; !slices.Contains([]string{"", "deleted-nodes", "never"}, mode) {
		problems.Add(cni.Refuse("ipam.reclaim", mode, `must be "deleted-nodes" or "never"`))
	}
	if mode := cfg.onStoreDown; !slices.Contains([]string{"", "ignore", "warn", "fail"}, mode) {
		problems.Add(cni.Refuse("ipam.statusOnStoreDown", mode, `must be "ignore", "warn" or "fail"`))
	}
	var err error
	cfg.sets, err = wire.RequestKeys.Parse(req.Version, wire.IPAM.Wire, wire.IPAM.Ranges)
	problems.Add(err)
	ranges.Exclude(cfg.sets, wire.IPAM.Exclude, problems)
	cfg.routes, err = cni.ParseRoutes(wire.IPAM.Routes)
	problems.AddIn("ipam", err)
	cfg.parseArgs(req.Args, wire.RequestKeys, problems)
	return cfg
}

// checkPlace refuses names that cannot be part of a path or of an object.
func (cfg *config) checkPlace(req *skel.Request, problems *cni.Problems) {
	if !isSpace(cfg.space) {
		problems.Add(cni.Refuse(cfg.keys.space, cfg.space, "must have 1 to 63 lower-case letters, digits and "+
			"hyphens, and must not begin or end with a hyphen"))
	}
	if cfg.node != "" && !isNode(cfg.node) {
		problems.Add(cni.Refuse("ipam.node", cfg.node, "is not a valid node name: at most 253 lower-case letters, "+
			"digits, hyphens and dots"))
	}
	if cfg.guard != "" && cfg.guard != "whereabouts" {
		problems.Add(cni.Refuse("ipam.guard", cfg.guard, `must be "whereabouts"`))
	}
	problems.Add(checkHostFile(cfg.keys.kubeconfig, cfg.kubeconfig))
	if len(req.Network) > nameMax {
		problems.Add(cni.Refuse("name", req.Network, "is longer than 253 bytes, the limit of a lease"))
	}
}

const nameMax = 253 // maximum length of a name in a lease

// parseArgs reads the pod and the requested addresses of the call.
func (cfg *config) parseArgs(args string, call ranges.RequestKeys, problems *cni.Problems) {
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
	asked, err := call.Requested(values["IP"])
	problems.Add(err)
	if problems.Err() == nil && len(cfg.sets) > 0 {
		cfg.requested, err = ranges.Assign(cfg.sets, asked)
		problems.Add(err)
	}
}

// parsePlace reads the keys that DEL and GC need. Other keys may be invalid.
func parsePlace(req *skel.Request) (place, error) {
	var wire struct {
		IPAM wirePlace `json:"ipam"`
	}
	err := req.Decode(&wire)
	return wire.IPAM.place(), err
}
