package tuning

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/pkg/statefile"
	"github.com/hawser-cni/plugins/pkg/sysctl"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func TestTuning(t *testing.T) { nstest.RunSpecs(t, "tuning") }

const (
	firstMAC = "02:00:00:00:00:01"
	otherMAC = "02:00:00:00:00:02"
	// everything is a configuration that changes all values.
	everything = `"sysctl":{"net.ipv4.conf.IFNAME.arp_filter":"1","net.core.somaxconn":"77",` +
		`"net.ipv4.ip_local_port_range":"40000 50000"},` +
		`"mac":"02:00:00:00:00:02","promisc":true,"mtu":1400,"allmulti":true,"txQLen":55`
	untouched = firstMAC + " mtu 1500 txqlen 1000"
)

// world is a container with eth0, and directories for the plugin.
type world struct {
	*World
	cont  *nstest.Host
	dir   string // dataDir, which nobody has made yet
	allow string // the allow-list, absent
}

func newWorld() *world {
	GinkgoHelper()
	tmp := GinkgoT().TempDir()
	w := &world{cont: nstest.NewNetns(), dir: tmp + "/cni/tuning", allow: tmp + "/allowlist.conf"}
	w.World = NewWorld(plugin(allowList(w.allow)))
	w.link(w.cont, "eth0")
	return w
}

// link creates one end of a veth pair in a container, with firstMAC.
func (w *world) link(cont *nstest.Host, name string) {
	GinkgoHelper()
	IP(w.Host, "link add %s address %s netns %s type veth peer name to%s%s", name, firstMAC, cont.Name, cont.Name, name)
}

// call is a Call whose configuration has the keys. The value "none" means no namespace, or no prevResult.
type call struct {
	Call
	keys, network, version, prev string
}

func (w *world) call(c call) Call {
	GinkgoHelper()
	version := cmp.Or(c.version, "1.1.0")
	c.Netns = strings.TrimPrefix(cmp.Or(c.Netns, w.cont.Path), "none")
	conf := fmt.Sprintf(`{"cniVersion":%q,"name":%q,"type":"tuning"`, version, cmp.Or(c.network, "net1"))
	if !strings.Contains(c.keys, `"dataDir"`) {
		conf += fmt.Sprintf(`,"dataDir":%q`, w.dir)
	}
	if c.prev != "none" {
		conf += `,"prevResult":` + cmp.Or(c.prev, fmt.Sprintf(`{"cniVersion":%q,"interfaces":[{"name":"eth0"},`+
			`{"name":%q,"mac":%q,"sandbox":%q}]}`, version, cmp.Or(c.IfName, "eth0"), firstMAC, c.Netns))
	}
	if c.keys != "" {
		conf += "," + c.keys
	}
	c.Conf = conf + "}"
	return c.Call
}

func (w *world) run(command string, c call) Answer {
	GinkgoHelper()
	c.Command = command
	return w.Call(w.call(c))
}

// ok runs a call that must succeed.
func (w *world) ok(command string, c call) Answer {
	GinkgoHelper()
	a := w.run(command, c)
	Expect(a.Code).To(BeZero(), "%+v", a)
	return a
}

func (w *world) add(keys string) Answer {
	GinkgoHelper()
	return w.ok("ADD", call{keys: keys})
}

func (w *world) del(keys string) Answer {
	GinkgoHelper()
	a := w.ok("DEL", call{keys: keys, prev: "none"})
	Expect(a.Stdout).To(BeEmpty())
	return a
}

// state returns the container's interface as ip(8) prints it.
func state(h *nstest.Host, name string) string {
	GinkgoHelper()
	var links []struct {
		Address     string
		MTU, Txqlen int
		Flags       []string
	}
	h.JSON(&links, "ip", "-j", "-d", "link", "show", "dev", name)
	Expect(links).To(HaveLen(1))
	l := links[0]
	s := fmt.Sprintf("%s mtu %d txqlen %d", l.Address, l.MTU, l.Txqlen)
	for _, flag := range []string{"PROMISC", "ALLMULTI"} {
		if slices.Contains(l.Flags, flag) {
			s += " " + strings.ToLower(flag)
		}
	}
	return s
}

