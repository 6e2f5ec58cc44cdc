package iface

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// Verify compares the interface with the result of this attachment, which a
// later plugin of the chain may have changed, and returns all differences joined, code 101.
// Addresses and routes that the result does not have are no difference.
func Verify(t Target, res *cni.Result) error {
	want := wantedOf(t, res)
	link, err := t.Conn.Link(t.Name)
	if err != nil {
		return Drifted(err)
	}
	return Drifted(errors.Join(slices.Concat(
		verifyLink(t, link, want.self),
		verifyAddrs(t, link, want.addrs),
		verifyRoutes(t, link, want.routes),
	)...))
}

func verifyLink(t Target, link rtnl.Link, want *cni.Interface) []error {
	var diffs []error
	differs := func(format string, args ...any) {
		diffs = append(diffs, fmt.Errorf("link %q: "+format, append([]any{t.Name}, args...)...))
	}
	if !link.Up {
		differs("is down")
	}
	if want == nil {
		return diffs
	}
	if want.MAC != "" && !strings.EqualFold(want.MAC, link.MAC.String()) {
		differs("MAC is %s instead of %s", link.MAC, want.MAC)
	}
	if want.MTU != 0 && want.MTU != link.MTU {
		differs("MTU is %d instead of %d", link.MTU, want.MTU)
	}
	return diffs
}

func verifyAddrs(t Target, link rtnl.Link, want []netip.Prefix) []error {
	if len(want) == 0 {
		return nil
	}
	have, err := t.Conn.Addrs(link.Index)
	if err != nil {
		return []error{err}
	}
	var diffs []error
	for _, p := range want {
		i := slices.IndexFunc(have, func(a rtnl.Addr) bool { return a.Prefix == p })
		switch {
		case i < 0:
			diffs = append(diffs, fmt.Errorf("link %q: address %s: missing", t.Name, p))
		case have[i].DADFailed:
			diffs = append(diffs, fmt.Errorf("link %q: address %s: %w", t.Name, p, rtnl.ErrDuplicate))
		}
	}
	return diffs
}

func verifyRoutes(t Target, link rtnl.Link, want []route) []error {
	var diffs []error
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		asked := slices.DeleteFunc(slices.Clone(want), func(r route) bool { return r.family() != family })
		if len(asked) == 0 {
			continue
		}
		have, err := t.Conn.Routes(link.Index, family)
		if err != nil {
			return append(diffs, err)
		}
		for _, r := range asked {
			if err := r.verify(have); err != nil {
				diffs = append(diffs, fmt.Errorf("link %q: route %s: %w", t.Name, r, err))
			}
		}
	}
	return diffs
}

// Drifted gives code 101, that of a difference that CHECK finds, to an error
// without a code of its own.
func Drifted(err error) error {
	if e := (*cni.Error)(nil); err == nil || errors.As(err, &e) {
		return err
	}
	return cni.Drift("%w", err)
}
