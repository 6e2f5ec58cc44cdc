package main

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func TestBandwidth(t *testing.T) { nstest.RunSpecs(t, "plugins/meta/bandwidth") }

var _ = It("has its schema in docs/schema", func() { ExpectPluginSchema(plugin()) })

// FuzzCall makes up whole calls.
func FuzzCall(f *testing.F) {
	const prev = `"prevResult":{"cniVersion":"1.1.0","interfaces":[{"name":"peer0"},{"name":"eth0","mac":` +
		`"02:00:00:00:00:01","sandbox":"` + FuzzNetns + `"}],"ips":[{"address":"10.1.0.2/24","interface":1}],"dns":{}}`
	Fuzz{
		Plugin: Any(plugin()), Chained: true,
		Confs: []string{
			`{"cniVersion":"1.1.0","name":"net","ingressRate":8000000,"ingressBurst":800000,"egressRate":16000000,` +
				`"egressBurst":1600000,"cni.dev/valid-attachments":[],` + prev + `}`,
			`{"cniVersion":"1.0.0","name":"net","burst":"literal","runtimeConfig":{"bandwidth":{"ingressRate":8,` +
				`"ingressBurst":34359738359,"egressRate":9000000000000000000,"egressBurst":4294967295}},` + prev + `}`,
			`{"cniVersion":"0.4.0","name":"net","egressRate":1000000,"egressBurst":2147483647,` + prev + `}`,
			`{"name":"net","ingressRate":0,"prevResult":{"ip4":{"ip":"10.1.0.2/24"}}}`,
		},
	}.Run(f)
}

// world is a host with a container, which has eth0.
type world struct {
	*World
	cont *nstest.Host
}

func newWorld() *world {
	GinkgoHelper()
	nstest.Need("tbf", "ifb")
	nstest.NeedProgram("tc")
	w := &world{World: NewWorld(plugin()), cont: nstest.NewNetns()}
	w.wire("eth0", 1)
	return w
}

// wire gives the container an interface: the host end has 10.N.0.1 and fd00:N::1, the
// container 10.N.0.2 and fd00:N::2.
func (w *world) wire(ifName string, n int) {
	GinkgoHelper()
	addrs := func(i int) []string {
		return []string{fmt.Sprintf("10.%d.0.%d/24", n, i), fmt.Sprintf("fd00:%d::%d/64", n, i)}
	}
	nstest.Wire(nstest.End{Host: w.Host, Name: "host-" + ifName, Addrs: addrs(1)},
		nstest.End{Host: w.cont, Name: ifName, Addrs: addrs(2)})
}

const (
	in      = `"ingressRate": 8000000, "ingressBurst": 800000`
	out     = `"egressRate": 16000000, "egressBurst": 1600000`
	both    = in + ", " + out
	refName = "bwp623e1c388032" // the reference's for network "net" and container "c1"
)

// call is a call for eth0 of container c1 with these keys.
func (w *world) call(command string, keys ...string) Call {
	GinkgoHelper()
	return w.callFor("eth0", command, keys...)
}

func (w *world) callFor(ifName, command string, keys ...string) Call {
	GinkgoHelper()
	return Call{Command: command, ID: "c1", IfName: ifName, Netns: w.cont.Path, Conf: conf("1.1.0", append(keys,
		fmt.Sprintf(`"prevResult": {"cniVersion": "1.1.0", "interfaces": [{"name": "host-%s", "mac": %q}, {"name": %q,
			"sandbox": %q}]}`, ifName, Show(w.Host, "host-"+ifName).Address, ifName, w.cont.Path))...)}
}

func conf(version string, keys ...string) string {
	keys = slices.DeleteFunc(append([]string{fmt.Sprintf(`"cniVersion": %q, "name": "net", "type": "bandwidth"`,
		version)},
		keys...), func(s string) bool { return s == "" })
	return "{" + strings.Join(keys, ", ") + "}"
}

// state is all that limits something on the host, without what differs from time to time.
func (w *world) state() string {
	GinkgoHelper()
	return w.tc("host-eth0") + w.Cmd("ip", "-br", "link", "show", "type", "ifb") + w.Snapshot("links", "sysctls")
}

// queues are as many as the machine has processors.
var queues = regexp.MustCompile(` refcnt \d+`)

// tc is what tc(8) says of a link, and of the IFBs.
func (w *world) tc(name string) string {
	GinkgoHelper()
	lines := strings.Split(w.Cmd("tc", "qdisc", "show", "dev", name), "\n")
	lines = append(lines, strings.Split(w.Cmd("tc", "filter", "show", "dev", name, "parent", "ffff:"), "\n")...)
	for _, ifb := range Names(w.Host, "ifb") {
		lines = append(lines, ifb+": "+w.Cmd("tc", "qdisc", "show", "dev", ifb))
	}
	var all strings.Builder
	for _, l := range lines {
		if words := strings.Fields(l); len(words) > 0 && words[0] != "index" { // of actions
			all.WriteString(queues.ReplaceAllString(strings.Join(words, " "), "") + "\n")
		}
	}
	return all.String()
}

// talks tells whether container and host reach each other. What either remembers of a time
// when they did not is forgotten.
func (w *world) talks() bool {
	GinkgoHelper()
	IP(w.Host, "neigh flush all")
	IP(w.cont, "neigh flush all")
	return Ping(w.cont, "10.1.0.1")
}

// isCutOff tells whether the host answers nothing within a second.
func (w *world) isCutOff() bool {
	GinkgoHelper()
	return w.cont.Run(nstest.Program{Path: "ping", Args: []string{"-c1", "-w1", "-n", "10.1.0.1"}}).Exit != 0
}

// alias is that of a link.
func (w *world) alias(name string) string {
	GinkgoHelper()
	return Show(w.Host, name).Ifalias
}

// object is JSON text as an object.
func object(text string) (o Object) {
	GinkgoHelper()
	Expect(json.Unmarshal([]byte(text), &o)).To(Succeed())
	return o
}
