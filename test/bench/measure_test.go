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
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

const (
	oursName   = "hawser"
	oneName    = "hawser, one program"
	beforeName = "hawser before" // an older build of ours, if it is a peer
)

// bench is a whole run.
type bench struct {
	*options
	forms      []*plugins // ours: a program each and, if they are measured, as one
	others     []*plugins // the peers, in the order of the tables
	rows       []*row
	paths      []*pathRow // of the data path
	sizes      []size
	emptyStart *plugins
}

// row is one verb of a scenario.
type row struct {
	scenario, verb string
	forms          int      // of ours
	sides          []sample // ours, and of the bench's others; one where the scenario says with what
	inParallel     bool
}

func (r *row) peers() []sample { return r.sides[r.forms:] }

// sample is what one side took: milliseconds for each call, pods a second for each batch of pods in parallel.
type sample struct {
	name                 string // of the side
	na                   string // why it cannot be measured
	wall, cpu, perSecond []float64
	ratios               [2][]float64 // its time / that of a form of ours, or that form's pods a second / its, by round
	failures             int
	failure              string // the first one
	counts               counts
}

func newBench(o *options, dir string) *bench {
	b := &bench{options: o, forms: []*plugins{open(oursName, o.ours, filepath.Join(dir, "ours"), o.copies)}}
	if o.one != "" {
		b.forms = append(b.forms, open(oneName, o.one, filepath.Join(dir, "one"), o.copies))
	}
	for i, p := range o.peers {
		b.others = append(b.others, open(p[0], p[1], filepath.Join(dir, fmt.Sprint("peer", i)), o.copies))
	}
	if o.empty != "" {
		b.emptyStart = copied("an empty program", o.empty, filepath.Join(dir, "empty"), o.copies)
		b.emptyStart.versions = b.forms[0].versions
	}
	return b
}

func (b *bench) measureAll() {
	for i, sc := range scenarios() {
		if b.quick && !sc.quick || !b.wanted(&sc) {
			continue
		}
		began := time.Now()
		b.measure(&sc, i)
		fmt.Fprintf(os.Stderr, "%-60s %5.1f s\n", sc.name, time.Since(began).Seconds())
	}
}

func (b *bench) wanted(sc *scenario) bool {
	return slices.ContainsFunc(sc.verbs,
		func(verb string) bool { return b.options.rows.MatchString(sc.name + ": " + verb) })
}

// sidesOf are the forms of ours that a scenario measures, and what it compares them with.
func (b *bench) sidesOf(sc *scenario) (forms, peers []*plugins) {
	switch {
	case sc.against == againstOurs:
		return b.forms[:1], b.forms[:1]
	case sc.against == againstEmpty && b.emptyStart != nil:
		return b.forms, []*plugins{b.emptyStart}
	case sc.against == againstEmpty:
		return nil, nil
	}
	return b.forms, b.others
}

// lacks says why a peer is not measured; "" when it is. The aims are about the first peer.
func lacks(p *plugins, first bool, sc *scenario, verb string) string {
	for _, st := range sc.steps {
		if !p.has(st.plugin) {
			return "no " + st.plugin
		}
	}
	switch {
	case sc.daemon && !p.has("dhcp"):
		return "no dhcp"
	case sc.long && !first && p.name != beforeName:
		return "takes long"
	case sc.nft && !p.nft:
		return "no nftables backend"
	case (verb == "GC" || verb == "STATUS") && !slices.Contains(p.versions, "1.1.0"):
		return "no " + verb
	}
	return ""
}

// measure measures one scenario on new hosts. The first sides are ours.
func (b *bench) measure(sc *scenario, number int) {
	GinkgoHelper()
	forms, peers := b.sidesOf(sc)
	if len(peers) == 0 {
		return
	}
	var sides []*side
	for _, p := range slices.Concat(forms, peers) {
		own := *p
		sides = append(sides, &side{plugins: &own})
	}
	rows := b.rowsOf(sc, sides, len(forms))
	for i, s := range sides {
		if sc.parallel == 0 && !slices.ContainsFunc(rows, func(r *row) bool { return r.sides[i].na == "" }) {
			continue // it needs no host
		}
		s.open(b.work, fmt.Sprintf("canary%d-%d", number, i))
		defer s.close()
		s.prepare(sc)
	}
	if sc.parallel > 0 {
		b.batches(sc, sides, rows)
		return
	}
	b.inTurns(sc, sides, rows)
	if !sc.daemon { // for whose end the tracer would wait
		count(sc, sides, rows)
	}
}

