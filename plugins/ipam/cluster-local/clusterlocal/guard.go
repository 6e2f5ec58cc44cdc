package clusterlocal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/plugins/ipam/cluster-local/kube"
)

// pool is an IPPool of whereabouts, which lists the allocated addresses of one range. Each whereabouts node adds its
// allocations to the pool, but only if the pool has not changed since the node read it. With "guard", cluster-local
// also adds its addresses, so that no whereabouts node allocates them. Between nodes that run cluster-local, the lease
// still decides.
type pool struct {
	Kind     string
	Metadata struct{ Name, Namespace, ResourceVersion string }
	Spec     struct {
		Range       string
		Allocations map[string]poolEntry // by the address's offset from the range's first address
	}
}

type poolEntry struct {
	Container string `json:"id"`
	Pod       string `json:"podref"`
	IfName    string `json:"ifname,omitempty"` // older versions of whereabouts do not write it
}

const (
	poolsVersion         = "whereabouts.cni.cncf.io/v1alpha1"
	poolsPath            = "/apis/" + poolsVersion
	defaultPoolNamespace = "kube-system" // namespace of the first pool
	poolPageSize         = 10            // pools in one answer; etcd's objects have up to 1.5 MB
)

// belongsTo reports whether the entry for addr belongs to the attachment. If the entry does not name the interface,
// addrs, the attachment's addresses, must contain addr.
func (e poolEntry) belongsTo(a cni.Attachment, addr netip.Addr, addrs []netip.Addr) bool {
	return e.Container == a.ContainerID && (e.IfName == a.IfName || e.IfName == "" && slices.Contains(addrs, addr))
}

// poolName returns the name of whereabouts' pool for a network and a range.
func poolName(space, subnet string) string {
	name := strings.NewReplacer(":", "-", "/", "-").Replace(subnet)
	if space != "default" {
		name = space + "-" + name
	}
	return name
}

// offset returns the key of an address in the pool. It returns "" if the pool belongs to another space, or if its range
// does not contain the address.
func (p pool) offset(space string, addr netip.Addr) string {
	subnet, err := netip.ParsePrefix(p.Spec.Range)
	if err != nil || !subnet.Contains(addr) || p.Metadata.Name != poolName(space, p.Spec.Range) {
		return ""
	}
	return new(big.Int).Sub(addrNumber(addr), addrNumber(subnet.Addr())).String()
}

func (p pool) address(key string) (addr netip.Addr, ok bool) {
	subnet, err := netip.ParsePrefix(p.Spec.Range)
	n, isNumber := new(big.Int).SetString(key, 10)
	if err != nil || !isNumber || n.Sign() < 0 || n.BitLen() > subnet.Addr().BitLen() {
		return addr, false
	}
	n.Add(n, addrNumber(subnet.Addr()))
	if n.BitLen() > subnet.Addr().BitLen() {
		return addr, false
	}
	addr, _ = netip.AddrFromSlice(n.FillBytes(make([]byte, subnet.Addr().BitLen()/8)))
	return addr, subnet.Contains(addr)
}

// findEntry returns the entry of an address in the pools of a space.
func findEntry(pools []pool, space string, addr netip.Addr) (e poolEntry, ok bool) {
	for _, p := range pools {
		if e, ok = p.Spec.Allocations[p.offset(space, addr)]; ok {
			return e, true
		}
	}
	return e, false
}

func (c cluster) pools(ctx context.Context) ([]pool, error) {
	list := url.URL{Path: poolsPath + "/ippools", RawQuery: fmt.Sprint("limit=", poolPageSize)}
	all, _, err := listAll[pool](ctx, c, list, "IPPoolList")
	if s, ok := errors.AsType[*kube.Status](err); ok && s.Code == 404 {
		err = cni.Errorf(cni.CodeTryAgain, "%w", errNoPools)
	}
	return all, err
}

var errNoPools = errors.New("the API server has no IPPools of whereabouts; remove ipam.guard if whereabouts " +
	"is uninstalled")

// guard adds the lease's address to the pool of the subnet, and creates the pool if necessary. It returns errTaken if
// the address is in a pool. pools may be stale; guard reads them again if another node changed them.
func (c cluster) guard(ctx context.Context, pools []pool, l lease, subnet netip.Prefix) error {
	addr, _ := addressOf(l.name)
	e := poolEntry{Container: l.Container, Pod: l.Pod, IfName: l.IfName}
	name := poolName(l.Space, subnet.Masked().String())
	for n := 1; ; n++ {
		if existing, ok := findEntry(pools, l.Space, addr); ok && existing != e {
			return errTaken
		} else if ok {
			return nil // an earlier attempt, whose answer was lost, added the entry
		}
		var err error
		i := slices.IndexFunc(pools, func(p pool) bool { return p.Metadata.Name == name })
		if i >= 0 {
			if err = c.addEntry(ctx, &pools[i], pools[i].offset(l.Space, addr), e); err == nil {
				return nil
			}
			pools, err = c.retryPools(ctx, n, pools[i], err)
		} else if err = c.createPool(ctx, pools, name, subnet.Masked()); err == nil {
			pools, err = c.pools(ctx)
		} else {
			pools, err = c.retryPools(ctx, n, pool{}, err)
		}
		if err != nil {
			return err
		}
	}
}

