package main

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ipt"
	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

const (
	recordDir = "/run/hawser/portmap"
	// lockWait is how long others may take. One that runs iptables waits for the xtables lock itself.
	lockWait = time.Minute
	// linkPatience is how long the kernel may take to remove the host ends of containers whose namespaces went.
	linkPatience = time.Second
)

type store = statefile.Store[record]

func records() statefile.Records[record] {
	return statefile.Records[record]{Path: recordDir, Wait: lockWait}
}

// openStore locks the records of the host, which has some or none: nobody else changes host ports until Close.
func openStore(ctx context.Context) (*store, error) {
	return records().OpenExisting(ctx)
}

// siblings reads, once, the records of the container's other attachments to the network that are on iptables:
// they share its chain.
func siblings(s *store, r *record) sharers {
	return sync.OnceValues(func() ([]*record, error) {
		all, err := s.All()
		return slices.DeleteFunc(all, func(o *record) bool {
			return o.Backend != iptables || o.Network != r.Network || o.ContainerID != r.ContainerID ||
				o.IfName == r.IfName
		}), err
	})
}

// Valid says whether an ADD can have written the record. Rules are made from it, and its file may be damaged.
func (r record) Valid() bool {
	o := r.Options
	ok := cni.ValidName(r.Network) && cni.ValidName(r.ContainerID) &&
		(r.Backend == nftables || r.Backend == iptables) &&
		o.MarkBit >= 0 && o.MarkBit <= 31 && (o.MarkChain == "" || ipt.IsChainName(o.MarkChain)) &&
		(r.Localnet == "" || cni.ValidIfName(r.Localnet))
	for _, tokens := range [][]string{o.ConditionsV4, o.ConditionsV6} {
		ok = ok && (len(tokens) == 0 || checkTokens("", tokens) == nil)
	}
	for _, m := range r.Mappings {
		ok = ok && slices.Contains(protocols, m.Proto) && m.HostPort > 0 && m.ContainerPort > 0 &&
			m.HostIP.Zone() == "" && !m.HostIP.Is4In6()
	}
	for _, a := range r.Addrs {
		addr := a.Addr.Addr()
		ok = ok && a.Addr.IsValid() && a.Near.IsValid() && addr.Zone() == "" && !addr.Is4In6() &&
			a.Near.Addr().Is4() == addr.Is4()
	}
	return ok
}

// isGone says whether an owner has its host ports no more: its home is gone, or the reference's DEL, which
// leaves our record alone, removed its chain.
func (c *call) isGone(ctx context.Context, r *record) (bool, error) {
	gone, err := r.Home.gone(ctx, c.host, c.linkDeadline)
	if err != nil || gone || r.Backend == nftables {
		return gone, err
	}
	return c.chainRemoved(ctx, r)
}

// home is where an attachment lives: its namespace, and the host end of its interface. An owner whose home
// is gone has its host ports no more.
type home struct {
	Netns string `json:"netns"` // the path
	ns.Identity

	Link int    `json:"link,omitempty"` // index of the host end; 0: there is none
	MAC  string `json:"mac,omitempty"`
}

// homeOf describes the home of the attachment that has this interface in this namespace.
func homeOf(host *rtnl.Conn, netns *ns.NS, ifName string) (home, error) {
	h := home{Netns: netns.Path()}
	var cont *rtnl.Conn
	err := netns.Do(func() (err error) {
		if h.Identity, err = netns.IdentityInside(); err == nil {
			cont, err = rtnl.Dial(nil)
		}
		return err
	})
	if err != nil {
		return h, err
	}
	defer cont.Close()
	end, err := cont.Link(ifName)
	if err == nil {
		end, err = host.OtherEnd(end)
	}
	if errors.Is(err, rtnl.ErrNoLink) {
		return h, nil
	}
	h.Link, h.MAC = end.Index, end.MAC.String()
	return h, err
}

// gone says whether the path no longer leads to the namespace, and the host end does not exist either. In
// doubt it is there: the path may be invisible from here. Of an interface without a host end the home is gone
// when another namespace is at the path. deadline is when the call stops waiting for links.
func (h home) gone(ctx context.Context, host *rtnl.Conn, deadline func() time.Time) (bool, error) {
	netns, err := ns.Open(h.Netns)
	switch {
	case err == nil:
		id, err := netns.Identity()
		_ = netns.Close()
		if err != nil || id.Is(h.Identity) {
			return false, err
		}
		if h.Link == 0 {
			return true, nil // another namespace is at the path
		}
	case !errors.Is(err, ns.ErrNotExist) && !errors.Is(err, ns.ErrNotNetns), h.Link == 0:
		return false, nil
	}
	end, err := host.LinkByIndex(h.Link)
	switch {
	case errors.Is(err, rtnl.ErrNoLink):
		return true, nil
	case err != nil || end.MAC.String() != h.MAC:
		return err == nil, err
	}
	// The kernel removes the ends of a namespace a while after the last process left it.
	ctx, cancel := context.WithDeadline(ctx, deadline())
	defer cancel()
	err = host.WaitGone(ctx, h.Link)
	if errors.Is(err, context.DeadlineExceeded) {
		return false, nil
	}
	return err == nil, err
}
