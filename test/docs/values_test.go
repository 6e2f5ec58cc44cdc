package docs_test

// values are good and bad values of a key: the schema and the parser take the good ones, and refuse the bad
// ones. What is beyond a schema only the parser refuses.
type values struct {
	key    string
	beside string // what must be there for the key to make sense, as JSON
	good   string // as a JSON list
	bad    string
	beyond string
}

const (
	noBooleans = `["yes", 1, [], {}]`
	booleans   = `[true, false, null]`
	noStrings  = `[5, true, [], {}]`
)

func macs(key string) values {
	return values{key: key, good: `["02:00:00:00:00:01", "0A-00-00-00-00-0b", "0200.5e00.5301", "", null]`,
		bad: `["no", "02:00:00:00:00", "01:00:00:00:00:01", "00:00:00:00:00:00", "02:00:00:00:00:00:00:01", 5]`}
}

func hwaddrs(key string) values {
	v := macs(key)
	v.good = `["02:00:00:00:00:01", "0A-00-00-00-00-0b", "0200.5e00.5301", "", null, "02:00:00:00:00:00:00:01",
		"00:00:00:00:fe:80:00:00:00:00:00:00:02:00:5e:10:00:00:00:01"]`
	v.bad = `["no", "02:00:00:00:00", "01:00:00:00:00:01", "00:00:00:00:00:00", 5]`
	return v
}

func switches(keys ...string) (list []values) {
	for _, key := range keys {
		list = append(list, values{key: key, good: booleans, bad: noBooleans})
	}
	return list
}

func dns() []values {
	return []values{
		{key: "dns", good: `[{}, null]`, bad: `["x", 5, []]`},
		{key: "dns.nameservers", good: `[["192.0.2.53"], [], null]`, bad: `["192.0.2.53", [5], {}]`},
		{key: "dns.domain", good: `["example.com", null]`, bad: noStrings},
		{key: "dns.search", good: `[["example.com"], null]`, bad: `["x", [5]]`},
		{key: "dns.options", good: `[["ndots:5"], null]`, bad: `["x", [5]]`},
	}
}

// common are the keys that every plugin reads.
func common() []values {
	return []values{{key: "log", good: `["", null, "x", "bridge.log", "pods.otlp", "9_A-b"]`,
		bad: `["/x", "./x", "/", "/var/log/hawser/x", "a/b", ".", "..", ".x", "a b", "a\\n", 5, true, {}, []]`}}
}

// ranges are the keys of a range at prefix; one without prefix is the old form in ipam itself.
func ranges(prefix, beside string) []values {
	return []values{
		{key: prefix + "subnet", good: `["10.1.0.0/16", "2001:db8:1::/64", "::ffff:10.1.0.0/112"]`,
			bad:    `["", "x", "10.1.0.0", "10.1.0.0/33", "300.1.0.0/16", 5]`,
			beyond: `["10.1.0.1/16", "10.1.0.0/31", "2001:db8::/127", "1:2/64"]`},
		{key: prefix + "rangeStart", beside: beside, good: `["10.9.0.5", "", null]`,
			bad: `["x", "10.9.0", "10.9.0.256", 5]`, beyond: `["10.1.0.5", "::1"]`},
		{key: prefix + "rangeEnd", beside: beside, good: `["10.9.0.5", "", null]`, bad: `["x", "10.9.0.5/24", 5]`,
			beyond: `["10.1.0.5"]`},
		{key: prefix + "gateway", beside: beside, good: `["10.9.0.5", "192.0.2.1", "", null]`,
			bad: `["x", "fe80::1%eth0", 5]`, beyond: `["2001:db8::1"]`},
	}
}

