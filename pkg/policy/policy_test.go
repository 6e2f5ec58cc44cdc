package policy_test

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/policy"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func TestPolicy(t *testing.T) { nstest.RunSpecs(t, "pkg/policy") }

// rules is a policy whose trusted directory has one list.
func rules(more string) *policy.Policy {
	GinkgoHelper()
	dir := GinkgoT().TempDir()
	trusted := filepath.Join(dir, "net.d")
	Expect(os.Mkdir(trusted, 0o755)).To(Succeed())
	list := `{"cniVersion":"1.0.0","name":"pods",
		"plugins":[{"type":"bridge","bridge":"cni0","ipam":{"type":"host-local","subnet":"10.88.0.0/16"}},
		{"type":"portmap","capabilities":{"portMappings":true},"markMasqBit":9007199254740993}]}`
	Expect(os.WriteFile(filepath.Join(trusted, "10-pods.conflist"), []byte(list), 0o600)).To(Succeed())
	Expect(os.WriteFile(filepath.Join(trusted, "20-broken.conf"), []byte(`{"name":`), 0o600)).To(Succeed())
	file := filepath.Join(dir, "policy.json")
	text := `{"trustedDirs":["` + trusted + `"],"types":["bridge","macvlan","host-local","static","portmap"],
		"bridges":["tenant0"],"masters":["eth1"],"subnets":["10.200.0.0/16","fd00:200::/32"],
		"hostPorts":["30000-32767","8080"],"hostAddresses":["192.0.2.10"],"vlans":["100-109","120"]` + more + `}`
	Expect(os.WriteFile(file, []byte(text), 0o600)).To(Succeed())
	p, err := policy.Load(file, true)
	Expect(err).NotTo(HaveOccurred())
	return p
}

// refused lists what the policy refuses of a configuration, given without its braces.
func refused(p *policy.Policy, plugin, conf string) (list []string) {
	for _, problem := range cni.ProblemsOf(p.Check([]byte("{"+conf+"}"), policy.Call{Plugin: plugin, First: true})) {
		Expect(problem.Code).To(Equal(cni.CodeConfig))
		list = append(list, problem.String())
	}
	if len(list) > 0 && !strings.HasSuffix(list[len(list)-1], "which value applies is not defined") {
		Expect(list[len(list)-1]).To(MatchRegexp(
			`^networks of the administrator: /.*/net\.d/20-broken\.conf: not valid JSON: unexpected EOF$`))
		list = list[:len(list)-1]
	}
	return list
}

const tenant = `"cniVersion":"1.0.0","name":"team","type":"bridge","bridge":"tenant0"`

