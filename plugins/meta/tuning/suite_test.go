package main

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func TestTuning(t *testing.T) { nstest.RunSpecs(t, "tuning") }

const (
	firstMAC = "02:00:00:00:00:01"
	otherMAC = "02:00:00:00:00:02"
	// everything changes what can be changed.
	everything = `"sysctl":{"net.ipv4.conf.IFNAME.arp_filter":"1","net.core.somaxconn":"77",` +
		`"net.ipv4.ip_local_port_range":"40000 50000"},` +
		`"mac":"02:00:00:00:00:02","promisc":true,"mtu":1400,"allmulti":true,"txQLen":55`
	untouched = firstMAC + " mtu 1500 txqlen 1000"
)

// world has a container with eth0, and directories for the plugin.
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

// link makes a veth's end in a container, with firstMAC.
func (w *world) link(cont *nstest.Host, name string) {
	GinkgoHelper()
	IP(w.Host, "link add %s address %s netns %s type veth peer name to%s%s", name, firstMAC, cont.Name, cont.Name, name)
}

// call is a Call whose configuration has the keys; "none" is no namespace, or no prevResult.
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

// ok is run for a call that must succeed.
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

// state is ip(8)'s view of a container's interface.
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

// values are those that specs change.
func (w *world) values() string {
	GinkgoHelper()
	s := state(w.cont, "eth0")
	for _, key := range []string{"net/core/somaxconn", "net/ipv4/ip_local_port_range",
		"net/ipv4/ip_local_reserved_ports"} {
		s += "\n" + key + "=" + w.cont.Sysctl(key)
	}
	return s
}

// files lists what is in dataDir, without the lock.
func (w *world) files() []string {
	GinkgoHelper()
	var names []string
	_ = filepath.Walk(w.dir, func(path string, info os.FileInfo, err error) error {
		if err == nil && !info.IsDir() && info.Name() != "lock" {
			name, _ := filepath.Rel(w.dir, path)
			names = append(names, name)
		}
		return nil
	})
	return names
}

// record is the path of the one record.
func (w *world) record() string {
	GinkgoHelper()
	names := nstest.Must(filepath.Glob(w.dir + "/.hawser/*.json"))
	Expect(names).To(HaveLen(1))
	return names[0]
}

// backup is the content of eth0's backup file.
func (w *world) backup() string {
	GinkgoHelper()
	data := nstest.Must(os.ReadFile(w.dir + "/one_eth0.json"))
	return string(data)
}

// put writes a file, and its directory.
func put(path, content string) {
	GinkgoHelper()
	Expect(os.MkdirAll(filepath.Dir(path), 0o700)).To(Succeed())
	Expect(os.WriteFile(path, []byte(content), 0o600)).To(Succeed())
}

// replace is strings.Replace that must find something.
func replace(text, old, with string) string {
	GinkgoHelper()
	Expect(text).To(ContainSubstring(old))
	return strings.Replace(text, old, with, 1)
}