// values returns the values that specs change.
func (w *world) values() string {
	GinkgoHelper()
	s := state(w.cont, "eth0")
	for _, key := range []string{"net/core/somaxconn", "net/ipv4/ip_local_port_range",
		"net/ipv4/ip_local_reserved_ports"} {
		s += "\n" + key + "=" + w.cont.Sysctl(key)
	}
	return s
}

// files lists the files in dataDir, and the records as record/NAME, without locks.
func (w *world) files() []string {
	GinkgoHelper()
	var names []string
	list := func(dir, prefix string) {
		_ = filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
			if err == nil && !info.IsDir() && info.Name() != "lock" {
				name, _ := filepath.Rel(dir, path)
				names = append(names, prefix+name)
			}
			return nil
		})
	}
	w.Do(func() {
		list(w.dir, "")
		list(w.records(), "record/")
	})
	return names
}

// records returns the directory of the records.
func (w *world) records() string { return recordsIn(w.dir).Path }

// lock acquires the lock of the records.
func (w *world) lock() (held *statefile.Lock, info os.FileInfo) {
	GinkgoHelper()
	w.Do(func() {
		path := w.records() + "/lock"
		Expect(os.MkdirAll(w.records(), 0o700)).To(Succeed())
		held = nstest.Must(statefile.LockFile(GinkgoT().Context(), path, 0o600))
		info = nstest.Must(os.Stat(path))
	})
	return held, info
}

// record returns the path of the only record, in the host's mount namespace.
func (w *world) record() (path string) {
	GinkgoHelper()
	w.Do(func() {
		names := nstest.Must(filepath.Glob(w.records() + "/*.json"))
		Expect(names).To(HaveLen(1))
		path = names[0]
	})
	return path
}

// editRecord changes the text of the only record.
func (w *world) editRecord(change func(text string) string) {
	GinkgoHelper()
	path := w.record()
	w.Do(func() { put(path, change(string(nstest.Must(os.ReadFile(path))))) })
}

// expectRestored expects the values from before ADD, and no files.
func (w *world) expectRestored() {
	GinkgoHelper()
	Expect(w.values()).To(HavePrefix(untouched + "\nnet/core/somaxconn=4096"))
	Expect(w.files()).To(BeEmpty())
}

// backup returns the content of eth0's backup file.
func (w *world) backup() string {
	GinkgoHelper()
	data := nstest.Must(os.ReadFile(w.dir + "/one_eth0.json"))
	return string(data)
}

// put writes a file and creates its directory.
func put(path, content string) {
	GinkgoHelper()
	Expect(os.MkdirAll(filepath.Dir(path), 0o700)).To(Succeed())
	Expect(os.WriteFile(path, []byte(content), 0o600)).To(Succeed())
}

// replace is strings.Replace, and fails if it finds nothing.
func replace(text, old, with string) string {
	GinkgoHelper()
	Expect(text).To(ContainSubstring(old))
	return strings.Replace(text, old, with, 1)
}

func parseText(conf, args string) (config, error) {
	return skel.ConfigOf(wireConfig{}, parseConfig).Parse(&skel.Request{
		Attachment: cni.Attachment{Network: "net1", ContainerID: "c1", IfName: "eth0.5"},
		Conf:       []byte("{" + conf + "}"), Args: args,
	})
}

// render formats a configuration as one line, without unset keys.
func render(c config) string {
	var words []string
	word := func(format string, args ...any) { words = append(words, fmt.Sprintf(format, args...)) }
	for _, s := range c.Sysctls {
		word("%s=%s", strings.TrimPrefix(s.Key.Path(), "/proc/sys/net/"), s.Value)
	}
	for _, p := range c.Attributes {
		word("%s %s", p.Key, p.Value)
	}
	if c.DataDir != defaultDataDir {
		word("dataDir %s", c.DataDir)
	}
	return strings.Join(words, " ")
}

