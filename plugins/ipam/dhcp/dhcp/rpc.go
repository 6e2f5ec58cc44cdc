package dhcp

import (
	"cmp"
	"fmt"
	"io"
	"net"
	"net/netip"

	"github.com/hawser-cni/plugins/pkg/cni"
)

// The protocol of the socket is the reference plugin's: an HTTP CONNECT, then net/rpc, whose messages are gob (gob.go).
// The package net/rpc is not used, because its server neither notices that a caller gave up nor identifies the caller.
// gob ignores fields that one side does not have, so Hawser can add fields.
const (
	connectRequest  = "CONNECT /_goRPC_ HTTP/1.0\n\n"
	connectResponse = "HTTP/1.0 200 Connected to Go RPC\n\n"
)

// The methods. The reference plugin has the first two.
const (
	methodAllocate = "DHCP.Allocate"
	methodRelease  = "DHCP.Release"
	methodCheck    = "DHCP.Check"
	methodCollect  = "DHCP.Collect"
	methodStatus   = "DHCP.Status"
)

const noMethod = "rpc: can't find method " // begins the error that net/rpc returns for an unknown method

// rpcHead precedes a call and its answer.
type rpcHead struct {
	ServiceMethod string
	Seq           uint64
	Error         string // in an answer; empty: success
	Details       string // only in Hawser
	Code          uint   // only in Hawser
}

type rpcCall struct {
	ContainerID, Netns, IfName, Args string
	StdinData                        []byte
	Exclusive                        bool // only in Hawser: an existing lease is an error
}

// rpcResult is a CNI result, as the reference plugin's types represent it.
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

// encodeResult converts a result; decode is its inverse.
func encodeResult(res *cni.Result) *rpcResult {
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
		res.IPs = append(res.IPs, cni.IP{Address: prefix(ip.Address), Gateway: addrOf(ip.Gateway)})
	}
	for _, r := range w.Routes {
		res.Routes = append(res.Routes, cni.Route{Dst: prefix(r.Dst), GW: addrOf(r.GW),
			Priority: uint32(r.Priority), Scope: r.Scope})
	}
	return res
}

func ipNet(p netip.Prefix) net.IPNet {
	return net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// readGreeting reads the HTTP part of the protocol. net/rpc sends exactly these bytes.
func readGreeting(conn io.Reader, greeting string) error {
	b := make([]byte, len(greeting))
	n, err := io.ReadFull(conn, b)
	if b = b[:n]; string(b) != greeting[:n] {
		return fmt.Errorf("%q is not the DHCP daemon's protocol", b)
	}
	return err
}

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
		code := cmp.Or(head.Code, cni.CodeTryAgain) // the reference plugin's daemon sends none
		e := cni.Errorf(code, "error calling %s: %s", method, head.Error)
		e.Details = head.Details
		return nil, e
	}
	var res rpcResult // stays empty if the method returns none
	err := answer.read(&res)
	if err == nil && c.Exclusive {
		_, err = conn.Write(receipt)
	}
	return res.decode(), err
}

// receipt confirms that the plugin has the answer to an exclusive call; without it, the daemon releases the lease.
var receipt = []byte{1}

// readCall reads a call, in the daemon.
func readCall(conn io.ReadWriter) (head rpcHead, c rpcCall, err error) {
	if err := readGreeting(conn, connectRequest); err != nil {
		return head, c, err
	}
	if _, err := io.WriteString(conn, connectResponse); err != nil {
		return head, c, err
	}
	call := newGobReader(conn)
	if err = call.read(&head); err == nil {
		err = call.read(&c)
	}
	return head, c, err
}
