package load_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containernetworking/cni/libcni"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

const (
	callers   = 4 // of plugins at the same time
	connected = 20
	churned   = 8 // pods that start and stop
)

// scripts/upgrade-under-load.sh sets HAWSER_FORMER, a list of NAME=DIRECTORY of the plugins that a node has at first.
var _ = Describe("a node with live attachments, whose plugins are replaced under load", Label("upgrade-load"), func() {
	for _, former := range strings.Fields(os.Getenv("HAWSER_FORMER")) {
		name, dir, _ := strings.Cut(former, "=")
		It("changes from "+name+" to this build and back, and no connection breaks", func() {
			count := nstest.Must(strconv.Atoi(os.Getenv("HAWSER_ATTACHMENTS")))
			newUpgraded(name, dir, count).run()
		})
	}
})

// upgraded is a node with two networks.
type upgraded struct {
	*nstest.Host
	outside  *nstest.Host
	name     string
	former   string // directory of the plugins that the node had
	bin      string // directory of the node's plugins
	cni      *libcni.CNIConfig
	networks []*libcni.NetworkConfigList
	live     []*attachment
	streams  []*nstest.Stream
	calls    atomic.Int64
	began    time.Time
}

// attachment is a pod of one of the networks, with a host port.
type attachment struct {
	*nstest.Host
	network int
	port    int
	rt      *libcni.RuntimeConf
}

func newUpgraded(name, former string, count int) *upgraded {
	GinkgoHelper()
	nstest.Need("iptables", "tbf")
	u := &upgraded{Host: nstest.NewHost(), name: name, former: former, bin: GinkgoT().TempDir(), began: time.Now()}
	u.outside = nstest.NewOutside(u.Host)
	u.copy(former)
	u.cni = libcni.NewCNIConfigWithCacheDir([]string{u.bin}, "/var/lib/cni", nil)
	u.configure("")
	for i := range count {
		u.live = append(u.live, newAttachment(i))
	}
	return u
}

func newAttachment(i int) *attachment {
	GinkgoHelper()
	a := &attachment{Host: nstest.NewNetns(), network: i % 2, port: 10000 + i}
	a.SetSysctl("net/ipv6/conf/default/accept_dad", "0")
	a.rt = &libcni.RuntimeConf{ContainerID: fmt.Sprint("pod", i), NetNS: a.Path, IfName: "eth0",
		CapabilityArgs: map[string]any{"portMappings": []Object{
			{"hostPort": a.port, "containerPort": 80, "protocol": "tcp"},
			{"hostPort": a.port + 20000, "containerPort": 81, "protocol": "tcp"}}}}
	return a
}

// copy installs the plugins of a directory as an administrator does.
func (u *upgraded) copy(from string) {
	GinkgoHelper()
	for _, file := range nstest.Must(os.ReadDir(from)) {
		data, err := os.ReadFile(filepath.Join(from, file.Name()))
		if err != nil { // a directory
			continue
		}
		Expect(os.WriteFile(u.bin+"/.new", data, 0o755)).To(Succeed())
		Expect(os.Rename(u.bin+"/.new", filepath.Join(u.bin, file.Name()))).To(Succeed())
	}
}

// configure writes the lists, without backends or with the same one in all plugins.
func (u *upgraded) configure(backend string) {
	GinkgoHelper()
	u.networks = nil
	limits := Object{"ingressRate": 800000000, "ingressBurst": 8000000}
	for i, last := range []Step{{Plugin: "bandwidth", Keys: limits},
		{Plugin: "tuning", Keys: Object{"sysctl": Object{"net.ipv4.conf.eth0.arp_filter": "1"}}}} {
		list := append(Usual(backend).Only("bridge", "portmap", "firewall").With("bridge", Object{
			"bridge": fmt.Sprint("cni", i), "hairpinMode": true,
			"ipam": HostLocal(fmt.Sprintf("10.88.%d.0/24", i), fmt.Sprintf("fd00:88:%d::/64", i))}).
			With("firewall", Object{"ingressPolicy": nil}), last)
		u.networks = append(u.networks, confList(fmt.Sprint("net", i), list).NetworkConfigList)
	}
}

func (u *upgraded) run() {
	GinkgoHelper()
	for i := range u.networks {
		a := newAttachment(9000 + i)
		u.must("ADD", a)
		u.must("DEL", a)
	}
	before := u.state()
	u.each(u.live, func(a *attachment) { u.must("ADD", a) })
	for _, a := range u.live {
		a.Serve("tcp4", ":80")
	}
	u.works("attached")
	for _, a := range u.live[:min(connected, len(u.live))] {
		u.streams = append(u.streams, nstest.OpenStream(a.Host, u.outside,
			fmt.Sprint("192.0.2.1:", a.port+20000), 10*time.Millisecond))
	}
	u.say(fmt.Sprint(len(u.live), " attachments of ", u.name))

	u.underLoad("upgrade", func() { u.Cmd(nstest.Build("hawser"), "install", "--to", u.bin) })
	u.each(u.live, func(a *attachment) { u.must("CHECK", a) })
	u.works("upgraded")

	u.configure("iptables") // "Going back" in docs/install.md
	restarted := u.live[len(u.live)/2:]
	u.each(restarted, func(a *attachment) {
		u.must("DEL", a)
		u.must("ADD", a)
		u.must("CHECK", a)
	})
	u.say(fmt.Sprint(len(restarted), " attachments restarted by this build"))
	u.works("restarted")

	u.underLoad("downgrade", func() {
		if u.isHawser() { // uninstall does not bring back a former version
			u.copy(u.former)
		}
		u.Cmd(nstest.Build("hawser"), "uninstall", "--to", u.bin)
	})
	u.expectFormer()
	u.works("downgraded")
	for i, s := range u.streams {
		Expect(s.Err()).NotTo(HaveOccurred(), u.live[i].rt.ContainerID)
	}
	u.say("downgraded")
	u.each(u.live, func(a *attachment) { u.must("DEL", a) })
	u.expectAsBefore(before)
}

