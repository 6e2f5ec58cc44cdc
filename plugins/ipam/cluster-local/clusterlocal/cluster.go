package clusterlocal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/plugins/ipam/cluster-local/kube"
)

// cluster is the part of the Kubernetes API that the plugin uses: leases, nodes and, for "guard" and import, the
// pools of whereabouts.
type cluster struct{ api *kube.Client }

const (
	apiVersion = "ipam.hawser.dev/v1"
	kind       = "Address"
	addresses  = "/apis/" + apiVersion + "/addresses"
	pageSize   = 5000
	maxPages   = 200 // pages of one list: a million leases
)

// object is a lease as the API server stores it.
type object struct {
	APIVersion string   `json:"apiVersion,omitempty"`
	Kind       string   `json:"kind,omitempty"`
	Metadata   metadata `json:"metadata"`
	Spec       lease    `json:"spec"`
}

type metadata struct {
	Name    string    `json:"name"`
	UID     string    `json:"uid,omitempty"`
	Created time.Time `json:"creationTimestamp,omitzero"`
}

func (o object) decodeLease() lease {
	l := o.Spec
	l.name, l.uid, l.created = o.Metadata.Name, o.Metadata.UID, o.Metadata.Created
	return l
}

// decode returns a function that decodes an answer into o and requires it to be the object of this name.
func (o *object) decode(name string) func([]byte) error {
	return func(body []byte) error {
		*o = object{}
		if err := json.Unmarshal(body, o); err != nil {
			return err
		}
		if o.Kind != kind || o.Metadata.Name != name || o.Metadata.UID == "" {
			return fmt.Errorf("%.64q, %q is not the object %s", o.Kind, o.Metadata.Name, name)
		}
		return nil
	}
}

// reserve creates the lease and sets its UID. It returns errTaken if another lease has the name. lost is true if a
// request was not answered. The server may then create the lease at any later time, even if reserve returns an error.
func (c cluster) reserve(ctx context.Context, l *lease) (lost bool, err error) {
	want := object{APIVersion: apiVersion, Kind: kind, Metadata: metadata{Name: l.name}, Spec: *l}
	for n := 1; ; n++ {
		var made object
		a, err := c.api.Do(ctx, kube.Request{Method: "POST", Path: addresses, Body: want, Accept: made.decode(l.name)})
		lost = lost || a.Lost
		if err == nil {
			l.uid = made.Metadata.UID
			return lost, nil
		}
		if !kube.HasReason(err, "AlreadyExists") {
			return lost, explain(err)
		}
		if !lost {
			return false, errTaken
		}
		switch holder, ok, err := c.getLease(ctx, l.name); {
		case err != nil:
			return lost, err
		case ok && holder.Nonce == l.Nonce:
			l.uid = holder.uid
			return lost, nil
		case ok:
			return lost, errTaken
		}
		if err := kube.Pause(ctx, n, err); err != nil {
			return lost, err
		}
	}
}

// getLease returns the lease with a name. ok is false if it does not exist.
func (c cluster) getLease(ctx context.Context, name string) (l lease, ok bool, err error) {
	var o object
	_, err = c.api.Do(ctx, kube.Request{Method: "GET", Path: leasePath(name), Accept: o.decode(name)})
	if kube.IsNotFound(err, name) {
		return lease{}, false, nil
	}
	return o.decodeLease(), err == nil, explain(err)
}

// release deletes the lease with this name and nonce. It returns nil if no lease has the name, or if the lease has
// another nonce. The other fields of l may be empty, but a UID saves a lookup of the current lease.
//
// A late request may have created the lease again, with another UID. The API server then answers "Conflict", and the
// nonce of the current lease decides. The server checks the UID before admission, so a "Conflict" for the current UID
// comes from an admission webhook and is returned.
func (c cluster) release(ctx context.Context, l lease) error {
	var refused error // error of the deletion with l.uid
	for n := 1; ; n++ {
		if l.uid != "" {
			if refused = c.delete(ctx, l.name, l.uid); !kube.HasReason(refused, "Conflict") {
				return refused
			}
		}
		current, ok, err := c.getLease(ctx, l.name)
		switch {
		case err != nil || !ok || current.Nonce != l.Nonce:
			return err
		case current.uid == l.uid: // an admission webhook refused the deletion
			return refused
		}
		if l.uid = current.uid; refused == nil {
			continue
		}
		if err := kube.Pause(ctx, n, refused); err != nil {
			return err
		}
	}
}

// delete deletes the object with this name and UID, and no other object of that name.
func (c cluster) delete(ctx context.Context, name, uid string) error {
	body := map[string]any{"preconditions": map[string]string{"uid": uid}}
	accept := func(body []byte) error {
		var o object
		var s struct{ Kind, Status string }
		if json.Unmarshal(body, &s) == nil && s.Kind == "Status" && s.Status == "Success" {
			return nil
		}
		return o.decode(name)(body) // the deleted object
	}
	_, err := c.api.Do(ctx, kube.Request{Method: "DELETE", Path: leasePath(name), Body: body, Accept: accept})
	if kube.IsNotFound(err, name) {
		return nil
	}
	return explain(err)
}

