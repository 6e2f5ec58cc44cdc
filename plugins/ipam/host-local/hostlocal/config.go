package hostlocal

import (
	"cmp"
	"slices"

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
	Type string `json:"type" help:"host-local"`
	ranges.Wire
	Ranges     [][]ranges.Wire `json:"ranges" help:"sets of ranges; a container gets one address of each set"`
	Routes     []cni.WireRoute `json:"routes" help:"routes, copied to the result" most:"1024"`
	DataDir    string          `json:"dataDir" help:"directory of the leases" default:"/var/lib/cni/networks"`
	ResolvConf string          `json:"resolvConf" help:"file in the format of resolv.conf(5) that sets the dns of the result"`

	Exclude []string `json:"exclude" help:"addresses and networks that are never assigned" each:"format=network"`
	Sticky  bool     `json:"sticky" help:"assign a pod its last address again if it is free" default:"false"`

	Reclaim *bool `json:"reclaim" help:"if a set is full, reclaim leases whose containers certainly no longer exist" default:"true"`

	OnFull string `json:"statusOnExhaustion" default:"warn" schema:"enum=warn|fail empty" help:"result of STATUS if a range is full"`
}

const defaultDataDir = "/var/lib/cni/networks"

type config struct {
	dataDir      string
	resolvConf   string // empty: none
	sets         []ranges.Set
	requested    []ranges.Requested // requested address for each set; zero: none
	routes       []cni.Route
	failWhenFull bool
	reclaim      bool
	pod          string // pod that gets its last addresses again; empty: none
}

// parseConfig returns empty sets only if capabilities.ipRanges announces that the runtime sends them.
func parseConfig(req *skel.Request, wire wireConfig, problems *cni.Problems) *config {
	cfg := &config{
		dataDir: cmp.Or(wire.IPAM.DataDir, defaultDataDir), resolvConf: wire.IPAM.ResolvConf,
		failWhenFull: wire.IPAM.OnFull == "fail", reclaim: wire.IPAM.Reclaim == nil || *wire.IPAM.Reclaim,
	}
	if mode := wire.IPAM.OnFull; !slices.Contains([]string{"", "warn", "fail"}, mode) {
		problems.Add(cni.Refuse("ipam.statusOnExhaustion", mode, `must be "warn" or "fail"`))
	}
	var err error
	cfg.sets, err = wire.RequestKeys.Parse(req.Version, wire.IPAM.Wire, wire.IPAM.Ranges)
	problems.Add(err)
	ranges.Exclude(cfg.sets, wire.IPAM.Exclude, problems)
	known := []string{"IP"}
	if wire.IPAM.Sticky {
		known = append(known, podSpace, podName)
	}
	values, argsErr := cni.ParseArgs(req.Args, known...)
	if name := values[podName]; name != "" {
		cfg.pod = values[podSpace] + "/" + name
	}
	cfg.routes, err = cni.ParseRoutes(wire.IPAM.Routes)
	problems.AddIn("ipam", err)
	problems.Add(argsErr)
	requests, err := wire.Requested(values["IP"])
	problems.Add(err)
	if problems.Err() == nil && len(cfg.sets) > 0 {
		cfg.requested, err = ranges.Assign(cfg.sets, requests)
		problems.Add(err)
	}
	return cfg
}

// parseDataDir reads the only key that DEL and GC need. Other keys may be invalid.
func parseDataDir(req *skel.Request) (string, error) {
	var wire struct {
		IPAM struct {
			DataDir string `json:"dataDir"`
		} `json:"ipam"`
	}
	err := req.Decode(&wire)
	return cmp.Or(wire.IPAM.DataDir, defaultDataDir), err
}

// The keys of CNI_ARGS with which Kubernetes' runtimes identify a pod.
const podSpace, podName = "K8S_POD_NAMESPACE", "K8S_POD_NAME"
