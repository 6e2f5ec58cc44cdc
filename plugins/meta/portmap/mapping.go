package main

import (
	"fmt"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
)

// mapping is one entry of portMappings: a port of the host and one of the container.
type mapping struct {
	Proto         proto      `json:"proto"`
	HostIP        netip.Addr `json:"hostIP"` // zero: all addresses of both families
	HostPort      uint16     `json:"hostPort"`
	ContainerPort uint16     `json:"port"`
}

// hostPort is a port of the host at one address, or at all of one family, and where it leads. A mapping
// without a HostIP makes one for each family.
type hostPort struct {
	Proto proto          `json:"proto"`
	Addr  netip.Addr     `json:"addr"` // unspecified: all addresses of the family
	Port  uint16         `json:"port"`
	To    netip.AddrPort `json:"to"`
}

func (p hostPort) String() string {
	return fmt.Sprintf("%s/%s", netip.AddrPortFrom(p.Addr, p.Port), p.Proto)
}

// conflicts compares by the rules of bind(2): all addresses of a family conflict with each of them,
// different addresses do not.
func (p hostPort) conflicts(other hostPort) bool {
	return p.Proto == other.Proto && p.Port == other.Port && p.Addr.Is4() == other.Addr.Is4() &&
		(p.Addr == other.Addr || p.Addr.IsUnspecified() || other.Addr.IsUnspecified())
}

// proto is a transport protocol by its number.
type proto uint8

// protocolNames are those that have ports and that both backends know, in the order of the alphabet.
func protocolNames() []string { return []string{"sctp", "tcp", "udp"} }

func protocolOf(name string) (p proto, known bool) {
	p, known = map[string]proto{"tcp": unix.IPPROTO_TCP, "udp": unix.IPPROTO_UDP, "sctp": unix.IPPROTO_SCTP}[name]
	return p, known
}

func (p proto) String() string {
	for _, name := range protocolNames() {
		if number, _ := protocolOf(name); number == p {
			return name
		}
	}
	return fmt.Sprintf("protocol %d", uint8(p))
}

// parseMappings checks every entry. An entry that repeats another one is left out.
func parseMappings(wire []wireMapping) ([]mapping, error) {
	leads := map[hostPort]uint16{}
	var out []mapping
	var problems cni.Problems
	for i, w := range wire {
		entry := fmt.Sprintf("runtimeConfig.portMappings[%d]", i)
		m, err := w.parse(entry)
		if err != nil {
			problems.Add(err)
			continue
		}
		repeated := true
		for _, addr := range m.hostAddrs() {
			at := hostPort{Proto: m.Proto, Addr: addr, Port: m.HostPort}
			port, known := leads[at]
			if known && port != m.ContainerPort {
				problems.Add(cni.Refuse(entry, nil,
					fmt.Sprintf("host port %s of %s leads to container port %d already, not to %d",
						m.name(), addrName(addr), port, m.ContainerPort)))
			}
			if !known {
				leads[at], repeated = m.ContainerPort, false
			}
		}
		if !repeated {
			out = append(out, m)
		}
	}
	return out, problems.Err()
}

func (m mapping) hostAddrs() []netip.Addr {
	if m.HostIP.IsValid() {
		return []netip.Addr{m.HostIP}
	}
	return []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()}
}

func (m mapping) name() string { return fmt.Sprintf("%d/%s", m.HostPort, m.Proto) }

func addrName(addr netip.Addr) string {
	if addr.IsUnspecified() {
		return addr.String() + " (all addresses)"
	}
	return addr.String()
}

func (w wireMapping) parse(entry string) (m mapping, err error) {
	var problems cni.Problems
	m.HostPort, err = parsePort(entry+".hostPort", w.HostPort)
	problems.Add(err)
	m.ContainerPort, err = parsePort(entry+".containerPort", w.ContainerPort)
	problems.Add(err)
	m.Proto, err = parseProtocol(entry+".protocol", w.Protocol)
	problems.Add(err)
	m.HostIP, err = parseHostIP(entry+".hostIP", w.HostIP)
	problems.Add(err)
	return m, problems.Err()
}

func parsePort(key string, port *int64) (uint16, error) {
	switch {
	case port == nil:
		return 0, cni.Refuse(key, nil, "missing")
	case *port < 1 || *port > 65535:
		return 0, cni.Refuse(key, *port, "is not between 1 and 65535")
	}
	return uint16(*port), nil
}

func parseProtocol(key, name string) (proto, error) {
	p, known := protocolOf(strings.ToLower(name))
	switch {
	case name == "":
		return 0, cni.Refuse(key, nil, "missing").Suggest(`write "protocol": "tcp", "udp" or "sctp"`)
	case !known:
		return 0, cni.Refuse(key, name, "is none of tcp, udp and sctp")
	}
	return p, nil
}

// parseHostIP returns the zero Addr for all addresses.
func parseHostIP(key, text string) (netip.Addr, error) {
	if text == "" {
		return netip.Addr{}, nil
	}
	addr, err := cni.ParseAddr(key, text)
	switch {
	case err != nil:
		return addr, err
	case addr.IsMulticast() || addr == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return addr, cni.Refuse(key, text, "is no address that a host can have")
	}
	return addr, nil
}