// tables are the keys of each plugin. entry are those of any configuration, list those of a list.
func tables() map[string][]values {
	return map[string][]values{
		"bandwidth":   concat(bandwidthValues(), common()),
		"bridge":      concat(bridgeValues(), ipam("bridge", false), dns(), common()),
		"host-device": concat(hostDeviceValues(), ipam("host-device", false), dns(), common()),
		"ptp":         concat(ptpValues(), ipam("ptp", true), dns(), common()),
		"tap":         concat(tapValues(), ipam("tap", false), dns(), common()),
		"loopback":    common(),
		"macvlan":     concat(macvlanValues(), ipam("macvlan", false), dns(), common()),
		"host-local":  concat(hostLocalValues(), common()),
		"static":      concat(staticValues(), common()),
		"dhcp":        concat(dhcpValues(), common()),
		"tuning":      concat(tuningValues(), common()),
		"sbr":         concat(sbrValues(), common()),
		"portmap":     concat(portmapValues(), common()),
		"firewall":    concat(firewallValues(), common()),
		"entry":       entryValues(),
		"list":        listValues(),
		"vrf": concat([]values{
			{key: "vrfname", good: `["red", "vrf-of-15-bytes"]`,
				bad:    `["", "a/b", "a\u001b", "vrf-of-16-bytes-", 5, null]`,
				beyond: `["all"]`},
			{key: "table", good: `[0, 1, 100, 252, 256, 4294967295, null]`, bad: `[-1, 4294967296, "5"]`,
				beyond: `[253, 254, 255]`},
		}, common()),
		"dummy":  concat(dummyValues(), ipam("dummy", true), dns(), common()),
		"ipvlan": concat(ipvlanValues(), ipam("ipvlan", false), dns(), common()),
		"vlan":   concat(vlanValues(), ipam("vlan", false), dns(), common()),

		"cluster-local": concat(clusterLocalValues(), common()),
		"tc-redirect-tap": concat([]values{
			{key: "tap_name", good: `["tap0", "a-15-byte-name.", "", null]`,
				bad: `["a/b", "a\u001b", "16-bytes-of-name", 5]`},
			{key: "uid", good: `[0, 107, null]`, bad: `[-1, 4294967296, "root"]`, beyond: `[4294967295]`},
			{key: "gid", good: `[0, 108, null]`, bad: `[-1, 4294967296, "kvm"]`, beyond: `[4294967295]`},
			{key: "vm_ips", good: `["all", "first", "", null]`, bad: `["ipv4", 1]`},
		}, common()),
	}
}

// ipam are the keys of IPAM of a main plugin, which may need it.
func ipam(plugin string, needed bool) []values {
	if needed {
		return []values{{key: "ipam", good: `[{"type": "static"}]`, bad: `[null, {}, "host-local", []]`},
			{key: "ipam.type", good: `["static"]`, bad: `["../x", "", null, 5]`, beyond: `["` + plugin + `"]`}}
	}
	return []values{{key: "ipam", good: `[{}, {"type": "static"}, null]`, bad: `["static", [], 5]`},
		{key: "ipam.type", good: `["static", "", null]`, bad: `["../x", "a/b", ".", 5]`, beyond: `["` + plugin + `"]`}}
}

func concat(lists ...[]values) (all []values) {
	for _, l := range lists {
		all = append(all, l...)
	}
	return all
}

func bandwidthValues() []values {
	list := []values{
		{key: "burst", good: `["sane", "literal", "", null]`, bad: `["no", 5]`},
		{key: "queue", good: `["fifo", "fq_codel", "", null]`, bad: `["codel", 5]`},
		{key: "exempt", good: `[[], ["10.0.0.0/8", "fd00::/8", "10.1.0.5"], null]`, bad: `["10.0.0.0/8", ["x"], [5],
			["0.0.0.0/0"]]`, beyond: `[["10.1.0.5/8"]]`},
		{key: "runtimeConfig.bandwidth", good: `[{}, null]`, bad: `[5, [], "1M"]`},
	}
	for _, at := range []string{"", "runtimeConfig.bandwidth."} {
		for _, direction := range []string{"ingress", "egress"} {
			rate, burst := at+direction+"Rate", at+direction+"Burst"
			list = append(list, values{key: rate, good: `[0, null]`, bad: `[-1, 1, 7, 1.5, "1M", true]`},
				values{key: burst, good: `[0, null]`, bad: `[-1, 34359738360, 1.5, "1M", {}]`},
				values{key: rate, beside: `{"log": ""}`, good: `[]`, bad: `[]`, beyond: `[8]`}, // without a burst
				values{key: burst, beside: `{"log": ""}`, good: `[]`, bad: `[]`, beyond: `[8]`})
		}
	}
	const own = `{"ingressRate": 8000000, "egressBurst": 800000}`
	return append(list, values{key: "ingressBurst", beside: own, good: `[]`, bad: `[]`, beyond: `[800000]`},
		values{key: "ingressBurst", beside: `{"ingressRate": 8}`, good: `[8, 34359738359]`, bad: `[34359738360]`},
		values{key: "egressRate", beside: `{"egressBurst": 800000}`, good: `[8, 100000000000]`, bad: `[7]`,
			beyond: `[0]`})
}

