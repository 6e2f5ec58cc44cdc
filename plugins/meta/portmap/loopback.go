package main

import (
	"context"
	"errors"
	"io/fs"
	"strings"

	"github.com/hawser-cni/plugins/pkg/iface"
	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/sysctl"
)

// guardComment begins the comment of an interface in the guard. What follows is the value of its
// route_localnet before the first user.
const guardComment = "route_localnet was "

func readLocalnet(link string) (string, error) {
	key, err := sysctl.Net("ipv4", "conf", link, "route_localnet")
	if err != nil {
		return "", err
	}
	return key.Read()
}

// writeLocalnet sets whether packets between 127.0.0.0/8 and the link are routed. A link that is gone
// needs no reset.
func writeLocalnet(link, value string) error {
	key, err := sysctl.Net("ipv4", "conf", link, "route_localnet")
	if err == nil {
		err = key.Write(value)
	}
	if value == "0" && errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// noteLocalnet notes in the record what route_localnet of its link was before the first user. The guard says
// it, and another record where the guard was flushed. On a kernel without nf_tables there is no guard, so the
// record gets no link and route_localnet stays as it is.
func (c *call) noteLocalnet(s *store, r *record) error {
	if r.Localnet == "" {
		return nil
	}
	live, err := c.nf.Get(table, localnetSet, nft.IfNameKey(r.Localnet))
	if errors.Is(err, nft.ErrUnsupported) {
		c.Warn("host ports of 127.0.0.1 lead nowhere: the kernel has no nf_tables to guard the host's loopback with")
		r.Localnet = ""
		return nil
	}
	if err != nil {
		return err
	}
	if live[0] != nil {
		r.LocalnetWas = strings.TrimPrefix(live[0].Comment, guardComment)
		return nil
	}
	if r.LocalnetWas, err = readLocalnet(r.Localnet); err != nil || r.LocalnetWas == "0" {
		return err
	}
	all, err := s.All()
	for _, o := range all {
		if o.Localnet == r.Localnet && o.LocalnetWas != "" {
			r.LocalnetWas = o.LocalnetWas
		}
	}
	return err
}

// stageGuard stages the link's entry in the guard.
func stageGuard(tx *nft.Tx, r *record) error {
	if r.Localnet == "" {
		return nil
	}
	key := nft.IfNameKey(r.Localnet)
	live, err := tx.Get(table, localnetSet, key)
	if err == nil && live[0] == nil {
		tx.Add(table, localnetSet, nft.Element{Key: key, Comment: guardComment + r.LocalnetWas})
	}
	return err
}

// guardAlone guards a link whose host ports are on iptables.
func (c *call) guardAlone(ctx context.Context, r *record) error {
	if r.Localnet == "" {
		return nil
	}
	return c.nf.Update(ctx, func(tx *nft.Tx) error {
		if _, err := tx.Ensure(guardLayout()); err != nil {
			return err
		}
		return stageGuard(tx, r)
	})
}

// isLastOn says whether nobody else needs route_localnet of the record's link.
func isLastOn(s *store, r *record) (bool, error) {
	if r.Localnet == "" {
		return false, nil
	}
	used, err := s.Any(func(o record) bool { return o.Hash() != r.Hash() && o.Localnet == r.Localnet })
	return !used, err
}

// ownGuarded is the host end of the attachment's pair if the guard has it: no other attachment can need it. Empty:
// none.
func (c *call) ownGuarded() (string, error) {
	for _, name := range iface.HostNames(c.Attachment) {
		live, err := c.nf.Get(table, localnetSet, nft.IfNameKey(name))
		if err != nil {
			return "", err
		}
		if live[0] == nil {
			continue
		}
		link, err := c.host.Link(name)
		if errors.Is(err, rtnl.ErrNoLink) || err == nil && c.Owns(link.Alias) {
			return name, nil
		}
		if err != nil {
			return "", err
		}
	}
	return "", nil
}

// takeBackLocalnet resets route_localnet if it was 0 before the first user, and then stages the deletion of the
// link's entry in the guard: in the other order containers could reach the host's loopback in between. recorded is
// that value by the record, for a guard that was flushed.
func takeBackLocalnet(tx *nft.Tx, link, recorded string) error {
	live, err := tx.Get(table, localnetSet, nft.IfNameKey(link))
	if err != nil {
		return err
	}
	if live[0] != nil {
		recorded = strings.TrimPrefix(live[0].Comment, guardComment)
	}
	if recorded == "0" {
		if err := writeLocalnet(link, "0"); err != nil {
			return err
		}
	}
	if live[0] != nil {
		tx.Delete(table, localnetSet, *live[0])
	}
	return nil
}

// sweepGuard removes links that do not exist from the guard.
func (c *call) sweepGuard(ctx context.Context) error {
	live, err := c.nf.Elements(table, localnetSet)
	if err != nil {
		return err
	}
	for _, e := range live {
		link := strings.TrimRight(string(e.Key), "\x00")
		if _, err := c.host.Link(link); !errors.Is(err, rtnl.ErrNoLink) {
			continue
		}
		if err := c.nf.Update(ctx, func(tx *nft.Tx) error { return takeBackLocalnet(tx, link, "") }); err != nil {
			return err
		}
	}
	return nil
}

// checkLocalnet looks whether 127.0.0.1 leads to the container.
func checkLocalnet(link string) error {
	if link == "" {
		return nil
	}
	value, err := readLocalnet(link)
	if err != nil {
		return drift("interface %q: %w", link, err)
	}
	if value != "1" {
		return drift("interface %q: route_localnet is %s, so 127.0.0.1 leads to no container", link, value)
	}
	return nil
}

// checkGuard looks whether containers are kept from the host's loopback.
func (c *call) checkGuard(link string) error {
	if link == "" {
		return nil
	}
	if err := c.nf.Verify(guardLayout()); err != nil {
		return err
	}
	live, err := c.nf.Get(table, localnetSet, nft.IfNameKey(link))
	if err == nil && live[0] == nil {
		return drift("interface %q: route_localnet is 1 and nothing keeps containers from the host's loopback", link)
	}
	return err
}