var _ = DescribeTable("the configuration", func(conf, args, want string) {
	c := nstest.Must(parseText(conf, args))
	Expect(render(c)).To(Equal(want))
},
	Entry("empty", ``, "", ""),
	Entry("all keys",
		`"sysctl":{"net.core.somaxconn":"1"},"mac":"02:AA:00:00:00:01","mtu":1400,"promisc":true,"allmulti":true,`+
			`"txQLen":5,"dataDir":"/d"`, "",
		"core/somaxconn=1 mac 02:aa:00:00:00:01 promisc true mtu 1400 allmulti true txQLen 5 dataDir /d"),
	Entry("all keys of args.cni",
		`"args":{"cni":{"sysctl":{"net.core.somaxconn":"1"},"mac":"02:AA:00:00:00:01","mtu":1400,"promisc":true,`+
			`"allmulti":true,"txQLen":5}}`, "",
		"core/somaxconn=1 mac 02:aa:00:00:00:01 promisc true mtu 1400 allmulti true txQLen 5"),
	Entry("args.cni over the top level",
		`"sysctl":{"net.a":"1","net.b":"2"},"mac":"02:00:00:00:00:01","mtu":1400,"promisc":true,
		"allmulti":true,"txQLen":5,
		"args":{"cni":{"sysctl":{"net.c":"3","net.a":"9"},"mac":"02:00:00:00:00:02","mtu":1300,
		"promisc":false,"allmulti":false,"txQLen":0}}`, "",
		"a=9 b=2 c=3 mac 02:00:00:00:00:02 mtu 1300 allmulti false txQLen 0"),
	Entry("args.cni takes back", `"mac":"02:00:00:00:00:01","mtu":1400,"args":{"cni":{"mac":"","mtu":0}}`, "", ""),
	Entry("any case of keys", `"MAC":"02:00:00:00:00:01","RuntimeConfig":{"Mac":"02:00:00:00:00:02"}`, "",
		"mac 02:00:00:00:00:02"),
	Entry("null",
		`"sysctl":null,"mac":null,"mtu":null,"promisc":null,"allmulti":null,"txQLen":null,"args":null,`+
			`"runtimeConfig":null`, "", ""),
	Entry("an InfiniBand address", `"mac":"00:00:00:00:fe:80:00:00:00:00:00:00:02:00:5e:10:00:00:00:01"`, "",
		"mac 00:00:00:00:fe:80:00:00:00:00:00:00:02:00:5e:10:00:00:00:01"),
	Entry("MAC of CNI_ARGS over mac", `"mac":"02:00:00:00:00:01"`, "MAC=02:00:00:00:00:02", "mac 02:00:00:00:00:02"),
	Entry("runtimeConfig over CNI_ARGS", `"mac":"02:00:00:00:00:01","runtimeConfig":{"mac":"02:00:00:00:00:03"}`,
		"MAC=02:00:00:00:00:02", "mac 02:00:00:00:00:03"),
	Entry("args.cni over runtimeConfig",
		`"mac":"02:00:00:00:00:01","runtimeConfig":{"mac":"02:00:00:00:00:03"},"args":{"cni":{"mac":`+
			`"02:00:00:00:00:04"}}`, "MAC=02:00:00:00:00:02", "mac 02:00:00:00:00:04"),
	Entry("empty ones say nothing", `"mac":"02:00:00:00:00:01","runtimeConfig":{"mac":""}`, "MAC=",
		"mac 02:00:00:00:00:01"),
	Entry("what others have in CNI_ARGS", ``, "IgnoreUnknown=1;K8S_POD_NAME=p;MAC=02:00:00:00:00:02",
		"mac 02:00:00:00:00:02"),
	Entry("sysctls in their order", `"sysctl":{"net.z":"1","net.a":"2","net.m":"3"}`, "", "z=1 a=2 m=3"),
	Entry("the interface's name", `"sysctl":{"net.ipv4.conf.IFNAME.arp_filter":"1","net/ipv6/conf/IFNAME/mtu":"2"}`, "",
		"ipv4/conf/eth0.5/arp_filter=1 ipv6/conf/eth0.5/mtu=2"),
	Entry("a name with a dot", `"sysctl":{"net.ipv4.conf.eth1/7.x":"1","net/ipv4/conf/eth1.8/x":"2"}`, "",
		"ipv4/conf/eth1.7/x=1 ipv4/conf/eth1.8/x=2"),
	Entry("one key in two spellings", `"sysctl":{"net.core.x":"1"},"args":{"cni":{"sysctl":{"net/core/x":"2"}}}`,
		"", "core/x=2"),
	Entry("an empty value", `"sysctl":{"net.core.x":""}`, "", "core/x="),
)

