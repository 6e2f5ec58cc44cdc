package portmap

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/sysctl"
)

// guardComment precedes the value of PriorLocalnet in the comment on a link's element in the guard.
const guardComment = "route_localnet was "

// localnet returns the sysctl that makes the kernel route packets between 127.0.0.0/8 and the link.
func localnet(link string) sysctl.Key { return sysctl.Net("ipv4", "conf", link, "route_localnet") }

// stageGuard stages the element of the record's link in the guard, and sets PriorLocalnet in the record. If the link
// already has users, the value is in the guard or, if the guard was flushed, in another record.
func stageGuard(tx *nft.Tx, s *store, r *record) error {
	if r.Localnet == "" {
		return nil
	}
	key := nft.IfNameKey(r.Localnet)
	live, err := tx.Get(table, localnetSet, key)
	if err != nil {
		return err
	}
	if live[0] != nil {
		r.PriorLocalnet = strings.TrimPrefix(live[0].Comment, guardComment)
		return nil
	}
	if r.PriorLocalnet, err = localnet(r.Localnet).Read(); err != nil {
		return err
	}
	if r.PriorLocalnet != "0" {
		_, err = s.Any(func(o record) bool {
			if o.Localnet == r.Localnet {
				r.PriorLocalnet = o.PriorLocalnet
			}
			return o.Localnet == r.Localnet
		})
	}
	tx.Add(table, localnetSet, nft.Element{Key: key, Comment: guardComment + r.PriorLocalnet})
	return err
}

func (r *record) guardItem() nft.Item {
	return nft.Item{Set: localnetSet, Name: fmt.Sprintf("interface %q", r.Localnet),
		Owner: r.Mark(), Element: nft.Element{Key: nft.IfNameKey(r.Localnet), Comment: guardComment + r.PriorLocalnet}}
}

// releaseLocalnet resets route_localnet of the record's link if it was 0, and stages the deletion of the link's element
// in the guard. The sysctl is reset first, because containers could reach the host's loopback without the guard.
func releaseLocalnet(tx *nft.Tx, r *record) error {
	live, err := tx.Get(table, localnetSet, nft.IfNameKey(r.Localnet))
	if err != nil {
		return err
	}
	prior := r.PriorLocalnet
	if live[0] != nil {
		prior = strings.TrimPrefix(live[0].Comment, guardComment)
		tx.Delete(table, localnetSet, *live[0])
	}
	if prior != "0" {
		return nil
	}
	err = localnet(r.Localnet).Write("0")
	if errors.Is(err, fs.ErrNotExist) { // the link no longer exists
		return nil
	}
	return err
}

// sweepGuard releases the links in the guard that no other attachment can need, because they no longer exist or, by
// their alias, belong to the attachment. matches selects links by their names.
func (c call) sweepGuard(ctx context.Context, matches func(name string) bool) error {
	live, err := c.NF.Elements(table, localnetSet)
	for _, e := range live {
		name := strings.TrimRight(string(e.Key), "\x00")
		if !matches(name) {
			continue
		}
		link, linkErr := c.Host.Link(name)
		if errors.Is(linkErr, rtnl.ErrNoLink) || c.Req.Owns(link.Alias) {
			linkErr = c.NF.Update(ctx, func(tx *nft.Tx) error { return releaseLocalnet(tx, &record{Localnet: name}) })
		}
		err = errors.Join(err, linkErr)
	}
	return err
}

// verifyLocalnet verifies route_localnet of the link and, unless the reference plugin set it, the guard.
func (c call) verifyLocalnet(link string, hasGuard bool) error {
	if link == "" {
		return nil
	}
	value, err := localnet(link).Read()
	if err == nil && value != "1" {
		err = fmt.Errorf("route_localnet is %s, so host ports of 127.0.0.1 do not work", value)
	}
	if err != nil {
		err = cni.Drift("interface %q: %w", link, err)
	}
	if !hasGuard {
		return err
	}
	live, getErr := c.NF.Get(table, localnetSet, nft.IfNameKey(link))
	if getErr == nil && live[0] == nil {
		getErr = cni.Drift("interface %q: route_localnet is 1, and no rule keeps containers from the host's loopback",
			link)
	}
	return errors.Join(err, c.NF.Verify(guardLayout()), getErr)
}
