package attach

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/iface"
	"github.com/hawser-cni/plugins/pkg/ipt"
	"github.com/hawser-cni/plugins/pkg/masq"
	"github.com/hawser-cni/plugins/pkg/netplugin"
	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// Masq is the configured masquerade.
type Masq struct {
	Enabled bool
	Family  nft.Family // 0 = both families
	Backend ipt.Backend
	Link    string // the host's interface where the container's packets arrive, or its VRF; empty = use the host end
	masq.Special
}

// masqConfig returns the masquerade of an attachment with these addresses.
func (c *Call) masqConfig(m Masq, ips []cni.IP) (rules masq.Config, err error) {
	if m.Link == "" {
		m.Link, err = Ingress(c.Host, c.HostEnd)
	}
	addrs := slices.DeleteFunc(cni.Addresses(ips), func(p netip.Prefix) bool {
		return m.Family != 0 && nft.FamilyOf(p.Addr()) != m.Family
	})
	return masq.Config{Attachment: c.Req.Attachment, Backend: m.Backend, Link: m.Link, Addrs: addrs,
		Special: m.Special, Warn: c.Req.Warn}, err
}

// Ingress returns the name of the interface from which, for rules after the routing decision, packets of a link arrive:
// the link's master, such as a VRF, or otherwise the link itself.
func Ingress(host *rtnl.Conn, link rtnl.Link) (string, error) {
	if link.Master == 0 {
		return link.Name, nil
	}
	vrf, err := host.LinkByIndex(link.Master)
	return vrf.Name, err
}

// Masquerade adds rules that replace the source of packets that leave the container's subnets by the host's address.
func (c *Call) Masquerade(ctx context.Context, m Masq, res *cni.Result) error {
	if !m.Enabled {
		return nil
	}
	rules, err := c.masqConfig(m, res.IPs)
	if err != nil {
		return err
	}
	c.Req.Step("masquerade")
	c.Req.OnFail("remove the masquerade", func(ctx context.Context) error { return masq.Del(ctx, c.NF, rules) })
	if c.isRestarted {
		if err := masq.DelElements(ctx, c.NF, masq.Config{Attachment: c.Req.Attachment}); err != nil {
			return err
		}
	}
	return masq.Add(ctx, c.NF, rules)
}

// VerifyMasquerade returns code 101 if rules of Masquerade are missing.
func (c *Call) VerifyMasquerade(ctx context.Context, m Masq) error {
	if !m.Enabled {
		return nil
	}
	rules, err := c.masqConfig(m, c.Req.PrevResult.ContainerIPs(c.Req.IfName))
	if err != nil {
		return err
	}
	if err := masq.Check(ctx, c.NF, rules); err != nil {
		return iface.AsDrift(fmt.Errorf("masquerade: %w", err))
	}
	return nil
}

// Reapply restores the masquerade of a pair and, if isGateway is true, forwarding on the host for the address families
// that have a gateway. For master, see FindPair.
func (c *Call) Reapply(ctx context.Context, m Masq, master int, isGateway bool) error {
	if err := c.FindPair(master); err != nil {
		return err
	}
	if err := netplugin.NotRestored("masquerade", netplugin.VerifyAttached(c.Req)); err != nil {
		return err
	}
	ips := c.Req.PrevResult.ContainerIPs(c.Req.IfName)
	for _, ip := range ips {
		if isGateway && ip.Gateway.IsValid() {
			if err := iface.EnableForwarding(ip.Address.Addr().Is4()); err != nil {
				return err
			}
		}
	}
	if !m.Enabled {
		return nil
	}
	rules, err := c.masqConfig(m, ips)
	if err != nil {
		return err
	}
	err = masq.Reapply(ctx, c.NF, rules)
	if errors.Is(err, masq.ErrNoRecord) {
		return netplugin.NotRestored("masquerade", netplugin.ErrNoRecord)
	}
	// A concurrent DEL may have removed the attachment's rules before masq.Reapply added them.
	if reason := netplugin.NotRestored("masquerade", netplugin.VerifyAttached(c.Req)); reason != nil {
		return errors.Join(reason, masq.Del(ctx, c.NF, rules))
	}
	return err
}

// Restore restores the masquerades of live pairs that use nftables. The result maps the mark of each attachment that
// lacked rules to an error that describes the missing rules. parse returns the masquerade that a request configures. If
// that masquerade has no Link, Restore skips an attachment without a marked host end.
func Restore(ctx context.Context, all []*skel.Request,
	parse func(host *rtnl.Conn, req *skel.Request) (Masq, error)) map[string]error {
	nf, host := nft.New(), rtnl.Host()
	defer func() { _ = errors.Join(nf.Close(), host.Close()) }()
	var wanted []masq.Config
	for _, req := range all {
		m, err := parse(host, req)
		if err != nil || !m.Enabled || m.Backend == ipt.IPTables {
			continue
		}
		c := Call{Call: &netplugin.Call{Req: req, Host: host}}
		if m.Link == "" {
			c.HostEnd, err = netplugin.MarkedHostEnd(host, req.Attachment)
		}
		if err != nil {
			continue
		}
		if rules, err := c.masqConfig(m, req.PrevResult.ContainerIPs(req.IfName)); err == nil {
			wanted = append(wanted, rules)
		}
	}
	// The error is dropped, because CHECK finds whatever was not restored.
	missing, _ := masq.Restore(ctx, nf, wanted, func(marks []string) map[string]bool {
		return netplugin.Attached(all, marks)
	})
	return missing
}
