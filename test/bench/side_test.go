package bench

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

// side is a host with one of the directories, for one scenario.
type side struct {
	*nstest.Host
	*plugins
	pod     *pod
	crowd   []object // the attachments of the other pods
	fresh   int      // number of the last pod that was made for one ADD
	devices bool     // each pod has a device of the host for it to take

	disk, canary string
	netns        []*nstest.Host
	daemons      []*exec.Cmd
}

// pod is a container whose attachment is measured.
type pod struct {
	id, ifName     string
	ns             *nstest.Host
	port           int
	before, result json.RawMessage // of the plugin before those that are measured, and of the last
}

const (
	network = "bench"
	uplink  = "up0" // an interface that plugins' interfaces can be on
)

// open makes the host, with /var/lib/cni on disk.
func (s *side) open(work, canary string) {
	GinkgoHelper()
	var err error
	s.disk, err = os.MkdirTemp(work, "host-")
	Expect(err).NotTo(HaveOccurred())
	s.Host, s.canary = nstest.NewHost(), canary
	s.Cmd("mount", "--bind", s.disk, "/var/lib/cni")
	s.IP("link add "+uplink+" up type veth peer name far0", "link set far0 up")
	// What the namespace takes along when it is really gone.
	Expect(exec.Command("ip", "link", "add", canary, "type", "veth", "peer", "name", "canary", "netns",
		s.Name).Run()).To(Succeed())
}

// close ends the host and waits until the kernel has taken its links away, which
// would slow down whoever comes next.
func (s *side) close() {
	GinkgoHelper()
	for _, d := range s.daemons {
		_ = d.Process.Kill()
		_ = d.Wait()
	}
	for _, h := range append(s.netns, s.Host) {
		h.Unpin()
	}
	Eventually(func() error { _, err := net.InterfaceByName(s.canary); return err }).
		WithTimeout(time.Minute).Should(HaveOccurred(), "the kernel still holds the host's network")
	Expect(os.RemoveAll(s.disk)).To(Succeed())
}

func (s *side) config(st step, verb string, p *pod, prev json.RawMessage) object {
	conf := plugintest.Merge(object{"cniVersion": s.versions[len(s.versions)-1], "name": network, "type": st.plugin},
		st.conf(p.port))
	switch {
	case verb == "GC":
		conf["cni.dev/valid-attachments"] = append([]object{p.attachment()}, s.crowd...)
	case prev != nil && verb != "STATUS" && verb != "VERSION":
		conf["prevResult"] = prev
	}
	return conf
}

func (p *pod) attachment() object { return object{"containerID": p.id, "ifname": p.ifName} }

// serve has the plugins of a chain serve a verb as a runtime would. Each call is
// handed to one, which returns the result.
func (s *side) serve(steps []step, verb string, p *pod, one func(call) (json.RawMessage, error)) error {
	if verb == "DEL" {
		steps = slices.Clone(steps)
		slices.Reverse(steps)
	}
	prev := p.result
	if verb == "ADD" {
		prev = p.before
	}
	for _, st := range steps {
		result, err := one(call{verb: verb, plugin: st.plugin, id: p.id, ifName: p.ifName, ns: p.ns.Path,
			conf: s.config(st, verb, p, prev)})
		if err != nil {
			return err
		}
		if verb == "ADD" {
			prev = result
		}
	}
	if verb == "ADD" {
		p.result = prev
	}
	return nil
}

// timed serves a verb on the calling thread and adds up what the calls took.
func (s *side) timed(steps []step, verb string, p *pod) (sum spent, err error) {
	err = s.serve(steps, verb, p, func(c call) (json.RawMessage, error) {
		one, err := c.timed(s.plugins)
		sum.wall += one.wall
		sum.cpu += one.cpu
		return one.result, err
	})
	return sum, err
}

// prepare brings the side to where the scenario begins, with the pod that is measured.
func (s *side) prepare(sc *scenario) {
	s.reserve(sc.reserved)
	if sc.others > 0 {
		s.populate(sc)
	}
	if sc.daemon { // and a DHCP server on the bridge
		s.IP("link add cni0 type bridge", "addr add 10.22.0.1/16 dev cni0", "link set cni0 up")
		s.daemons = []*exec.Cmd{plugintest.ServeDHCP(s.Host, "cni0", "10.22.1.1,10.22.1.250"),
			plugintest.DHCPDaemon(s.Host, s.dir)}
	}
	s.devices = sc.steps[0].plugin == "host-device"
	var err error
	s.pod, err = s.attached(sc, 0)
	Expect(err).NotTo(HaveOccurred(), s.name)
}