var _ = Describe("the policy for tenants", Label("tenant-policy"), func() {
	DescribeTable("permits what it lists", func(plugin, conf string) {
		Expect(refused(rules(""), plugin, conf)).To(BeEmpty())
	},
		Entry("a bridge", "bridge",
			tenant+`,"ipam":{"type":"host-local","subnet":"10.200.1.0/24","gateway":"10.200.1.1"}`),
		Entry("ranges of both families", "bridge", tenant+`,"ipam":{"type":"host-local","ranges":
			[[{"subnet":"10.200.1.0/24","rangeStart":"10.200.1.9"}],[{"subnet":"fd00:200:1::/64"}]],
			"routes":[{"dst":"0.0.0.0/0"}]}`),
		Entry("no address", "bridge", tenant),
		Entry("a master", "macvlan", `"name":"team","type":"macvlan","master":"eth1"`),
		Entry("an interface of the container", "macvlan", `"name":"team","type":"macvlan","linkInContainer":true`),
		Entry("a port", "portmap", `"name":"team","type":"portmap","runtimeConfig":
			{"portMappings":[{"hostPort":8080,"containerPort":443,"protocol":"tcp","hostIP":"192.0.2.10"}]}`),
		Entry("VLANs", "bridge", tenant+`,"vlan":120,"vlanTrunk":[{"id":100},{"minID":101,"maxID":109}]`),
		Entry("no VLAN", "bridge", tenant+`,"vlan":0`),
		Entry("another plugin's null", "bridge", tenant+`,"dataDir":null`),
	)

	DescribeTable("refuses everything else, with key, value and list", func(plugin, conf string, want ...string) {
		Expect(refused(rules(""), plugin, conf)).To(Equal(want))
	},
		Entry("a plugin", "tuning", `"name":"team","type":"tuning"`,
			`type: "tuning" is not permitted by types of the policy`),
		Entry("an IPAM plugin", "bridge", tenant+`,"ipam":{"type":"dhcp"}`,
			`ipam.type: "dhcp" is not permitted by types of the policy`),
		Entry("a bridge", "bridge", `"name":"team","type":"bridge","bridge":"cni0"`,
			`bridge: "cni0" is not permitted by bridges of the policy`),
		Entry("the bridge that is the default", "bridge", `"name":"team","type":"bridge"`,
			`bridge: "cni0" is not permitted by bridges of the policy`),
		Entry("a bridge, by a key in another case", "bridge", `"name":"team","type":"bridge","BRIDGE":"cni0"`,
			`bridge: "cni0" is not permitted by bridges of the policy`),
		Entry("a master", "macvlan", `"name":"team","type":"macvlan","master":"eth0"`,
			`master: "eth0" is not permitted by masters of the policy`),
		Entry("a master, by a key that Unicode folds", "macvlan", `"name":"team","type":"macvlan","maſter":"eth0"`,
			`master: "eth0" is not permitted by masters of the policy`),
		Entry("the master of the default route", "macvlan", `"name":"team","type":"macvlan"`,
			`master: is missing, and the policy permits only the interfaces in masters`),
		Entry("a subnet", "bridge", tenant+`,"ipam":{"type":"host-local","subnet":"10.88.0.0/24"}`,
			`ipam.subnet: "10.88.0.0/24" is not permitted by subnets of the policy`),
		Entry("a subnet that contains a permitted one", "bridge",
			tenant+`,"ipam":{"type":"host-local","subnet":"10.0.0.0/8"}`,
			`ipam.subnet: "10.0.0.0/8" is not permitted by subnets of the policy`),
		Entry("a subnet of mapped addresses", "bridge",
			tenant+`,"ipam":{"type":"host-local","subnet":"::ffff:10.200.0.0/104"}`,
			`ipam.subnet: "::ffff:10.200.0.0/104" is not permitted by subnets of the policy`),
		Entry("an address", "bridge", tenant+`,"ipam":{"type":"static","addresses":
			[{"address":"10.200.0.2/16"},{"address":"10.88.0.2/16"}]}`,
			`ipam.addresses[1].address: "10.88.0.2/16" is not permitted by subnets of the policy`),
		Entry("an address that a pod asks for", "bridge", tenant+`,"runtimeConfig":{"ips":["10.88.0.2"]}`,
			`runtimeConfig.ips[0]: "10.88.0.2" is not permitted by subnets of the policy`),
		Entry("a port", "portmap", `"name":"team","type":"portmap","runtimeConfig":
			{"portMappings":[{"hostPort":443,"containerPort":443,"protocol":"tcp"}]}`,
			`runtimeConfig.portMappings[0].hostPort: "443" is not permitted by hostPorts of the policy`,
			`runtimeConfig.portMappings[0].hostIP: "" is not permitted by hostAddresses of the policy`),
		Entry("the name of one of the administrator's networks", "bridge",
			`"name":"pods","type":"bridge","bridge":"tenant0"`,
			`name: "pods" is the name of one of the administrator's networks`),
		Entry("keys that reach the host", "bridge",
			tenant+`,"forceAddress":true,"LOG":"x","ipam":{"type":"host-local","datadir":"/x"}`,
			`forceAddress: is a key that reaches the host, and allowKeys of the policy does not have it`,
			`ipam.dataDir: is a key that reaches the host, and allowKeys of the policy does not have it`,
			`log: is a key that reaches the host, and allowKeys of the policy does not have it`),
		Entry("a prevResult in the configuration", "bridge", tenant+`,"prevResult":{"cniVersion":"1.0.0"}`,
			`prevResult: is a key that reaches the host, and allowKeys of the policy does not have it`),
		Entry("a VLAN", "bridge", tenant+`,"VLAN":110`, `vlan: 110 is not permitted by vlans of the policy`),
		Entry("the VLAN of an interface", "macvlan", `"name":"team","type":"macvlan","master":"eth1","vlanId":5`,
			`vlanId: 5 is not permitted by vlans of the policy`),
		Entry("the VLAN of a trunk without a tag", "bridge", tenant+`,"vlanTrunk":[{"id":100}]`,
			`vlan: 1 is not permitted by vlans of the policy`),
		Entry("VLANs of a trunk", "bridge", tenant+`,"vlan":100,"vlanTrunk":[{"id":99},{"minID":100,"maxID":120}]`,
			`vlanTrunk[0].id: 99 is not permitted by vlans of the policy`,
			`vlanTrunk[1].minID: 100 is not permitted by vlans of the policy`),
		Entry("a MAC address", "bridge",
			tenant+`,"args":{"cni":{"mac":"02:00:00:00:00:01"}},"runtimeConfig":{"mac":"x"}`,
			`args.cni.mac: is a key that reaches the host, and allowKeys of the policy does not have it`,
			`runtimeconfig.mac: is a key that reaches the host, and allowKeys of the policy does not have it`),
		Entry("a policy of the bridge", "portmap", `"name":"team","type":"portmap","ingressPolicy":"isolated"`,
			`ingressPolicy: is a key that reaches the host, and allowKeys of the policy does not have it`),
		Entry("a key twice", "bridge", tenant+`,"ipam":{"dataDir":"/x"},"ipam":{"type":"host-local"}`,
			`ipam: appears twice, in the same or another case: which value applies is not defined`),
	)

	It("trusts what equals an entry of the administrator's, whatever the runtime added", func() {
		p := rules("")
		added := `"cniVersion":"1.0.0","name":"pods","prevResult":{"cniVersion":"1.0.0"},
			"runtimeConfig":{"portMappings":[]},`
		bridge := `"type":"bridge","bridge":"cni0","ipam":{"type":"host-local","subnet":"10.88.0.0/16"}`
		chained := func(plugin, conf string) error {
			return p.Check([]byte("{"+conf+"}"), policy.Call{Plugin: plugin})
		}
		Expect(refused(p, "bridge", added+bridge)).NotTo(BeEmpty(), "no runtime sends a result to the first plugin")
		Expect(chained("bridge", added+bridge)).NotTo(Succeed(), "the entry declares no capability")
		added = strings.Replace(added, `"runtimeConfig":{"portMappings":[]},`, "", 1)
		Expect(chained("bridge", added+bridge)).To(Succeed())
		added = `"cniVersion":"1.0.0","name":"pods","runtimeConfig":{"portMappings":[]},`
		portmap := `"type":"portmap","capabilities":{"portMappings":true},"markMasqBit":`
		Expect(refused(p, "portmap", added+portmap+"9007199254740993")).To(BeEmpty())
		Expect(refused(p, "portmap", added+portmap+"9007199254740992")).NotTo(BeEmpty())
		Expect(refused(p, "bridge", `"cniVersion":"1.0.0","name":"pods",`+bridge)).To(BeEmpty())
		Expect(refused(p, "bridge", `"cniVersion":"1.0.0","name":"pods","forceAddress":true,`+bridge)).NotTo(BeEmpty())
		Expect(refused(p, "bridge", `"cniVersion":"1.0.0","name":"other",`+bridge)).NotTo(BeEmpty())
	})

	It("trusts an entry whatever other files have, and fails where none is trusted and a file cannot be read", func() {
		p := rules("")
		dir := p.TrustedDirs[0]
		trusted := `{"cniVersion":"1.0.0","name":"pods","type":"bridge","bridge":"cni0",
			"ipam":{"type":"host-local","subnet":"10.88.0.0/16"}}`
		check := func(conf string) error { return p.Check([]byte(conf), policy.Call{Plugin: "bridge", First: true}) }
		Expect(os.Mkdir(filepath.Join(dir, "30-directory.conf"), 0o755)).To(Succeed())
		Expect(os.Symlink("40-missing", filepath.Join(dir, "40-link.conf"))).To(Succeed())
		p.TrustedDirs = append(p.TrustedDirs, "/nowhere")
		Expect(check("{" + tenant + "}")).To(Succeed())

		link := filepath.Join(dir, "50-loop.json")
		Expect(os.Symlink("50-loop.json", link)).To(Succeed())
		Expect(check(trusted)).To(Succeed())
		fails := func(what string) {
			GinkgoHelper()
			err := check("{" + tenant + "}")
			Expect(cni.AsError(err).Code).To(Equal(cni.CodeIO))
			Expect(err).To(MatchError(And(ContainSubstring("networks of the administrator: "), ContainSubstring(what),
				ContainSubstring("20-broken.conf: not valid JSON"))))
		}
		fails("open " + link + ": too many levels of symbolic links")
		Expect(os.Remove(link)).To(Succeed())
		p.TrustedDirs = append(p.TrustedDirs, "/proc/version")
		Expect(check(trusted)).To(Succeed())
		fails("/proc/version: not a directory")
	})

	It("permits a key that allowKeys has, and every value of a list with an asterisk", func() {
		p := rules(`,"allowKeys":["dataDir"]`)
		Expect(refused(p, "bridge", tenant+`,"ipam":{"type":"host-local","dataDir":"/x"}`)).To(BeEmpty())
		p.Bridges, p.HostPorts, p.HostAddresses = []string{"*"}, []string{"*"}, []string{"*"}
		Expect(refused(p, "bridge", `"name":"team","type":"bridge","bridge":"x"`)).To(BeEmpty())
		Expect(refused(p, "portmap", `"name":"team","type":"portmap","runtimeConfig":
			{"portMappings":[{"hostPort":1,"containerPort":443,"protocol":"tcp"}]}`)).To(BeEmpty())
	})

	It("compares the addresses of a result before a chained plugin", func() {
		err := rules("").Check([]byte(`{"name":"team","type":"portmap","prevResult":{"cniVersion":"1.0.0",
			"ips":[{"address":"10.200.0.2/24"},{"address":"10.88.0.2/16"}],"routes":[{"dst":"0.0.0.0/0"}]}}`),
			policy.Call{Plugin: "portmap", Chained: true})
		Expect(err).To(MatchError(ContainSubstring(`prevResult.ips[1].address: "10.88.0.2/16" is not permitted`)))

		err = rules("").Check([]byte(`{"cniVersion":"1.0.0","name":"team","type":"portmap","PrevResult":{
			"cniVersion":"0.2.0","IP4":{"ip":"10.88.0.2/16"},"ip6":{"ip":"fd00:200::2/64","gateway":"fd00:1::1"}}}`),
			policy.Call{Plugin: "portmap", Chained: true})
		Expect(err).To(MatchError(And(ContainSubstring(`prevResult.ip4.ip: "10.88.0.2/16" is not permitted`),
			ContainSubstring(`prevResult.ip6.gateway: "fd00:1::1" is not permitted`))))
	})

	It("does not copy a long key for each value below it", Label("sizes"), func() {
		long := `"` + strings.Repeat("k", 1<<20) + `":[` + strings.Repeat(`{"mac":0,"ips":["x"]},`, 1<<12) + `0]`
		conf := []byte(`{` + tenant + `,"args":{` + long + `},"runtimeConfig":{` + long + `}}`)
		p := rules("")
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		list := cni.ProblemsOf(p.Check(conf, policy.Call{Plugin: "bridge"}))
		runtime.ReadMemStats(&after)
		Expect(after.TotalAlloc - before.TotalAlloc).To(BeNumerically("<", 256<<20))
		Expect(list[0].Key).To(And(HavePrefix("args.kkk"), HaveSuffix("kkk...")))
		Expect(len(list[0].Key)).To(BeNumerically("<", 1100))
	})

	It("leaves the result that CHECK of the plugin that made it has", func() {
		lent := `{"name":"team","type":"macvlan","master":"eth1","prevResult":{"cniVersion":"1.0.0",
			"ips":[{"address":"10.88.0.2/16"}]}}` // by a DHCP server
		Expect(rules("").Check([]byte(lent), policy.Call{Plugin: "macvlan"})).To(Succeed())
	})

	It("takes the device that multus adds to an entry if allowKeys has the key", func() {
		device := `"cniVersion":"1.0.0","name":"pods","deviceID":"0000:00:05.0","type":"bridge","bridge":"cni0",
			"ipam":{"type":"host-local","subnet":"10.88.0.0/16"}`
		Expect(refused(rules(""), "bridge", device)).NotTo(BeEmpty())
		Expect(refused(rules(`,"allowKeys":["deviceID"]`), "bridge", device)).To(BeEmpty())
	})

	It("compares the addresses of CNI_ARGS", func() {
		check := func(p *policy.Policy, args string) error {
			return p.Check([]byte("{"+tenant+"}"), policy.Call{Plugin: "bridge", Args: args})
		}
		Expect(check(rules(""), "IgnoreUnknown=1;ip=10.88.0.2")).To(
			MatchError(HavePrefix(`CNI_ARGS IP: "10.88.0.2" is not permitted by subnets of the policy`)))
		const mac = "MAC=02:00:00:00:00:01"
		Expect(check(rules(""), mac)).To(
			MatchError(HavePrefix(`CNI_ARGS MAC: "02:00:00:00:00:01" is not permitted by allowKeys of the policy`)))
		Expect(check(rules(`,"allowKeys":["mac"]`), mac)).To(Succeed())
	})

	DescribeTable("refuses every call where the file cannot be relied on", func(
		text string, mode os.FileMode, want string,
	) {
		file := filepath.Join(GinkgoT().TempDir(), "policy.json")
		Expect(os.WriteFile(file, []byte(text), 0o600)).To(Succeed())
		Expect(os.Chmod(file, mode)).To(Succeed())
		_, err := policy.Load(file, true)
		Expect(cni.AsError(err).Code).To(Equal(cni.CodeIO))
		Expect(err).To(MatchError(ContainSubstring(want)))
	},
		Entry("every user may write the file", `{}`, os.FileMode(0o666), "only root may write"),
		Entry("no JSON", `{`, os.FileMode(0o600), "unexpected EOF"),
		Entry("an unknown key", `{"bridge":["x"]}`, os.FileMode(0o600), `unknown field "bridge"`),
		Entry("a bad subnet", `{"subnets":["10.0.0.0"]}`, os.FileMode(0o600), `subnets: "10.0.0.0" is not a subnet`),
		Entry("a bad VLAN", `{"vlans":["4095"]}`, os.FileMode(0o600), `vlans: "4095" is not a VLAN`),
		Entry("a port above the last", `{"hostPorts":["65536"]}`, os.FileMode(0o600),
			`hostPorts: "65536" is not a port`),
		Entry("a bad port", `{"hostPorts":["9-8"]}`, os.FileMode(0o600), `hostPorts: "9-8" is not a port`),
		Entry("a key that is never refused", `{"allowKeys":["mtu"]}`, os.FileMode(0o600),
			`allowKeys: "mtu" is not a key`),
	)

	It("refuses every call where the file is a link to a missing one, and reads a file behind a link", func() {
		dir := GinkgoT().TempDir()
		link, file := filepath.Join(dir, "policy.json"), filepath.Join(dir, "file")
		Expect(os.Symlink(file, link)).To(Succeed())
		_, err := policy.Load(link, true)
		Expect(cni.AsError(err).Code).To(Equal(cni.CodeIO))
		Expect(os.WriteFile(file, []byte(`{"types":["bridge"]}`), 0o600)).To(Succeed())
		p, err := policy.Load(link, true)
		Expect(err).NotTo(HaveOccurred())
		Expect(p.Types).To(Equal([]string{"bridge"}))
	})

	It("refuses every call where the directory is a link to a missing one", func() {
		link := filepath.Join(GinkgoT().TempDir(), "hawser")
		Expect(os.Symlink("/nowhere", link)).To(Succeed())
		_, err := policy.Load(filepath.Join(link, "policy.json"), true)
		Expect(cni.AsError(err).Code).To(Equal(cni.CodeIO))
	})

	It("permits everything if there is no file", func() {
		p, err := policy.Load("/nowhere/policy.json", true)
		Expect(err).NotTo(HaveOccurred())
		Expect(p.Check([]byte(`{"type":"x"}`), policy.Call{})).To(Succeed())
	})
})
