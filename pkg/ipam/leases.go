package ipam

import (
	"cmp"
	"encoding/json"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/hawser-cni/plugins/pkg/cni"
)

// hostLocalDir is where host-local keeps its leases, unless ipam.dataDir says otherwise.
const hostLocalDir = "/var/lib/cni/networks"

// Lease is an address that host-local gave to a container's interface.
type Lease struct {
	cni.AttachmentRef
	Addr netip.Addr
}

// Leases returns what host-local has lent in a network, by its files. Only they tell the network of what the
// reference plugins left. A configuration with another IPAM plugin has none. One without any, of a chained plugin,
// has those of the usual directory.
func Leases(conf []byte, network string) ([]Lease, error) {
	dir := leaseDir(conf, network)
	if dir == "" {
		return nil, nil
	}
	files, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var out []Lease
	for _, f := range files {
		addr, err := netip.ParseAddr(f.Name())
		if err != nil || !f.Type().IsRegular() {
			continue
		}
		data, err := os.ReadFile(filepath.Join(dir, f.Name()))
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // released meanwhile
			return nil, err
		}
		id, ifName, _ := strings.Cut(strings.TrimSpace(string(data)), "\n")
		id, ifName = strings.TrimSpace(id), strings.TrimSpace(ifName)
		if cni.ValidName(id) {
			out = append(out, Lease{cni.AttachmentRef{ContainerID: id, IfName: ifName}, addr})
		}
	}
	return out, nil
}

// Known are the addresses that host-local is known to have lent in the network: those of the leases, and the last
// one of each range set, since IPAM's GC may have removed the leases before.
func Known(conf []byte, network string) (map[netip.Addr]bool, error) {
	leases, err := Leases(conf, network)
	if err != nil {
		return nil, err
	}
	known := map[netip.Addr]bool{}
	for _, l := range leases {
		known[l.Addr] = true
	}
	if dir := leaseDir(conf, network); dir != "" {
		last, _ := filepath.Glob(filepath.Join(dir, "last_reserved_ip.*")) // the pattern is good
		for _, file := range last {
			data, _ := os.ReadFile(file) // a file that cannot be read tells nothing
			if addr, err := netip.ParseAddr(strings.TrimSpace(string(data))); err == nil {
				known[addr.Unmap()] = true
			}
		}
	}
	return known, nil
}

// leaseDir is where host-local keeps the network's leases; empty for another IPAM plugin.
func leaseDir(conf []byte, network string) string {
	var c struct {
		IPAM struct {
			Type    string `json:"type"`
			DataDir string `json:"dataDir"`
		} `json:"ipam"`
	}
	if json.Unmarshal(conf, &c) != nil || c.IPAM.Type != "" && c.IPAM.Type != "host-local" {
		return ""
	}
	return filepath.Join(cmp.Or(c.IPAM.DataDir, hostLocalDir), network)
}
