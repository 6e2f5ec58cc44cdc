package ranges

import (
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

// resolvConfMax bounds what is read as resolv.conf(5), in bytes.
const resolvConfMax = 16 << 20

// ReadDNS reads a file as resolv.conf(5). A device or a pipe is not opened: that may start something, or never end.
func ReadDNS(path string) (cni.DNS, error) {
	if path == "" {
		return cni.DNS{}, nil
	}
	st, err := os.Stat(path)
	if err == nil && (!st.Mode().IsRegular() || st.Size() > resolvConfMax) {
		err = &fs.PathError{Op: "read", Path: path, Err: statefile.ErrIrregular}
	}
	var text []byte
	if err == nil && st.Size() > 0 { // a kernel file has size 0, and reading one may never end: it counts as empty
		text, err = os.ReadFile(path)
	}
	if err != nil {
		return cni.DNS{}, fmt.Errorf("ipam.resolvConf: %w", err)
	}
	return parseDNS(string(text)), nil
}

func parseDNS(text string) (dns cni.DNS) {
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) < 2 || f[0][0] == '#' || f[0][0] == ';' {
			continue
		}
		switch f[0] {
		case "nameserver":
			dns.Nameservers = append(dns.Nameservers, f[1])
		case "domain":
			dns.Domain = f[1]
		case "search":
			dns.Search = append(dns.Search, f[1:]...)
		case "options":
			dns.Options = append(dns.Options, f[1:]...)
		}
	}
	return dns
}
