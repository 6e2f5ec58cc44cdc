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
func Leases(conf []byte, network string) (leases []Lease, err error) {
	files, err := leaseFiles(conf, network)
	for name, content := range files {
		addr, err := netip.ParseAddr(name)
		id, ifName, _ := strings.Cut(content, "\n")
		if id = strings.TrimSpace(id); err == nil && cni.ValidName(id) {
			leases = append(leases, Lease{cni.AttachmentRef{ContainerID: id, IfName: strings.TrimSpace(ifName)}, addr})
		}
	}
	return leases, err
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
	files, err := leaseFiles(conf, network)
	for name, content := range files {
		addr, err := netip.ParseAddr(strings.TrimSpace(content))
		if err == nil && strings.HasPrefix(name, "last_reserved_ip.") {
			known[addr.Unmap()] = true
		}
	}
	return known, err
}

// leaseFiles reads the files of host-local's directory for the network, by name; none of another IPAM plugin.
func leaseFiles(conf []byte, network string) (map[string]string, error) {
	var c struct {
		IPAM struct {
			Type    string `json:"type"`
			DataDir string `json:"dataDir"`
		} `json:"ipam"`
	}
	if json.Unmarshal(conf, &c) != nil || c.IPAM.Type != "" && c.IPAM.Type != "host-local" {
		return nil, nil
	}
	dir := filepath.Join(cmp.Or(c.IPAM.DataDir, hostLocalDir), network)
	list, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	files := map[string]string{}
	for _, f := range list {
		if !f.Type().IsRegular() {
			continue
		}
		content, err := os.ReadFile(filepath.Join(dir, f.Name()))
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // released meanwhile
			return nil, err
		}
		files[f.Name()] = string(content)
	}
	return files, nil
}