func bridgeValues() []values {
	return concat(masq(), mtu(), switches("isGateway", "isDefaultGateway", "forceAddress", "hairpinMode", "promiscMode",
		"preserveDefaultVlan",
		"macspoofchk", "enabledad", "disableContainerInterface", "portIsolation"), []values{
		{key: "bridge", good: `["cni0", "abcdefghijklmno", null]`,
			bad: `["", "a/b", "a b", ".", "all", "br%d", "abcdefghijklmnop", 5]`},
		{key: "promiscMode", beside: `{"hairpinMode": true}`, good: `[false]`, bad: `[true]`},
		{key: "disableContainerInterface", beside: `{"ipam": {"type": "host-local", "subnet": "10.1.0.0/16"}}`,
			good: `[false]`, bad: `[true]`},
		{key: "disableContainerInterface", beside: `{"ipam": {}}`, good: `[true]`, bad: `[]`},
		{key: "vlan", good: `[0, 1, 4094, null]`, bad: `[-1, 4095, 1.5, "5"]`},
		{key: "vlan", beside: `{"bridge": "abcdefghijkl", "isGateway": true, "ipam": {"type": "x"}}`, good: `[10]`,
			bad: `[]`, beyond: `[100]`},
		{key: "vlanTrunk", good: `[[], [{"id": 5}, {"minID": 1, "maxID": 4094}], [{"id": 5, "minID": 7, "maxID": 9}],
			[{"id": 5, "minID": null}], null]`,
			bad:    `[5, {}, [5], [null], [{}], [{"minID": 5}], [{"id": 1, "maxID": 5}]]`,
			beyond: `[[{"minID": 9, "maxID": 7}]]`},
		{key: "vlanTrunk[].id", good: `[1, 4094]`, bad: `[0, 4095, -1, "5", null]`},
		{key: "vlanTrunk[].minID", beside: `{"vlanTrunk": [{"maxID": 4094}]}`, good: `[1, 4094]`,
			bad: `[0, 4095, "5", null]`},
		{key: "vlanTrunk[].maxID", beside: `{"vlanTrunk": [{"minID": 1}]}`, good: `[1, 4094]`,
			bad: `[0, 4095, "5", null]`},
		macs("args.cni.mac"), macs("runtimeConfig.mac"),
	})
}

func tapValues() []values {
	ids := `[0, 107, 4294967294, null]`
	return concat(switches("multiQueue"), mtu(), []values{
		{key: "mtu", beside: `{}`, good: `[]`, bad: `[]`, beyond: `[65522]`},
		{key: "owner", good: ids, bad: `[-1, 4294967296, "root", 1.5]`},
		{key: "group", good: ids, bad: `[-1, 4294967296, "root", 1.5]`},
		{key: "selinuxContext", good: `["system_u:system_r:container_t:s0", "", null]`, bad: noStrings},
		{key: "bridge", good: `["br0", "", null]`, bad: `["a/b", "a\u001b", "sixteen-bytes-it", 5]`},
		macs("mac"), macs("args.cni.mac"), macs("runtimeConfig.mac"),
	})
}

func ptpValues() []values {
	return concat(masq(), mtu(), []values{
		{key: "deviceType", good: `["veth", "netkit", null]`, bad: `["", "Veth", "vlan", 5]`},
		macs("args.cni.mac"), macs("runtimeConfig.mac"),
	})
}

func masters() []values {
	return concat(switches("linkInContainer"), []values{
		{key: "master", good: `["up0", "", null]`, bad: `["a\u001b[31m", 5, true, [], {}]`}})
}

func macvlanValues() []values {
	return concat(masters(), mtu(), switches("enabledad"), []values{
		{key: "mode", good: `["bridge", "private", "vepa", "passthru", "", null]`, bad: `["source", "Bridge", 5]`},
		{key: "bcqueuelen", good: `[0, 1000, 4294967295, null]`, bad: `[-1, 4294967296, 1.5, "1000"]`},
		macs("mac"), macs("args.cni.mac"), macs("runtimeConfig.mac"),
	})
}

func hostDeviceValues() []values {
	const beside = `{"device": "", "hwaddr": "02:00:00:00:00:01"}`
	mac := hwaddrs("hwaddr")
	mac.beside = `{"device": "", "capabilities": {"deviceID": true}}`
	return concat(switches("enabledad", "capabilities.deviceID"), []values{mac,
		{key: "useInterfaceNetwork", good: `[true, false, null]`, bad: `["true", 1]`},
		{key: "device", good: `["eth1", "an alternative name of it"]`, bad: `["", "a\u001b", null, 5, []]`},
		{key: "device", beside: beside, good: `["", null]`, bad: `["eth1"]`},
		{key: "kernelpath", beside: `{"device": ""}`, good: `["/sys/devices/pci0000:00/x", "/sys/devices/x/"]`,
			bad: `["", null, "/sys/class/net/eth1", "eth1", 5]`, beyond: `["/sys/devices/../class"]`},
		{key: "kernelpath", good: `["", null]`, bad: `["/sys/devices/x"]`},
		{key: "pciBusID", beside: `{"device": ""}`, good: `["0000:3b:00.1", "10000:00:02.0"]`,
			bad: `["", null, "../..", "3b:00.1", "0000:3B:00.1", "0000:3b:00.8", "100000000:3b:00.1", 5]`},
		{key: "pciBusID", beside: `{"device": "", "runtimeConfig": {"deviceID": "0000:3b:00.2"}}`,
			good: `["0000:3b:00.1", "", null]`, bad: `["x"]`},
		{key: "pciBusID", beside: beside, good: `["", null]`, bad: `["0000:3b:00.1"]`},
		{key: "runtimeConfig.deviceID", good: `["0000:3b:00.1", "10000:00:02.0", "mlx5_core.sf.4", "", null]`,
			bad: `["a/b", "..", 5]`},
		{key: "capabilities.deviceID", beside: `{"device": null}`, good: `[true]`, bad: `[false, null]`},
	})
}