// expectFormer compares the plugins with those that the node had.
func (u *upgraded) expectFormer() {
	GinkgoHelper()
	u.Cmd("diff", "-r", u.former, u.bin)
}

// expectAsBefore expects that nothing is left of any attachment except records, and that the node is as it was after
// the commands of "Going back" in docs/install.md, which remove shared objects.
func (u *upgraded) expectAsBefore(before []string) {
	GinkgoHelper()
	isRecord := func(line string) bool { return strings.HasPrefix(line, "/run/hawser/") }
	Eventually(func() []string { // the kernel removes links with their namespaces
		return slices.DeleteFunc(Leftovers(u.Host), isRecord)
	}).Should(BeEmpty())
	fmt.Printf("== %s: %d records are left\n", u.name, len(Leftovers(u.Host)))
	if u.isHawser() { // it continues with the same table
		return
	}
	page := string(nstest.Must(os.ReadFile(filepath.Join(nstest.Root(), "docs", "install.md"))))
	commands := regexp.MustCompile("(?s)remove what .*?```sh\n(.*?)```").FindStringSubmatch(page)
	Expect(commands).NotTo(BeEmpty())
	u.Cmd("sh", "-ec", commands[1])
	after := u.state()
	Expect(nstest.Missing(after, before)).To(BeEmpty(), "left behind")
	Expect(nstest.Missing(before, after)).To(BeEmpty(), "lost")
}

func (u *upgraded) isHawser() bool { return strings.HasPrefix(u.name, "hawser") }

var unimportant = regexp.MustCompile(`(?m)^.*(/lock|/\.hawser/.*|last_reserved_ip.*|/failures/.*)\n`)

// state returns everything on the node that attachments could leave, as lines: of Snapshot, and paths of files.
func (u *upgraded) state() []string {
	GinkgoHelper()
	files := u.Run(nstest.Program{Path: "find", Args: []string{
		"/run/hawser", "/run/cni", "/var/lib/cni", "-type", "f"}})
	return slices.Collect(strings.Lines(u.Snapshot() + unimportant.ReplaceAllString(files.Stdout, "")))
}

// underLoad changes the plugins while pods come and go.
func (u *upgraded) underLoad(what string, change func()) {
	GinkgoHelper()
	var changed atomic.Bool
	var turns sync.WaitGroup // all have called the former plugins
	turns.Add(churned)
	calls := u.calls.Load()
	var all []*attachment
	for i := range churned {
		all = append(all, newAttachment(5000+i))
	}
	nstest.AtOnce(churned+1, func(i int) {
		if i == churned {
			turns.Wait()
			began := time.Now()
			change()
			fmt.Printf("== %s: %s: the %s took %s\n", time.Now().Format(time.TimeOnly), u.name, what,
				time.Since(began).Round(time.Millisecond))
			changed.Store(true)
			return
		}
		called := sync.OnceFunc(turns.Done)
		defer called() // also if a call fails
		for n := 0; n < 2; n++ {
			isNew := changed.Load()
			u.must("ADD", all[i])
			u.must("DEL", all[i])
			called()
			if !isNew {
				n = -1
			}
		}
	})
	u.say(fmt.Sprintf("%d calls during the %s", u.calls.Load()-calls, what))
}

// each calls do for all attachments, for some of them in parallel.
func (u *upgraded) each(all []*attachment, do func(a *attachment)) {
	GinkgoHelper()
	var next atomic.Int64
	nstest.AtOnce(callers, func(int) {
		for i := next.Add(1); i <= int64(len(all)); i = next.Add(1) {
			do(all[i-1])
		}
	})
}

func (u *upgraded) must(command string, a *attachment) {
	GinkgoHelper()
	list, ctx := u.networks[a.network], context.Background()
	var err error
	u.Do(func() {
		switch command {
		case "ADD":
			_, err = u.cni.AddNetworkList(ctx, list, a.rt)
		case "CHECK":
			err = u.cni.CheckNetworkList(ctx, list, a.rt)
		case "DEL":
			err = u.cni.DelNetworkList(ctx, list, a.rt)
		}
	})
	u.calls.Add(1)
	Expect(err).NotTo(HaveOccurred(), "%s of %s", command, a.rt.ContainerID)
}

// works checks that each live attachment is reached through its host port, and reaches the outside.
func (u *upgraded) works(when string) {
	GinkgoHelper()
	outside := u.outside.Serve("tcp4", "192.0.2.2:0")
	u.each(u.live, func(a *attachment) {
		port := fmt.Sprint("192.0.2.1:", a.port)
		Expect(u.outside.Ask("tcp4", port)).Error().NotTo(HaveOccurred(), "%s: %s: host port", when, a.rt.ContainerID)
		Expect(a.Ask("tcp4", outside)).To(HavePrefix("192.0.2.1:"), "%s: %s: masquerade", when, a.rt.ContainerID)
	})
}

func (u *upgraded) say(what string) {
	pause := time.Duration(0)
	broken := 0
	for _, s := range u.streams {
		pause = max(pause, s.Longest())
		if s.Err() != nil {
			broken++
		}
	}
	fmt.Printf("== %s: %s: %s; %d calls so far; %d connections, %d broken, longest wait %s; %s\n",
		time.Now().Format(time.TimeOnly), u.name, what, u.calls.Load(), len(u.streams), broken,
		pause.Round(time.Millisecond), time.Since(u.began).Round(time.Second))
}
