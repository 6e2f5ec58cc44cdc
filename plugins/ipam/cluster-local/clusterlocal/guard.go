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

// pool is an IPPool of whereabouts: what it has lent of a range. All of its nodes change it, each against the version
// that it has read; so an entry of ours there keeps them, and them alone, from the address.
type pool struct {
	Kind     string
	Metadata struct{ Name, Namespace, ResourceVersion string }
	Spec     struct {
		Range       string
		Allocations map[string]entry // by the distance from the range's address
	}
}

type entry struct {
	Container string `json:"id"`
	Pod       string `json:"podref"`
	IfName    string `json:"ifname,omitempty"` // older ones do not write it
}

const (
	poolsVersion = "whereabouts.cni.cncf.io/v1alpha1"
	poolsPath    = "/apis/" + poolsVersion
	poolsSpace   = "kube-system" // of a pool that is the first one
	poolsPage    = 10            // pools in one answer; etcd's objects have up to 1.5 MB
)

// isOf says whether the entry is one of the attachment, which has these addresses where the entry does not say all.
func (e entry) isOf(a cni.Attachment, addr netip.Addr, has []netip.Addr) bool {
	return e.Container == a.ContainerID && (e.IfName == a.IfName || e.IfName == "" && slices.Contains(has, addr))
}

// poolName is the name that whereabouts gives the pool of a network and a range.
func poolName(space, subnet string) string {
	name := strings.NewReplacer(":", "-", "/", "-").Replace(subnet)
	if space != "default" {
		name = space + "-" + name
	}
	return name
}

// offset is the key of an address in the pool; empty where the pool is not of the space, or cannot have the address.
func (p pool) offset(space string, addr netip.Addr) string {
	subnet, err := netip.ParsePrefix(p.Spec.Range)
	if err != nil || !subnet.Contains(addr) || p.Metadata.Name != poolName(space, p.Spec.Range) {
		return ""
	}
	return new(big.Int).Sub(number(addr), number(subnet.Addr())).String()
}

// address is the reverse of offset.
func (p pool) address(key string) (addr netip.Addr, ok bool) {
	subnet, err := netip.ParsePrefix(p.Spec.Range)
	n, isNumber := new(big.Int).SetString(key, 10)
	if err != nil || !isNumber || n.Sign() < 0 || n.BitLen() > subnet.Addr().BitLen() {
		return addr, false
	}
	n.Add(n, number(subnet.Addr()))
	if n.BitLen() > subnet.Addr().BitLen() {
		return addr, false
	}
	addr, _ = netip.AddrFromSlice(n.FillBytes(make([]byte, subnet.Addr().BitLen()/8)))
	return addr, subnet.Contains(addr)
}

// lent is the entry of an address in the pools of a space.
func lent(pools []pool, space string, addr netip.Addr) (e entry, ok bool) {
	for _, p := range pools {
		if e, ok = p.Spec.Allocations[p.offset(space, addr)]; ok {
			return e, true
		}
	}
	return e, false
}

func (k kubernetes) pools(ctx context.Context) ([]pool, error) {
	list := url.URL{Path: poolsPath + "/ippools", RawQuery: fmt.Sprint("limit=", poolsPage)}
	all, _, err := pages[pool](ctx, k, list, "IPPoolList")
	if s, ok := errors.AsType[*kube.Status](err); ok && s.Code == 404 {
		err = cni.Errorf(cni.CodeTryAgain, "%w", errNoPools)
	}
	return all, err
}

var errNoPools = errors.New("the API server has no IPPools of whereabouts: leave ipam.guard out when its " +
	"CustomResourceDefinitions are gone")

