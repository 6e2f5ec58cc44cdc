package conformance

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// world is the environment of a running case: its job, and a host, which is the namespaces of the process.
type world struct {
	job
	path []string // CNI_PATH
	mu   sync.Mutex
	log  []string // each call with its answer; mu guards it
	n    int      // number of containers so far
}

// skip ends the case as skipped: it panics, and runCase recovers. It has a result only so that an event, which returns
// a string, can end with "return w.skip(...)".
func (w *world) skip(why string) string { panic(outcome{Status: skipped, Detail: why}) }

// need skips the case unless ok.
func (w *world) need(ok bool, why string) {
	if !ok {
		w.skip(why)
	}
}

// expect fails the case unless ok.
func (w *world) expect(ok bool, format string, args ...any) {
	if !ok {
		panic(outcome{Status: failed, Detail: fmt.Sprintf(format, args...)})
	}
}

func (w *world) noError(err error) { w.expect(err == nil, "%v", err) }

// runCase runs the case of the job, or the probe, and returns its outcome.
func (w *world) runCase() (o outcome) {
	defer func() {
		if end := recover(); end != nil {
			o = end.(outcome) // panics again for any other value, which is a bug of the suite
		}
		if o.Status == failed {
			o.Calls = w.log[max(0, len(w.log)-3):]
		}
	}()
	if w.Case == "" {
		return outcome{Status: passed, Info: w.probe()}
	}
	cases[slices.IndexFunc(cases, func(c Case) bool { return c.Name == w.Case })].run(w)
	return outcome{Status: passed}
}

// attachment is a container and the parameters of the calls that attach it.
type attachment struct {
	id, ifName, netns string // CNI_CONTAINERID, CNI_IFNAME and CNI_NETNS
	hostEnd           string // host end of the veth pair that the suite created, if any
	plugin            object // configuration of the plugin; each call derives its own from it
	prev              object // prevResult of ADD: the result of the preceding plugin
	result            object // result of ADD, the prevResult of later calls
}

// newContainer creates a container: c1, c2 and so on. A chained or an IPAM plugin finds an interface in it.
func (w *world) newContainer() *attachment {
	w.n++
	a := &attachment{id: fmt.Sprintf("c%d", w.n), ifName: w.Subject.Options.IfName, plugin: w.Subject.Plugins[0]}
	a.netns = filepath.Join(netnsDir, a.id)
	w.ip("", "netns add "+a.id)
	if w.Info.Kind&(Chained|IPAM) != 0 && len(w.Subject.Preceding) == 0 {
		w.createInterface(a)
	}
	for _, conf := range w.Subject.Preceding {
		b := *a
		b.plugin = conf
		a.prev = w.add(&b)
	}
	return a
}

// createInterface creates a veth pair. For a chained plugin, it also adds addresses and routes, and sets a.prev to the
// result that lists them.
func (w *world) createInterface(a *attachment) {
	a.hostEnd = fmt.Sprintf("made%d", w.n)
	hostMAC, mac := fmt.Sprintf("02:ca:fe:01:00:%02x", w.n), fmt.Sprintf("02:ca:fe:02:00:%02x", w.n)
	four, six := fmt.Sprintf("10.213.0.%d/24", w.n+1), fmt.Sprintf("fd13:213::%x/64", w.n+1)
	w.ip("", fmt.Sprintf("link add %s address %s type veth peer name %s address %s netns %s", a.hostEnd, hostMAC,
		a.ifName, mac, a.id), "link set "+a.hostEnd+" up")
	w.ip(a.id, "link set lo up", "link set "+a.ifName+" up")
	if w.Info.Kind&IPAM != 0 {
		return
	}
	w.ip(a.id, "addr add "+four+" dev "+a.ifName, "addr add "+six+" nodad dev "+a.ifName,
		"route add default via 10.213.0.1", "route add default via fd13:213::1 dev "+a.ifName)
	ip4 := object{"address": four, "gateway": "10.213.0.1", "interface": 1.0}
	ip6 := object{"address": six, "gateway": "fd13:213::1", "interface": 1.0}
	if w.Spec < "1.0.0" {
		ip4["version"], ip6["version"] = "4", "6"
	}
	a.prev = object{"cniVersion": w.Spec, "interfaces": []any{object{"name": a.hostEnd, "mac": hostMAC},
		object{"name": a.ifName, "mac": mac, "sandbox": a.netns}}, "ips": []any{ip4, ip6},
		"routes": []any{object{"dst": "0.0.0.0/0", "gw": "10.213.0.1"}, object{"dst": "::/0", "gw": "fd13:213::1"}},
		"dns":    object{"nameservers": []any{"10.213.0.1"}}}
}

// ip runs commands of ip(8) on the host, or in a namespace, and returns the commands as text, for the note of a call.
func (w *world) ip(netns string, commands ...string) string {
	args := []string{"-batch", "-"}
	if netns != "" {
		args = append([]string{"-n", netns}, args...)
	}
	_, err := command(strings.Join(commands, "\n")+"\n", "ip", args...)
	w.noError(err)
	return "ip " + strings.Join(commands, ", ip ")
}

