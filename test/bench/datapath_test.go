package bench

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

// crowd is a network among a number of containers, in which traffic is measured.
type crowd struct {
	name   string // the first part of its rows
	plugin string // bridge or ptp
	ipv6   bool
	size   int     // number of containers, with those that have traffic
	limit  float64 // Gbit/s in both directions by the plugin bandwidth; 0 = no limit
	kinds  []figureKind
}

// title returns the name of the crowd in tables.
func (c crowd) title() string {
	if c.size == 1 {
		return c.name + ", 1 container"
	}
	return fmt.Sprintf("%s, %d containers", c.name, c.size)
}

// measurement returns a figure, and more figures by name that the same traffic yields.
type measurement func(*pathHost, time.Duration) (float64, map[string]float64, error)

// figureKind is a figure that is measured in rounds.
type figureKind struct {
	name    string
	rises   bool // more is better
	between bool // traffic between containers
	measure measurement
}

// Names that the aims and the plot refer to.
const (
	portConnections = "connections/s through a host port"
	portGigabits    = "Gbit/s through a host port"
	portPackets     = "packets/s through a host port"
	portCPU         = cpuPerPacket + "through a host port, µs"
	cpuPerPacket    = "CPU per packet "
	memoryName      = "memory of the rules, KiB a container"
)

func figureKinds() []figureKind {
	connections := func(way func(*pathHost) way) measurement {
		return func(h *pathHost, d time.Duration) (float64, map[string]float64, error) {
			n, err := way(h).connections(d)
			return n, map[string]float64{}, err
		}
	}
	gigabits := func(way func(*pathHost) way) measurement {
		return func(h *pathHost, d time.Duration) (float64, map[string]float64, error) {
			n, err := way(h).stream(lasting(d))
			return n, map[string]float64{}, err
		}
	}
	packets := func(way func(*pathHost) way, path string) measurement {
		return func(h *pathHost, d time.Duration) (float64, map[string]float64, error) {
			n, micros, err := way(h).packets(d)
			return n, map[string]float64{cpuPerPacket + path + ", µs": micros}, err
		}
	}
	return []figureKind{
		{name: portConnections, rises: true, measure: connections((*pathHost).published)},
		{name: "connections/s from a container, masqueraded", rises: true, measure: connections((*pathHost).outward)},
		{name: "connections/s inside a bridge", rises: true, between: true, measure: connections((*pathHost).inside)},
		{name: "connections/s between networks", rises: true, between: true, measure: connections((*pathHost).across)},
		{name: portGigabits, rises: true, measure: gigabits((*pathHost).published)},
		{name: "Gbit/s from a container, masqueraded", rises: true, measure: gigabits((*pathHost).outward)},
		{name: "Gbit/s between networks", rises: true, between: true, measure: gigabits((*pathHost).across)},
		{name: portPackets, rises: true, measure: packets((*pathHost).published, "through a host port")},
		{name: "packets/s from a container, masqueraded", rises: true,
			measure: packets((*pathHost).outward, "from a container, masqueraded")},
		{name: "packets/s inside a bridge", rises: true, between: true,
			measure: packets((*pathHost).inside, "inside a bridge")},
		{name: "packets/s between networks", rises: true, between: true,
			measure: packets((*pathHost).across, "between networks")},
		{name: "round trip through a host port, µs", measure: (*pathHost).idleTrips},
		{name: "round trip under load, µs", measure: (*pathHost).loadedTrips},
	}
}

func (h *pathHost) idleTrips(d time.Duration) (float64, map[string]float64, error) {
	trips, err := h.published().roundTrips(d)
	return median(trips), map[string]float64{}, err
}

func (h *pathHost) loadedTrips(d time.Duration) (float64, map[string]float64, error) {
	trips, gigabits, err := h.published().underLoad(d)
	more := map[string]float64{"p99 of the round trip under load, µs": quantile(trips, 0.99)}
	if h.crowd.limit > 0 {
		more["rate / limit"] = gigabits / h.crowd.limit
	}
	return median(trips), more, err
}

// few are the figures of crowds that show how the cost grows, or that another kind of network is no different.
func few(names ...string) []figureKind {
	return slices.DeleteFunc(figureKinds(), func(k figureKind) bool { return !slices.Contains(names, k.name) })
}

