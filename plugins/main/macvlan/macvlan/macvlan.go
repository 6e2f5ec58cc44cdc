package macvlan

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/attach"
	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
)

const (
	kind     = "macvlan"
	passthru = "passthru"
)

// wireConfig is the configuration as written.
type wireConfig struct {
	skel.LogKey
	attach.MasterKeys
	Mode       string `json:"mode" help:"how those on one master see each other: bridge, private, vepa or passthru" default:"bridge" schema:"enum=bridge|private|vepa|passthru empty"`
	MAC        string `json:"mac" help:"MAC address; the other three sources win over it" schema:"format=mac empty"`
	BCQueueLen uint32 `json:"bcqueuelen" help:"length of the master's queue for broadcasts, the longest that one on it asks for (the kernel's)"`
	EnableDAD  bool   `json:"enabledad" help:"let the kernel detect duplicate IPv6 addresses, and wait for it (true)"`
	attach.IPAMKeys
	attach.LinkKeys
}

// parseConfig says how the macvlan is to be made. What it refuses is code 7, or code 4 for CNI_ARGS.
func parseConfig(req *skel.Request, w wireConfig, problems *cni.Problems) attach.ChildConfig {
	problems.Add(cni.CheckName("master", w.Master))
	mode := cmp.Or(w.Mode, "bridge")
	if !slices.Contains([]string{"bridge", "private", "vepa", passthru}, mode) {
		problems.Add(cni.Refuse("mode", mode, `is none of "bridge", "private", "vepa" and "passthru"`))
	}
	problems.Add(w.IPAM.Check())
	return attach.ChildConfig{New: rtnl.NewLink{Kind: kind, Mode: mode, QueueLen: w.BCQueueLen}, Master: &w.MasterKeys,
		Link: w.LinkKeys.Parse(problems, req.Args, w.MAC), DAD: w.EnableDAD, Make: makeMacvlan}
}

// makeMacvlan refuses the master's own MAC address, and gives a passthru its MAC address afterwards.
func makeMacvlan(ctx context.Context, s *attach.Call, name string) error {
	mode, mac := s.Child.New.Mode, s.Child.Link.MAC
	if mode != passthru && mac != nil && slices.Equal(mac, s.Master.MAC) {
		return cni.Refuse("mac", mac.String(), fmt.Sprintf("is that of master %q", s.Master.Name))
	}
	err := attach.MakeLink(ctx, s, name)
	switch {
	case errors.Is(err, unix.EINVAL):
		return cni.Errorf(cni.CodeConflict,
			"master: %q: refuses a macvlan of mode %q (nothing can be beside a passthru): %w", s.Master.Name, mode, err)
	case err != nil || mode != passthru || mac == nil:
		return err
	}
	// The kernel gives a passthru the master's MAC address, whatever it was asked for. Now both get the wished one,
	// and the master its own again when the passthru goes.
	l, err := s.Cont.Link(name)
	if err != nil {
		return err
	}
	return s.Cont.SetLink(l.Index, rtnl.LinkChange{MAC: mac})
}
