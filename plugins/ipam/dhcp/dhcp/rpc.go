package dhcp

import (
	"cmp"
	"fmt"
	"io"
	"net"
	"net/netip"

	"github.com/hawser-cni/plugins/pkg/cni"
)

// The protocol of the socket is the reference's: net/rpc, which is gob (gob.go), after an HTTP CONNECT. The package
// net/rpc is not used: it can tell neither a call that its caller gave up, nor who the caller is. gob ignores fields
// that one side does not know: ours are marked.
const (
	connect   = "CONNECT /_goRPC_ HTTP/1.0\n\n"
	connected = "HTTP/1.0 200 Connected to Go RPC\n\n"
	callMax   = 16 << 20 // bytes
)

// The methods. The reference has the first two.
const (
	methodAllocate = "DHCP.Allocate"
	methodRelease  = "DHCP.Release"
	methodCheck    = "DHCP.Check"
	methodCollect  = "DHCP.Collect"
	methodStatus   = "DHCP.Status"
)

// noMethod is how net/rpc answers to a method that it does not know.
const noMethod = "rpc: can't find method "

type rpcHead struct {
	ServiceMethod string
	Seq           uint64
	Error         string // of an answer; empty: success
	Details       string // ours
	Code          uint   // ours
}

// rpcCall is a call of the plugin.
type rpcCall struct {
	ContainerID, Netns, IfName, Args string
	StdinData                        []byte
	Exclusive                        bool // ours: a lease that is there already is an error
}

// rpcResult is a result of one of the newest versions, as the reference's types have it.
type rpcResult struct {
	IPs    []rpcIP
	Routes []rpcRoute
	DNS    cni.DNS
}

type rpcIP struct {
	Address net.IPNet
	Gateway net.IP
}

type rpcRoute struct {
	Dst      net.IPNet
	GW       net.IP
	Priority int
	Scope    *int
}

// encode is what the protocol has of a result; decode is the reverse.
func encode(res *cni.Result) *rpcResult {
	w := &rpcResult{DNS: res.DNS}
	for _, ip := range res.IPs {
		w.IPs = append(w.IPs, rpcIP{ipNet(ip.Address), ip.Gateway.AsSlice()})
	}
	for _, r := range res.Routes {
		w.Routes = append(w.Routes, rpcRoute{ipNet(r.Dst), r.GW.AsSlice(), int(r.Priority), r.Scope})
	}
	return w
}

func (w *rpcResult) decode() *cni.Result {
	res := &cni.Result{DNS: w.DNS}
	for _, ip := range w.IPs {
		res.IPs = append(res.IPs, cni.IP{Address: prefix(ip.Address), Gateway: anyAddress(ip.Gateway)})
	}
	for _, r := range w.Routes {
		res.Routes = append(res.Routes, cni.Route{Dst: prefix(r.Dst), GW: anyAddress(r.GW),
			Priority: uint32(r.Priority), Scope: r.Scope})
	}
	return res
}

func ipNet(p netip.Prefix) net.IPNet {
	return net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func prefix(n net.IPNet) netip.Prefix {
	bits, _ := n.Mask.Size()
	return netip.PrefixFrom(anyAddress(n.IP), bits)
}

// anyAddress is the zero Addr where ip is no address.
func anyAddress(ip net.IP) netip.Addr {
	addr, _ := netip.AddrFromSlice(ip)
	return addr.Unmap()
}

// expect reads a greeting: net/rpc sends just these bytes.
func expect(conn io.Reader, greeting string) error {
	b := make([]byte, len(greeting))
	n, err := io.ReadFull(conn, b)
	if b = b[:n]; string(b) != greeting[:n] {
		return fmt.Errorf("%q is not the DHCP daemon's protocol", b)
	}
	return err
}

// roundTrip makes a call and waits for the answer.
func roundTrip(conn io.ReadWriter, method string, c rpcCall) (*cni.Result, error) {
	if err := writeGob(conn, rpcHead{ServiceMethod: method}, c); err != nil {
		return nil, err
	}
	var head rpcHead
	answer := newGobReader(conn)
	if err := answer.read(&head); err != nil {
		return nil, err
	}
	if head.Error != "" {
		code := cmp.Or(head.Code, cni.CodeTryAgain) // the reference's daemon has none
		e := cni.Errorf(code, "error calling %s: %s", method, head.Error)
		e.Details = head.Details
		return nil, e
	}
	var res rpcResult // stays empty where a method has none
	err := answer.read(&res)
	if err == nil && c.Exclusive {
		_, err = conn.Write(receipt)
	}
	return res.decode(), err
}

// receipt says that the plugin has the answer to an exclusive call. Without it the daemon releases the lease.
var receipt = []byte{1}

// readCall reads a call, as the daemon.
func readCall(conn io.ReadWriter) (head rpcHead, c rpcCall, err error) {
	if err := expect(conn, connect); err != nil {
		return head, c, err
	}
	if _, err := io.WriteString(conn, connected); err != nil {
		return head, c, err
	}
	call := newGobReader(conn)
	if err = call.read(&head); err == nil {
		err = call.read(&c)
	}
	return head, c, err
}
