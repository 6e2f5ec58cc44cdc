package firewall

import (
	"cmp"
	"slices"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ipt"
	"github.com/hawser-cni/plugins/pkg/skel"
)

const (
	defaultZone = "trusted"

	// defaultBit is the default fwmark bit of accepted packets. portmap uses bit 13, kube-proxy bits 14 and 15, and
	// other network software the bits from 16.
	defaultBit = 12
)

// The chains of the reference plugin in table filter, and one of this plugin: acceptedChain accepts packets that have
// the fwmark bit. The rules in acceptedChain, and the jump to it, need no comment, because the chain's name shows their
// owner.
const (
	filterTable       = "filter"
	forwardHook       = "FORWARD"
	cniForward        = "CNI-FORWARD"
	defaultAdminChain = "CNI-ADMIN"
	acceptedChain     = "HAWSER-ACCEPTED"
	stage1            = "CNI-ISOLATION-STAGE-1"
	stage2            = "CNI-ISOLATION-STAGE-2"
)

type wireConfig struct {
	skel.LogKey

	Backend         string `json:"backend" help:"nftables, iptables or firewalld (firewalld if it runs, otherwise nftables if the kernel permits)" schema:"enum=nftables|iptables|firewalld empty"`
	IngressPolicy   string `json:"ingressPolicy" help:"who reaches the bridge's containers: open, same-bridge or isolated" default:"open" schema:"enum=open|same-bridge|isolated empty"`
	AdminChain      string `json:"iptablesAdminChainName" help:"administrator's chain of iptables, which packets pass first" default:"CNI-ADMIN" schema:"format=chain empty"`
	Zone            string `json:"firewalldZone" help:"zone for the container's addresses; firewalld only" default:"trusted" schema:"format=link empty"`
	MarkAcceptBit   *int   `json:"markAcceptBit" help:"fwmark bit that FORWARD of iptables accepts, 0 to 31; the same for all networks of a host, not used by other software; nftables only" default:"12" schema:"min=0 max=31"`
	AcceptPublished *bool  `json:"acceptPublished" help:"accept new connections to published ports; nftables only" default:"true"`
}

// backend is the system that enforces the rules.
type backend = ipt.Backend

const (
	auto              = ipt.Auto
	nftables          = ipt.NFTables
	iptables          = ipt.IPTables
	firewalld backend = "firewalld"
)

type config struct {
	backend backend // requested
	options
}

// options are all keys except the backend.
type options struct {
	AdminChain string `json:"adminChain"`
	Zone       string `json:"zone"`
	Published  bool   `json:"published"`
	Bit        int    `json:"markAcceptBit"` // fwmark bit of accepted packets
	Policy     policy `json:"policy"`
}

func parseConfig(_ *skel.Request, w wireConfig, problems *cni.Problems) config {
	c := config{backend(w.Backend), options{
		AdminChain: cmp.Or(w.AdminChain, defaultAdminChain), Zone: cmp.Or(w.Zone, defaultZone),
		Published: w.AcceptPublished == nil || *w.AcceptPublished, Bit: defaultBit,
		Policy: policy(cmp.Or(w.IngressPolicy, string(policyOpen)))}}
	problems.Add(cni.CheckName("firewalldZone", w.Zone))
	problems.Add(cni.InRange("markAcceptBit", w.MarkAcceptBit, 0, 31))
	if w.MarkAcceptBit != nil {
		c.Bit = *w.MarkAcceptBit
	}
	if c.Bit >= 13 && c.Bit <= 15 {
		problems.Add(cni.Refuse("markAcceptBit", c.Bit, "is portmap's (13) or kube-proxy's (14, 15)"))
	}
	if !slices.Contains([]backend{auto, nftables, iptables, firewalld}, c.backend) {
		problems.Add(cni.Refuse("backend", w.Backend, `is not "nftables", "iptables" or "firewalld"`).
			Suggest("leave it out for the one that fits the host"))
	}
	if !slices.Contains(policies(), c.Policy) {
		problems.Add(cni.Refuse("ingressPolicy", w.IngressPolicy, `is not "open", "same-bridge" or "isolated"`))
	}
	reservedChains := []string{"INPUT", forwardHook, "OUTPUT", cniForward, acceptedChain, stage1, stage2}
	if !ipt.IsChainName(c.AdminChain) || slices.Contains(reservedChains, c.AdminChain) {
		problems.Add(cni.Refuse("iptablesAdminChainName", c.AdminChain,
			"is not a valid name for a chain of your own (1 to 28 bytes, no blank, no leading - or !; not a target, "+
				"built-in or this plugin's)"))
	}
	return c
}