func pathCrowds() []crowd {
	every, some := figureKinds(), few(portConnections, portGigabits, portPackets)
	return []crowd{
		{name: "bridge", plugin: "bridge", size: 1, kinds: every},
		{name: "bridge", plugin: "bridge", size: 30, kinds: every},
		{name: "bridge", plugin: "bridge", size: 100, kinds: some},
		{name: "bridge", plugin: "bridge", size: 1000, kinds: every},
		{name: "bridge, IPv6", plugin: "bridge", ipv6: true, size: 100, kinds: some},
		{name: "ptp", plugin: "ptp", size: 100, kinds: some},
		{name: "bridge, bandwidth of 0.1 Gbit/s", plugin: "bridge", size: 1, limit: 0.1,
			kinds: few("round trip under load, µs")},
	}
}

// pathHost is a host with one of the sides' plugins, among other machines.
type pathHost struct {
	side
	crowd   crowd
	outside *nstest.Host
	options [3]object // of bridge or ptp, portmap and firewall
	// The container with a host port, another one in its network, and one in another network.
	served, peer, stranger *pod
	memory                 []float64 // KiB of each of the others' rules
}

const (
	otherNetwork  = "other"
	servicePort   = 5000 // in containers and outside
	servedPort    = 30000
	templatePort  = 30001
	firstPort     = 31000 // of the others' host ports
	outsideAddr4  = "192.0.2.2"
	outsideAddr6  = "2001:db8::2"
	hostAddr4     = "192.0.2.1"
	hostAddr6     = "2001:db8::1"
	bandwidthUnit = 1e9
)

func (h *pathHost) addr(v4, v6 string) netip.Addr {
	if h.crowd.ipv6 {
		return netip.MustParseAddr(v6)
	}
	return netip.MustParseAddr(v4)
}

// address returns the IPv4 or IPv6 address of a container.
func (h *pathHost) address(p *pod, isIPv6 bool) netip.Addr {
	var result struct {
		IPs []struct{ Address netip.Prefix }
	}
	Expect(json.Unmarshal(p.result, &result)).To(Succeed(), "%s", p.result)
	for _, ip := range result.IPs {
		if ip.Address.Addr().Is6() == isIPv6 {
			return ip.Address.Addr()
		}
	}
	Fail("no address: " + string(p.result))
	return netip.Addr{}
}

var direct = [2]uint16{servicePort, servicePort}

func (h *pathHost) published() way {
	port := [2]uint16{servedPort, servicePort}
	return way{from: h.outside, to: h.served.ns, target: h.addr(hostAddr4, hostAddr6), tcp: port, udp: port}
}

func (h *pathHost) outward() way {
	return way{from: h.served.ns, to: h.outside, target: h.addr(outsideAddr4, outsideAddr6), tcp: direct, udp: direct}
}

func (h *pathHost) inside() way {
	return way{from: h.peer.ns, to: h.served.ns, target: h.address(h.served, h.crowd.ipv6), tcp: direct, udp: direct}
}

func (h *pathHost) across() way {
	w := h.inside()
	w.from = h.stranger.ns
	return w
}

// chain returns the plugins of a network.
func (h *pathHost) chain(number int) []step {
	subnets := []string{fmt.Sprintf("10.%d.0.0/16", 22+number)}
	routes := []object{{"dst": "0.0.0.0/0"}}
	if h.crowd.ipv6 {
		subnets, routes = append(subnets, fmt.Sprintf("fd00:%d::/64", 22+number)), append(routes, object{"dst": "::/0"})
	}
	name := object{"name": []string{network, otherNetwork}[number]}
	main := Merge(name, object{"ipMasq": true, "isGateway": true, "bridge": fmt.Sprintf("cni%d", number),
		"ipam": Merge(HostLocal(subnets...), object{"routes": routes})}, h.options[0])
	if h.crowd.plugin == "ptp" {
		delete(main, "isGateway")
		delete(main, "bridge")
	}
	ports := func(port int) object {
		var mappings []object
		for _, protocol := range []string{"tcp", "udp"} {
			mappings = append(mappings, object{"hostPort": port, "containerPort": servicePort, "protocol": protocol})
		}
		return Merge(name, object{"capabilities": object{"portMappings": true},
			"runtimeConfig": object{"portMappings": mappings}}, h.options[1])
	}
	steps := []step{{h.crowd.plugin, same(main)}, {"portmap", ports}, {"firewall", same(Merge(name, h.options[2]))}}
	if h.crowd.limit > 0 {
		rate, burst := int(h.crowd.limit*bandwidthUnit), 1<<20
		steps = append(steps, step{"bandwidth", same(Merge(name, object{"ingressRate": rate, "ingressBurst": burst,
			"egressRate": rate, "egressBurst": burst}))})
	}
	return steps
}