// retryPools returns the current pools if err means that another node changed pool p since it was read, or created the
// pool. Otherwise it returns err. The API server answers 422 both if the pool changed and if it does not accept the
// entry. retryPools therefore compares the versions of p.
func (c cluster) retryPools(ctx context.Context, n int, p pool, err error) ([]pool, error) {
	if !kube.HasReason(err, "AlreadyExists") && (!kube.HasReason(err, "Invalid") || p.Metadata.Name == "") {
		return nil, err
	}
	if err := kube.Pause(ctx, n, err); err != nil {
		return nil, err
	}
	pools, failed := c.pools(ctx)
	if failed == nil && slices.ContainsFunc(pools, func(q pool) bool { return q.Metadata == p.Metadata }) {
		failed = err
	}
	return pools, failed
}

// createPool creates the pool of a range in the namespace of the existing pools.
func (c cluster) createPool(ctx context.Context, pools []pool, name string, subnet netip.Prefix) error {
	namespace := defaultPoolNamespace
	if len(pools) > 0 {
		namespace = pools[0].Metadata.Namespace
	}
	_, err := c.api.Do(ctx, kube.Request{Method: "POST",
		Path: poolsPath + "/namespaces/" + url.PathEscape(namespace) + "/ippools",
		Body: map[string]any{"apiVersion": poolsVersion, "kind": "IPPool", "metadata": map[string]string{"name": name},
			"spec": map[string]any{"range": subnet.String(), "allocations": map[string]poolEntry{}}}})
	return err
}

func (c cluster) addEntry(ctx context.Context, p *pool, key string, e poolEntry) error {
	path, value := "/spec/allocations", any(map[string]poolEntry{key: e})
	if p.Spec.Allocations != nil {
		path, value = path+"/"+key, e
	}
	err := c.change(ctx, p, map[string]any{"op": "add", "path": path, "value": value})
	if err == nil {
		if p.Spec.Allocations == nil {
			p.Spec.Allocations = map[string]poolEntry{} // the next entry must not replace this one
		}
		p.Spec.Allocations[key] = e
	}
	return err
}

// change applies one operation to the pool, unless it has changed since it was read, and stores the new version in p.
func (c cluster) change(ctx context.Context, p *pool, operation map[string]any) error {
	var changed pool
	_, err := c.api.Do(ctx, kube.Request{Method: "PATCH", Type: "application/json-patch+json",
		Path: fmt.Sprintf("%s/namespaces/%s/ippools/%s", poolsPath, url.PathEscape(p.Metadata.Namespace),
			url.PathEscape(p.Metadata.Name)),
		Body: []map[string]any{
			{"op": "test", "path": "/metadata/resourceVersion", "value": p.Metadata.ResourceVersion}, operation},
		Accept: func(body []byte) error {
			changed = pool{}
			err := json.Unmarshal(body, &changed)
			if err == nil && (changed.Kind != "IPPool" || changed.Metadata.Name != p.Metadata.Name) {
				err = fmt.Errorf("%.64q, %q is not the pool %s", changed.Kind, changed.Metadata.Name, p.Metadata.Name)
			}
			return err
		}})
	if err == nil {
		p.Metadata = changed.Metadata
	}
	return err
}

// unguard removes the attachment's entries from the pools of a space, including entries that whereabouts wrote. addrs
// are the attachment's addresses, which identify entries without an interface name.
func (c cluster) unguard(ctx context.Context, space string, a cni.Attachment, addrs []netip.Addr) error {
	pools, err := c.pools(ctx)
	if err == nil {
		_, err = c.removeEntries(ctx, pools, attachmentEntry(space, a, addrs))
	}
	if errors.Is(err, errNoPools) {
		return nil
	}
	return err
}

// removeEntries removes each entry that find returns, until find returns a nil pool. pools may be stale; removeEntries
// reads them again if another node changed them. It returns the pools without the entries.
func (c cluster) removeEntries(ctx context.Context, pools []pool, find finder) ([]pool, error) {
	for n := 1; ; n++ {
		p, key := find(pools)
		if p == nil {
			return pools, nil
		}
		err := c.change(ctx, p, map[string]any{"op": "remove", "path": "/spec/allocations/" + key})
		if err == nil {
			delete(p.Spec.Allocations, key)
			continue
		}
		current, err := c.retryPools(ctx, n, *p, err)
		if err != nil {
			return pools, err
		}
		pools = current
	}
}

// finder returns the pool and the key of an entry, or a nil pool.
type finder func(pools []pool) (p *pool, key string)

// attachmentEntry returns a function that finds an entry of the attachment in a space.
func attachmentEntry(space string, a cni.Attachment, addrs []netip.Addr) finder {
	return func(pools []pool) (*pool, string) {
		for i, p := range pools {
			for _, key := range slices.Sorted(maps.Keys(p.Spec.Allocations)) {
				addr, ok := p.address(key)
				if ok && p.offset(space, addr) != "" && p.Spec.Allocations[key].belongsTo(a, addr, addrs) {
					return &pools[i], key
				}
			}
		}
		return nil, ""
	}
}
