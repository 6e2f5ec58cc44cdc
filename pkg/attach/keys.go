package attach

import (
	"fmt"
	"net"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ipam"
	"github.com/hawser-cni/plugins/pkg/ipt"
)

// LinkKeys are the configuration keys of plugins that make an interface.
type LinkKeys struct {
	DNS  cni.DNS `json:"dns" help:"resolver settings for the result, instead of IPAM's"`
	Args struct {
		CNI struct {
			MAC string `json:"mac" help:"MAC address of the container's end; wins over MAC in CNI_ARGS" schema:"format=mac empty"`
		} `json:"cni"`
	} `json:"args"`
	RuntimeConfig struct {
		MAC string `json:"mac" help:"MAC address of the container's end (capability mac); wins over all" schema:"format=mac empty"`
	} `json:"runtimeConfig"`
}

// IPAMKeys are the configuration keys of plugins that need no IPAM plugin.
type IPAMKeys struct {
	IPAM struct {
		Type string `json:"type" help:"IPAM plugin that gives the addresses" schema:"format=file empty"`
	} `json:"ipam" help:"the IPAM plugin's part (none: layer 2 only)"`
}

// Check refuses a type that can be no plugin's name.
func (k IPAMKeys) Check() error {
	if k.IPAM.Type == "" {
		return nil
	}
	return ipam.CheckType(k.IPAM.Type)
}

// Link is how an interface is to be made.
type Link struct {
	Netkit bool             // of a pair: of the kind netkit instead of veth
	MTU    int              // bytes; 0 = the kernel's
	MAC    net.HardwareAddr // of the container's end; nil = random
	DNS    cni.DNS          // of the result, instead of IPAM's
	// Given has addresses and routes for where there is no IPAM plugin; nil = layer 2 then.
	Given *cni.Result
}

// Parse checks the keys, and the plugin's own keys mtu and mac, the weakest source of the MAC address (empty: the
// plugin has no such key). What no interface can have is code 7, also of a key that a stronger one overrides; in
// CNI_ARGS it is code 4 where no stronger key does.
func (k LinkKeys) Parse(cniArgs string, mtu int, mac string) (Link, error) {
	l := Link{MTU: mtu, DNS: k.DNS}
	var problems cni.Problems
	weakest, err := parseMAC(cni.CodeConfig, "mac", mac)
	problems.Add(err)
	problems.Add(checkMTU(mtu))
	args, err := cni.ParseArgs(cniArgs, "MAC")
	problems.Add(err)
	take := func(code uint, key, text string) {
		address, err := parseMAC(code, key, text)
		problems.Add(err)
		if l.MAC == nil {
			l.MAC = address
		}
	}
	take(cni.CodeConfig, "runtimeConfig.mac", k.RuntimeConfig.MAC)
	take(cni.CodeConfig, "args.cni.mac", k.Args.CNI.MAC)
	if k.RuntimeConfig.MAC == "" && k.Args.CNI.MAC == "" {
		take(cni.CodeEnvironment, "CNI_ARGS MAC", args["MAC"])
	}
	if l.MAC == nil {
		l.MAC = weakest
	}
	return l, problems.Err()
}

// ParseLink is LinkKeys.Parse for interfaces whose MAC address cannot be chosen.
func ParseLink(mtu int, dns cni.DNS) (Link, error) { return Link{MTU: mtu, DNS: dns}, checkMTU(mtu) }

// parseMAC reads the address of an Ethernet interface; nil, for an empty text.
func parseMAC(code uint, key, text string) (net.HardwareAddr, error) {
	mac, err := cni.ParseMAC(code, key, text)
	if err == nil && text != "" && len(mac) != 6 {
		err = cni.Refuse(key, text,
			"is no MAC address of an interface (six bytes, not multicast, not zero)").WithCode(code)
	}
	return mac, err
}

// Smallest and largest MTU of a container's interface, in bytes: those of a veth.
const mtuMin, mtuMax = 68, 65535

func checkMTU(mtu int) error {
	if mtu != 0 && (mtu < mtuMin || mtu > mtuMax) {
		return cni.Refuse("mtu", mtu, fmt.Sprintf("is not between %d and %d", mtuMin, mtuMax)).
			Suggest("leave it out for the kernel's own")
	}
	return nil
}

// mtuMin6 is the smallest MTU of a link that carries IPv6, in bytes (RFC 8200,
// section 5). Below it the kernel has no IPv6 on a link at all.
const mtuMin6 = 1280

// Result begins a result with IPAM's answer: its addresses are those of the index-th
// interface, its DNS is the configuration's where that has any. An mtu that is too
// small for one of the addresses is code 7.
func (l Link) Result(answer *cni.Result, index int) (*cni.Result, error) {
	res := answer.Clone()
	for i := range res.IPs {
		own := index
		res.IPs[i].Interface = &own
		if addr := res.IPs[i].Address; l.MTU != 0 && l.MTU < mtuMin6 && addr.Addr().Is6() {
			return nil, cni.Errorf(cni.CodeConfig, "mtu: %d is too small for IPv6 (%d), which address %s needs",
				l.MTU, mtuMin6, addr)
		}
	}
	if l.DNS.IsSet() {
		res.DNS = l.DNS
	}
	return res, nil
}

// MasqKeys are the configuration keys of the masquerade.
type MasqKeys struct {
	IPMasq        bool    `json:"ipMasq" help:"masquerade what leaves the containers' subnets" default:"false"`
	IPMasqBackend *string `json:"ipMasqBackend" help:"nftables or iptables (nftables, where the kernel has it)" schema:"enum=nftables|iptables"`
}

// Masq says whether ADD masquerades, and with what.
type Masq struct {
	On      bool
	Backend ipt.Backend
}

// Parse checks the keys.
func (k MasqKeys) Parse() (Masq, error) {
	backend, err := ipt.ParseBackend("ipMasqBackend", k.IPMasqBackend)
	return Masq{On: k.IPMasq, Backend: backend}, err
}
