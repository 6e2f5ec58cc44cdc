package clusterlocal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/plugins/ipam/cluster-local/kube"
)

// kubernetes is the store: leases are objects of the Kubernetes API, one for each address. An object is made and
// deleted, and never changed.
type kubernetes struct{ *kube.Client }

const (
	apiVersion = "ipam.hawser.dev/v1"
	kind       = "Address"
	addresses  = "/apis/" + apiVersion + "/addresses"
	pageSize   = 5000
	pagesMost  = 200 // pages of a list, for a million addresses
)

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

// read is the lease of an object.
func (o object) read() lease {
	l := o.Spec
	l.name, l.uid, l.made = o.Metadata.Name, o.Metadata.UID, o.Metadata.Created
	return l
}

// accept decodes the answer about the object of a name.
func (o *object) accept(name string) func([]byte) error {
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

func (k kubernetes) reserve(ctx context.Context, l *lease) (lost bool, err error) {
	want := object{APIVersion: apiVersion, Kind: kind, Metadata: metadata{Name: l.name}, Spec: *l}
	for n := 1; ; n++ {
		var made object
		a, err := k.Do(ctx, kube.Request{Method: "POST", Path: addresses, Body: want, Accept: made.accept(l.name)})
		lost = lost || a.Lost
		if err == nil {
			l.uid = made.Metadata.UID
			return lost, nil
		}
		if !kube.Is(err, "AlreadyExists") {
			return lost, explain(err)
		}
		if !lost {
			return false, errTaken
		}
		switch has, ok, err := k.held(ctx, l.name); {
		case err != nil:
			return lost, err
		case ok && has.Nonce == l.Nonce:
			l.uid = has.uid
			return lost, nil
		case ok:
			return lost, errTaken
		}
		if err := kube.Pause(ctx, n, err); err != nil {
			return lost, err
		}
	}
}

func (k kubernetes) held(ctx context.Context, name string) (l lease, ok bool, err error) {
	var o object
	_, err = k.Do(ctx, kube.Request{Method: "GET", Path: pathOf(name), Accept: o.accept(name)})
	if kube.IsAbsent(err, name) {
		return lease{}, false, nil
	}
	return o.read(), err == nil, explain(err)
}

// release tries a known UID first. Where the server has another object of the name, which a late request may have made,
// the nonce says whose it is. The server looks at the UID before admission does, so a stale one is a conflict.
func (k kubernetes) release(ctx context.Context, l lease) error {
	var refused error // with l.uid
	for n := 1; ; n++ {
		if l.uid != "" {
			if refused = k.remove(ctx, l.name, l.uid); !kube.Is(refused, "Conflict") {
				return refused
			}
		}
		has, ok, err := k.held(ctx, l.name)
		switch {
		case err != nil || !ok || has.Nonce != l.Nonce:
			return err
		case has.uid == l.uid: // somebody else refuses, by admission
			return refused
		}
		if l.uid = has.uid; refused == nil {
			continue
		}
		if err := kube.Pause(ctx, n, refused); err != nil {
			return err
		}
	}
}

// remove deletes one object and no other of its name.
func (k kubernetes) remove(ctx context.Context, name, uid string) error {
	body := map[string]any{"preconditions": map[string]string{"uid": uid}}
	accept := func(body []byte) error {
		var o object
		var s struct{ Kind, Status string }
		if json.Unmarshal(body, &s) == nil && s.Kind == "Status" && s.Status == "Success" {
			return nil
		}
		return o.accept(name)(body) // as it was
	}
	_, err := k.Do(ctx, kube.Request{Method: "DELETE", Path: pathOf(name), Body: body, Accept: accept})
	if kube.IsAbsent(err, name) {
		return nil
	}
	return explain(err)
}

func (k kubernetes) list(ctx context.Context, space, node string) (all []lease, now time.Time, err error) {
	query := url.Values{"fieldSelector": {"spec.space=" + space}, "limit": {fmt.Sprint(pageSize)}}
	if node != "" {
		// From the watch cache, which has no pages (kubernetes#96182). A whole space may not fit into one answer.
		query.Set("resourceVersion", "0")
		query.Set("fieldSelector", "spec.space="+space+",spec.node="+node)
	}
	objects, now, err := pages[object](ctx, k, url.URL{Path: addresses, RawQuery: query.Encode()}, kind+"List")
	for _, o := range objects {
		all = append(all, o.read())
	}
	return all, now, explain(err)
}

// pages returns all objects of a list, and the time of the last page by the server's clock.
func pages[T any](ctx context.Context, k kubernetes, at url.URL, kind string) (all []T, now time.Time, err error) {
	for range pagesMost {
		type list struct {
			Kind     string
			Metadata struct{ Continue string }
			Items    []T
		}
		var page list
		a, err := k.Do(ctx, kube.Request{Method: "GET", Path: at.String(),
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
		query := at.Query()
		query.Set("continue", page.Metadata.Continue)
		query.Del("resourceVersion") // the next pages are of the first one's moment
		at.RawQuery = query.Encode()
	}
	return nil, now, cni.Errorf(cni.CodeTryAgain, "the API server gives more than %d pages of %s", pagesMost, at.Path)
}

func (k kubernetes) probe(ctx context.Context) error {
	_, err := k.Do(ctx, kube.Request{Method: "GET", Path: addresses + "?limit=1&resourceVersion=0"})
	return explain(err)
}

// hasNode says whether the cluster still has a node, and it is not declared dead.
func (k kubernetes) hasNode(ctx context.Context, name string) (bool, error) {
	if !isNode(name) {
		return true, nil // no node that could be looked up
	}
	type object struct {
		Kind     string
		Metadata metadata
		Spec     struct{ Taints []struct{ Key string } }
	}
	var node object
	_, err := k.Do(ctx, kube.Request{Method: "GET", Path: "/api/v1/nodes/" + url.PathEscape(name),
		Accept: func(body []byte) error {
			node = object{}
			err := json.Unmarshal(body, &node)
			if err == nil && (node.Kind != "Node" || node.Metadata.Name != name) {
				err = fmt.Errorf("%.64q is not the node %s", node.Kind, name)
			}
			return err
		}})
	if kube.IsAbsent(err, name) {
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

func pathOf(name string) string { return addresses + "/" + url.PathEscape(name) }

// explain says what to do about an answer that knows nothing of our objects.
func explain(err error) error {
	s, ok := errors.AsType[*kube.Status](err)
	if ok && s.Code == 404 {
		return cni.Errorf(cni.CodeTryAgain, "the API server has no %s: is deploy/cluster-local/crd.yaml applied? %w",
			addresses, err)
	}
	return err
}