// guard writes into the pool of a subnet that the address is lent, so that no node that still runs whereabouts lends
// it. It fails with errTaken where one has. The pools are those of a moment ago.
func (k kubernetes) guard(ctx context.Context, pools []pool, l lease, subnet netip.Prefix) error {
	addr, _ := addressOf(l.name)
	e := entry{Container: l.Container, Pod: l.Pod, IfName: l.IfName}
	name := poolName(l.Space, subnet.Masked().String())
	for n := 1; ; n++ {
		if has, ok := lent(pools, l.Space, addr); ok && has != e {
			return errTaken
		} else if ok {
			return nil // the answer was lost
		}
		var err error
		i := slices.IndexFunc(pools, func(p pool) bool { return p.Metadata.Name == name })
		if i >= 0 {
			if err = k.lend(ctx, &pools[i], pools[i].offset(l.Space, addr), e); err == nil {
				return nil
			}
			pools, err = k.afterRace(ctx, n, pools[i], err)
		} else if err = k.makePool(ctx, pools, name, subnet.Masked()); err == nil {
			pools, err = k.pools(ctx)
		} else {
			pools, err = k.afterRace(ctx, n, pool{}, err)
		}
		if err != nil {
			return err
		}
	}
}

// afterRace returns the present pools if err means that another node changed pool p since it was read, or created p.
// Otherwise it returns err. The versions of p tell the two apart, because the API server answers 422 both for a pool of
// another version and for an entry that it does not accept.
func (k kubernetes) afterRace(ctx context.Context, n int, p pool, err error) ([]pool, error) {
	if !kube.Is(err, "AlreadyExists") && (!kube.Is(err, "Invalid") || p.Metadata.Name == "") {
		return nil, err
	}
	if err := kube.Pause(ctx, n, err); err != nil {
		return nil, err
	}
	pools, failed := k.pools(ctx)
	if failed == nil && slices.ContainsFunc(pools, func(q pool) bool { return q.Metadata == p.Metadata }) {
		failed = err
	}
	return pools, failed
}

// makePool makes the pool of a range, where the others are.
func (k kubernetes) makePool(ctx context.Context, others []pool, name string, subnet netip.Prefix) error {
	space := poolsSpace
	if len(others) > 0 {
		space = others[0].Metadata.Namespace
	}
	_, err := k.Do(ctx, kube.Request{Method: "POST",
		Path: poolsPath + "/namespaces/" + url.PathEscape(space) + "/ippools",
		Body: map[string]any{"apiVersion": poolsVersion, "kind": "IPPool", "metadata": map[string]string{"name": name},
			"spec": map[string]any{"range": subnet.String(), "allocations": map[string]entry{}}}})
	return err
}

// lend makes an entry in the pool.
func (k kubernetes) lend(ctx context.Context, p *pool, key string, e entry) error {
	path, value := "/spec/allocations", any(map[string]entry{key: e})
	if p.Spec.Allocations != nil {
		path, value = path+"/"+key, e
	}
	return k.change(ctx, p, map[string]any{"op": "add", "path": path, "value": value})
}

// change applies one operation to the pool if nothing changed the pool since it was read. p gets the new version.
func (k kubernetes) change(ctx context.Context, p *pool, operation map[string]any) error {
	var changed pool
	_, err := k.Do(ctx, kube.Request{Method: "PATCH", Type: "application/json-patch+json",
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

// unguard takes the attachment's entries out of the pools, those that whereabouts itself has written among them. Of
// these some do not say which interface has the address: has does.
func (k kubernetes) unguard(ctx context.Context, space string, a cni.Attachment, has []netip.Addr) error {
	pools, err := k.pools(ctx)
	for n := 1; err == nil; n++ {
		p, key := entryOf(pools, space, a, has)
		if p == nil {
			return nil
		}
		err = k.change(ctx, p, map[string]any{"op": "remove", "path": "/spec/allocations/" + key})
		if err != nil {
			pools, err = k.afterRace(ctx, n, *p, err)
		} else {
			delete(p.Spec.Allocations, key)
		}
	}
	if errors.Is(err, errNoPools) {
		return nil
	}
	return err
}

// entryOf returns the pool and the key of an entry of the attachment in a space. The pool is nil if there is no entry.
func entryOf(pools []pool, space string, a cni.Attachment, has []netip.Addr) (*pool, string) {
	for i, p := range pools {
		for _, key := range slices.Sorted(maps.Keys(p.Spec.Allocations)) {
			addr, ok := p.address(key)
			if ok && p.offset(space, addr) != "" && p.Spec.Allocations[key].isOf(a, addr, has) {
				return &pools[i], key
			}
		}
	}
	return nil, ""
}