// kernelLacks says that no link of a kind can be made; "" when one can, or none is needed.
func kernelLacks(kind string) string {
	name, _, _ := strings.Cut(kind, " ")
	if kind == "" || nstest.NewNetns().Run(nstest.Program{Path: "ip", Args: []string{"-batch", "-"},
		Stdin: "link add on0 type veth peer name on1\nlink add link on0 name of0 type " + kind + "\n"}).Exit == 0 {
		return ""
	}
	return "no " + name + " in this kernel"
}

func (b *bench) rowsOf(sc *scenario, sides []*side, forms int) (rows []*row) {
	kernel := kernelLacks(sc.kind)
	for _, verb := range sc.verbs {
		r := &row{scenario: sc.name, verb: verb, forms: forms, sides: make([]sample, len(sides)),
			inParallel: sc.parallel > 0}
		for i, s := range sides {
			r.sides[i].name, r.sides[i].na = s.name, kernel
			if sc.others > 0 && i < forms-1 {
				r.sides[i].na = "takes long" // the other form does the same
			}
			if kernel == "" && i >= forms {
				r.sides[i].na = lacks(s.plugins, i == forms, sc, verb)
			}
		}
		rows = append(rows, r)
		if b.options.rows.MatchString(sc.name + ": " + verb) {
			b.rows = append(b.rows, r)
		}
	}
	return rows
}

// enough tells whether to stop after so many rounds.
func (b *bench) enough(rounds int, began time.Time) bool {
	const least = 3
	return rounds >= b.rounds || rounds >= least && time.Since(began) > b.limit
}

// inTurns serves every verb on each host, again and again, another one first each time.
// The first round is not kept.
func (b *bench) inTurns(sc *scenario, sides []*side, rows []*row) {
	began := time.Now()
	for round := -1; round < 0 || !b.enough(round, began); round++ {
		for i, s := range sides {
			s.turn(round + i)
		}
		for _, r := range rows {
			took := make([]spent, len(sides))
			for turn := range sides {
				i := (turn + round + 1) % len(sides)
				s := sides[i]
				if r.sides[i].na != "" {
					continue
				}
				err := s.renew(sc, r.verb)
				if err == nil {
					s.Do(func() { took[i], err = s.timed(sc.steps, r.verb, s.pod) })
				}
				if err != nil {
					r.sides[i].failed(err)
					took[i] = spent{}
				}
			}
			if round >= 0 {
				r.keep(took)
			}
		}
	}
}

// keep keeps what went well in a round.
func (r *row) keep(took []spent) {
	for i, t := range took {
		s := &r.sides[i]
		if t.wall == 0 {
			continue
		}
		s.wall, s.cpu = append(s.wall, t.wall), append(s.cpu, t.cpu)
		for form := range r.forms {
			if took[form].wall > 0 {
				s.ratios[form] = append(s.ratios[form], t.wall/took[form].wall)
			}
		}
	}
}

func (s *sample) failed(err error) {
	if s.failures++; s.failures == 1 {
		s.failure = err.Error()
	}
}

// count serves every verb once more, traced: on our sides, and on the first of the others.
func count(sc *scenario, sides []*side, rows []*row) {
	forms := rows[0].forms
	for i, s := range sides[:forms+1] {
		for _, r := range rows {
			if r.sides[i].na != "" || i == forms && sc.uncounted {
				continue
			}
			one := func(c call) (json.RawMessage, error) {
				n, result, err := c.counted(s.plugins)
				r.sides[i].counts.add(n)
				return result, err
			}
			err := s.renew(sc, r.verb)
			if err == nil {
				s.Do(func() { err = s.serve(sc.steps, r.verb, s.pod, one) })
			}
			if err != nil {
				r.sides[i].failed(err)
			}
		}
	}
}

// batches attaches pods in parallel, and detaches them, on one host and then on the
// others, another one first each time. Pods a second are of a whole batch, times of each pod.
func (b *bench) batches(sc *scenario, sides []*side, rows []*row) {
	GinkgoHelper()
	pods := make([][]*pod, len(sides))
	for i, s := range sides {
		for n := range max(sc.parallel, 16) {
			pods[i] = append(pods[i], s.newPod(n+1))
		}
	}
	began := time.Now()
	const least = 2 // batches of each
	for round := 0; round < least || round < b.rounds && time.Since(began) < b.limit; round++ {
		for turn := range sides {
			i := (turn + round) % len(sides)
			sides[i].turn(round + i)
			for _, r := range rows {
				sides[i].batch(sc, r.verb, &r.sides[i], pods[i])
			}
		}
		for _, r := range rows {
			for i := range r.sides {
				for form, s := range r.sides[:r.forms] {
					ratios := &r.sides[i].ratios[form]
					*ratios = append(*ratios, s.perSecond[round]/r.sides[i].perSecond[round])
				}
			}
		}
	}
}