var _ = It("tells how to write a number of a sysctl", func() {
	_, err := parseText(`"sysctl":{"net.core.x":1,"net.core.y":null}`, "")
	Expect(cni.ProblemsOf(err)).To(HaveExactElements(HaveField("Suggestion", `write "1"`), HaveField("Suggestion", "")))
})

var _ = DescribeTable("is refused:", func(conf, args string, code uint, msg string) {
	_, err := parseText(conf, args)
	var e *cni.Error
	Expect(errors.As(err, &e)).To(BeTrue(), "%v", err)
	Expect(e.Code).To(Equal(code))
	Expect(e.Msg).To(Equal(msg))
},
	Entry("MAC of CNI_ARGS", ``, "MAC=x", cni.CodeEnvironment,
		`CNI_ARGS MAC: "x" is not a MAC address of an interface: it is not six bytes like 02:00:00:00:00:01`),
	Entry("mac below a good one", `"mac":"x","args":{"cni":{"mac":"02:00:00:00:00:01"}}`, "", cni.CodeConfig,
		`mac: "x" is not a MAC address of an interface: it is not six bytes like 02:00:00:00:00:01`),
	Entry("runtimeConfig.mac below a good one", `"runtimeConfig":{"mac":"x"},"args":{"cni":{"mac":""}}`, "",
		cni.CodeConfig,
		`runtimeConfig.mac: "x" is not a MAC address of an interface: it is not six bytes like 02:00:00:00:00:01`),
	Entry("a sysctl of args.cni twice", `"args":{"cni":{"sysctl":{"net.core.x":"1","net.core.x":"1"}}}`, "",
		cni.CodeConfig, `args.cni.sysctl["net.core.x"]: "1" is a duplicated value of "net.core.x"`),
	Entry("a sysctl in two spellings", `"sysctl":{"net.core.x":"1","net/core/x":"2"}`, "", cni.CodeConfig,
		`sysctl["net/core/x"]: "2" is a duplicated value of "net.core.x"`),
	Entry("a sysctl by the interface's name",
		`"sysctl":{"net.ipv4.conf.eth0/5.x":"1","net.ipv4.conf.IFNAME.x":"2"}`, "", cni.CodeConfig,
		`sysctl["net.ipv4.conf.IFNAME.x"]: "2" is a duplicated value of "net.ipv4.conf.eth0/5.x"`),
	Entry("a dotted way up", `"sysctl":{"net.//.kernel.domainname":"1"}`, "", cni.CodeConfig,
		`sysctl["net.//.kernel.domainname"]: "1" cannot be set: invalid sysctl key "net.//.kernel.domainname":`+
			` an element is empty, ".", ".." or has a NUL`),
	Entry("no JSON", `"mtu":`, "", cni.CodeDecode,
		`network configuration: invalid JSON at byte 8: invalid character '}' looking for beginning of value`),
)

var _ = It("is refused for everything that is wrong with it at once", func() {
	_, err := parseText(`"mac":"x","mtu":-1,"promisc":true,"sysctl":{"net.a":1,"net.b":"1","net.b":"2","kernel.x":`+
		`"3","net/a":{}},"args":{"cni":{"txQLen":-1,"sysctl":[]}}`, "IP=1")
	Expect(Problems(err)).To(ConsistOf(
		`7 mtu: -1 is not between 0 and 2147483647`,
		`7 args.cni.txQLen: -1 is not between 0 and 2147483647`,
		HavePrefix(`4 CNI_ARGS: unknown keys IP`),
		HavePrefix(`7 mac: "x" is not a MAC address`),
		`7 sysctl["net.a"]: 1 is not a string`,
		`7 sysctl["net.b"]: "2" is a duplicated value of "net.b"`,
		`7 sysctl["net/a"]: {} is not a string`,
		HavePrefix(`7 sysctl["kernel.x"]: "3" cannot be set: `),
		`7 args.cni.sysctl: is not an object of strings`))
})