// list returns the leases of a space, or of one node in it, and the API server's time. A node's list can be stale.
func (c cluster) list(ctx context.Context, space, node string) (all []lease, now time.Time, err error) {
	query := url.Values{"fieldSelector": {"spec.space=" + space}, "limit": {fmt.Sprint(pageSize)}}
	if node != "" {
		// Read from the watch cache. A whole space is not read from it, because the cache does not support pages
		// (kubernetes#96182), and a space may not fit into one answer.
		query.Set("resourceVersion", "0")
		query.Set("fieldSelector", "spec.space="+space+",spec.node="+node)
	}
	objects, now, err := listAll[object](ctx, c, url.URL{Path: addresses, RawQuery: query.Encode()}, kind+"List")
	for _, o := range objects {
		all = append(all, o.decodeLease())
	}
	return all, now, explain(err)
}

// listAll returns all objects of a paged list, and the API server's time at the last page.
func listAll[T any](ctx context.Context, c cluster, listURL url.URL, kind string) (all []T, now time.Time, err error) {
	for range maxPages {
		type list struct {
			Kind     string
			Metadata struct{ Continue string }
			Items    []T
		}
		var page list
		a, err := c.api.Do(ctx, kube.Request{Method: "GET", Path: listURL.String(),
			Accept: func(body []byte) error {
				page = list{}
				err := json.Unmarshal(body, &page)
				if err == nil && page.Kind != kind {
					err = fmt.Errorf("%.64q is not a %s", page.Kind, kind)
				}
				return err
			}})
		if err != nil {
			return nil, now, err
		}
		all = append(all, page.Items...)
		if page.Metadata.Continue == "" {
			return all, a.Time, nil
		}
		query := listURL.Query()
		query.Set("continue", page.Metadata.Continue)
		query.Del("resourceVersion") // the continue token contains it
		listURL.RawQuery = query.Encode()
	}
	return nil, now, cni.Errorf(cni.CodeTryAgain, "the API server sent more than %d pages of %s", maxPages,
		listURL.Path)
}

// probe returns an error if the API server does not serve leases.
func (c cluster) probe(ctx context.Context) error {
	_, err := c.api.Do(ctx, kube.Request{Method: "GET", Path: addresses + "?limit=1&resourceVersion=0"})
	return explain(err)
}

// hasNode reports whether the cluster has the node and the node is not tainted as out of service. It returns true for
// an invalid name, which cannot be looked up.
func (c cluster) hasNode(ctx context.Context, name string) (bool, error) {
	if !isNode(name) {
		return true, nil
	}
	type object struct {
		Kind     string
		Metadata metadata
		Spec     struct{ Taints []struct{ Key string } }
	}
	var node object
	_, err := c.api.Do(ctx, kube.Request{Method: "GET", Path: "/api/v1/nodes/" + url.PathEscape(name),
		Accept: func(body []byte) error {
			node = object{}
			err := json.Unmarshal(body, &node)
			if err == nil && (node.Kind != "Node" || node.Metadata.Name != name) {
				err = fmt.Errorf("%.64q is not the node %s", node.Kind, name)
			}
			return err
		}})
	if kube.IsNotFound(err, name) {
		return false, nil
	}
	if err != nil {
		return true, err
	}
	for _, t := range node.Spec.Taints {
		if t.Key == "node.kubernetes.io/out-of-service" {
			return false, nil
		}
	}
	return true, nil
}

func leasePath(name string) string { return addresses + "/" + url.PathEscape(name) }

// explain adds advice to a 404, which means that the resource type of leases is not installed.
func explain(err error) error {
	s, ok := errors.AsType[*kube.Status](err)
	if ok && s.Code == 404 {
		return cni.Errorf(cni.CodeTryAgain, "the API server has no %s: is deploy/cluster-local/crd.yaml applied? %w",
			addresses, err)
	}
	return err
}

var errTaken = errors.New("is reserved already") // error for an address that another attachment holds

// lease is the reservation of an address for an attachment. Its name contains the address.
type lease struct {
	name    string    // object name, see nameOf
	uid     string    // object UID, which the API server never reuses
	created time.Time // API server's clock

	Space     string `json:"space"`
	Node      string `json:"node"`
	Network   string `json:"network"`
	Container string `json:"container"`
	IfName    string `json:"ifname"`
	Pod       string `json:"pod,omitempty"`
	PodUID    string `json:"podUID,omitempty"`
	// Nonce identifies the ADD, so that its lease differs from another ADD's of the same attachment.
	Nonce string `json:"nonce"`
}

func (l lease) attachment() cni.Attachment {
	return cni.Attachment{Network: l.Network, ContainerID: l.Container, IfName: l.IfName}
}

// String describes the holder of the lease, for messages.
func (l lease) String() string {
	text := fmt.Sprintf("node %q, %s", l.Node, l.attachment())
	if l.Pod != "" {
		text += fmt.Sprintf(", pod %q", l.Pod)
	}
	return text
}

// nameOf returns the name of an address's lease: the space, a dot and the address. An IPv6 address is written in full
// and with hyphens instead of colons, for example "default.2001-0db8-0000-0000-0000-0000-0000-0001".
func nameOf(space string, addr netip.Addr) string {
	return space + "." + strings.ReplaceAll(addr.StringExpanded(), ":", "-")
}

func addressOf(name string) (netip.Addr, bool) {
	_, text, _ := strings.Cut(name, ".")
	addr, err := netip.ParseAddr(strings.ReplaceAll(text, "-", ":"))
	return addr, err == nil
}
