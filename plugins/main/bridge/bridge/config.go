package bridge

import (
	"fmt"
	"slices"
	"sort"

	"github.com/hawser-cni/plugins/pkg/attach"
	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/skel"
)

const (
	defaultBridge = "cni0"
	vlanMax       = 4094
)

type wireConfig struct {
	skel.LogKey

	Bridge           string `json:"bridge" help:"name of the bridge, created if it does not exist" default:"cni0" schema:"format=ifname"`
	IsGateway        bool   `json:"isGateway" help:"add the gateway addresses to the bridge, and forward packets" default:"false"`
	IsDefaultGateway bool   `json:"isDefaultGateway" help:"isGateway, and make the bridge the containers' default gateway" default:"false"`
	ForceAddress     bool   `json:"forceAddress" help:"replace other addresses of the bridge instead of failing" default:"false"`
	attach.MasqKeys
	HairpinMode               bool        `json:"hairpinMode" help:"let a container reach itself through the bridge" default:"false"`
	PromiscMode               bool        `json:"promiscMode" help:"set the bridge promiscuous; not with hairpinMode" default:"false"`
	VLAN                      int         `json:"vlan" help:"VLAN of the port, untagged, 1 to 4094 (0: none)" schema:"min=0 max=4094"`
	VLANTrunk                 []wireTrunk `json:"vlanTrunk" help:"VLANs that the port carries tagged" each:"set" most:"4094"`
	PreserveDefaultVLAN       bool        `json:"preserveDefaultVlan" help:"keep the bridge's default VLAN on a port with vlan or vlanTrunk" default:"false"`
	MacSpoofChk               bool        `json:"macspoofchk" help:"drop frames that do not carry the container's MAC address" default:"false"`
	EnableDAD                 bool        `json:"enabledad" help:"detect duplicate IPv6 addresses, and wait for the result" default:"false"`
	DisableContainerInterface bool        `json:"disableContainerInterface" help:"leave the container's interface down; not with ipam" default:"false"`
	PortIsolation             bool        `json:"portIsolation" help:"isolate the port from the bridge's other isolated ports" default:"false"`
	attach.IPAMKeys
	attach.MTUKeys
	attach.LinkKeys
}

type wireTrunk struct {
	ID    *int `json:"id" help:"one VLAN, 1 to 4094" schema:"min=1 max=4094"`
	MinID *int `json:"minID" help:"first VLAN of a range; with maxID" schema:"min=1 max=4094"`
	MaxID *int `json:"maxID" help:"last VLAN of a range; with minID" schema:"min=1 max=4094"`
}

type config struct {
	wireConfig
	Link    attach.LinkConfig
	Masq    attach.Masq
	Gateway bool     // isGateway or isDefaultGateway
	Trunk   []uint16 // VLANs of vlanTrunk, sorted and without duplicates
}

func parseConfig(req *skel.Request, w wireConfig, problems *cni.Problems) config {
	c := config{wireConfig: w, Gateway: w.IsGateway || w.IsDefaultGateway}
	hasIPAM := w.IPAM.Type != ""
	checkKeys(problems, w)
	c.Trunk = parseVLANs(problems, w)
	if c.Gateway && hasIPAM && w.VLAN != 0 && !cni.ValidIfName(c.gatewayName()) {
		problems.Add(cni.Refuse("bridge", w.Bridge,
			fmt.Sprintf("is too long: the gateway of vlan %d would be called %q (15 bytes at most)", w.VLAN,
				c.gatewayName())))
	}
	c.Masq = w.MasqKeys.Parse(problems)
	c.Masq.Enabled = c.Masq.Enabled && hasIPAM
	c.Link = w.LinkKeys.Parse(problems, w.MTUKeys, req.Args, "")
	return c
}

// gatewayName returns the name of the link that has the gateway addresses: the bridge or the VLAN gateway.
func (c config) gatewayName() string {
	if c.VLAN == 0 {
		return c.Bridge
	}
	return fmt.Sprintf("%s.%d", c.Bridge, c.VLAN)
}

// needsVLANFilter reports whether the bridge must filter VLANs.
func (c config) needsVLANFilter() bool { return c.VLAN != 0 || c.VLANTrunk != nil }

// checkKeys checks the names of the bridge and of the IPAM plugin, and refuses keys that contradict each other.
func checkKeys(problems *cni.Problems, w wireConfig) {
	problems.Add(cni.CheckIfName(cni.CodeConfig, "bridge", w.Bridge))
	if w.HairpinMode && w.PromiscMode {
		problems.Add(cni.Refuse("promiscMode", nil,
			"cannot set hairpin mode and promiscuous mode at the same time: frames would be delivered twice").
			Suggest("use only hairpinMode to let a container reach itself"))
	}
	problems.Add(w.IPAM.Check())
	if w.DisableContainerInterface && w.IPAM.Type != "" {
		problems.Add(cni.Refuse("disableContainerInterface", nil,
			fmt.Sprintf("cannot use IPAM when DisableContainerInterface flag is set (ipam.type %q): "+
				"an interface that is down has no use for addresses", w.IPAM.Type)).
			Suggest("leave out one of them"))
	}
}

// parseVLANs checks vlan, and returns the VLANs of vlanTrunk.
func parseVLANs(problems *cni.Problems, w wireConfig) (trunk []uint16) {
	if w.VLAN < 0 || w.VLAN > vlanMax {
		problems.Add(cni.Refuse("vlan", nil,
			fmt.Sprintf("invalid VLAN ID %d (must be between 0 and %d)", w.VLAN, vlanMax)))
	}
	for i, t := range w.VLANTrunk {
		if err := t.check(fmt.Sprintf("vlanTrunk[%d]", i)); err != nil {
			problems.Add(err)
			continue
		}
		if t.ID != nil {
			trunk = append(trunk, uint16(*t.ID))
		}
		if t.MinID == nil {
			continue
		}
		for id := *t.MinID; id <= *t.MaxID; id++ {
			trunk = append(trunk, uint16(id))
		}
	}
	// slices.Sort would make the program larger.
	sort.Slice(trunk, func(i, j int) bool { return trunk[i] < trunk[j] })
	return slices.Compact(trunk)
}

// check refuses an entry of vlanTrunk that is empty or incomplete, or that has an invalid VLAN. key is the entry's
// path, such as vlanTrunk[0].
func (t wireTrunk) check(key string) error {
	var problems cni.Problems
	switch {
	case t.MinID == nil && t.MaxID != nil:
		problems.Add(cni.Refuse(key, nil, "minID and maxID should be configured simultaneously, minID is missing"))
	case t.MaxID == nil && t.MinID != nil:
		problems.Add(cni.Refuse(key, nil, "minID and maxID should be configured simultaneously, maxID is missing"))
	case t.ID == nil && t.MinID == nil:
		problems.Add(cni.Refuse(key, nil, "has neither id nor minID and maxID"))
	}
	problems.Add(cni.InRange(key+".id", t.ID, 1, vlanMax))
	problems.Add(cni.InRange(key+".minID", t.MinID, 1, vlanMax))
	problems.Add(cni.InRange(key+".maxID", t.MaxID, 1, vlanMax))
	if t.MinID != nil && t.MaxID != nil && *t.MinID > *t.MaxID {
		problems.Add(cni.Refuse(key+".minID", *t.MinID,
			fmt.Sprintf("minID is greater than maxID in trunk parameter (%d)", *t.MaxID)))
	}
	return problems.Err()
}
