package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
)

// mapping is one port mapping.
type mapping struct {
	Proto    proto      `json:"proto"`
	HostIP   netip.Addr `json:"hostIP"` // zero: all addresses of both families
	HostPort uint16     `json:"hostPort"`
	Port     uint16     `json:"port"`
}

// proto is a transport protocol by its number.
type proto uint8

// protocols are those that have ports and that both backends know.
var protocols = map[string]proto{"tcp": unix.IPPROTO_TCP, "udp": unix.IPPROTO_UDP, "sctp": unix.IPPROTO_SCTP}

func (p proto) String() string {
	for name, number := range protocols {
		if number == p {
			return name
		}
	}
	return fmt.Sprintf("protocol %d", uint8(p))
}

// parseMappings checks every entry. Entries that say the same are one.
func parseMappings(wire []wireMapping) ([]mapping, error) {
	type place struct {
		proto proto
		host  netip.Addr
		port  uint16
	}
	taken := map[place]int{}
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
		for _, host := range m.hosts() {
			at := place{m.Proto, host, m.HostPort}
			j, ok := taken[at]
			if ok && out[j].Port != m.Port {
				problems.Add(cni.Refuse(entry, nil, fmt.Sprintf("host port %s of %s leads to container port %d already, not to %d",
					m.name(), hostName(host), out[j].Port, m.Port)))
			}
			if !ok {
				taken[at], repeated = len(out), false
			}
		}
		if !repeated {
			out = append(out, m)
		}
	}
	return out, problems.Err()
}

// hosts are the host addresses that the mapping occupies.
func (m mapping) hosts() []netip.Addr {
	if m.HostIP.IsValid() {
		return []netip.Addr{m.HostIP}
	}
	return []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()}
}

func (m mapping) name() string { return fmt.Sprintf("%d/%s", m.HostPort, m.Proto) }

func hostName(host netip.Addr) string {
	if host.IsUnspecified() {
		return host.String() + " (all addresses)"
	}
	return host.String()
}

func (w wireMapping) parse(entry string) (m mapping, err error) {
	var problems cni.Problems
	m.HostPort, err = parsePort(entry+".hostPort", w.HostPort)
	problems.Add(err)
	m.Port, err = parsePort(entry+".containerPort", w.ContainerPort)
	problems.Add(err)
	m.Proto, err = parseProtocol(entry+".protocol", w.Protocol)
	problems.Add(err)
	m.HostIP, err = parseHostIP(entry+".hostIP", w.HostIP)
	problems.Add(err)
	return m, problems.Err()
}

func parsePort(key string, raw json.RawMessage) (uint16, error) {
	var port *int64
	if err := parseValue(key, raw, &port); err != nil {
		return 0, err
	}
	if port == nil {
		return 0, cni.Refuse(key, nil, "missing")
	}
	if *port < 1 || *port > 65535 {
		return 0, cni.Refuse(key, *port, "is not between 1 and 65535")
	}
	return uint16(*port), nil
}

func parseProtocol(key string, raw json.RawMessage) (proto, error) {
	var name string
	if err := parseValue(key, raw, &name); err != nil {
		return 0, err
	}
	p, known := protocols[strings.ToLower(name)]
	switch {
	case name == "":
		return 0, cni.Refuse(key, nil, "missing").Suggest(`write "protocol": "tcp", "udp" or "sctp"`)
	case !known:
		return 0, cni.Refuse(key, name, "is none of tcp, udp and sctp")
	}
	return p, nil
}

// parseHostIP returns the zero Addr for all addresses.
func parseHostIP(key string, raw json.RawMessage) (netip.Addr, error) {
	var text string
	if err := parseValue(key, raw, &text); err != nil || text == "" {
		return netip.Addr{}, err
	}
	host, err := cni.ParseAddr(key, text)
	switch {
	case err != nil:
		return host, err
	case host.IsMulticast() || host == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return host, cni.Refuse(key, text, "is no address that a host can have")
	}
	return host, nil
}

func parseValue(key string, raw json.RawMessage, v any) error {
	if len(raw) == 0 {
		return nil
	}
	err := json.Unmarshal(raw, v)
	if t := (*json.UnmarshalTypeError)(nil); errors.As(err, &t) {
		refused := cni.Refuse(key, raw, "is no "+map[bool]string{true: "string", false: "whole number"}[t.Type.Kind().String() == "string"])
		if text, _ := strconv.Unquote(string(raw)); text != "null" && json.Unmarshal([]byte(text), v) == nil {
			refused.Suggest("write %s", text)
		}
		return refused
	}
	if err != nil {
		return cni.Errorf(cni.CodeConfig, "%s: %w", key, err)
	}
	return nil
}
