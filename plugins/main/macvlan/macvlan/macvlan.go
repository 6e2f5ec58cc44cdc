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

type wireConfig struct {
	skel.LogKey
	attach.MasterKeys
	Mode       string `json:"mode" help:"how macvlans on one master communicate: bridge, private, vepa or passthru" default:"bridge" schema:"enum=bridge|private|vepa|passthru empty"`
	MAC        string `json:"mac" help:"MAC address; CNI_ARGS, runtimeConfig and args.cni override it" schema:"format=mac empty"`
	BCQueueLen uint32 `json:"bcqueuelen" help:"length of the master's queue for broadcasts; the largest value of its macvlans applies (the kernel's)"`
	EnableDAD  bool   `json:"enabledad" help:"detect duplicate IPv6 addresses, and wait for the result (true)"`
	attach.IPAMKeys
	attach.MTUKeys
	attach.LinkKeys
}

func parseConfig(req *skel.Request, w wireConfig, problems *cni.Problems) attach.ChildConfig {
	problems.Add(cni.CheckName("master", w.Master))
	mode := cmp.Or(w.Mode, "bridge")
	if !slices.Contains([]string{"bridge", "private", "vepa", passthru}, mode) {
		problems.Add(cni.Refuse("mode", mode, `is not "bridge", "private", "vepa" or "passthru"`))
	}
	problems.Add(w.IPAM.Check())
	return attach.ChildConfig{New: rtnl.NewLink{Kind: kind, Mode: mode, QueueLen: w.BCQueueLen}, Master: &w.MasterKeys,
		Link: w.LinkKeys.Parse(problems, w.MTUKeys, req.Args, w.MAC), DAD: w.EnableDAD, Make: makeMacvlan,
		TakesMaster: mode == passthru}
}

// makeMacvlan creates the macvlan. It refuses the master's MAC address, and sets the address of a passthru afterwards.
func makeMacvlan(ctx context.Context, c *attach.Call, name string) error {
	mode, mac := c.Child.New.Mode, c.Child.Link.MAC
	if mode != passthru && mac != nil && slices.Equal(mac, c.Master.MAC) {
		return cni.Refuse("mac", mac.String(), fmt.Sprintf("is the MAC address of master %q", c.Master.Name))
	}
	err := attach.MakeLink(ctx, c, name)
	switch {
	case errors.Is(err, unix.EINVAL):
		return cni.Errorf(cni.CodeConflict,
			"master: %q: refuses a macvlan of mode %q (a passthru must be the only macvlan on its master): %w",
			c.Master.Name, mode, err)
	case err != nil || mode != passthru || mac == nil:
		return err
	}
	// The kernel ignores the requested MAC address and gives a passthru the master's. Setting it now changes both. The
	// kernel restores the master's address when the passthru is deleted.
	l, err := c.Cont.Link(name)
	if err != nil {
		return err
	}
	return c.Cont.SetLink(l.Index, rtnl.LinkChange{MAC: mac})
}