// attached makes pod number i, with what comes before the scenario's plugins.
func (s *side) attached(sc *scenario, i int) (p *pod, err error) {
	GinkgoHelper()
	p = s.newPod(i)
	if sc.before != nil {
		s.Do(func() { _, err = s.timed(sc.before, "ADD", p) })
	}
	p.before = p.result
	return p, err
}

// renew puts another pod into the place of the one, before an ADD of a scenario that wants it.
func (s *side) renew(sc *scenario, verb string) (err error) {
	if !sc.fresh || verb != "ADD" {
		return nil
	}
	s.pod.result = s.pod.before
	s.Do(func() { _, err = s.timed(sc.before, "DEL", s.pod) })
	s.pod.ns.Unpin()
	if err == nil {
		s.fresh++
		s.pod, err = s.attached(sc, s.fresh)
	}
	return err
}

// newPod makes pod number i, and publishes its ports from a place of its own.
func (s *side) newPod(i int) *pod {
	GinkgoHelper()
	p := &pod{id: fmt.Sprintf("%064x", i+1), ifName: "eth0", ns: nstest.NewNetns(), port: 8000 + i}
	s.netns = append(s.netns, p.ns)
	if s.devices {
		name := deviceName(p.port)
		s.IP("link add "+name+" type veth peer name "+name+"p", "link set "+name+" up", "link set "+name+"p up")
	}
	return p
}

// reserve writes reservations as host-local keeps them.
func (s *side) reserve(n int) {
	if n == 0 {
		return
	}
	dir := filepath.Join(s.disk, "networks", network)
	Expect(os.MkdirAll(dir, 0o755)).To(Succeed())
	last := ""
	for i := range n {
		last = fmt.Sprintf("10.22.%d.%d", (i+2)>>8, (i+2)&255)
		owner := fmt.Sprintf("%064x\r\neth0", 1<<20+i)
		s.crowd = append(s.crowd, object{"containerID": owner[:64], "ifname": "eth0"})
		if err := os.WriteFile(filepath.Join(dir, last), []byte(owner), 0o600); err != nil {
			Fail(err.Error())
		}
	}
	Expect(os.WriteFile(filepath.Join(dir, "last_reserved_ip.0"), []byte(last), 0o600)).To(Succeed())
}

// copied is a directory of programs, copied several times into a new one. The first start of a file that was
// just written takes several times as long as those that follow, so each is started once.
func copied(name, from, work string, copies int) *plugins {
	GinkgoHelper()
	p := &plugins{name: name}
	for i := range copies {
		p.copies = append(p.copies, filepath.Join(work, strconv.Itoa(i)))
		Expect(os.CopyFS(p.copies[i], os.DirFS(from))).To(Succeed(), name)
		p.turn(i)
		programs, err := os.ReadDir(p.dir)
		Expect(err).NotTo(HaveOccurred(), name)
		for _, program := range programs {
			_, _ = call{verb: "VERSION", plugin: program.Name()}.timed(p) // not all know it
		}
	}
	p.turn(0)
	return p
}

// open is copied for a directory of plugins, and looks at them.
func open(name, from, work string, copies int) *plugins {
	GinkgoHelper()
	p := copied(name, from, work, copies)
	program, err := os.ReadFile(filepath.Join(p.dir, "bridge"))
	Expect(err).NotTo(HaveOccurred(), name)
	// A plugin ignores keys that it does not know.
	p.nft = bytes.Contains(program, []byte("ipMasqBackend"))
	answer, err := call{verb: "VERSION", plugin: "bridge", conf: object{"cniVersion": "1.0.0"}}.timed(p)
	Expect(err).NotTo(HaveOccurred(), name)
	var v struct{ SupportedVersions []string }
	Expect(json.Unmarshal(answer.result, &v)).To(Succeed(), "%s: %s", name, answer.result)
	p.versions = v.SupportedVersions
	return p
}

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