// attach attaches a container to network number 0 or 1.
func (h *pathHost) attach(number, port int) *pod {
	GinkgoHelper()
	p := h.newPod(len(h.netns))
	p.port = port
	var err error
	h.Do(func() { _, err = h.timed(h.chain(number), "ADD", p) })
	Expect(err).NotTo(HaveOccurred(), h.name)
	return p
}

// open makes the host with a machine outside.
func (h *pathHost) open(work, canary string) {
	GinkgoHelper()
	h.side.open(work, canary)
	h.outside = nstest.NewOutside(h.Host)
	h.netns = append(h.netns, h.outside)
	h.SetSysctl("net/ipv4/ip_forward", "1")
	h.SetSysctl("net/ipv6/conf/all/forwarding", "1")
	if _, err := os.Stat("/proc/sys/net/bridge"); err == nil {
		h.SetBridgeNF(true) // as Kubernetes and Docker set it
	}
	if h.crowd.ipv6 {
		h.outside.IP("route add default via " + hostAddr6)
	}
}

// alone attaches the container with a host port, without others.
func (h *pathHost) alone() { h.served = h.attach(0, servedPort) }

// others attaches the containers that talk to the one with a host port.
func (h *pathHost) others() {
	if h.crowd.plugin == "bridge" {
		h.peer, h.stranger = h.attach(0, templatePort), h.attach(1, templatePort+1)
	}
}

// among attaches the container with a host port in the middle of the others.
func (h *pathHost) among() {
	GinkgoHelper()
	h.peer = h.attach(0, templatePort)
	t := h.template()
	some := (h.crowd.size - 3) / 2
	h.load(t, 0, some)
	h.alone()
	if h.crowd.plugin == "bridge" {
		h.stranger = h.attach(1, templatePort+1)
	}
	h.load(t, some, h.crowd.size-3-some)
}

// template are the rules of one container, from which those of others are made.
type template struct {
	tokens   *regexp.Regexp // what differs between containers
	iptables map[string][]string
	nft      []object // commands of nft -j
}

// template reads the rules of the peer, the only container. Its rules are those that have its address, its host port or
// an identifier.
func (h *pathHost) template() template {
	GinkgoHelper()
	words := []string{regexp.QuoteMeta(h.address(h.peer, false).String()), strconv.Itoa(templatePort), "[0-9a-f]{16,}"}
	if h.crowd.ipv6 {
		words = append(words, h.address(h.peer, true).String())
	}
	t := template{tokens: regexp.MustCompile(`\b(` + strings.Join(words, "|") + `)\b`), iptables: map[string][]string{}}
	for _, program := range []string{"iptables", "ip6tables"} {
		for line := range strings.Lines(h.Cmd(program + "-save")) {
			if strings.HasPrefix(line, "*") || line == "COMMIT\n" || t.tokens.MatchString(line) {
				t.iptables[program] = append(t.iptables[program], line)
			}
		}
	}
	var tables nftDump
	h.JSON(&tables, "nft", "-j", "list", "tables")
	for _, o := range tables.Nftables {
		table := o["table"]
		name, _ := table["name"].(string)
		if table == nil || slices.Contains([]string{"nat", "filter", "mangle", "raw", "security"}, name) {
			continue
		}
		var dump nftDump
		h.JSON(&dump, "nft", "-j", "list", "table", fmt.Sprint(table["family"]), name)
		t.addTable(dump)
	}
	return t
}

type nftDump struct{ Nftables []map[string]object }

