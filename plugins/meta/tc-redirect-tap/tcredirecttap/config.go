package tcredirecttap

import (
	"cmp"
	"math"
	"os"
	"strconv"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/skel"
)

type wireConfig struct {
	skel.LogKey
	Name string  `json:"tap_name" help:"name of the tap (tap0, or the next free name)" schema:"format=ifname empty"`
	UID  *uint32 `json:"uid" help:"user ID that may open the tap without CAP_NET_ADMIN (the runtime's)"`
	GID  *uint32 `json:"gid" help:"group ID that may open the tap without CAP_NET_ADMIN (the runtime's)"`
	IPs  string  `json:"vm_ips" default:"all" schema:"enum=all|first empty" help:"addresses of the virtual machine's interface in the result"`
}

type config struct {
	name     string // "": the kernel chooses
	uid, gid uint32
	first    bool // the result has only one address of the virtual machine
}

// Keys of CNI_ARGS, which override the configuration.
const (
	argName = "TC_REDIRECT_TAP_NAME"
	argUID  = "TC_REDIRECT_TAP_UID"
	argGID  = "TC_REDIRECT_TAP_GID"
)

// parseConfig adds a problem for each invalid value: code 7, or 4 for CNI_ARGS.
func parseConfig(req *skel.Request, w wireConfig, problems *cni.Problems) config {
	cfg := config{name: w.Name, uid: uint32(os.Geteuid()), gid: uint32(os.Getegid()), first: w.IPs == "first"}
	if v := w.IPs; v != "" && v != "all" && v != "first" {
		problems.Add(cni.Refuse("vm_ips", v, `is neither "all" nor "first"`))
	}
	// The runtime also sends other keys.
	args, err := cni.ParseArgs(req.Args+";IgnoreUnknown=1", argName, argUID, argGID)
	problems.Add(err)
	nameKey, code := "tap_name", cni.CodeConfig
	if name := args[argName]; name != "" {
		cfg.name, nameKey, code = name, "CNI_ARGS: "+argName, cni.CodeEnvironment
	}
	switch cfg.name {
	case "":
	case req.IfName:
		problems.Add(cni.Refuse(nameKey, cfg.name, "is the container's interface itself").WithCode(code))
	default:
		problems.Add(cni.CheckIfName(code, nameKey, cfg.name))
	}
	ids := []struct {
		key, arg           string
		configured, target *uint32
	}{{"uid", argUID, w.UID, &cfg.uid}, {"gid", argGID, w.GID, &cfg.gid}}
	for _, id := range ids {
		if id.configured != nil {
			*id.target = *id.configured
		}
		n, err := strconv.ParseUint(cmp.Or(args[id.arg], "0"), 10, 32)
		switch {
		case *id.target == math.MaxUint32:
			problems.Add(cni.Refuse(id.key, *id.target, "is not a valid ID"))
		case err != nil || n == math.MaxUint32:
			problems.Add(cni.Refuse("CNI_ARGS: "+id.arg, args[id.arg], "is not a valid ID").
				WithCode(cni.CodeEnvironment))
		case args[id.arg] != "":
			*id.target = uint32(n)
		}
	}
	return cfg
}