var _ = It("has its schema in docs/schema", func() { ExpectPluginSchema(plugin(allowList(""))) })

var _ = Describe("the allow-list", func() {
	write := func(text string) allowList {
		GinkgoHelper()
		l := allowList(filepath.Join(GinkgoT().TempDir(), "allowlist.conf"))
		Expect(os.WriteFile(string(l), []byte(text), 0o644)).To(Succeed())
		return l
	}
	settings := func(keys ...string) (all []setting) {
		GinkgoHelper()
		for _, raw := range keys {
			key := nstest.Must(sysctl.Parse(raw))
			all = append(all, setting{Source: "sysctl", Raw: raw, Key: key, Value: "1"})
		}
		return all
	}

	DescribeTable("allows", func(text string, keys ...string) {
		Expect(write(text).check(settings(keys...))).To(Succeed())
	},
		Entry("a line's match", "^net\\.core\\.x$\n", "net.core.x"),
		Entry("any line's", "\n  ^net\\.core\\.x$  \r\n\n^net\\.core\\.y$", "net.core.y", "net.core.x"),
		Entry("a line without anchors anywhere in the key", "core.x", "net.core.xyz"),
		Entry("a line with one anchor", "^net.core", "net.core.x"),
		Entry("keys as written", "^net\\.ipv4\\.conf\\.IFNAME\\.[a-z_]*$", "net.ipv4.conf.IFNAME.arp_filter"),
		Entry("dots that match any separator", "^net.core.x$", "net/core/x"),
		Entry("what stands before a broken line", "core\n*", "net.core.x"),
		Entry("no keys at all", ""),
		Entry("no keys, with a broken line", "*"),
	)

	DescribeTable("forbids", func(text, key string) {
		err := write(text).check(settings(key))
		Expect(cni.AsError(err).Code).To(Equal(cni.CodeConfig))
		Expect(err).To(MatchError(HavePrefix("sysctl[" + strconv.Quote(key) + `]: "1": not allowed by `)))
	},
		Entry("all when it is empty", "", "net.core.x"),
		Entry("all when it is blank", "\n \n", "net.core.x"),
		Entry("what no line matches", "^net\\.core\\.y$", "net.core.x"),
		Entry("more than an anchored line says", "^net\\.core\\.x$", "net.core.xy"),
		Entry("what has an anchored line inside", "^net\\.core\\.x$", "net.core.net.core.x"),
		Entry("a line break around an anchored line", "^net\\.core\\.x$", "net.core.y\nnet.core.x"),
		Entry("what a comment does not mean", "# net.core.y", "net.core.x"),
	)

	It("that is not there allows everything", func() {
		l := allowList(filepath.Join(GinkgoT().TempDir(), "absent", "allowlist.conf"))
		Expect(l.check(settings("net.core.x"))).To(Succeed())
		Expect(l.verify()).To(Succeed())
	})

	DescribeTable("forbids everything if it cannot be read, because a link leads nowhere", func(link string) {
		path := filepath.Join(GinkgoT().TempDir(), "tuning", "allowlist.conf")
		Expect(os.MkdirAll(filepath.Dir(filepath.Join(path, "..", link)), 0o755)).To(Succeed())
		Expect(os.Symlink("nowhere", filepath.Join(path, "..", link))).To(Succeed())
		l := allowList(path)
		Expect(cni.AsError(l.check(settings("net.core.x"))).Code).To(Equal(cni.CodeIO))
		Expect(l.verify()).NotTo(Succeed())
	},
		Entry("the file", "allowlist.conf"),
		Entry("its directory", "../tuning"))

	It("with a broken line says which", func() {
		l := write("^net\\.core\\.y$\n*x\n(")
		err := l.check(settings("net.core.x"))
		Expect(cni.AsError(err).Code).To(Equal(cni.CodeConfig))
		Expect(err).To(MatchError(string(l) +
			": line \"*x\": error parsing regexp: missing argument to repetition operator: `*`"))
		Expect(l.verify()).To(MatchError(And(ContainSubstring(`"*x"`), ContainSubstring(`"("`))))
	})

	It("that cannot be read is an error", func() {
		l := allowList(GinkgoT().TempDir())
		err := l.check(settings("net.core.x"))
		Expect(cni.AsError(err).Code).To(Equal(cni.CodeIO))
		Expect(l.verify()).NotTo(Succeed())
		Expect(errors.Is(err, os.ErrNotExist)).To(BeFalse())
	})
})