// addTable adds the container's chains, rules and elements of a table.
func (t *template) addTable(dump nftDump) {
	var chains, rest []object
	for _, entry := range dump.Nftables {
		for kind, o := range entry {
			delete(o, "handle")
			switch {
			case kind == "chain" && t.tokens.MatchString(fmt.Sprint(o["name"])):
				chains = append(chains, object{"add": object{"chain": o}})
			case kind == "rule" && t.tokens.MatchString(Text(o)):
				rest = append(rest, object{"add": object{"rule": o}})
			case kind == "set" || kind == "map":
				elems, _ := o["elem"].([]any)
				elems = slices.DeleteFunc(elems, func(e any) bool { return !t.tokens.MatchString(Text(e)) })
				if len(elems) > 0 {
					rest = append(rest, object{"add": object{"element": object{"family": o["family"],
						"table": o["table"], "name": o["name"], "elem": elems}}})
				}
			}
		}
	}
	t.nft = append(append(t.nft, chains...), rest...)
}

// of returns a text of the template for another container.
func (t *template) of(text string, i int) string {
	return t.tokens.ReplaceAllStringFunc(text, func(token string) string {
		switch addr, err := netip.ParseAddr(token); {
		case err == nil && addr.Is4():
			return fmt.Sprintf("10.22.%d.%d", 16+i>>8, i&255)
		case err == nil:
			return fmt.Sprintf("fd00:22::1:%x", i+1)
		case len(token) < 16:
			return strconv.Itoa(firstPort + i)
		}
		first := sha256.Sum256([]byte(fmt.Sprint(i, token)))
		second := sha256.Sum256(first[:])
		return hex.EncodeToString(append(first[:], second[:]...))[:len(token)]
	})
}

// load loads the rules of n other containers, and keeps the memory that they take.
func (h *pathHost) load(t template, from, n int) {
	GinkgoHelper()
	if n <= 0 {
		return
	}
	before := settledMemory()
	for program, lines := range t.iptables {
		var script strings.Builder
		for _, line := range lines {
			if !t.tokens.MatchString(line) {
				script.WriteString(line)
				continue
			}
			for i := range n {
				script.WriteString(t.of(line, from+i))
			}
		}
		h.feed(script.String(), program+"-restore", "--noflush")
	}
	var commands []string
	for i := range n {
		for _, c := range t.nft {
			commands = append(commands, t.of(Text(c), from+i))
		}
	}
	if len(commands) > 0 {
		h.feed(`{"nftables":[`+strings.Join(commands, ",\n")+"]}", "nft", "-j", "-f", "-")
	}
	h.memory = append(h.memory, (settledMemory()-before)/1024/float64(n))
}

func (h *pathHost) feed(script, program string, args ...string) {
	GinkgoHelper()
	out := h.Run(nstest.Program{Path: program, Args: args, Stdin: script})
	Expect(out.Exit).To(BeZero(), "%s: %s: %.2000s", h.name, program, out.Stderr)
}

// settledMemory is kernelMemory after the end of what the kernel frees later.
func settledMemory() float64 {
	const grace = 100 * time.Millisecond
	<-time.After(grace)
	return kernelMemory()
}

// memoryField returns a field of /proc/meminfo in KiB.
func memoryField(info, name string) (kib float64) {
	for line := range strings.Lines(info) {
		if rest, ok := strings.CutPrefix(line, name+":"); ok {
			kib, _ = strconv.ParseFloat(strings.Fields(rest)[0], 64)
		}
	}
	return kib
}

// pathRow is a figure of a crowd, for each side.
type pathRow struct {
	crowd  crowd
	figure string
	rises  bool
	names  []string    // of the sides
	values [][]float64 // by side and round
	why    []string    // the failure of each side; "" = none
}

// pathSides returns the sides: ours, ours again to show the noise, and the first peer on both backends.
func (b *bench) pathSides(c crowd) (hosts []*pathHost) {
	ours, peer := *b.forms[len(b.forms)-1], *b.others[0]
	itself := ours
	itself.name = ours.name + " again"
	byIPTables, byNFTables := peer, peer
	byIPTables.name, byNFTables.name = peer.name+" on iptables", peer.name+" on nftables"
	iptables := [3]object{{"ipMasqBackend": "iptables"}, {"backend": "iptables"}, {"backend": "iptables"}}
	nftables := [3]object{{"ipMasqBackend": "nftables"}, {"backend": "nftables"}, {"backend": "iptables"}}
	for i, p := range []*plugins{&ours, &itself, &byIPTables, &byNFTables} {
		hosts = append(hosts, &pathHost{side: side{plugins: p}, crowd: c,
			options: [4][3]object{{}, {}, iptables, nftables}[i]})
	}
	return hosts
}

