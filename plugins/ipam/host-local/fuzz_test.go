package main

import (
	"net/netip"
	"testing"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// FuzzConfig looks for configurations that are not refused and yet make a
// range that gives an address outside itself, or the gateway.
func FuzzConfig(f *testing.F) {
	for _, conf := range []string{
		`{"ipam":{"ranges":[[{"subnet":"10.1.2.0/24"}],[{"subnet":"2001:db8::/64","rangeStart":"2001:db8::ffff"}]]}}`,
		`{"ipam":{"subnet":"255.255.255.252/30","rangeEnd":"255.255.255.255","gateway":"255.255.255.255"}}`,
		`{"ipam":{"subnet":"::/0","rangeStart":"::"},"runtimeConfig":{"ips":["::1"],"ipRanges":[[{"subnet":"0.0.0.0/0"}]]}}`,
		`{"ipam":{"subnet":"::100:0/112"},"args":{"cni":{"ips":["::100:5/3"]}}}`,
		`{"ipam":{"ranges":[[]],"routes":[{"dst":"x"}]}}`,
	} {
		f.Add([]byte(conf), "IP=10.1.2.3", "10.1.2.3")
	}
	f.Fuzz(func(t *testing.T, conf []byte, args, lastText string) {
		cfg, err := parseConfig(&skel.Request{Conf: conf, Args: args, Version: "1.1.0"})
		if err != nil {
			if code := cni.AsError(err).Code; code != cni.CodeConfig && code != cni.CodeDecode && code != cni.CodeEnvironment {
				t.Fatalf("code %d: %v", code, err)
			}
			return
		}
		if _, err := assign(cfg.sets, cfg.asked); err != nil && len(cfg.asked) == 0 {
			t.Fatal(err)
		}
		last, _ := netip.ParseAddr(lastText)
		for _, set := range cfg.sets {
			var sum uint64
			for _, s := range set.after(last) {
				n, fits := distance(s.from, s.to)
				sum += n + 1
				for _, a := range []netip.Addr{s.from, s.to} {
					if r, ok := set.find(a); !ok || r.gateway == a || s.to.Less(s.from) {
						t.Fatalf("%s after %s: %v", set, last, s)
					}
				}
				if !fits {
					return
				}
			}
			if size := set.size(); size != sum && size < 1<<63 {
				t.Fatalf("%s after %s: %d of %d addresses", set, last, sum, size)
			}
		}
	})
}