func mtu() []values {
	return []values{
		{key: "mtu", good: `[0, 68, 1500, 65521, "auto", null]`,
			bad: `[-1, 67, 65536, 1.5, "1500", "Auto", "", true, [], {}]`},
		{key: "mtuFrom", beside: `{"mtu": "auto"}`, good: `["up0", "", null]`,
			bad: `["a/b", "a\u001b", "sixteen-bytes-it", 5]`},
		{key: "mtuFrom", good: `["", null]`, bad: `[]`, beyond: `["up0"]`},
	}
}

func masq() []values {
	return []values{
		{key: "ipMasq", good: `[true, false, "v4", "v6", null]`, bad: `["yes", "true", "", "V4", 1, [], {}]`},
		{key: "ipMasqBackend", good: `["nftables", "iptables", null]`, bad: `["", "nft", 5]`},
		{key: "masqExclude", beside: `{"ipMasq": true}`,
			good:   `[["10.8.0.0/16", "192.0.2.7", "2001:db8::/32", "2001:db8::7"], [], null]`,
			bad:    `["10.8.0.0/16", ["x"], [""], [5], [null], ["10.8.0.0/33"], ["0.0.0.0/0"], ["::/0"], {}]`,
			beyond: `[["10.8.0.1/16"], ["2001:db8::1/32"]]`},
		{key: "masqRandomFully", beside: `{"ipMasq": true}`, good: booleans, bad: noBooleans},
		{key: "masqPorts", beside: `{"ipMasq": true}`, good: `["32768-60999", "1-65535", "80-80", "", null]`,
			bad: `["80", "0-80", "-", "80-", "a-b", "1-2-3", "1 - 2", 80]`, beyond: `["90-80", "1-65536"]`},
	}
}

func ipvlanValues() []values {
	return concat(masters(), mtu(), switches("enabledad"), []values{
		{key: "mode", good: `["l2", "l3", "l3s", "", null]`, bad: `["l4", "L2", 5]`},
	})
}

func vlanValues() []values {
	return concat(mtu(), switches("enabledad", "linkInContainer"), []values{
		{key: "master", good: `["up0"]`, bad: `["a\u001b", null, 5]`, beyond: `[""]`},
		{key: "vlanId", good: `[0, 1, 4094, null]`, bad: `[-1, 4095, 1.5, "5"]`},
	})
}

func dummyValues() []values {
	return concat(mtu(), []values{macs("mac"), macs("args.cni.mac"), macs("runtimeConfig.mac")})
}

func hostLocalValues() []values {
	return concat(rangeValues(), []values{
		{key: "ipam.type", good: `["host-local"]`, bad: noStrings},
		{key: "ipam.dataDir", good: `["/var/lib/cni/networks", "", null]`, bad: noStrings},
		{key: "ipam.sticky", good: booleans, bad: noBooleans},
		{key: "ipam.reclaim", good: `[true, false, null]`, bad: `["no", 5]`},
		{key: "ipam.statusOnExhaustion", good: `["warn", "fail", "", null]`, bad: `["no", 5]`},
	})
}

func clusterLocalValues() []values {
	return concat(rangeValues(), []values{
		{key: "ipam.type", good: `["cluster-local"]`, bad: noStrings},
		{key: "ipam.space", good: `["default", "tenant-7", "", null]`, bad: noStrings,
			beyond: `["Shop", "a_b", "a.b", "../x", "-a", "a-"]`},
		{key: "ipam.kubeconfig", good: `["/etc/kubernetes/kubelet.conf", "", null]`, bad: noStrings,
			beyond: `["kubelet.conf", "./x"]`},
		{key: "ipam.node", good: `["node-7.example.org", "", null]`, bad: noStrings,
			beyond: `["Node", "a b", "../x", "-"]`},
		{key: "ipam.dataDir", good: `["/var/lib/cni/cluster-local", "", null]`, bad: noStrings},
		{key: "ipam.reclaim", good: `["deleted-nodes", "never", "", null]`, bad: `["no", true, 5]`},
		{key: "ipam.guard", good: `["whereabouts", "", null]`, bad: `["no", true, 5]`},
		{key: "ipam.statusOnStoreDown", good: `["ignore", "warn", "fail", "", null]`, bad: `["no", true, 5]`},
	})
}

