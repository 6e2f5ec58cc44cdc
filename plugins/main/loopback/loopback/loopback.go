package loopback

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
)

const ifName = "lo"

// wireConfig is the configuration as the JSON has it. loopback has no keys of its own.
type wireConfig struct{ skel.LogKey }

func add(_ context.Context, req *skel.Request, _ struct{}) (*cni.Result, error) {
	conn, lo, err := openLink(req)
	if err != nil {
		return nil, err
	}
	if !lo.Up {
		req.Step("bring lo up")
		req.OnFail("take lo down", func(context.Context) error { return setUp(conn, lo, false, "") })
		if err := setUp(conn, lo, true, req.Mark()); err != nil {
			return nil, err
		}
	}
	if req.PrevResult != nil {
		return req.PrevResult, nil
	}
	return result(conn, lo, req.Netns)
}

// del brings lo down if this attachment brought it up.
func del(_ context.Context, req *skel.Request) error {
	if req.NS == nil {
		return nil
	}
	conn, lo, err := openLink(req)
	if err != nil {
		return err
	}
	if !req.Owns(lo.Alias) {
		return nil
	}
	return setUp(conn, lo, false, "")
}

func check(_ context.Context, req *skel.Request, _ struct{}) error {
	conn, lo, err := openLink(req)
	if err != nil {
		return err
	}
	if !lo.Up {
		return cni.Drift("interface %q: is down", ifName)
	}
	if req.PrevResult == nil {
		return nil
	}
	addrs, err := conn.Addrs(lo.Index)
	if err != nil {
		return err
	}
	var missing []error
	for _, ip := range req.PrevResult.ContainerIPs(ifName) {
		exists := slices.ContainsFunc(addrs, func(a rtnl.Addr) bool { return a.Prefix == ip.Address })
		if ip.Interface != nil && !exists { // without Interface, the address may be another interface's
			missing = append(missing, cni.Drift("interface %q: address %s is missing", ifName, ip.Address))
		}
	}
	return errors.Join(missing...)
}

// openLink returns a socket in the container's namespace, which is closed when the call ends, and lo.
func openLink(req *skel.Request) (*rtnl.Conn, rtnl.Link, error) {
	conn, err := rtnl.Dial(req.NS)
	if err != nil {
		return nil, rtnl.Link{}, fmt.Errorf("namespace %q: %w", req.Netns, err)
	}
	req.OnDone(func() { _ = conn.Close() })
	lo, err := conn.Link(ifName)
	return conn, lo, err
}

// setUp brings lo up or down and sets its alias, in one message.
func setUp(conn *rtnl.Conn, lo rtnl.Link, up bool, mark string) error {
	return conn.SetLink(lo.Index, rtnl.LinkChange{Up: &up, Alias: &mark})
}

// result returns lo with its first loopback address of each family. Others, for example of services, are not reported.
func result(conn *rtnl.Conn, lo rtnl.Link, sandbox string) (*cni.Result, error) {
	addrs, err := conn.Addrs(lo.Index)
	if err != nil {
		return nil, err
	}
	report := cni.Interface{Name: ifName, MAC: lo.MAC.String(), MTU: lo.MTU, Sandbox: sandbox}
	if lo.MAC == nil {
		report.MAC = "00:00:00:00:00:00"
	}
	if lo.MTU > 65535 { // lo's default is 65536, and the schema of results allows at most 65535
		report.MTU = 0
	}
	res, index := &cni.Result{Interfaces: []cni.Interface{report}}, 0
	for _, v4 := range []bool{true, false} {
		i := slices.IndexFunc(addrs, func(a rtnl.Addr) bool {
			return a.Prefix.Addr().IsLoopback() && a.Prefix.Addr().Is4() == v4
		})
		if i >= 0 {
			res.IPs = append(res.IPs, cni.IP{Address: addrs[i].Prefix, Interface: &index})
		}
	}
	return res, nil
}
