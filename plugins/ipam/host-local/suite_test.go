package main

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func TestHostLocal(t *testing.T) { nstest.RunSpecs(t, "plugins/ipam/host-local") }

var _ = It("has its schema in docs/schema", func() {
	ExpectPluginSchema(plugin(), Object{"anyOf": []any{
		HasKey("ipam.subnet", Object{"type": "string"}),
		HasKey("ipam.ranges", Object{"type": "array", "minItems": 1}),
		HasKey("runtimeConfig.ipRanges", Object{"type": "array", "minItems": 1}),
		HasKey("capabilities.ipRanges", Object{"const": true}),
	}})
})

// network is a node with a data directory and the configuration of a network.
type network struct {
	*World
	dataDir string
	ipam    string // keys of ipam besides type and dataDir, as JSON
	keys    string // keys of the network, as JSON
	version string
}

const slash24 = `"ranges": [[{"subnet": "10.1.2.0/24"}]]`

func newNetwork(ipam string) network {
	GinkgoHelper()
	return networkIn(filepath.Join(GinkgoT().TempDir(), "networks"), ipam)
}

func networkIn(dataDir, ipam string) network {
	GinkgoHelper()
	return network{World: NewWorld(plugin()), dataDir: dataDir, ipam: ipam, version: "1.1.0"}
}

// tmpfs mounts a file system that a network may have its directory on. It must
// come before the network.
func tmpfs(flags uintptr, options string) string {
	GinkgoHelper()
	dir := GinkgoT().TempDir()
	if err := unix.Mount("none", dir, "tmpfs", flags, options); err != nil {
		Skip("tmpfs: " + err.Error())
	}
	DeferCleanup(unix.Unmount, dir, 0)
	return dir
}

// with is the network with more keys.
func (n network) with(keys string) network {
	n.keys += keys + ", "
	return n
}

func (n network) call(command, id string) Call {
	ipam := fmt.Sprintf(`{"type": "host-local", "dataDir": %q`, n.dataDir)
	if n.ipam != "" {
		ipam += ", " + n.ipam
	}
	conf := fmt.Sprintf(`{"cniVersion": %q, "name": "net", "type": "bridge", %s"ipam": %s}}`, n.version, n.keys, ipam)
	return Call{Command: command, ID: id, Netns: "/not/looked/at", Conf: conf}
}

// add are ADDs that must succeed. It returns the addresses.
func (n network) add(ids ...string) (list []string) {
	GinkgoHelper()
	for _, id := range ids {
		list = append(list, addresses(n.Add(n.call("ADD", id)))...)
	}
	return list
}

func addresses(r Result) (list []string) {
	for _, ip := range r.IPs {
		addr, _, _ := strings.Cut(ip.Address, "/")
		list = append(list, addr)
	}
	return list
}

func (n network) succeeds(command string, ids ...string) {
	GinkgoHelper()
	for _, id := range ids {
		n.Succeeds(n.call(command, id))
	}
}

// fails is a call that must fail with a code. It returns the message.
func (n network) fails(command, id string, code uint) string {
	GinkgoHelper()
	message, _, _ := strings.Cut(n.Fails(n.call(command, id), code), "\n")
	return message
}

// gc is a GC with a list of container IDs whose eth0 is valid.
func (n network) gc(valid ...string) {
	GinkgoHelper()
	list := []Object{}
	for _, id := range valid {
		list = append(list, Object{"containerID": id, "ifname": "eth0"})
	}
	n.with(`"cni.dev/valid-attachments": `+Text(list)).succeeds("GC", "")
}

// dice is a source of random numbers, and what it began with.
func dice() (*rand.Rand, uint64) {
	seed := uint64(GinkgoRandomSeed())
	return rand.New(rand.NewPCG(seed, seed)), seed
}

func (n network) dir() string { return filepath.Join(n.dataDir, "net") }

func (n network) path(name string) string { return filepath.Join(n.dir(), name) }

// write puts a file into the lease directory as others do.
func (n network) write(name, content string) {
	GinkgoHelper()
	Expect(os.MkdirAll(n.dir(), 0o755)).To(Succeed())
	Expect(os.WriteFile(n.path(name), []byte(content), 0o600)).To(Succeed())
}

// leases reads the directory in the plainest way: name -> content.
func (n network) leases() map[string]string {
	GinkgoHelper()
	m := map[string]string{}
	list, err := os.ReadDir(n.dir())
	if os.IsNotExist(err) {
		return m
	}
	Expect(err).NotTo(HaveOccurred())
	for _, e := range list {
		if e.Name() == "lock" || strings.HasPrefix(e.Name(), "last_reserved_ip.") {
			continue
		}
		m[e.Name()] = string(nstest.Must(os.ReadFile(n.path(e.Name()))))
	}
	return m
}

// beLeases matches leases of exactly these files.
func beLeases(names ...string) OmegaMatcher {
	return WithTransform(func(m map[string]string) []string { return slices.Collect(maps.Keys(m)) }, ConsistOf(names))
}

func addrs(list ...string) []netip.Addr {
	var out []netip.Addr
	for _, s := range list {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

func modTime(path string) time.Time {
	GinkgoHelper()
	return nstest.Must(os.Stat(path)).ModTime()
}

// flock takes a lock as another program would.
func flock(path string) (release func()) {
	GinkgoHelper()
	f := nstest.Must(os.OpenFile(path, os.O_RDONLY|os.O_CREATE, 0o750))
	Expect(unix.Flock(int(f.Fd()), unix.LOCK_EX)).To(Succeed())
	return func() { f.Close() }
}
