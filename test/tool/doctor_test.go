package tool_test

import (
	"cmp"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/types"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/nstest/plugintest"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// finding is a problem that doctor or check found. Only doctor sets an ID, and only check a file and a key.
type finding struct{ Severity, File, Key, What, Advice, ID string }

func (m *machine) finds() []finding {
	GinkgoHelper()
	return m.problems("doctor")
}

// fault is a change that breaks a working node with an attached pod, and its repair.
type fault struct {
	id, severity, says string // says: a part of the finding, or parts separated by " ... "
	advises            string // the advice, or parts of it
	make, mend         string // commands
	thread             string // a report of a user
	only               string // "ours" or "reference": the plugins of the node
	need               []string
	ports              []map[string]any // of the pod
	before             string           // commands before ADD
	firewalld          string           // the backend of the running firewalld, if any
	list               string           // instead of the usual one
}

// open is the usual list without firewall.
var open = strings.NewReplacer(",\n  {\"type\": \"firewall\"}", "").Replace(usual)

const listFile = "/etc/cni/net.d/10-pods.conflist"

// edit returns a command that changes the list.
func edit(from, to string) string { return fmt.Sprintf(`sed -i 's|%s|%s|' %s`, from, to, listFile) }

// second returns a command that adds a second list.
func second(name, subnet string) string {
	return fmt.Sprintf(`echo '{"cniVersion": "1.0.0", "name": "%s", "plugins": [{"type": "bridge", "bridge": "cni1",
	  "ipam": {"type": "host-local", "subnet": "%s"}}]}' >/etc/cni/net.d/20-more.conflist`, name, subnet)
}

// uplink returns commands that give the host another interface.
func uplink(addr string) string {
	return "ip link add up0 type bridge; ip link set up0 up; ip addr add " + addr + " dev up0"
}

// without returns commands that remove a plugin while pods are attached.
func without(plugin string) string {
	return `[ ! -e /usr/lib/cni ] || mount -t tmpfs none /usr/lib/cni
	  mkdir /run/all /run/bin; mount --bind /opt/cni/bin /run/all; ln -s /run/all/* /run/bin/
	  rm /run/bin/` + plugin + `; mount --bind /run/bin /opt/cni/bin`
}

// flannel is the list of k3s, and beFlannel contains commands that install a stand-in for flannel, with its subnet.
const (
	flannel = `{"cniVersion": "1.0.0", "name": "pods", "plugins": [
  {"type": "flannel", "delegate": {"hairpinMode": true, "isDefaultGateway": true}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}`
	beFlannel = `mkdir -p /run/all /run/bin /run/flannel /var/lib/cni/flannel
	  mount --bind /opt/cni/bin /run/all; ln -s /run/all/* /run/bin/
	  printf 'FLANNEL_NETWORK=10.80.0.0/12\nFLANNEL_SUBNET=10.88.0.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n' \
	    >/run/flannel/subnet.env
	  ip link add flannel.1 type bridge; ip addr add 10.88.0.0/32 dev flannel.1; ip link set flannel.1 up
	  cat >/run/bin/flannel <<-'END'
	#!/bin/sh
	conf='{"cniVersion": "1.0.0", "name": "pods", "type": "bridge", "mtu": 1450, "ipMasq": false, "isGateway": true,
	  "hairpinMode": true, "isDefaultGateway": true,
	  "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.88.0.0/24"}]], "routes": [{"dst": "10.80.0.0/12"}]}}'
	case $CNI_COMMAND in
	VERSION) echo '{"cniVersion": "1.0.0", "supportedVersions": ["0.3.1", "1.0.0"]}' ;;
	ADD) echo "$conf" >/var/lib/cni/flannel/$CNI_CONTAINERID; echo "$conf" | /opt/cni/bin/bridge ;;
	esac
	END
	  chmod 755 /run/bin/flannel; mount --bind /run/bin /opt/cni/bin`
)

// rejects contains commands that create the chain of a firewalld without zones.
const rejects = `nft add table inet firewalld
	nft add chain inet firewalld filter_FORWARD '{ type filter hook forward priority 10 ; }'
	nft add rule inet firewalld filter_FORWARD ct state established,related accept
	nft add rule inet firewalld filter_FORWARD reject with icmpx admin-prohibited
	`

// siteDrops contains commands that create a chain with the policy drop.
const siteDrops = `nft add table inet site
	nft add chain inet site forward '{ type filter hook forward priority 10 ; policy drop ; }'
	`

// accepted returns commands that let a chain accept what containers send and receive.
func accepted(chain string) string {
	rule := "nft insert rule inet site " + chain + " ip saddr 10.88.0.0/24 accept"
	return rule + "; " + strings.Replace(rule, "saddr", "daddr", 1)
}

func faults() []fault {
	restore := "cp /run/good " + listFile
	remove := "rm /etc/cni/net.d/20-more.conflist"
	return []fault{
		{thread: "containerd/containerd#12130", id: "missing-plugin", says: `plugin "firewall" is not in`,
			advises: "install it: hawser install --to /opt/cni/bin, or remove it from the list; without it DEL fails",
			make:    without("firewall"), mend: "umount /opt/cni/bin"},
		{thread: "flannel-io/flannel#890", id: "missing-plugin", says: `plugin "portmap" is not in`,
			make: without("portmap"), mend: "umount /opt/cni/bin"},
		{id: "missing-plugin", says: `network "pods" in libcni's cache: plugin "portmap" is not in`,
			make: second("more", "10.99.0.0/24") + "; rm " + listFile + "\n" + without("portmap"),
			mend: restore + "; " + remove + "; umount /opt/cni/bin"},
		{id: "missing-plugin", says: `plugin "host-lokal" is not in`,
			advises: "install it with its own project's installer, because Hawser does not have it, or remove",
			make:    edit("host-local", "host-lokal"),
			mend:    restore},
		{id: "bad-file", says: "10-pods.conflist: unexpected end of JSON",
			advises: "correct the file; hawser check names the key", make: "head -c 40 /run/good >" + listFile,
			mend: restore},
		{id: "bad-file",
			says: `network "pods": plugins has no plugin, and the file has no type: it is not a ` +
				"network list",
			advises: "write a list of plugins, or move the file to another directory", mend: restore,
			make: `echo '{"cniVersion": "1.0.0", "name": "pods", "plugins": []}' >` + listFile},
		{id: "bad-file", says: `plugins[2].type "" is not a valid plugin name`, mend: restore,
			advises: "write the name of a plugin's program",
			make:    edit(`{"type": "firewall"}`, "{}")},
		{id: "bad-file",
			says: "invalid character 'ï' looking for beginning of value: the file begins with a byte order mark",
			make: `printf '\357\273\277' >` + listFile + "; cat /run/good >>" + listFile, mend: restore},
		{id: "bad-file", says: `network "p s": name "p s" is not a valid network name`, mend: restore,
			make: edit(`"pods"`, `"p s"`)},
		{id: "bad-file", says: "/var/lib/cni/results/pods-c2-eth0: unexpected end of JSON",
			advises: "delete its container " +
				"and then this file, and run hawser gc --yes", make: ": >/var/lib/cni/results/pods-c2-eth0",
			mend: "rm /var/lib/cni/results/pods-c2-eth0"},
		{id: "no-list", says: "no usable network list in /etc/cni/net.d",
			advises: "write a list, or find out why the network's installer wrote none; kubelet is not ready",
			make:    "rm " + listFile, mend: restore},
		{thread: "flannel-io/flannel#890", id: "no-subnet",
			says:    "flannel reads the node's subnet from a file: stat /run/flannel/subnet.env: no such file",
			advises: "find out why flanneld is not running or has no subnet (its log; podCIDR of the node)",
			list:    flannel, before: beFlannel, only: "ours", make: "mv /run/flannel/subnet.env /run/",
			mend: "mv /run/subnet.env /run/flannel/"},
		{id: "name-twice", severity: "warning", says: `name "pods" is also the name of the network in ` + listFile,
			make: second("pods", "10.99.0.0/24"), mend: remove},
		{id: "unknown-version", says: `cniVersion "7.0.0" is not supported by /opt/cni/bin/bridge`,
			advises: `write cniVersion "1.1.0", which all plugins of the list support, or install newer plugins`,
			make:    edit(`"1.0.0"`, `"7.0.0"`), mend: restore},
		{id: "unknown-version",
			says:    `cniVersion "1.0.0" is not supported by /opt/cni/bin/firewall, which supports 0.2.1`,
			advises: "install newer plugins: no version is supported by all plugins of the list",
			make: without("firewall") + `
			  printf '#!/bin/sh\necho "{\"cniVersion\": \"0.2.1\", \"supportedVersions\": [\"0.2.1\"]}"\n' \
			    >/run/bin/firewall
			  chmod 755 /run/bin/firewall`, mend: "umount /opt/cni/bin"},
		{thread: "kubernetes/kubernetes#108121", id: "full-range",
			says:    "2 of 2 addresses of 10.88.0.0/24 are leased",
			advises: "hawser ls pods lists the owners; release stale leases (hawser gc --yes), or add a range",
			make: edit(`/24"`, `/24", "rangeStart": "10.88.0.2", "rangeEnd": "10.88.0.3"`) + `
			  cp /var/lib/cni/networks/pods/10.88.0.2 /var/lib/cni/networks/pods/10.88.0.3`,
			mend: restore + "; rm /var/lib/cni/networks/pods/10.88.0.3"},
		{id: "full-range", severity: "warning", says: "1 of 1 addresses of 10.88.0.0/30 are leased",
			make: edit("10.88.0.0/24", "10.88.0.0/30"), mend: restore},
		{thread: "k3s-io/k3s#5885", id: "nearly-full-range", severity: "warning",
			says: "9 of 10 addresses of 10.88.0.0/24 are leased",
			make: edit(`/24"`, `/24", "rangeStart": "10.88.0.2", "rangeEnd": "10.88.0.11"`) + `
			  cd /var/lib/cni/networks/pods; for i in 3 4 5 6 7 8 9 10; do cp 10.88.0.2 10.88.0.$i; done`,
			mend: "cp /run/good " + listFile + "; cd /var/lib/cni/networks/pods; rm 10.88.0.[3-9] 10.88.0.10"},
		{id: "overlapping-ranges", says: `10.88.0.128/25 overlaps 10.88.0.0/24 of network "pods" in /etc/cni`,
			advises: "use different subnets: otherwise two containers get the same address",
			make:    second("more", "10.88.0.128/25"), mend: remove},
		{id: "overlapping-route", says: `on "up0", which overlaps 10.88.0.0/24`,
			advises: "use another subnet for the network: packets to its containers go elsewhere",
			make:    uplink("10.88.0.77/28"), mend: "ip link del up0"},
		{id: "covered-route", severity: "warning", says: `the host has 10.80.0.0/12 on "up0"`,
			advises: "use another subnet for the network if hosts behind that route are needed",
			make:    uplink("10.81.0.1/12"), mend: "ip link del up0"},
		{id: "lost-lease", says: "no lease exists for 10.88.0.2 of pod shop/web-0",
			advises: "replace these containers: another container may get the same address",
			make:    "mv /var/lib/cni/networks/pods/10.* /run/",
			mend:    "mv /run/10.* /var/lib/cni/networks/pods/"},
		{id: "lost-lease", says: "no lease exists in the list's dataDir, only in another one, for 10.88.0.2 of",
			make: edit(`"host-local",`, `"host-local", "dataDir": "/var/lib/cni/other",`), mend: restore},
		{id: "forwarding-off", says: `net.ipv4.ip_forward is 0, and pod shop/web-0 on "pods" needs the host to route`,
			advises: "sysctl -w net.ipv4.ip_forward=1, and remove what sets it to 0, such as a file in /etc/sysctl.d",
			make:    "sysctl -qw net.ipv4.ip_forward=0",
			mend:    "sysctl -qw net.ipv4.ip_forward=1"},
		{id: "forwarding-off", says: "net.ipv4.conf.cni0.forwarding is 0, and pod shop/web-0",
			advises: "sysctl -w net.ipv4.conf.cni0.forwarding=1", make: "sysctl -qw net.ipv4.conf.cni0.forwarding=0",
			mend: "sysctl -qw net.ipv4.conf.cni0.forwarding=1"},
		{id: "drop-policy", says: "chain inet site forward of nf_tables drops packets and has no rule that accepts",
			only:    "ours",
			advises: "accept the containers: nft insert rule inet site forward meta mark and 0x1000 == 0x1000",
			make:    siteDrops, mend: "nft insert rule inet site forward meta mark and 0x1000 == 0x1000 accept"},
		{id: "drop-policy", need: []string{"iptables"}, only: "ours",
			says:    "chain inet site hall of nf_tables drops packets and has no rule that accepts packets",
			list:    strings.Replace(usual, `{"type": "firewall"}`, `{"type": "firewall", "backend": "iptables"}`, 1),
			advises: "accept the containers: " + accepted("hall"),
			make: `nft add table inet site
			  nft add chain inet site hall '{ type filter hook forward priority 10 ; policy drop ; }'`,
			mend: accepted("hall")},
		{id: "drop-policy", need: []string{"iptables"}, only: "ours",
			says:    "chain inet site past of nf_tables drops packets and has no rule that accepts packets",
			list:    strings.Replace(usual, `{"type": "firewall"}`, `{"type": "firewall", "backend": "iptables"}`, 1),
			advises: "accept the containers: " + accepted("past"),
			make: edit(`, "backend": "iptables"`, "") + `; nft add table inet site
			  nft add chain inet site past '{ type filter hook forward priority 10 ; policy drop ; }'
			  nft insert rule inet site past meta mark and 0x1000 == 0x1000 counter`,
			mend: accepted("past")},
		{id: "drop-policy", says: "rule 1 of chain inet site user of nf_tables drops all packets of containers of",
			advises: "remove the rule, or insert a rule before it that accepts containers",
			make: `nft add table inet site; nft add chain inet site user '{ type filter hook forward priority 5 ; }'
			  nft add rule inet site user iifname cni0 counter drop`,
			mend: `nft insert rule inet site user iifname cni0 accept
			  nft add rule inet site user ip saddr 10.88.0.0/24 tcp dport 25 drop
			  nft add rule inet site user iifname cni0 oifname eth0 drop`},
		{id: "drop-policy", need: []string{"iptables-legacy"}, only: "ours",
			says: "rule 1 of chain ip raw PREROUTING of iptables-legacy drops all packets",
			make: "iptables-legacy -t raw -A PREROUTING -s 10.88.0.0/24 -j DROP",
			mend: "iptables-legacy -t raw -F PREROUTING"},
		{id: "drop-policy", need: []string{"iptables"}, list: open,
			says: "chain ip filter FORWARD of nf_tables drops packets and has no rule that accepts packets of",
			advises: "add the plugin firewall to the list, or accept the containers: iptables -I FORWARD -s " +
				"10.88.0.0/24 -j ACCEPT; iptables -I FORWARD -d 10.88.0.0/24 -j ACCEPT",
			make: "iptables -A FORWARD -j REJECT --reject-with icmp-host-prohibited",
			mend: "iptables -I FORWARD -s 10.88.0.0/24 -j ACCEPT; iptables -I FORWARD -d 10.88.0.0/24 -j ACCEPT"},
		{id: "drop-policy", need: []string{"iptables-legacy"}, list: open, only: "ours",
			says: "chain ip filter FORWARD of iptables-legacy drops packets and has no rule that accepts packets of",
			make: "iptables-legacy -A FORWARD -j REJECT --reject-with icmp-host-prohibited",
			mend: "iptables-legacy -F FORWARD"},
		{thread: "kubernetes/kubernetes#40182", id: "drop-policy", need: []string{"iptables"}, list: open,
			says: "chain ip filter FORWARD of nf_tables drops packets and has no rule that accepts packets of",
			make: `ip link add docker0 type bridge; iptables -P FORWARD DROP; iptables -N DOCKER
			  iptables -A FORWARD -o docker0 -j DOCKER
			  iptables -A DOCKER ! -i docker0 -o docker0 -p tcp -j ACCEPT
			  iptables -A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
			  iptables -A FORWARD -i docker0 ! -o docker0 -j ACCEPT
			  iptables -A FORWARD -i docker0 -o docker0 -j ACCEPT`,
			mend: "iptables -P FORWARD ACCEPT; iptables -F FORWARD; ip link del docker0"},
		{id: "drop-policy", list: open,
			says:    "chain inet site forward of nf_tables drops packets and has no rule that",
			advises: accepted("forward"), make: siteDrops, mend: accepted("forward")},
		{id: "drop-policy", list: open, need: []string{"iptables"},
			says: "chain ip filter FORWARD of nf_tables drops packets and has no rule that accepts packets of",
			make: "iptables -P FORWARD DROP; iptables -N CNI-FORWARD; iptables -A FORWARD -j CNI-FORWARD",
			mend: "iptables -A CNI-FORWARD -s 10.88.0.0/24 -j ACCEPT; iptables -A CNI-FORWARD -d 10.88.0.0/24 " +
				"-j ACCEPT"},
		{id: "drop-policy", only: "reference", says: "chain inet site forward of nf_tables drops packets and has",
			make: siteDrops + "nft add rule inet site forward meta mark and 0x1000 == 0x1000 counter",
			mend: "nft insert rule inet site forward iifname cni0 accept; nft insert rule inet site forward ct state " +
				"established accept"},
		{id: "drop-policy", severity: "warning",
			says: "drops packets and has rules that accept some packets, but may not accept the packets of",
			make: siteDrops + `nft add chain inet site user; nft add chain inet site cni
			  nft add rule inet site forward jump user; nft add rule inet site user meta l4proto tcp accept`,
			mend: "nft add rule inet site user goto cni; nft add rule inet site cni iifname cni0 accept; " +
				"nft add rule inet site cni ct state established,related accept"},
		{id: "drop-policy", list: open,
			says:    "drops packets and has no rule that accepts packets to containers of /etc/cni",
			advises: "    accept the containers: nft insert rule inet site forward ip daddr 10.88.0.0/24 accept",
			make: siteDrops + `nft add chain inet site cni; nft add rule inet site cni accept
			  nft add rule inet site forward iifname lo accept; nft add rule inet site forward iifname cni0 jump cni`,
			mend: "nft add rule inet site forward oifname cni0 jump cni"},
		{id: "drop-policy", list: open, need: []string{"iptables"},
			says: "chain ip mangle FORWARD of nf_tables drops packets and has no rule that accepts packets from " +
				"containers",
			advises: "    accept the containers: iptables -t mangle -I FORWARD -s 10.88.0.0/24 -j ACCEPT",
			make: `iptables -t mangle -P FORWARD DROP
			  iptables -t mangle -A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT`,
			mend: "iptables -t mangle -I FORWARD -s 10.88.0.0/24 -j ACCEPT"},
		{id: "drop-policy", list: open,
			says: "rule 2 of chain inet site inner of nf_tables drops all packets of containers of",
			make: `nft add table inet site; nft add chain inet site inner
			  nft add chain inet site forward '{ type filter hook forward priority 10 ; policy drop ; }'
			  nft add rule inet site forward ct state vmap '{ established : accept, related : accept }'
			  nft add rule inet site forward iifname vmap '{ "cni0" : goto inner, "e9" : drop }'
			  nft add rule inet site inner iifname lo accept
			  nft add rule inet site inner ip saddr 10.0.0.0/8 reject; nft add rule inet site inner accept`,
			mend: "nft insert rule inet site inner iifname cni0 accept"},
		{id: "drop-policy", says: "chain ip filter FORWARD of iptables-legacy drops", only: "reference",
			advises: "accept the containers: iptables-legacy -I FORWARD -s 10.88.0.0/24 -j ACCEPT; iptables-legacy -I",
			need:    []string{"iptables-legacy"}, make: "iptables-legacy -P FORWARD DROP",
			mend: `iptables-legacy -N site; iptables-legacy -A FORWARD -j site
			  iptables-legacy -A site -s 10.88.0.0/24 -j ACCEPT; iptables-legacy -A site -d 10.88.0.0/24 -j ACCEPT`},
		{id: "missing-module",
			says:    `plugin "macvlan" needs the kernel module macvlan, which is neither loaded nor in`,
			advises: "install the kernel's package of extra modules, or remove the plugin from the list",
			make: second("more", "10.99.0.0/24") + `
			  sed -i 's/"bridge", "bridge": "cni1"/"macvlan"/' /etc/cni/net.d/20*
			  mkdir -p /lib/modules; mount -t tmpfs none /lib/modules; mkdir /lib/modules/$(uname -r)
			  echo 'kernel/bridge.ko: kernel/veth.ko.xz kernel/nf-tables.ko /nft_fib.ko' \
			    >/lib/modules/$(uname -r)/modules.dep`,
			mend: remove + "; umount /lib/modules"},
		{thread: "siderolabs/pkgs#951", id: "missing-module", only: "ours",
			says: `plugin "portmap" needs the kernel module nft_fib, which is neither loaded nor in`,
			make: `mkdir -p /lib/modules; mount -t tmpfs none /lib/modules; mkdir /lib/modules/$(uname -r)
			  echo 'kernel/bridge.ko: kernel/veth.ko.xz kernel/nf-tables.ko' >/lib/modules/$(uname -r)/modules.dep`,
			mend: "umount /lib/modules"},
		{id: "leftover", severity: "warning", says: `left by containers that no longer exist: host port`,
			advises: "hawser ls --orphans gives the reason; hawser gc --yes removes it",
			make: `iptables -t nat -N CNI-DN-0123456789abcdef01234
			  iptables -t nat -A CNI-DN-0123456789abcdef01234 -p tcp --dport 99 -j DNAT --to-destination 10.88.0.99:80
			  iptables -t nat -N CNI-HOSTPORT-DNAT || true
			  iptables -t nat -A CNI-HOSTPORT-DNAT -p tcp -m comment --comment 'dnat name: "pods" id: "gone"' \
			    -j CNI-DN-0123456789abcdef01234`,
			mend: `iptables -t nat -F CNI-HOSTPORT-DNAT; iptables -t nat -F CNI-DN-0123456789abcdef01234
			  iptables -t nat -X CNI-DN-0123456789abcdef01234`, need: []string{"iptables"}},
		{thread: "firewalld/firewalld#779", id: "firewalld", severity: "warning",
			says: "firewalld runs, and the list has no plugin firewall, which would put the " +
				"containers into its trusted zone",
			advises: "add the plugin firewall to the list; after a reload of firewalld run hawser reapply",
			make:    rejects + edit(`, *$`, ",") + "; " + edit(`  {"type": "firewall"}`, `  {"type": "tuning"}`),
			mend:    restore},
		{id: "firewalld-flushed", firewalld: "nftables", need: []string{"nft-fib", "iptables"},
			says:    "firewalld runs, but its rules are missing in nftables",
			advises: "systemctl restart firewalld; hawser reapply (hawser watch does that automatically)",
			make:    "iptables-save >/run/rules; nft delete table inet firewalld",
			mend: `firewall-cmd --reload || firewall-cmd --reload # the first one drops all packets and fails
			  iptables-restore </run/rules; TOOL reapply || # the reference's plugin
			  firewall-cmd --zone=trusted --add-source=10.88.0.2/32`}, // as the ADD of a new container does
		{id: "bridge-nf", severity: "warning",
			says: "packets between containers of the bridge bypass kube-proxy, so connections to services with pods " +
				"on this node hang: net.bridge.bridge-nf-call-iptables is \"0\"",
			advises: "modprobe br_netfilter; sysctl -w net.bridge.bridge-nf-call-iptables=1",
			need:    []string{"br_netfilter"},
			make: "nft add table ip nat; nft add chain ip nat KUBE-SERVICES\n" +
				"sysctl -qw net.bridge.bridge-nf-call-iptables=0",
			mend: "sysctl -qw net.bridge.bridge-nf-call-iptables=1"},
		{id: "bridge-nf", severity: "warning", says: "services with pods on this node hang",
			need: []string{"br_netfilter", "iptables-legacy"}, only: "ours",
			make: `iptables-legacy -t nat -N KUBE-SERVICES; iptables-legacy -t nat -A PREROUTING -j KUBE-SERVICES
			  sysctl -qw net.bridge.bridge-nf-call-iptables=0`,
			mend: "sysctl -qw net.bridge.bridge-nf-call-iptables=1"},
		{id: "ipvs", severity: "warning",
			says: "with kube-proxy's ipvs, host ports of portmap's nftables backend take precedence over services of " +
				"the same port",
			advises: "remove backend from portmap's entry: with kube-proxy's ipvs, portmap then uses iptables",
			make:    "ip link add kube-ipvs0 type bridge; " + edit(`"portmap"`, `"portmap", "backend": "nftables"`),
			mend:    "ip link del kube-ipvs0"},
		{thread: "rancher/rke2#10469", id: "drift", says: `of pod shop/web-0 on "pods"`,
			only: "reference", need: []string{"iptables"}, ports: []map[string]any{hostPort(443, 80)},
			before: "iptables -N KUBE-FIREWALL; iptables -A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -j DROP",
			make: `iptables-save >/run/rules
			  for t in raw mangle nat filter; do iptables -t $t -F; iptables -t $t -X; done`,
			mend: "iptables-restore </run/rules"},
		{id: "drift", says: "of pod shop/web-0", only: "ours",
			make: "nft list ruleset >/run/rules; nft flush ruleset", mend: "nft -f /run/rules"},
		{thread: "systemd/systemd#21185", id: "changed-mac", severity: "warning",
			says: `cni0 has MAC address 02:00:00:00:00:77, but had ... when it became the gateway of pod shop/web-0 ` +
				`on "pods"`,
			advises: "ip link set dev cni0 address ... , and set MACAddressPolicy=none for udev",
			make:    "cat /sys/class/net/cni0/address >/run/mac; ip link set cni0 address 02:00:00:00:00:77",
			mend:    "ip link set cni0 address $(cat /run/mac)"},
		{id: "refused-list", only: "ours", says: "bridge: plugins[0].mtu: 7 is",
			advises: "correct the value; hawser check " + listFile + " lists all refused values",
			make:    edit(`"ipMasq"`, `"mtu": 7, "ipMasq"`), mend: restore},
		{id: "refused-later", severity: "warning", only: "reference", says: "bridge: plugins[0].mtu: 7 is",
			advises: "correct the value before you install Hawser; hawser check " + listFile + " lists all such values",
			make:    edit(`"ipMasq"`, `"mtu": 7, "ipMasq"`), mend: restore},
		{id: "missing-guard", only: "ours",
			says:    "route_localnet is 1, and no rule protects the host's loopback, on cni0",
			advises: "run hawser reapply, and find out what flushes rules: containers reach 127.0.0.1",
			ports:   []map[string]any{hostPort(443, 80)}, make: "nft list ruleset >/run/rules; nft flush ruleset",
			mend: "nft -f /run/rules"},
		{id: "unguarded-loopback", severity: "warning", only: "reference",
			says:    "no rule protects the host's loopback, on cni0",
			advises: "install Hawser's portmap, or drop packets to 127.0.0.0/8 (CVE-2020-8558)",
			make:    "sysctl -qw net.ipv4.conf.cni0.route_localnet=1",
			mend: `nft add table ip site; nft add chain ip site in '{ type filter hook prerouting priority -300 ; }'
			  nft add rule ip site in iif != lo ip daddr 127.0.0.0/8 drop`},
		{id: "mixed-plugins", severity: "warning", only: "ours",
			says:    "the plugins have several origins: bridge, firewall, host-local: Hawser's plugin",
			advises: "install all plugins from one place: hawser install --to /opt/cni/bin",
			make:    "mount --bind REFERENCE/portmap /opt/cni/bin/portmap",
			mend:    "umount /opt/cni/bin/portmap"},
		{id: "not-replaced", severity: "warning", only: "reference",
			says: "Hawser is installed in /opt/cni/bin, but lists use the reference's bridge, firewall, host-local, " +
				"portmap (the reference plugin, " + skel.Reference + ")",
			advises: "hawser install --to /opt/cni/bin replaces them; hawser uninstall --to /opt/cni/bin removes " +
				"Hawser",
			make: `mkdir /run/bin; cp /opt/cni/bin/* TOOL /run/bin/; mount --bind /run/bin /opt/cni/bin`,
			mend: "umount /opt/cni/bin"},
		{id: "not-replaced", severity: "warning",
			says: "Hawser is installed in /opt/cni/bin, but bridge, firewall, host-local, portmap are other " +
				"programs",
			advises: "hawser install --force --to /opt/cni/bin replaces them; hawser uninstall --to /opt/cni/bin",
			make: `mkdir /run/all /run/bin; mount --bind /opt/cni/bin /run/all; cp TOOL /run/bin/
			  for plugin in bridge portmap firewall host-local; do
			    printf '#!/bin/sh\nexec /run/all/'$plugin >/run/bin/$plugin; chmod 755 /run/bin/$plugin
			  done; mount --bind /run/bin /opt/cni/bin`,
			mend: "umount /opt/cni/bin"},
		{thread: "containers/podman#3842", id: "drift", says: "of pod shop/web-0", only: "reference",
			make: "iptables-save >/run/rules; iptables -t nat -F", mend: "iptables-restore </run/rules"},
		{id: "orphan-lease", severity: "warning", only: "reference",
			says: "lease files without a container, whose addresses the reference's host-local never leases " +
				"again: /var/lib/cni/networks/pods/10.88.0.3",
			advises: "while no container starts, run: find /var/lib/cni/networks/pods -name '*[.:]*' -empty -delete",
			make:    ": >/var/lib/cni/networks/pods/10.88.0.3",
			mend:    "find /var/lib/cni/networks/pods -name '*[.:]*' -empty -delete"},
		{id: "missing-plugin", says: `plugin "firewall" fails: no such file`, make: without("firewall") + `
			  printf '#!/bin/sh\necho "{\"code\": 100, \"msg\": \"no such file\"}"; exit 1\n' >/run/bin/firewall
			  chmod 755 /run/bin/firewall`, mend: "umount /opt/cni/bin"},
		{id: "bad-file", says: `plugins[2].type is missing, but there is a key "type:"`,
			advises: `did you mean "type"?`,
			make:    edit(`{"type": "firewall"}`, `{"type:": "firewall"}`), mend: restore},
		{id: "list-conflict", says: "plugins[0].ipam.type is missing, so containers get no address",
			advises: `write the IPAM plugin, such as "host-local"`,
			make:    edit(`"type": "host-local", "ranges"`, `"ranges"`), mend: restore},
		{id: "list-conflict", says: "capabilities is ignored here: runtimes read it from the entries of the plugins",
			advises: "move it into the entry of the plugin that uses it", mend: restore,
			make: edit(`"name": "pods"`, `"capabilities": {"portMappings": true}, "name": "pods"`)},
		{id: "list-conflict",
			says: "plugins[0].ipam.ranges[0][0].gateway 10.99.0.1 is not in the subnet 10.88.0.0/24, so " +
				"no default route can go through it",
			advises: "write a gateway in the subnet, or remove the default route",
			make:    edit(`10.88.0.0/24"`, `10.88.0.0/24", "gateway": "10.99.0.1"`), mend: restore},
		{id: "list-conflict", says: "range set 0 has no address except gateways, so ADD fails",
			advises: "enlarge the range, or set another gateway",
			make:    edit(`10.88.0.0/24"`, `10.88.0.0/24", "rangeEnd": "10.88.0.1"`), mend: restore},
		{id: "list-conflict", severity: "warning",
			says: "plugins[3].type portmap is also plugins[1]; both change the " +
				"same interface", advises: "merge the two entries",
			make: edit(`{"type": "firewall"}`, `{"type": "firewall"}, {"type": "portmap", "runtimeConfig": {}}`),
			mend: restore},
		{id: "list-conflict", says: "tuning changes the MAC address, but macspoofchk of bridge",
			advises: `set the address with "capabilities": {"mac": true} of bridge`, mend: restore,
			make: edit(`"ipMasq"`, `"macspoofchk": true, "ipMasq"`) + "; " +
				edit(`{"type": "firewall"}`, `{"type": "firewall"}, {"type": "tuning", "mac": "02:00:00:00:00:01"}`)},
		{id: "list-conflict", severity: "warning",
			says: "tuning sets the MAC address that a pod asks for, but macspoofchk of bridge drops packets from any " +
				"other than the first one",
			advises: `set the address with "capabilities": {"mac": true} of bridge`,
			make: edit(`"ipMasq"`, `"macspoofchk": true, "ipMasq"`) + "; " +
				edit(`{"type": "firewall"}`, `{"type": "firewall"}, {"type": "tuning", "capabilities": {"mac": true}}`),
			mend: edit(`"macspoofchk"`, `"capabilities": {"mac": true}, "macspoofchk"`)},
		{id: "list-conflict", severity: "warning",
			says: "but an earlier tuning sets it to 0", // 02:00:00:00:00:aa
			make: edit(`{"type": "firewall"}`, `{"type": "tuning", "mac": "02:00:00:00:00:aa"}, `+
				`{"type": "tuning", "mac": "02:00:00:00:00:BB"}`),
			mend: edit("00:BB", "00:AA")},
		{id: "list-conflict", severity: "warning", says: "is 1, but an earlier tuning sets it to 0", mend: restore,
			make: edit(`{"type": "firewall"}`, `{"type": "tuning", "sysctl": {"net.core.somaxconn": "0"}}, `+
				`{"type": "tuning", "sysctl": {"net.core.somaxconn": "1"}}`)},
		{id: "list-conflict", severity: "warning", says: "host ports do not reach a macvlan", mend: remove,
			advises: "remove portmap, or use bridge or ptp",
			make: uplink("192.0.2.1/24") + "; " + second("more", "10.99.0.0/24") + `
			  sed -i 's/"bridge", "bridge": "cni1"/"macvlan", "master": "up0"/
			  s/}}]}/}}, {"type": "portmap", "capabilities": {"portMappings": true}}]}/' /etc/cni/net.d/20*`},
		{id: "list-conflict", severity: "warning", need: []string{"macvlan"},
			says: "because the host cannot reach an interface on its own up0",
			mend: "ip link add shim0 link up0 type macvlan mode bridge",
			make: uplink("192.0.2.1/24") + "; " + second("more", "10.99.0.0/24") + `
			  ip link add up1 type bridge; ip link add shim link up1 type macvlan mode bridge
			  sed -i 's/"bridge", "bridge": "cni1"/"macvlan", "master": "up0"/
			  s/}}]}/}}, {"type": "portmap", "capabilities": {"portMappings": true}}]}/' /etc/cni/net.d/20*`},
		{id: "list-conflict", severity: "warning",
			says: "mtu is set after tc-redirect-tap has copied the former MTU to the tap", only: "ours",
			advises: "move tuning before tc-redirect-tap",
			make:    edit(`{"type": "firewall"}`, `{"type": "tc-redirect-tap"}, {"type": "tuning", "mtu": 1400}`),
			mend:    restore},
		{id: "ipv6-disabled", says: "it has an IPv6 range, but net.ipv6.conf.default.disable_ipv6 is 1",
			advises: "sysctl -w net.ipv6.conf.default.disable_ipv6=0, also in /etc/sysctl.d, or remove the IPv6 range",
			make: second("more", "fd00:99::/64") + `; sed -i 's/"cni1"/"cni1", "isGateway": true/' /etc/cni/net.d/20*
			  sysctl -qw net.ipv6.conf.default.disable_ipv6=1`,
			mend: remove + "; sysctl -qw net.ipv6.conf.default.disable_ipv6=0"},
		{id: "ipv6-disabled", says: "it has an IPv6 range, but the kernel has no IPv6",
			advises: "remove the IPv6 range, or boot without ipv6.disable=1",
			make: second("more", "fd00:99::/64") + `; sed -i 's/"cni1"/"cni1", "isGateway": true/' /etc/cni/net.d/20*
			  mount -t tmpfs none /proc/sys/net/ipv6`,
			mend: remove + "; umount /proc/sys/net/ipv6"},
		{id: "not-ready", says: `network "pods": STATUS of host-local: `, only: "ours",
			advises: "remove the cause that the message names: each ADD fails",
			make:    edit(`"type": "host-local"`, `"type": "host-local", "resolvConf": "/run/none"`), mend: restore},
		{id: "not-ready", says: `network "more": STATUS of dhcp: `,
			advises: "start the daemon: systemctl enable --now " +
				"cni-dhcp.socket, or /opt/cni/bin/dhcp daemon", make: second("more", "10.99.0.0/24") + `
			  sed -i 's/"host-local", "subnet": "10.99.0.0.24"/"dhcp"/' /etc/cni/net.d/20*`, mend: remove},
		{id: "vlan-uplink", severity: "warning", need: []string{"vlan_filtering"},
			says:    "no uplink of cni0 (up0) has VLAN 7, so containers reach only each other",
			advises: "bridge vlan add dev up0 vid 7",
			make: edit(`"ipMasq"`, `"vlan": 7, "ipMasq"`) + `
			  ip link add up0 type veth peer name switch0; ip link set up0 master cni0 up
			  ip link set cni0 type bridge vlan_filtering 1`,
			mend: "bridge vlan add dev up0 vid 7"},
		{id: "other-default-route", severity: "warning",
			says:    `the default route of pod shop/web-0 on "pods" points to net1 of network "more", not to eth0`,
			advises: `remove the default route from the list of "more", or raise its priority (metric)`,
			list: strings.NewReplacer("1.0.0", "1.1.0", `"0.0.0.0/0"`, `"0.0.0.0/0", "priority": 200`).
				Replace(usual),
			make: `cd /var/lib/cni/results
			  config='{"name": "more", "disableCheck": true, "plugins": [{"type": "bridge"}]}'
			  sed 's/"ifName":"eth0"/"ifName":"net1"/; s/"networkName":"pods"/"networkName":"more"/
			  s/"config":"[^"]*"/"config":"'$(echo $config | base64 -w0)'"/' pods-c1-eth0 >more-c1-net1
			  echo "nsenter --net=$(grep -o '"netns":"[^"]*"' pods-c1-eth0 | cut -d'"' -f4) "\$@"" >/run/inside
			  for command in "link add net1 type bridge" "link set net1 up" "addr add 10.77.7.2/24 dev net1" \
			    "route add default via 10.77.7.1 metric 100"; do sh /run/inside ip $command; done`,
			mend: "sh /run/inside ip route del default via 10.77.7.1; rm /var/lib/cni/results/more-c1-net1"},
		{id: "other-directory", severity: "warning",
			says: "a runtime is configured to read its lists from /run/net.d, but these findings are about " +
				"/etc/cni/net.d",
			advises: "run hawser doctor --conf /run/net.d",
			make: `mkdir -p /etc/containerd /run/net.d; cp ` + listFile + ` /run/net.d
			  printf 'imports = ["more.toml"]\n' >/etc/containerd/config.toml
			  printf '[plugins.cri.cni]\nconf_dir = "/run/net.d"\nbin_dir = "/opt/cni/bin"\n' \
			    >/etc/containerd/more.toml`,
			mend: "rm /etc/containerd/*.toml"},
		{thread: "containerd/containerd#12923", id: "orphan-lease", severity: "warning",
			says: "leased to containers that no longer exist: 10.88.0.9 of container c9",
			make: `printf 'c9\r\neth0' >/var/lib/cni/networks/pods/10.88.0.9
			  touch -d '2 minutes ago' /var/lib/cni/networks/pods/10.88.0.9`,
			mend: "rm /var/lib/cni/networks/pods/10.88.0.9"},
	}
}

// hasParts matches a text that contains the parts, separated by " ... ", in this order.
func hasParts(parts string) types.GomegaMatcher {
	return MatchRegexp(strings.ReplaceAll(regexp.QuoteMeta(parts), ` \.\.\. `, ".*"))
}

// breaks makes the fault on a node with these plugins, expects the finding, and repairs the node.
func (f fault) breaks(plugins string) {
	GinkgoHelper()
	nstest.Need(f.need...)
	m := newMachine(plugins, cmp.Or(f.list, usual))
	m.Cmd("cp", listFile, "/run/good")
	m.Cmd("sh", "-ec", f.before)
	if f.firewalld != "" {
		m.runFirewalld(f.firewalld)
	}
	m.up(newPod("c1", "web-0", f.ports...))
	Expect(m.hawser("doctor").Stdout).To(Equal("nothing is wrong\n"))
	if strings.Contains(f.make, "REFERENCE") {
		f.make = strings.ReplaceAll(f.make, "REFERENCE", nstest.Newest().Dir())
	}
	f.make = strings.ReplaceAll(f.make, "TOOL", nstest.Build("hawser"))
	f.mend = strings.ReplaceAll(f.mend, "TOOL", nstest.Build("hawser"))
	m.Cmd("sh", "-ec", f.make)
	if f.severity == "" {
		f.severity = "error"
	}
	lines := strings.Split(m.hawser("doctor").Stdout, "\n")
	AddReportEntry("doctor's first line", lines[0], ReportEntryVisibilityNever)
	Expect(lines[0]).To(And(HavePrefix(f.severity+" "+f.id+": "), hasParts(f.says)))
	Expect(lines[1]).To(And(MatchRegexp("^    [a-z]"), hasParts(f.advises),
		Not(MatchRegexp(`%|\b(NAME|DIR|FILE|MAC|SETTING)\b`))))
	m.Cmd("sh", "-ec", f.mend)
	Expect(m.hawser("doctor").Stdout).To(Equal("nothing is wrong\n"))
}

var _ = Describe("hawser doctor", Label("tool-doctor"), func() {
	on := func(whose string) (entries []TableEntry) {
		for _, f := range faults() {
			if f.only == "" || f.only == whose {
				labels := Label()
				if f.need != nil {
					labels = Label("kernel")
				}
				entries = append(entries, Entry(strings.TrimSpace(f.id+": "+f.says+" "+f.thread), labels, f))
			}
		}
		return entries
	}
	DescribeTable("reports a fault in its first line, until it is repaired", Label("slow"), func(f fault) {
		f.breaks(all())
	}, on("ours"))

	DescribeTable("reports a fault on a node of the reference's plugins", Label("slow"), func(f fault) {
		f.breaks(nstest.Newest().Dir())
	}, on("reference"))

	It("reports only chains that do not accept containers", func() {
		nstest.Need("iptables", "iptables-legacy")
		m := newMachine(ours(), open)
		m.up(newPod("c1", "web-0", hostPort(443, 80)))
		finds := func(what string) {
			GinkgoHelper()
			var ids []string
			for _, f := range m.finds() {
				ids = append(ids, f.ID)
			}
			Expect(strings.Join(ids, " ")).To(Equal(what))
		}
		accepts := func(make string, rules ...string) {
			GinkgoHelper()
			m.Cmd("sh", "-ec", make)
			finds("drop-policy")
			for _, rule := range rules {
				m.Cmd("sh", "-ec", "iptables -F user; nft add chain inet site user; "+
					"nft flush chain inet site user; "+rule)
				Expect(m.hawser("doctor").Stdout).To(Equal("nothing is wrong\n"), rule)
			}
		}
		m.Cmd("sh", "-ec", `ip link add e0 type veth peer name switch0; ip link set e0 up; ip link set switch0 up
			ip addr add 192.0.2.77/24 dev e0; ip route replace default dev e0`)
		accepts(`nft add table inet site; iptables -N user; iptables -P FORWARD DROP; iptables -A FORWARD -j user
			iptables -A FORWARD -m conntrack --ctstate ESTABLISHED -j ACCEPT`,
			"iptables -A user -s 10.88.0.0/16 -j ACCEPT", "iptables -A user -s 10.0.0.0/8 -j ACCEPT",
			"iptables -A user -i cni+ -j ACCEPT", "iptables -A user -j ACCEPT")
		accepts(`iptables -P FORWARD ACCEPT; nft add set inet site inside '{ type ifname; elements = { cni0, eth7 }; }'
			nft add chain inet site forward '{ type filter hook forward priority 0; policy drop; }'
			nft flush chain inet site user; nft add rule inet site forward jump user
			nft add rule inet site forward ct state established accept`,
			`nft add rule inet site user iifname '{ "cni0", "eth7" }' accept`,
			`nft add rule inet site user iifname @inside accept`, `nft add rule inet site user iif cni0 accept`,
			`nft add rule inet site user iifname vmap '{ "cni0" : accept, "eth7" : drop }'`,
			`nft add rule inet site user iifname 'cni*' accept`,
			`nft add rule inet site user ip saddr 10.80.0.0/12 accept`,
			`nft add rule inet site user oifname "e0" accept`, `nft add rule inet site user iifname != "e0" accept`,
			`nft add rule inet site user ip daddr != 10.0.0.0/8 accept`)
		m.Cmd("sh", "-ec", `nft flush chain inet site user
			nft add rule inet site user iifname vmap '{ "cni0" : drop }'`)
		finds("drop-policy")
		m.Cmd("sh", "-ec", "nft delete table inet site; "+rejects)
		finds("firewalld")
		m.Cmd("nft", "insert", "rule", "inet", "firewalld", "filter_FORWARD", "iifname", "cni0", "accept")
		finds("")
	})

	It("recognizes the fwmark of firewall in any form, but only after it was set", func() {
		m := newMachine(ours(), usual)
		m.up(newPod("c1", "web-0"))
		m.Cmd("sh", "-ec", `nft add table inet site
			nft add chain inet site forward '{ type filter hook forward priority 0; policy drop; }'
			nft add rule inet site forward meta mark and 0x1000 != 0 accept`)
		Expect(m.hawser("doctor").Stdout).To(Equal("nothing is wrong\n"))
		Expect(m.says("explain", "web-0")).To(ContainSubstring("none found"))
		m.Cmd("sh", "-ec", `nft delete table inet site; nft add table inet site
			nft add chain inet site forward '{ type filter hook forward priority -5; policy drop; }'
			nft add rule inet site forward meta mark and 0x1000 != 0 accept`)
		Expect(m.finds()).To(ConsistOf(And(HaveField("Severity", "warning"), HaveField("Advice",
			HavePrefix("accept the containers: nft insert rule inet site forward ip saddr 10.88.0.0/24 accept")))))
	})

	It("complains of no guard of iptables-legacy, and of no lease that nobody can lend", func() {
		nstest.Need("iptables-legacy")
		m := newMachine(nstest.Newest().Dir(), usual)
		m.up(newPod("c1", "web-0", hostPort(443, 80)))
		m.Cmd("sh", "-ec", `iptables-legacy -N KUBE-FIREWALL; iptables-legacy -A INPUT -j KUBE-FIREWALL
			iptables-legacy -A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -j DROP
			rm /var/lib/cni/networks/pods/10.88.0.2; `+edit("10.88.0.0/24", "10.89.0.0/24"))
		Expect(m.hawser("doctor").Stdout).To(Equal("nothing is wrong\n"))
	})

	It("looks at each container, and advises what reapply can do", func() {
		m := newMachine(ours(), usual)
		m.up(newPod("c1", "web-0"))
		m.up(newPod("c2", "web-1")).Cmd("ip", "addr", "flush", "dev", "eth0")
		Expect(m.finds()).To(HaveExactElements(And(HaveField("What", ContainSubstring("web-1")),
			HaveField("Advice", "hawser reapply restores rules and forwarding; for a link, an address or a route, "+
				"restart the container"))))
		Expect(m.hawser("why", "web-1").Stderr).To(ContainSubstring("drift: CHECK of pod shop/web-1"))
		Expect(m.hawser("why", "web-0").Stderr).To(HaveSuffix("hawser: none\n"))
		m.up(newPod("c3", "web-2")).Cmd("ip", "addr", "flush", "dev", "eth0")
		Expect(m.finds()).To(HaveExactElements(HaveField("What", HaveSuffix("; also of shop/web-2"))))
		reference := newMachine(nstest.Newest().Dir(), usual)
		reference.up(newPod("c1", "web-0", hostPort(8080, 80)))
		reference.Cmd("sh", "-ec", "nft flush ruleset; nft add table ip filter; "+
			"nft add chain ip filter FORWARD '{ type filter hook forward priority 0; policy drop; }'")
		found := reference.finds()
		Expect(found).To(HaveExactElements(HaveField("ID", "drift"), HaveField("ID", "drift"), HaveField("ID", "drift"),
			HaveField("ID", "unguarded-loopback")))
		Expect(found[0]).To(And(HaveField("What", HaveSuffix("bridge: its masquerade is missing")),
			HaveField("Advice", "restart the container: hawser reapply cannot restore objects of the reference's "+
				"bridge")))
		Expect(found[1]).To(HaveField("What", HaveSuffix("portmap: its host ports are missing")))
	})

	It("finds an address that the DHCP daemon does not renew", func() {
		nstest.Build("dhcp")
		m := newMachine(ours(), `{"cniVersion": "1.0.0", "name": "pods", "plugins": [
			{"type": "bridge", "bridge": "cni0", "ipam": {"type": "dhcp"}}]}`)
		m.IP("link add cni0 type bridge", "link set cni0 up", "addr add 10.88.0.1/24 dev cni0")
		daemon := plugintest.DHCPDaemon(m.Host, "/opt/cni/bin")
		plugintest.ServeDHCP(m.Host, "cni0", "10.88.0.50,10.88.0.50")
		m.up(newPod("c1", "web-0"))
		m.Cmd("rm", "-r", "/run/hawser/dhcp")
		Expect(m.finds()).To(BeEmpty(), "the daemon still knows the lease")
		Expect(daemon.Process.Kill()).To(Succeed())
		_ = daemon.Wait()
		m.Cmd("rm", "/run/cni/dhcp.sock")
		plugintest.DHCPDaemon(m.Host, "/opt/cni/bin")
		Expect(m.finds()).To(ConsistOf(And(HaveField("ID", "lost-lease"),
			HaveField("What", "no lease exists for 10.88.0.50 of pod shop/web-0 on \"pods\""))))
	})

	It("finds disabled forwarding of all interfaces once", func() {
		nstest.Build("ptp")
		m := newMachine(ours(), `{"cniVersion": "1.0.0", "name": "pods", "plugins": [
			{"type": "ptp", "ipam": {"type": "host-local", "subnet": "10.88.0.0/24"}}]}`)
		m.up(newPod("c1", "web-0"))
		m.up(newPod("c2", "web-1"))
		m.Cmd("sysctl", "-qw", "net.ipv4.ip_forward=0")
		found := slices.DeleteFunc(m.finds(), func(f finding) bool { return f.ID != "forwarding-off" })
		Expect(found).To(HaveExactElements(HaveField("What", HavePrefix("net.ipv4.ip_forward is 0"))))
	})

	It("knows the plugin that flannel calls", func() {
		nstest.Need("iptables")
		m := newMachine(nstest.Newest().Dir(), flannel)
		m.Cmd("sh", "-ec", beFlannel+`
			nft add table ip site; nft add chain ip site in '{ type filter hook prerouting priority -300 ; }'
			nft add rule ip site in iif != lo ip daddr 127.0.0.0/8 drop`)
		p := m.up(newPod("c1", "web-0", hostPort(443, 80)))
		for _, f := range []fault{
			{id: "full-range", says: "5 of 5 addresses of 10.88.0.0/29 are leased",
				make: `sed -i s,1/24,1/29, /run/flannel/subnet.env; cd /var/lib/cni/networks/pods
				  for i in 3 4 5 6; do cp 10.88.0.2 10.88.0.$i; done`,
				mend: "sed -i s,1/29,1/24, /run/flannel/subnet.env; rm /var/lib/cni/networks/pods/10.88.0.[3-6]"},
			{id: "overlapping-route", says: `on "up0", which overlaps 10.88.0.0/24`, make: uplink("10.88.0.77/28"),
				mend: "ip link del up0"},
			{id: "lost-lease", says: "no lease exists for 10.88.0.2 of pod shop/web-0",
				make: "mv /var/lib/cni/networks/pods/10.* /run/", mend: "mv /run/10.* /var/lib/cni/networks/pods/"},
			{id: "forwarding-off", says: "net.ipv4.conf.cni0.forwarding is 0",
				make: "sysctl -qw net.ipv4.conf.cni0.forwarding=0",
				mend: "sysctl -qw net.ipv4.conf.cni0.forwarding=1"},
			{id: "drop-policy", says: "FORWARD of nf_tables drops packets and has no rule that accepts packets of",
				make: "iptables -P FORWARD DROP", mend: "iptables -A FORWARD -s 10.80.0.0/12 -j ACCEPT; " +
					"iptables -A FORWARD -d 10.80.0.0/12 -j ACCEPT"},
		} {
			Expect(m.says("doctor")).To(Equal("nothing is wrong\n"))
			m.Cmd("sh", "-ec", f.make)
			Expect(m.finds()).To(ConsistOf(And(HaveField("ID", f.id), HaveField("What", ContainSubstring(f.says)))))
			m.Cmd("sh", "-ec", f.mend)
		}
		Expect(m.says("metrics")).To(ContainSubstring(`hawser_addresses_free{network="pods",set="0"} 252` + "\n"))
		p.Cmd("ip", "addr", "flush", "dev", "eth0")
		Expect(m.finds()).To(ConsistOf(HaveField("What",
			ContainSubstring(`bridge: link "eth0": address 10.88.0.2/24: missing`))))
	})

	It("advises an installation that replaces the programs of other origins", func() {
		m := newMachine(ours(), usual)
		m.up(newPod("c1", "web-0"))
		advises := func(advice string) {
			GinkgoHelper()
			out := m.hawser("doctor", "--path", "/run/first:/opt/cni/bin").Stdout
			Expect(out).To(ContainSubstring("\n    install all plugins from one place: " + advice + "\n"))
			m.says(strings.Fields(advice)[1:]...)
			Expect(m.says("doctor", "--path", "/run/first:/opt/cni/bin")).To(Equal("nothing is wrong\n"))
		}
		m.Cmd("sh", "-ec", `mkdir /run/first; cp "$1/bridge" "$1/host-local" /run/first`, "sh", reference())
		advises("hawser install --to /run/first")
		m.Cmd("sh", "-ec", `rm /run/first/portmap
			printf '#!/bin/sh\nexec /opt/cni/bin/portmap\n' >/run/first/portmap; chmod 755 /run/first/portmap`)
		advises("hawser install --force --to /run/first")
	})

	It("names programs that cannot run", func() {
		m := newMachine(ours(), usual)
		m.Cmd("sh", "-ec", `mkdir /run/bin; echo x >/run/bin/bridge; chmod 755 /run/bin/bridge
			cp /opt/cni/bin/portmap /run/bin
			chmod 644 /run/bin/portmap; cp /opt/cni/bin/firewall /opt/cni/bin/host-local /run/bin
			mount --bind /run/bin /opt/cni/bin`)
		Expect(m.finds()).To(ConsistOf(
			HaveField("What", ContainSubstring(`plugin "bridge" does not answer VERSION: `)),
			HaveField("What", ContainSubstring(`portmap`))))
	})

	It("finds a kernel that cannot create the interfaces of the reference's plugin", func() {
		m := newMachine(nstest.Newest().Dir(), `{"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "vlan",
			"master": "up0", "vlanId": 7, "ipam": {"type": "host-local", "subnet": "10.88.0.0/24"}}]}`)
		m.Cmd("sh", "-ec", "ip link add up0 type veth peer name switch0")
		found := BeEmpty()
		if m.Run(nstest.Program{Path: "ip", Args: strings.Fields("link add link up0 type vlan id 8")}).Exit != 0 {
			found = ConsistOf(And(HaveField("ID", "not-ready"), HaveField("What", ContainSubstring(": kind vlan: "))))
		}
		Expect(m.finds()).To(found)
	})

	It("reads the directories of k3s", func() {
		m := newMachine(ours(), usual)
		m.Cmd("sh", "-ec", `[ ! -e /usr/lib/cni ] || mount -t tmpfs none /usr/lib/cni
			mount -t tmpfs none /var/lib; cd /var/lib
			mkdir -p rancher/k3s/agent/etc/cni/net.d rancher/k3s/data/current/bin
			ln -s $PWD/rancher/k3s/data/current/bin rancher/k3s/data/cni
			mount --bind /opt/cni/bin rancher/k3s/data/current/bin
			umount /opt/cni/bin; mount -t tmpfs none /opt/cni/bin
			mv /etc/cni/net.d/* rancher/k3s/agent/etc/cni/net.d/10-flannel.conflist`)
		Expect(m.says("doctor")).To(Equal("nothing is wrong\n"))
		Expect(m.says("check")).To(Equal("nothing is wrong\n"))
	})

	It("colors severities only on a terminal, and not with NO_COLOR", func() {
		nstest.NeedProgram("script")
		m := newMachine(ours(), usual)
		m.write(listFile, "{}")
		on := func(env, command string) string {
			return m.Cmd("sh", "-c", env+` script -qec "$1 `+command+`; true" /dev/null`, "sh", nstest.Build("hawser"))
		}
		for _, command := range []string{"doctor", "check"} {
			Expect(on("", command)).To(HavePrefix("\x1b[31merror\x1b[0m "), command)
			Expect(on("NO_COLOR=1", command)).To(HavePrefix("error "), command)
			Expect(m.hawser(command).Stdout).To(HavePrefix("error "), command)
		}
		Expect(on("", "doctor --json")).NotTo(ContainSubstring("\x1b"))
	})

	It("fails with status 2 if it cannot read a fact", func() {
		m := newMachine(ours(), usual)
		m.up(newPod("c1", "web-0", hostPort(443, 80)))
		m.Cmd("sh", "-ec", "rm -r /var/lib/cni/results; echo x >/var/lib/cni/results")
		out := m.hawser("doctor")
		Expect([]any{out.Exit, out.Stdout}).To(Equal([]any{2, ""}))
		Expect(out.Stderr).To(And(HavePrefix("hawser: some facts could not be read: "),
			ContainSubstring("/var/lib/cni/results")))
	})

	It("reports a bridge that Hawser's guard of the host's loopback lacks", func() {
		m := newMachine(ours(), usual)
		m.up(newPod("c1", "web-0", hostPort(8080, 80)))
		m.Cmd("nft", "flush", "set", "inet", "hawser", "portmap_localnet_v1")
		Expect(m.finds()).To(ContainElement(And(HaveField("ID", "missing-guard"),
			HaveField("What", HaveSuffix("on cni0")))))
	})

	It("has a section of docs/doctor.md, and a fault above, for each finding", func() {
		page, err := os.ReadFile(nstest.Root() + "/docs/doctor.md")
		Expect(err).NotTo(HaveOccurred())
		source, err := os.ReadFile(nstest.Root() + "/cmd/hawser/tool/doctor.go")
		Expect(err).NotTo(HaveOccurred())
		ids := regexp.MustCompile(`(?m)^\t\{"([a-z-]+)", (?:broken|doubtful)`).FindAllStringSubmatch(string(source), -1)
		Expect(len(ids)).To(BeNumerically(">", 20))
		text := strings.Join(strings.Fields(string(page)), " ")
		for _, f := range faults() {
			if slices.Contains([]string{"list-conflict", "ipv6-disabled", "not-ready", "vlan-uplink",
				"other-default-route", "other-directory", "firewalld-flushed"}, f.id) {
				Expect(text).To(ContainSubstring(strings.TrimSpace(f.says)))
			}
		}
		for _, id := range ids {
			Expect(string(page)).To(ContainSubstring("\n## " + id[1] + "\n"))
			isOf := func(f fault) bool { return f.id == id[1] }
			Expect(slices.ContainsFunc(faults(), isOf)).To(BeTrue(), "no spec makes %s appear and go", id[1])
		}
	})
})
