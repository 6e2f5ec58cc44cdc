package attach

import (
	"testing"

	"github.com/hawser-cni/plugins/pkg/cni"
)

// TestVLANGateway finds the interface of a masquerade in the result of a whole list, to which bandwidth added an IFB.
func TestVLANGateway(t *testing.T) {
	of := func(names ...string) *cni.Result {
		r := &cni.Result{Interfaces: []cni.Interface{{Name: "eth0", Sandbox: "/run/netns/c1"}}}
		for _, name := range names {
			r.Interfaces = append(r.Interfaces, cni.Interface{Name: name})
		}
		return r
	}
	for _, c := range []struct {
		prev         *cni.Result
		bridge, want string
	}{
		{nil, "cni0", ""},
		{of("cni0"), "cni0", ""},
		{of("cni0", "cni0.5"), "cni0", "cni0.5"},
		{of("cni0", "ifb1"), "cni0", ""},
		{of("cni0", "cni0.5", "ifb1"), "cni0", "cni0.5"},
		{of("veth1", "ifb1"), "", ""},
	} {
		if got := vlanGateway(c.prev, c.bridge); got != c.want {
			t.Errorf("%+v, bridge %q: got %q, want %q", c.prev, c.bridge, got, c.want)
		}
	}
}