func (w *world) attach(changes ...change) *attachment {
	a := w.newContainer()
	w.add(a, changes...)
	return a
}

func (w *world) needManyAttachments() {
	w.need(w.Info.ManyAttachments, "the configuration allows one attachment")
}

// detach is the opposite of attach: it calls DEL and removes the container.
func (w *world) detach(a *attachment, changes ...change) {
	w.succeeds("DEL", a, changes...)
	w.removeContainer(a)
}

// removeContainer removes a container, after it has called DEL of the preceding plugins.
func (w *world) removeContainer(a *attachment) {
	for _, conf := range slices.Backward(w.Subject.Preceding) {
		b := *a
		b.plugin = conf
		w.succeeds("DEL", &b)
	}
	if a.hostEnd != "" { // the kernel removes it some time after the namespace
		w.ip("", "link del "+a.hostEnd)
	}
	w.ip("", "netns del "+a.id)
}

// prepare returns the arguments for a valid call of a command: a new container for ADD, an attached one for DEL and
// CHECK, and nil for STATUS and GC. For GC, it attaches a container and adds a change that lists it as valid.
func (w *world) prepare(command string, changes ...change) (*attachment, []change) {
	switch command {
	case "ADD":
		return w.newContainer(), changes
	case "STATUS":
		return nil, changes
	case "GC":
		return nil, append(changes, validAttachments(w.attach(changes...)))
	}
	return w.attach(changes...), changes
}

// probe finds out the kind of the plugin, its versions, and whether the configuration works.
func (w *world) probe() info {
	demanded := w.Spec
	if w.Spec = cmp.Or(demanded, text(w.Subject.Plugins[0], "cniVersion")); !slices.Contains(specs, w.Spec) {
		w.Spec = specs[0]
	}
	w.Info = info{Kind: w.Subject.Kind, Supported: w.supported()}
	for _, v := range specs { // old versions first
		if demanded == "" && slices.Contains(w.Info.Supported, v) {
			w.Spec = v
		}
	}
	w.Info.Spec = w.Spec
	if len(w.Info.Supported) == 0 { // the case version/supported reports it
		w.Info.Supported = []string{w.Spec}
	}
	var problems []string
	for _, kind := range map[Kinds][]Kinds{0: {Interface, Chained}, Chained: {Chained}, IPAM: {IPAM}}[w.Subject.Kind] {
		problem := w.tryKind(kind)
		if problem == "" {
			return w.Info
		}
		problems = append(problems, fmt.Sprintf("as %v: %s", kind, problem))
	}
	if w.Subject.Kind != List {
		panic(outcome{Status: broken, Detail: "ADD with the configuration fails: " + strings.Join(problems, "; ")})
	}
	return w.Info
}

// tryKind attaches two containers as a plugin of this kind needs it, and completes w.Info. It returns the reason why
// ADD does not work, or "".
func (w *world) tryKind(kind Kinds) (problem string) {
	w.Info.Kind = kind
	a := w.newContainer()
	if kind == Interface && w.link(a, a.ifName) == nil {
		w.Info.Kind |= Creating
	}
	if kind == Interface && ipamType(a.plugin) != "" {
		w.Info.Kind |= Delegating
	}
	begin := time.Now()
	ans := w.call("ADD", a)
	w.Info.AddTime = time.Since(begin)
	if ans.exit != 0 {
		w.call("DEL", a)
		return ans.String()
	} else if kind == Interface && w.link(a, a.ifName) == nil {
		w.call("DEL", a)
		return "ADD succeeded, but the container has no interface " + a.ifName + ", the value of CNI_IFNAME"
	}
	a.result, _ = decodeOne(ans.stdout) // a case reports a bad result
	second := w.call("ADD", w.newContainer())
	other, _ := decodeOne(second.stdout)
	w.Info.ManyAttachments = second.exit == 0
	w.Info.FixedAddresses = len(droppedItems(a.result, other, "ips", "address")) == 0
	return ""
}

// supported returns the versions that the subject's plugins, the preceding ones and their IPAM plugins support.
func (w *world) supported() []string {
	all := slices.Clone(cniVersions)
	for _, conf := range slices.Concat(w.Subject.Preceding, w.Subject.Plugins) {
		for _, name := range []string{text(conf, "type"), ipamType(conf)} {
			if _, err := find(w.path, name); err != nil {
				// An IPAM subject's interface plugin may be missing. ipam.type may be empty or need no program.
				continue
			}
			o, _ := decodeOne(w.call("VERSION", &attachment{plugin: clone(conf, object{"type": name})}).stdout)
			own := anyList(o["supportedVersions"])
			all = slices.DeleteFunc(all, func(v string) bool { return !slices.Contains(own, any(v)) })
		}
	}
	return all
}