// FuzzCall generates whole calls.
func FuzzCall(f *testing.F) {
	const prev = `"prevResult":{"cniVersion":"1.1.0","interfaces":[{"name":"veth1"},{"name":"eth0","mac":` +
		`"02:00:00:00:00:01","mtu":1500,"sandbox":"` +
		FuzzNetns + `"}],"ips":[{"address":"10.1.0.2/24","interface":1}],"dns":{}}`
	Fuzz{
		Plugin: plugin(allowList("/run/allowlist.conf")).Untyped(), Chained: true,
		Confs: []string{
			`{"cniVersion":"1.1.0","name":"net","type":"tuning","dataDir":"/run/tuning","sysctl":` +
				`{"net.ipv4.conf.IFNAME.arp_notify":"1","net/core/somaxconn":"500"},` +
				`"mac":"02:00:00:00:00:02","mtu":1400,"promisc":true,"allmulti":true,"txQLen":5,` +
				`"cni.dev/valid-attachments":[],` + prev + `}`,
			`{"cniVersion":"1.0.0","name":"net","dataDir":"/run/tuning","args":{"cni":{"sysctl":` +
				`{"net.ipv4.ip_local_port_range":"1024 2048"},"mac":"02-00-00-00-00-03","mtu":9000,"txQLen":0}},` +
				`"runtimeConfig":{"mac":"02:00:00:00:00:04"},` + prev + `}`,
			`{"cniVersion":"0.4.0","name":"net","dataDir":"/proc/1","promisc":true,` + prev + `}`,
			`{"name":"net","dataDir":"/run/tuning","sysctl":null,"prevResult":{"ip4":{"ip":"10.1.0.2/24"}}}`,
			`{"cniVersion":"1.1.0","name":"net","sySctl":{"kernel.panic":"1"},"cni.dev/valid-attachments":null}`,
		},
	}.Run(f)
}

// FuzzFiles damages the recorded values.
func FuzzFiles(f *testing.F) {
	const original = `{"mac":"02:00:00:00:00:01","promisc":false,"mtu":1500,"allmulti":false,"txQLen":1000}`
	Fuzz{
		Plugin: plugin(allowList("/run/allowlist.conf")).Untyped(), Chained: true,
		Confs: []string{`{"cniVersion":"1.1.0","name":"net","dataDir":"/run/tuning","mtu":1400,"mac":` +
			`"02:00:00:00:00:02","sysctl":{"net.core.somaxconn":"500"},` +
			`"cni.dev/valid-attachments":[{"containerID":"one","ifname":"eth0"}],"prevResult":{"cniVersion":"1.1.0",` +
			`"interfaces":[{"name":"eth0","sandbox":"` + FuzzNetns + `"}]}}`},
	}.RunFiles(f, "/run/tuning", original, ``, `{"mac":"x","mtu":-1,"txQLen":-1,"sysctl":{"../kernel/panic":"1"}}`,
		`[]`,
		`{"netns":{"device":1,"inode":1},"values":[{"key":"mtu","value":"-1","link":-1,`+
			`"for":[{"network":"net","containerID":"one","ifname":"eth0"}]}]}`,
		`{"changes":[{"network":"net","containerID":"one","ifname":"eth0","netns":{"device":1,"inode":1},`+
			`"values":[{"key":"mtu","value":"-1","link":-1},{"key":"net.core.somaxconn","value":"x"}]}]}`)
}
