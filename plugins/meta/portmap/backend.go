package main

import (
	"errors"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ipt"
	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

// ipvsLink is where kube-proxy in its mode ipvs has the addresses of all
// services: they count as local, and what protects them protects them from
// iptables only.
const ipvsLink = "kube-ipvs0"

// choose decides on the backend. final says that there is no falling back.
func (c *call) choose(cfg config) (b backend, final bool, err error) {
	switch {
	case cfg.asked != auto:
		return cfg.asked, true, nil
	case cfg.needed != auto:
		return cfg.needed, true, nil
	}
	_, err = c.host.Link(ipvsLink)
	if errors.Is(err, rtnl.ErrNoLink) {
		return nftables, false, nil
	}
	return iptables, true, err
}

func (c *call) warn(cfg config, st *state) {
	for _, m := range st.unreachable() {
		c.Warn("host port %s of %s: the container has no address of that family, so it leads nowhere", m.name(), m.HostIP)
	}
	for _, m := range st.Mappings {
		if m.HostIP.Is6() && m.HostIP.IsLoopback() {
			c.Warn("host port %s of %s: IPv6 cannot forward from the loopback address, so it leads nowhere", m.name(), m.HostIP)
		}
	}
	if cfg.options.MasqAll && !cfg.options.SNAT {
		c.Warn("masqAll: does nothing without snat")
	}
	if cfg.asked == nftables || cfg.needed == nftables {
		if _, err := c.host.Link(ipvsLink); err == nil {
			c.Warn("backend nftables beside kube-proxy in its mode ipvs (link %q): host ports win over services of the same port", ipvsLink)
		}
	}
}

func unavailable(err error) error {
	if err == nil {
		return nil
	}
	return cni.Errorf(cni.CodeUnavailable, "backend iptables: %w", err)
}

// status looks for what would make ADD fail.
func (c *call) status(cfg config) error {
	b, final, err := c.choose(cfg)
	if err != nil {
		return cni.Errorf(cni.CodeUnavailable, "%w", err)
	}
	if err := statefile.Writable(stateDir); err != nil {
		return cni.Errorf(cni.CodeUnavailable, "host ports: %w", err)
	}
	if b == nftables {
		err := c.nf.Probe(sharedLayout(cfg.options.mark()))
		if err != nil && (final || !errors.Is(err, nft.ErrUnsupported)) {
			return cni.Errorf(cni.CodeUnavailable, "backend nftables: %w", err)
		}
		if err != nil {
			b = iptables
		}
	}
	if b == iptables {
		return unavailable(c.installed())
	}
	if cfg.needed == nftables {
		if err := nft.FindProgram(); err != nil {
			return cni.Errorf(cni.CodeUnavailable, "conditionsV4, conditionsV6: the nft program has to compile them: %w", err)
		}
	}
	if _, err := c.host.Link(ipvsLink); err == nil {
		return cni.Errorf(cni.CodeLimited, "backend nftables beside kube-proxy in its mode ipvs (link %q): host ports win over services of the same port", ipvsLink)
	}
	return nil
}

// installed says whether iptables is there, without running it. That of IPv6 is
// needed by containers with an address of that family only.
func (c *call) installed() error {
	if err := ipt.Installed(ipt.IPv6); err != nil {
		c.Warn("backend iptables: no host ports of containers with an IPv6 address: %v", err)
	}
	return ipt.Installed(ipt.IPv4)
}
