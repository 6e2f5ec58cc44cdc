package ranges

import (
	"fmt"
	"strings"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

// ReadDNS parses a file in the format of resolv.conf(5). Without a path it returns nothing.
func ReadDNS(path string) (cni.DNS, error) {
	if path == "" {
		return cni.DNS{}, nil
	}
	text, err := statefile.ReadRegular(path)
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