// measurePaths measures a crowd. The first round is not kept.
func (b *bench) measurePaths(c crowd, number int) {
	GinkgoHelper()
	hosts := b.pathSides(c)
	defer func() {
		for _, h := range hosts {
			if h.Host != nil {
				h.close()
			}
		}
	}()
	for i, h := range hosts {
		h.open(b.work, fmt.Sprintf("path%d-%d", number, i))
		if c.size == 1 {
			h.alone()
		} else {
			h.among()
		}
	}
	kinds := c.kinds
	if c.size == 1 {
		isBetween := func(k figureKind) bool { return k.between }
		isAlone := func(k figureKind) bool { return !k.between }
		b.pathRounds(hosts, slices.DeleteFunc(slices.Clone(kinds), isBetween))
		kinds = slices.DeleteFunc(slices.Clone(kinds), isAlone)
		for _, h := range hosts {
			if len(kinds) > 0 {
				h.others()
			}
		}
	}
	b.pathRounds(hosts, kinds)
	if c.size > 100 {
		memory := newPathRow(hosts, memoryName, false)
		for i, h := range hosts {
			memory.values[i] = h.memory
		}
		b.paths = append(b.paths, memory)
	}
}

func newPathRow(hosts []*pathHost, figure string, rises bool) *pathRow {
	r := &pathRow{crowd: hosts[0].crowd, figure: figure, rises: rises, values: make([][]float64, len(hosts)),
		why: make([]string, len(hosts))}
	for _, h := range hosts {
		r.names = append(r.names, h.name)
	}
	return r
}

// pathRounds measures each figure on each host in turn, round by round. Another host begins each round.
func (b *bench) pathRounds(hosts []*pathHost, kinds []figureKind) {
	for _, k := range kinds {
		rows := []*pathRow{newPathRow(hosts, k.name, k.rises)}
		for round := -1; round < b.pathRoundCount; round++ {
			for turn := range hosts {
				i := (turn + round + 1) % len(hosts)
				if rows[0].why[i] != "" {
					continue // each round would be compared with another one
				}
				value, more, err := k.measure(hosts[i], b.pathTime)
				if err != nil {
					rows[0].why[i] = err.Error()
				} else if round >= 0 {
					more[k.name] = value
					rows = keepPath(rows, hosts, i, more)
				}
			}
		}
		for _, r := range rows {
			r.why = rows[0].why
		}
		b.paths = append(b.paths, rows...)
	}
}

// keepPath adds a side's figures of a round to the rows, and the rows that are missing.
func keepPath(rows []*pathRow, hosts []*pathHost, side int, figures map[string]float64) []*pathRow {
	for _, name := range slices.Sorted(maps.Keys(figures)) {
		at := slices.IndexFunc(rows, func(r *pathRow) bool { return r.figure == name })
		if at < 0 {
			at, rows = len(rows), append(rows, newPathRow(hosts, name, strings.HasPrefix(name, "rate")))
		}
		rows[at].values[side] = append(rows[at].values[side], figures[name])
	}
	return rows
}

var _ = It("measures the data path", Label("paths"), func() {
	if given.ours == "" { // nobody asks
		return
	}
	programs := nstest.Must(os.MkdirTemp(given.work, "programs"))
	DeferCleanup(os.RemoveAll, programs)
	b, began := newBench(&given, programs), time.Now()
	for i, c := range pathCrowds() {
		c.kinds = slices.DeleteFunc(slices.Clone(c.kinds), func(k figureKind) bool {
			return !b.options.rows.MatchString(c.title() + ": " + k.name)
		})
		if len(c.kinds) == 0 {
			continue
		}
		since := time.Now()
		b.measurePaths(c, i)
		fmt.Fprintf(os.Stderr, "%-60s %5.1f s\n", c.title(), time.Since(since).Seconds())
	}
	r := report{bench: b, took: time.Since(began)}
	table := nstest.Must(os.Create(given.table))
	r.printPaths(io.MultiWriter(os.Stdout, table))
	Expect(table.Close()).To(Succeed())
	if given.page != "" {
		r.writePathPage(given.page)
	}
})