// rangeValues are the keys that plugins with ranges have.
func rangeValues() []values {
	const nine = `"subnet": "10.9.0.0/16"`
	return concat([]values{
		{key: "ipam.ranges", good: `[[[{"subnet": "10.1.0.0/16"}], [{"subnet": "2001:db8::/64"}]]]`,
			bad: `[[[]], [[{}]], [{"subnet": "10.1.0.0/16"}], "10.1.0.0/16", [[null]], [null]]`,
			beyond: `[[[{"subnet": "10.1.0.0/16"}, {"subnet": "2001:db8::/64"}]], [[{"subnet": "10.1.0.0/16"}],
				[{"subnet": "10.1.1.0/24"}]]]`},
		{key: "ipam.ranges", beside: `{"ipam": {"subnet": null}}`, good: `[[[{"subnet": "10.1.0.0/16"}]]]`,
			bad: `[[], null]`},
		{key: "capabilities.ipRanges", beside: `{"ipam": {"subnet": null}}`, good: `[true]`, bad: `[false, null]`},
		{key: "capabilities.ipRanges", good: booleans, bad: noBooleans},
		{key: "ipam.resolvConf", good: `["/etc/resolv.conf", "", null]`, bad: noStrings},
		{key: "ipam.exclude", good: `[["10.9.0.5", "10.9.1.0/24", "2001:db8::7"], [], null]`,
			bad:    `["10.9.0.5", ["x"], [""], [5], [null], ["0.0.0.0/0"], {}]`,
			beyond: `[["10.9.0.5/24"], ["10.9.0.0/16"], ["10.0.0.0/8"]]`},
		{key: "runtimeConfig.ips", good: `[["10.9.0.5"], ["10.9.0.5/16"], [], null]`,
			bad:    `["10.9.0.5", ["x"], [5], [null], [""]]`,
			beyond: `[["10.8.0.1"], ["10.9.0.1"], ["10.9.0.5", "10.9.0.6"]]`},
		{key: "args.cni.ips", good: `[["10.9.0.5"], null]`, bad: `["10.9.0.5", ["x"], ["10.9.0.5/x"]]`},
		{key: "runtimeConfig.ipRanges", good: `[[[{"subnet": "10.1.0.0/16"}]], [], null]`, bad: `[[[]], [[{}]], 5]`},
		{key: "runtimeConfig.ipRanges", beside: `{}`, good: `[]`, bad: `[]`,
			beyond: `[[[{` + nine + `}]]]`}, // overlaps with ipam.subnet
	}, routes(), ranges("ipam.", `{"ipam": {`+nine+`}}`),
		ranges("ipam.ranges[][].", `{"ipam": {"subnet": null, "ranges": [[{`+nine+`}]]}}`),
		ranges("runtimeConfig.ipRanges[][].",
			`{"ipam": {"subnet": null}, "runtimeConfig": {"ipRanges": [[{`+nine+`}]]}}`))
}

func routes() []values {
	return []values{
		{key: "ipam.routes", good: `[[], [{"dst": "0.0.0.0/0"}], null]`, bad: `[5, {}, [{}], [null], ["0.0.0.0/0"]]`},
		{key: "ipam.routes[].dst", good: `["0.0.0.0/0", "::/0", "192.0.2.7/24"]`,
			bad: `["", "x", "10.0.0.0", 5, null]`},
		{key: "ipam.routes[].gw", beside: `{"ipam": {"routes": [{"dst": "0.0.0.0/0"}]}}`,
			good: `["10.9.0.1", "fe80::1", "", null]`, bad: `["x", "fe80::1%eth0", 5]`},
		{key: "ipam.routes[].mtu", beside: `{"ipam": {"routes": [{"dst": "0.0.0.0/0"}]}}`, good: `[0, 1500, null]`,
			bad: `[-1, 2147483648, "5", 1.5]`},
		{key: "ipam.routes[].advmss", beside: `{"ipam": {"routes": [{"dst": "0.0.0.0/0"}]}}`, good: `[0, 1460, null]`,
			bad: `[-1, 2147483648, "5"]`},
		{key: "ipam.routes[].priority", beside: `{"ipam": {"routes": [{"dst": "0.0.0.0/0"}]}}`,
			good: `[0, 4294967295, null]`, bad: `[-1, 4294967296, "5"]`},
		{key: "ipam.routes[].table", beside: `{"ipam": {"routes": [{"dst": "0.0.0.0/0"}]}}`,
			good: `[0, 4294967295, null]`, bad: `[-1, 4294967296, "5"]`},
		{key: "ipam.routes[].scope", beside: `{"ipam": {"routes": [{"dst": "0.0.0.0/0"}]}}`, good: `[0, 255, null]`,
			bad: `[-1, 256, "5"]`},
	}
}

