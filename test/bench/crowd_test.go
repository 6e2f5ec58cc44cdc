package bench

import (
	"fmt"
	"strings"

	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
)

// populate attaches the other pods, all of them in one namespace. Our plugins do all
// of it. The reference's attach them without iptables, which would take a quarter of an
// hour: the rules that they would have made are loaded at once.
func (s *side) populate(sc *scenario) {
	crowd := nstest.NewNetns()
	s.netns = append(s.netns, crowd)
	// A thousand interfaces in one namespace would all answer to IPv6's multicasts.
	crowd.SetSysctl("net/ipv6/conf/default/disable_ipv6", "1")
	steps, loaded := append(sc.before[:len(sc.before):len(sc.before)], sc.steps...), false
	if s.name != oursName && s.name != beforeName {
		steps, loaded = []step{bridge(plain)}, true
	}
	const workers = 4
	nstest.AtOnce(workers, func(w int) {
		s.Do(func() {
			for i := w; i < sc.others; i += workers {
				Expect(s.timed(steps, "ADD", other(i, crowd))).Error().NotTo(HaveOccurred())
			}
		})
	})
	for i := range sc.others {
		s.crowd = append(s.crowd, other(i, crowd).attachment())
	}
	if loaded {
		out := s.Run(nstest.Program{Path: "iptables-restore", Args: []string{"--noflush"}, Stdin: referenceRules(sc)})
		Expect(out.Exit).To(BeZero(), out.Stderr)
	}
}

func other(i int, ns *nstest.Host) *pod {
	return &pod{id: fmt.Sprintf("%064x", 1<<16+i), ifName: fmt.Sprintf("eth%d", i), ns: ns, port: 20000 + i}
}

// referenceRules are what the reference plugins leave in iptables for the others.
func referenceRules(sc *scenario) string {
	var chains, rules strings.Builder
	last := sc.steps[len(sc.steps)-1]
	if last.plugin == "portmap" {
		chains.WriteString(":CNI-HOSTPORT-DNAT - [0:0]\n:CNI-HOSTPORT-SETMARK - [0:0]\n:CNI-HOSTPORT-MASQ - [0:0]\n")
		rules.WriteString("-A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT\n" +
			"-A OUTPUT -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT\n" +
			"-A POSTROUTING -m comment --comment \"CNI portfwd requiring masquerade\" -j CNI-HOSTPORT-MASQ\n" +
			"-A CNI-HOSTPORT-SETMARK -m comment --comment \"CNI portfwd masquerade mark\"" +
			" -j MARK --set-xmark 0x2000/0x2000\n" +
			"-A CNI-HOSTPORT-MASQ -m mark --mark 0x2000/0x2000 -j MASQUERADE\n")
	}
	for i := range sc.others {
		p, addr := other(i, nil), fmt.Sprintf("10.22.%d.%d", (i+2)>>8, (i+2)&255)
		if last.plugin == "portmap" {
			chain := fmt.Sprintf("CNI-DN-%021x", i)
			fmt.Fprintf(&chains, ":%s - [0:0]\n", chain)
			for _, from := range []string{"10.22.0.0/16", "127.0.0.1/32"} {
				fmt.Fprintf(&rules, "-A %s -s %s -p tcp -m tcp --dport %d -j CNI-HOSTPORT-SETMARK\n", chain, from,
					p.port)
			}
			fmt.Fprintf(&rules, "-A %s -p tcp -m tcp --dport %d -j DNAT --to-destination %s:80\n", chain, p.port, addr)
			comment := fmt.Sprintf("-m comment --comment \"dnat name: \\\"%s\\\" id: \\\"%s\\\"\"", network, p.id)
			fmt.Fprintf(&rules, "-A CNI-HOSTPORT-DNAT -p tcp %s -m multiport --dports %d -j %s\n",
				comment, p.port, chain)
		} else if last.conf(0)["ipMasq"] == true {
			chain := fmt.Sprintf("CNI-%024x", i)
			comment := fmt.Sprintf("-m comment --comment \"name: \\\"%s\\\" id: \\\"%s\\\"\"", network, p.id)
			fmt.Fprintf(&chains, ":%s - [0:0]\n", chain)
			fmt.Fprintf(&rules, "-A %s -d 10.22.0.0/16 %s -j ACCEPT\n", chain, comment)
			fmt.Fprintf(&rules, "-A %s ! -d 224.0.0.0/4 %s -j MASQUERADE\n", chain, comment)
			fmt.Fprintf(&rules, "-A POSTROUTING -s %s/32 %s -j %s\n", addr, comment, chain)
		}
	}
	return "*nat\n" + chains.String() + rules.String() + "COMMIT\n"
}
