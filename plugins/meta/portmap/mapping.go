package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
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
	for i, w := range wire {
		m, err := w.parse(fmt.Sprintf("runtimeConfig.portMappings[%d]", i))
		if err != nil {
			return nil, err
		}
		repeated := true
		for _, host := range m.hosts() {
			at := place{m.Proto, host, m.HostPort}
			j, ok := taken[at]
			if ok && out[j].Port != m.Port {
				return nil, cni.Errorf(cni.CodeConfig, "runtimeConfig.portMappings[%d]: host port %s of %s leads to container port %d already, not to %d",
					i, m.name(), hostName(host), out[j].Port, m.Port)
			}
			if !ok {
				taken[at], repeated = len(out), false
			}
		}
		if !repeated {
			out = append(out, m)
		}
	}
	return out, nil
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
	if m.HostPort, err = parsePort(entry+".hostPort", w.HostPort); err != nil {
		return m, err
	}
	if m.Port, err = parsePort(entry+".containerPort", w.ContainerPort); err != nil {
		return m, err
	}
	name, err := parseString(entry+".protocol", w.Protocol)
	if err != nil {
		return m, err
	}
	known := false
	if m.Proto, known = protocols[strings.ToLower(name)]; !known {
		return m, bad(entry+".protocol", name, "is none of tcp, udp and sctp")
	}
	host, err := parseString(entry+".hostIP", w.HostIP)
	if err != nil || host == "" {
		return m, err
	}
	if m.HostIP, err = cni.ParseAddr(host); err != nil {
		return m, cni.Errorf(cni.CodeConfig, "%s: %w", entry+".hostIP", err)
	}
	if m.HostIP.IsMulticast() || m.HostIP == netip.AddrFrom4([4]byte{255, 255, 255, 255}) {
		return m, bad(entry+".hostIP", host, "is no address that a host can have")
	}
	return m, nil
}

func parsePort(key string, raw json.RawMessage) (uint16, error) {
	var port *int64
	if err := parseValue(key, raw, &port); err != nil {
		return 0, err
	}
	if port == nil {
		return 0, cni.Errorf(cni.CodeConfig, "%s: missing", key)
	}
	if *port < 1 || *port > 65535 {
		return 0, bad(key, *port, "is not between 1 and 65535")
	}
	return uint16(*port), nil
}

func parseString(key string, raw json.RawMessage) (string, error) {
	var s string
	err := parseValue(key, raw, &s)
	return s, err
}

func parseValue(key string, raw json.RawMessage, v any) error {
	if len(raw) == 0 {
		return nil
	}
	err := json.Unmarshal(raw, v)
	if t := (*json.UnmarshalTypeError)(nil); errors.As(err, &t) {
		return cni.Errorf(cni.CodeConfig, "%s: %s is no %s", key, raw, map[bool]string{true: "string", false: "whole number"}[t.Type.Kind().String() == "string"])
	}
	if err != nil {
		return cni.Errorf(cni.CodeConfig, "%s: %w", key, err)
	}
	return nil
}