func dhcpValues() []values {
	options := func(key, good, bad string) values {
		return values{key: key, good: `["12", "012", "121", "254", "routers", "host-name"` + good + `]`,
			bad: `["0", "053", "255", "256", "nope", "+1", 12` + bad + `]`}
	}
	const provided, requested = `{"ipam": {"provide": [{"option": "12"}]}}`, `{"ipam": {"request": [{"option": "12"}]}}`
	return concat([]values{
		{key: "ipam.type", good: `["dhcp"]`, bad: noStrings},
		{key: "ipam.daemonSocketPath", good: `["/run/x.sock", "", null]`, bad: `["x", "./x", 5]`},
		{key: "ipam.provide", good: `[[], null, [{"option": "12"}]]`, bad: `[{}, 5, [{}], [null], ["12"]]`},
		{key: "ipam.provide[].value", beside: provided, good: `["x", "", null]`, bad: `[5, []]`},
		{key: "ipam.provide[].fromArg", beside: provided, good: `["x", "", null]`, bad: `[5, []]`},
		{key: "ipam.request", good: `[[], null, [{"option": "12"}], [{}], [null]]`, bad: `[{}, 5, ["12"]]`},
		{key: "ipam.request[].skipDefault", beside: requested, good: booleans, bad: noBooleans},
		{key: "ipam.priority", good: `[0, 4294967295, null]`, bad: `[-1, 4294967296, 1.5, "5"]`},
		options("ipam.provide[].option", ``, `, "", null`),
		options("ipam.request[].option", `, "", null`, ``),
		{key: "ipam.ipv6", good: `["dhcp", "slaac", "", null]`, bad: `["auto", "DHCP", true]`},
		{key: "ipam.ipv4", beside: `{"ipam": {"type": "dhcp", "ipv6": "slaac"}}`, good: `[true, false, null]`,
			bad: `["false", 0]`},
	}, switches("ipam.dns"))
}

func staticValues() []values {
	const address = `{"ipam": {"addresses": [{"address": "10.9.0.5/16"}]}}`
	list := concat([]values{
		{key: "ipam.type", good: `["static"]`, bad: noStrings},
		{key: "ipam.addresses", good: `[[{"address": "10.9.0.5/16"}, {"address": "fd00::5/64"}], [], null]`,
			bad:    `[5, {}, [{}], [null], ["10.9.0.5/16"]]`,
			beyond: `[[{"address": "10.9.0.5/16"}, {"address": "10.9.0.5/24"}]]`},
		{key: "ipam.addresses[].address",
			good:   `["10.1.0.5/16", "2001:db8:1::5/64", "::ffff:10.1.0.5/112", "10.1.0.0/31", "10.1.0.0/16"]`,
			bad:    `["", "x", "10.1.0.5", "10.1.0.5/33", "300.1.0.0/16", 5, null]`,
			beyond: `["10.1.255.255/16", "0.0.0.0/0", "127.0.0.1/8", "ff02::1/64"]`},
		{key: "ipam.addresses[].gateway", beside: address, good: `["10.9.0.1", "192.0.2.1", "", null]`,
			bad: `["x", "10.9.0.1/16", "fe80::1%eth0", 5]`, beyond: `["fd00::1", "10.9.0.5"]`},
		{key: "runtimeConfig.ips", good: `[["10.9.0.6"], ["10.8.0.6/16"], [], null]`,
			bad: `["10.9.0.5", ["x"], [5], [null], [""]]`, beyond: `[["10.8.0.1"], ["10.9.0.6", "10.9.0.6/16"]]`},
		{key: "args.cni.ips", good: `[["10.9.0.5"], null]`, bad: `["10.9.0.5", ["x"], ["10.9.0.5/x"]]`},
	}, routes())
	for _, v := range dns() {
		v.key = "ipam." + v.key
		list = append(list, v)
	}
	return list
}

