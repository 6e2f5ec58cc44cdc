package plugintest

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

// Holdings returns the plugin's List for a configuration or, for "", without one. It checks that List changes nothing,
// creates no file, and names the place of each holding.
func (w *World) Holdings(conf string) (all []cni.Holding) {
	GinkgoHelper()
	var text []byte
	if conf != "" {
		text = []byte(conf)
	}
	state := func() string { return w.Snapshot() + w.Files("/run", "/var/lib") }
	before := state()
	p := skel.ProgramOf(w.Plugin.Name, func() skel.Plugin[any] { return w.Plugin })
	w.Do(func() { all = nstest.Must(p.List(context.Background(), text)) })
	Expect(state()).To(Equal(before))
	for _, h := range all {
		Expect(h.Plugin).To(Equal(w.Plugin.Name))
		Expect(h.Kept).NotTo(BeEmpty())
		isFile, found := filepath.IsAbs(h.Kept), false
		w.Do(func() { found = exists(h.Kept) })
		Expect(found).To(Equal(isFile), h.Kept)
		Expect(h.Since.IsZero()).NotTo(Equal(isFile), h.Kept)
	}
	return all
}

// clock matches a time in a value. Times are not compared.
var clock = regexp.MustCompile(`\b20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ`)

// Held returns holdings as lines: network, container, interface, kind and value.
func Held(all []cni.Holding) []string {
	lines := []string{}
	for _, h := range all {
		value := clock.ReplaceAllString(h.Value, "TIME")
		if h.Reference {
			value += " (reference)"
		}
		lines = append(lines, fmt.Sprintf("%s %s %s %s: %s", h.Network, h.ContainerID, h.IfName, h.Kind, value))
	}
	return lines
}

// ExpectHeld expects List to name the holdings of two attachments of two networks. add returns their kinds and values
// ("address: 10.1.0.2") and the call of their DEL. List must be empty before ADD and after DEL.
func (w *World) ExpectHeld(add func(id, network string) (del Call, held []string)) {
	GinkgoHelper()
	Expect(w.Holdings("")).To(BeEmpty())
	networks := []string{"net", "other"}
	var dels []Call
	var held [][]string
	for i, network := range networks {
		id := []string{"one", "two"}[i]
		c, values := add(id, network)
		c.Command = "DEL"
		for n, value := range values {
			values[n] = fmt.Sprintf("%s %s %s %s", network, id, cmp.Or(c.IfName, "eth0"), value)
		}
		Expect(values).NotTo(BeEmpty())
		dels, held = append(dels, c), append(held, values)
	}
	all := w.Holdings("")
	Expect(Held(all)).To(ConsistOf(slices.Concat(held...)))
	for _, h := range all {
		Expect(h.NetnsPath).To(BeElementOf("", dels[0].Netns, dels[1].Netns))
		Expect(h.Since).To(BeTemporally("<", time.Now().Add(time.Minute)))
	}
	for i, c := range dels {
		Expect(Held(w.Holdings(c.Stdin()))).To(ConsistOf(held[i]))
	}
	for i, c := range dels {
		w.Succeeds(c)
		Expect(Held(w.Holdings(""))).To(ConsistOf(slices.Concat(held[i+1:]...)))
	}
}

// AttachBehind attaches a container with bridge and then with the world's plugin, a chained one, both as programs.
func (w *World) AttachBehind(id, network string, keys Object, addrs ...string) Attached {
	GinkgoHelper()
	cont := nstest.NewNetns()
	cont.SetSysctl("net/ipv6/conf/default/accept_dad", "0")
	w.LendAddrs(id, addrs...)
	conf := func(plugin string) Object { return Object{"cniVersion": "1.1.0", "name": network, "type": plugin} }
	made := Call{Command: "ADD", ID: id, Netns: cont.Path, Conf: Merge(conf("bridge"),
		Object{"bridge": "br-" + network, "ipam": Object{"type": "fake"}})}
	result := Ran(w.Run(made.Program(w, nstest.Build("bridge")))).Added()
	c := Call{Command: "ADD", ID: id, Netns: cont.Path, Conf: With(Merge(conf(w.Plugin.Name), keys), result)}
	return Attached{cont, c, w.Exec(c).Added()}
}

// ExpectFormerRecord expects T to read the keys of a record that an earlier version wrote, and to write the current
// ones. The keys of the attachment are added, and ID stands for the identity of a namespace.
func ExpectFormerRecord[T any](former, current string) {
	GinkgoHelper()
	decode := func(keys string, to any) {
		GinkgoHelper()
		keys = strings.ReplaceAll(keys, "ID", `{"cookie": 7, "device": 4, "inode": 4026532000}`)
		text := `{"network": "net", "containerID": "c1", "ifname": "eth0", ` + keys + `}`
		Expect(statefile.Decode([]byte(text), to)).To(Succeed())
	}
	var have, want T
	decode(former, &have)
	decode(current, &want)
	Expect(have).To(Equal(want))

	var written, wanted map[string]any
	Expect(json.Unmarshal(nstest.Must(json.Marshal(have)), &written)).To(Succeed())
	decode(current, &wanted)
	for _, key := range []string{"netnsPath", "netns"} {
		Expect(written).To(HaveKeyWithValue(key, wanted[key]))
	}
	for _, key := range []string{"path", "identity", "ns"} {
		Expect(written).NotTo(HaveKey(key))
	}
}