// batch serves a verb for all pods, as many at a time as the scenario says, and keeps
// how many pods a second went well.
func (s *side) batch(sc *scenario, verb string, sample *sample, pods []*pod) {
	GinkgoHelper()
	waiting := make(chan *pod, len(pods))
	for _, p := range pods {
		waiting <- p
	}
	close(waiting)
	var mu sync.Mutex
	good, began := 0, time.Now()
	nstest.AtOnce(sc.parallel, func(int) {
		s.Do(func() {
			for p := range waiting {
				took, err := s.timed(sc.steps, verb, p)
				mu.Lock()
				if err != nil {
					sample.failed(err)
				} else {
					good++
					sample.wall, sample.cpu = append(sample.wall, took.wall), append(sample.cpu, took.cpu)
				}
				mu.Unlock()
			}
		})
	})
	sample.perSecond = append(sample.perSecond, float64(good)/time.Since(began).Seconds())
}

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
		last = otherAddress(i)
		owner := fmt.Sprintf("%064x\r\neth0", 1<<20+i)
		s.crowd = append(s.crowd, object{"containerID": owner[:64], "ifname": "eth0"})
		if err := os.WriteFile(filepath.Join(dir, last), []byte(owner), 0o600); err != nil {
			Fail(err.Error())
		}
	}
	Expect(os.WriteFile(filepath.Join(dir, "last_reserved_ip.0"), []byte(last), 0o600)).To(Succeed())
}

// copied is a directory of programs, copied several times into a new one: names of one file stay that. The first
// start of a file that was just written takes several times as long as those that follow, so each is started once.
func copied(name, from, work string, copies int) *plugins {
	GinkgoHelper()
	p := &plugins{name: name}
	for i := range copies {
		p.copies = append(p.copies, filepath.Join(work, strconv.Itoa(i)))
		Expect(os.MkdirAll(p.copies[i], 0o755)).To(Succeed())
		args := append((&plugins{dir: from}).files(), p.copies[i])
		out, err := exec.Command("cp", append([]string{"-L", "--preserve=mode,links"}, args...)...).CombinedOutput()
		Expect(err).NotTo(HaveOccurred(), "%s: %s", name, out)
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
	if !slices.Contains([]string{oursName, oneName, beforeName}, s.name) {
		steps, loaded = []step{bridge(plain)}, true
	}
	const workers = 4
	nstest.AtOnce(workers, func(w int) {
		s.Do(func() {
			for i := w; i < sc.others; i += workers {
				_, err := s.timed(steps, "ADD", other(i, crowd))
				for again := 0; err != nil && again < 2; again++ { // a run should not end in its last minutes
					fmt.Fprintf(os.Stderr, "%s: again: %v\n", s.name, err)
					_, err = s.timed(steps, "ADD", other(i, crowd))
				}
				Expect(err).NotTo(HaveOccurred(), s.name)
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

// filterRules are what the reference's firewall leaves in iptables for the others.
func filterRules(others int) string {
	var rules strings.Builder
	for i := range others {
		fmt.Fprintf(&rules, "-A CNI-FORWARD -d %[1]s/32 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n"+
			"-A CNI-FORWARD -s %[1]s/32 -j ACCEPT\n", otherAddress(i))
	}
	return "*filter\n:CNI-ADMIN - [0:0]\n:CNI-FORWARD - [0:0]\n" +
		"-A FORWARD -m comment --comment \"CNI firewall plugin rules\" -j CNI-FORWARD\n" +
		"-A CNI-FORWARD -m comment --comment \"CNI firewall plugin admin overrides\" -j CNI-ADMIN\n" +
		rules.String() + "COMMIT\n"
}

func otherAddress(i int) string { return fmt.Sprintf("10.22.%d.%d", (i+2)>>8, (i+2)&255) }

// referenceRules are what the reference plugins leave in iptables for the others.
func referenceRules(sc *scenario) string {
	var chains, rules strings.Builder
	last := sc.steps[len(sc.steps)-1]
	if last.plugin == "firewall" {
		return filterRules(sc.others)
	}
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
		p, addr := other(i, nil), otherAddress(i)
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