func sbrValues() []values {
	return []values{
		{key: "table", good: `[1, 100, 252, 256, 4294967295, null]`, bad: `[0, -1, 4294967296, "5"]`,
			beyond: `[253, 254, 255]`},
		{key: "gateways", good: `[["10.1.0.1"], ["10.1.0.1", "fd00::1"], [], null]`,
			bad: `["10.1.0.1", ["x"], [5], [""]]`, beyond: `[["10.1.0.1", "10.1.0.2"], ["127.0.0.1"]]`},
		{key: "addSourceHints", good: booleans, bad: noBooleans},
	}
}

func tuningValues() []values {
	const numbers, noNumbers = `[0, 1, 2147483647, null]`, `[-1, 2147483648, 1.5, "5"]`
	sysctls := values{good: `[{}, {"net.core.somaxconn": "500", "net/ipv4/conf/IFNAME/arp_filter": "1"}, null]`,
		bad: `[{"kernel.domainname": "x"}, {"/proc/sys/net/core/x": "1"}, {"net.core.x": 1}, {"net.core.x": null},
			[], "net.core.x=1", 5]`,
		beyond: `[{"net/../kernel/x": "1"}, {"net..x": "1"}, {"net.core.x": "1", "net/core/x": "2"}]`}
	own, more := sysctls, sysctls
	own.key, more.key = "sysctl", "args.cni.sysctl"
	return concat(switches("promisc", "allmulti", "args.cni.promisc", "args.cni.allmulti"), []values{
		own, more, hwaddrs("mac"), hwaddrs("args.cni.mac"), hwaddrs("runtimeConfig.mac"),
		{key: "mtu", good: numbers, bad: noNumbers}, {key: "args.cni.mtu", good: numbers, bad: noNumbers},
		{key: "txQLen", good: numbers, bad: noNumbers}, {key: "args.cni.txQLen", good: numbers, bad: noNumbers},
		{key: "dataDir", good: `["/run/cni/tuning", "", null]`, bad: noStrings},
		{key: "ethtool", good: `[{}, null]`, bad: `["rx-gro", [], 5]`},
		{key: "ethtool.rings", good: `[{}, null]`, bad: `[256, [], "rx"]`},
		{key: "ethtool.channels", good: `[{}, null]`, bad: `[2, [], "rx"]`},
		{key: "ethtool.features", good: `[{}, {"rx-gro": true, "tx-tcp-segmentation": false, "x": null}, null]`,
			bad: `[{"rx-gro": "on"}, {"rx-gro": 1}, [], "rx-gro"]`},
		numbersOf("ethtool.rings.rx"), numbersOf("ethtool.rings.rx-mini"), numbersOf("ethtool.rings.rx-jumbo"),
		numbersOf("ethtool.rings.tx"), numbersOf("ethtool.channels.rx"), numbersOf("ethtool.channels.tx"),
		numbersOf("ethtool.channels.other"), numbersOf("ethtool.channels.combined"),
		{key: "sysctlMode", good: `["write", "check", "", null]`, bad: `["Check", "set", 5, true, {}]`},
	})
}

func numbersOf(key string) values {
	return values{key: key, good: `[0, 1, 4294967295, null]`, bad: `[-1, 4294967296, 1.5, "5"]`}
}

func portmapValues() []values {
	const list = "runtimeConfig.portMappings"
	conditions := values{good: `[["ip", "saddr", "10.0.0.0/8"], ["-s", "10.0.0.0/8"], ["!", "-i", "eth0"], [], null]`,
		bad: `["-s 10.0.0.1", [""], ["-s", "a\nb"], [5], [null]]`, beyond: `[["ip saddr 10.0.0.1; drop"], ["ip",
			"#"], ["-M", "/x"]]`}
	four, six := conditions, conditions
	four.key, six.key = "conditionsV4", "conditionsV6"
	return concat(switches("snat", "masqAll"), []values{
		four, six,
		{key: "conditionsV6", beside: `{"conditionsV4": ["-s", "10.0.0.0/8"]}`, good: `[["-s", "fd00::/8"]]`, bad: `[]`,
			beyond: `[["ip6", "saddr", "fd00::/8"]]`},
		{key: "backend", good: `["nftables", "iptables", null]`, bad: `["", "ipvs", 5]`},
		{key: "backend", beside: `{"externalSetMarkChain": "KUBE-MARK-MASQ"}`, good: `["iptables"]`,
			bad: `["nftables"]`},
		{key: "markMasqBit", good: `[0, 31, null]`, bad: `[-1, 32, "5", 1.5]`},
		{key: "markMasqBit", beside: `{"externalSetMarkChain": "X"}`, good: `[null]`, bad: `[5]`},
		{key: "externalSetMarkChain", good: `["KUBE-MARK-MASQ", "a!b", null]`,
			bad: `["", "A B", "-j", "!x", "a\"b", "abcdefghijklmnopqrstuvwxyzabc", 5]`},
		{key: list, good: `[[], [{"hostPort": 1, "containerPort": 1, "protocol": "tcp"}], null]`,
			bad: `[5, {}, [{}], [null], [5]]`,
			beyond: `[[{"hostPort": 1, "containerPort": 1, "protocol": "tcp"}, {"hostPort": 1, "containerPort": 2,
				"protocol": "tcp"}]]`},
		{key: list + "[].hostPort", good: `[1, 8080, 65535]`, bad: `[0, 65536, -1, 1.5, "80", null]`},
		{key: list + "[].containerPort", good: `[1, 65535]`, bad: `[0, 65536, -1, "80", null]`},
		{key: list + "[].protocol", good: `["tcp", "UDP", "Sctp"]`, bad: `["", "icmp", "tcp ", 6, null]`},
		{key: list + "[].hostIP", good: `["", "0.0.0.0", "::", "192.0.2.1", "::ffff:192.0.2.1", null]`,
			bad:    `["x", "10.0.0.1/8", "fe80::1%eth0", 1]`,
			beyond: `["224.0.0.1", "255.255.255.255"]`},
	})
}

func firewallValues() []values {
	return concat(switches("acceptPublished"), []values{
		{key: "backend", good: `["nftables", "iptables", "firewalld", "", null]`, bad: `["ufw", "IPTables", 5]`},
		{key: "firewalldZone", good: `["trusted", "", null]`, bad: noStrings},
		{key: "ingressPolicy", good: `["open", "same-bridge", "isolated", "", null]`, bad: `["Isolated", "closed", 5]`},
		{key: "iptablesAdminChainName", good: `["CNI-ADMIN", "a!b", "", null]`,
			bad:    `["A B", "-j", "!x", "a\"b", "abcdefghijklmnopqrstuvwxyzabc", 5]`,
			beyond: `["FORWARD", "CNI-FORWARD"]`},
		{key: "markAcceptBit", good: `[0, 12, 16, 31, null]`, bad: `[-1, 32, "5", 1.5]`, beyond: `[13, 14, 15]`},
	})
}

// entryValues are tried on loopback, which has no keys of its own.
func entryValues() []values {
	return concat([]values{
		{key: "type", good: `["loopback", "something-else"]`, bad: `["", "../x", 5]`},
		{key: "capabilities", good: `[{}, {"portMappings": true, "mac": false}, null]`,
			bad: `["mac", ["mac"], {"mac": "yes"}]`},
		{key: "args", good: `[{}, {"cni": {"labels": []}}, null]`, bad: `[5, "a=b", []]`},
		{key: "runtimeConfig", good: `[{}, {"anything": 1}, null]`, bad: `[5, []]`},
		{key: "ipam", good: `[{}, {"type": "static", "addresses": []}, null]`, bad: `[5, "static", []]`},
		{key: "ipam.type", good: `["static", "", null]`, bad: `[5, []]`},
		{key: "prevResult", good: `[{"cniVersion": "1.0.0", "ips": [{"address": "10.0.0.1/8"}]}, null]`,
			bad: `[5, [], {"cniVersion": "1.0.0", "ips": [{"address": "x"}]}, {"cniVersion": "7.0.0"}]`},
	}, dns())
}

// listValues are tried on a list with an entry of loopback.
func listValues() []values {
	switches := `[true, false, "true", "False"]`
	return []values{
		{key: "cniVersion", good: `["0.1.0", "0.3.1", "1.1.0"]`, bad: `["", "2.0.0", "1.0", 1]`},
		{key: "cniVersions", good: `[["0.4.0", "1.1.0"]]`, bad: `[["1.0"], "1.0.0", [1], [""]]`},
		{key: "cniVersions", beside: `{"cniVersion": null}`, good: `[["1.0.0"]]`, bad: `[[]]`},
		{key: "name", good: `["pods", "a.b_c-9"]`, bad: `["", "a b", "../x", "-a", 5, null]`},
		{key: "disableCheck", good: switches, bad: `["yes", 1, "", null]`},
		{key: "disableGC", good: switches, bad: `["yes", 1, {}]`},
		{key: "loadOnlyInlinedPlugins", good: switches, bad: `["yes", 1, []]`},
		{key: "plugins", good: `[[{"type": "loopback"}, {"type": "other", "x": 1}]]`,
			bad: `[[], {}, null, [5], [null], [{}], [{"type": 5}], [{"type": "a/b"}]]`},
	}
}
