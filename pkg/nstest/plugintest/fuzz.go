package plugintest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/iface"
	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// Fuzz is a fuzz target of whole calls. The fuzzer generates the command, the configuration, one more value in it or in
// the environment, and the answer of the IPAM plugin "fake". CHECK and DEL follow a successful ADD.
//
// Each answer must pass [Answer.Verdict] within [fuzzHang] and quote no secret. After a failed ADD, and after ADD and
// DEL, container and host must be as before.
type Fuzz struct {
	Plugin  skel.Plugin[any]
	Chained bool     // the container already has eth0
	Confs   []string // seeds
	Leases  []string // answers of fake; after a "!", its exit status is 1
}

const (
	// FuzzNetns is CNI_NETNS of the calls.
	FuzzNetns = "/run/netns/fuzz"
	// FuzzPrev is the result of a previous plugin.
	FuzzPrev = `"prevResult":{"cniVersion":"1.1.0","interfaces":[{"name":"peer0"},{"name":"eth0",` +
		`"mac":"02:00:00:00:00:01","sandbox":"` + FuzzNetns + `"}],"ips":[{"address":"10.1.0.2/24",` +
		`"gateway":"10.1.0.1","interface":1},{"address":"fd00:1::2/64","interface":1}],"dns":{}}`

	fuzzSecret  = "s3cr3t-of-an-unknown-key"
	fuzzHang    = time.Minute
	fuzzRaw     = 0x80 // in the command: the configuration is used unchanged
	fuzzMaxConf = 1 << 16
)

var fuzzCommands = []string{"ADD", "DEL", "CHECK", "GC", "STATUS", "VERSION", ""}

// Run adds the seeds and runs the target.
func (z Fuzz) Run(f *testing.F) {
	leases := append(z.Leases, "")
	for i := range fuzzCommands {
		for j, conf := range z.Confs {
			f.Add(uint8(i), []byte(conf), "", "", leases[j%len(leases)])
		}
	}
	for i, lease := range leases {
		f.Add(uint8(0), []byte(z.Confs[0]), []string{"CNI_ARGS", "CNI_CONTAINERID", "name"}[i%3], "x", lease)
	}
	w := newFuzzWorld(f, z)
	f.Fuzz(func(t *testing.T, command uint8, conf []byte, key, value, lease string) {
		if len(conf) > fuzzMaxConf {
			t.Skip()
		}
		w.t = t
		w.lend(lease)
		w.round(compose(command, conf, key, value))
	})
}

// fuzzCall is a generated call.
type fuzzCall struct {
	command string
	vars    map[string]string
	conf    []byte
}

func compose(command uint8, conf []byte, key, value string) fuzzCall {
	c := fuzzCall{command: fuzzCommands[int(command&^fuzzRaw)%len(fuzzCommands)], conf: conf, vars: map[string]string{
		"CNI_CONTAINERID": "one", "CNI_IFNAME": "eth0", "CNI_NETNS": FuzzNetns, "CNI_ARGS": "IgnoreUnknown=1;TOKEN=" +
			fuzzSecret}}
	if _, known := c.vars[key]; known {
		c.vars[key] = strings.ReplaceAll(value, "\x00", "") // which no environment can contain
		key = ""
	}
	if command&fuzzRaw != 0 {
		return c
	}
	object := Object{}
	d := json.NewDecoder(bytes.NewReader(conf))
	d.UseNumber()
	if d.Decode(&object) != nil {
		return c
	}
	hide(object)
	set(object, strings.Split(key, "."), value)
	if out, err := json.Marshal(object); err == nil {
		c.conf = out
	}
	return c
}

// hide puts a secret into each object, under an unknown key.
func hide(object Object) {
	for key, v := range object {
		allRead := strings.EqualFold(key, "sysctl") || strings.EqualFold(key, "capabilities")
		if inner, ok := v.(Object); ok && !allRead {
			hide(inner)
		}
	}
	object["fuzzToken"] = fuzzSecret
}

// set writes a value, JSON or text, into an object at path.
func set(object Object, path []string, value string) {
	if inner, ok := object[path[0]].(Object); ok && len(path) > 1 {
		set(inner, path[1:], value)
		return
	}
	if path[0] == "" {
		return
	}
	if json.Valid([]byte(value)) {
		object[path[0]] = json.RawMessage(value)
	} else {
		object[path[0]] = value
	}
}

// fuzzWorld is a host, the network namespace of the process, and a container.
type fuzzWorld struct {
	Fuzz
	t          testing.TB
	dir        string // CNI_PATH
	host, cont *rtnl.Conn
}

func newFuzzWorld(f *testing.F, z Fuzz) *fuzzWorld {
	f.Helper()
	w := &fuzzWorld{Fuzz: z, t: f, dir: f.TempDir()}
	c, err := nstest.Container(f, filepath.Base(FuzzNetns))
	w.must(err)
	w.must(os.WriteFile(w.dir+"/fake", []byte(`#!/bin/sh
cat >/dev/null
[ "$CNI_COMMAND" = ADD ] || exit 0
d=$(dirname "$0"); cat "$d/lease"
[ ! -e "$d/fails" ]
`), 0o755))
	c.Do(func() { w.cont, err = rtnl.Dial(nil) })
	w.must(err)
	w.host, err = rtnl.Dial(nil)
	w.must(err)
	f.Cleanup(func() { _ = errors.Join(w.host.Close(), w.cont.Close()) })
	w.reset()
	return w
}

func (w *fuzzWorld) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *fuzzWorld) lend(lease string) {
	w.t.Helper()
	lease, fails := strings.CutPrefix(lease, "!")
	w.must(os.WriteFile(w.dir+"/lease", []byte(lease), 0o644))
	if fails {
		w.must(os.WriteFile(w.dir+"/fails", nil, 0o644))
	} else if err := os.Remove(w.dir + "/fails"); !os.IsNotExist(err) {
		w.must(err)
	}
}

func (w *fuzzWorld) call(c fuzzCall) Answer {
	w.t.Helper()
	vars := []string{"CNI_COMMAND=" + c.command, "CNI_PATH=" + w.dir, "PATH=" + os.Getenv("PATH")}
	for name, value := range c.vars {
		vars = append(vars, name+"="+value)
	}
	a := w.run(skel.Env{Vars: vars, Stdin: bytes.NewReader(c.conf)}, c)
	err := a.Verdict(c.command)
	if err == nil && strings.Contains(a.Stdout+a.Stderr, fuzzSecret) {
		err = errors.New("quotes a secret")
	}
	if err != nil {
		w.t.Fatalf("%v: %s\nstatus %d\n%s\n%s", err, c, a.Code, a.Stdout, a.Stderr)
	}
	return a
}

// inspect checks the configuration with --check-config.
func (w *fuzzWorld) inspect(c fuzzCall) {
	w.t.Helper()
	a := w.run(skel.Env{Args: []string{"--check-config"}, Stdin: bytes.NewReader(c.conf)}, c)
	if a.Code > 3 || !strings.HasSuffix(a.Stdout, "\n") || strings.Contains(a.Stdout+a.Stderr, fuzzSecret) {
		w.t.Fatalf("--check-config: %s\nstatus %d\n%s\n%s", c, a.Code, a.Stdout, a.Stderr)
	}
}

func (w *fuzzWorld) run(env skel.Env, c fuzzCall) Answer {
	hang := time.AfterFunc(nstest.Patience(fuzzHang), func() { panic("hangs: " + c.String()) })
	defer hang.Stop()
	var out, errs bytes.Buffer
	env.Stdout, env.Stderr = &out, &errs
	code := skel.Run(context.Background(), w.Plugin, env)
	return Answer{code, out.String(), errs.String()}
}

func (c fuzzCall) String() string { return fmt.Sprintf("%s %q %s", c.command, c.vars, c.conf) }

func (w *fuzzWorld) round(c fuzzCall) {
	w.t.Helper()
	defer w.reset()
	w.inspect(c)
	before := w.inside()
	a := w.call(c)
	if c.command != "ADD" {
		return
	}
	if a.Code == 0 {
		c.conf = withPrev(c.conf, a.Stdout)
		c.command = "CHECK"
		w.call(c)
		c.command = "DEL"
		if a := w.call(c); a.Code != 0 {
			w.t.Fatalf("DEL after ADD: %s\n%s", c, a.Stdout)
		}
	}
	if after := w.inside(); after != before {
		w.t.Fatalf("the container was\n%sand is\n%s%s\n%s", before, after, c, a.Stdout)
	}
	if left := w.left(c); left != "" {
		w.t.Fatalf("left behind: %s: %s\n%s", left, c, a.Stdout)
	}
}

func withPrev(conf []byte, result string) []byte {
	object := map[string]json.RawMessage{}
	if json.Unmarshal(conf, &object) != nil {
		return conf
	}
	object["prevResult"] = json.RawMessage(result)
	out, err := json.Marshal(object)
	if err != nil {
		return conf
	}
	return out
}

func (w *fuzzWorld) inside() string {
	w.t.Helper()
	links, err := w.cont.Links()
	w.must(err)
	var b strings.Builder
	for _, l := range links {
		fmt.Fprintf(&b, "%s %s mtu %d txqlen %d up %t promisc %t allmulti %t\n", l.Name, l.MAC, l.MTU, l.TxQLen, l.Up,
			l.Promisc, l.AllMulti)
	}
	return b.String()
}

func (w *fuzzWorld) left(c fuzzCall) string {
	w.t.Helper()
	var conf struct{ Name string }
	_ = json.Unmarshal(c.conf, &conf)
	a := cni.Attachment{Network: conf.Name, ContainerID: c.vars["CNI_CONTAINERID"], IfName: c.vars["CNI_IFNAME"]}
	for _, name := range iface.HostNames(a) {
		if _, err := w.host.Link(name); err == nil {
			return "link " + name
		}
	}
	rules, _ := exec.Command("nft", "list", "ruleset").Output()
	if strings.Contains(string(rules), a.Hash()) {
		return string(rules)
	}
	return ""
}

// reset removes links that a call may have left, and creates the links that a chained plugin needs.
func (w *fuzzWorld) reset() {
	w.t.Helper()
	for _, conn := range []*rtnl.Conn{w.host, w.cont} {
		links, err := conn.Links()
		w.must(err)
		for _, l := range links {
			if l.Name != "lo" && !w.keeps(conn, l) {
				_ = conn.DelLink(l.Index) // its other end may have been deleted
			}
		}
	}
	if !w.Chained {
		return
	}
	if _, err := w.cont.Link("eth0"); err != nil {
		w.must(w.cont.AddLink(rtnl.NewLink{Kind: "veth", Name: "eth0", MAC: []byte{2, 0, 0, 0, 0, 1},
			Peer: rtnl.Peer{Name: "peer0"}}))
		eth0, err := w.cont.Link("eth0")
		w.must(err)
		for _, addr := range []string{"10.1.0.2/24", "fd00:1::2/64"} { // of FuzzPrev
			w.must(w.cont.AddAddr(eth0.Index, rtnl.Addr{Prefix: netip.MustParsePrefix(addr)}))
		}
	}
}

// keeps reports whether a link is one of those that a chained plugin needs, and is unchanged.
func (w *fuzzWorld) keeps(conn *rtnl.Conn, l rtnl.Link) bool {
	return w.Chained && conn == w.cont && (l.Name == "peer0" ||
		l.Name == "eth0" && l.MTU == 1500 && l.MAC.String() == "02:00:00:00:00:01" && !l.Promisc && !l.AllMulti)
}

// RunFiles runs another target. Between an ADD of one of Confs and its DEL, the fuzzer replaces a file below dir or one
// value in it. Another ADD may follow. The seeds are contents of files. DEL and the next ADD and DEL must succeed.
func (z Fuzz) RunFiles(f *testing.F, dir string, seeds ...string) {
	for i := range z.Confs {
		for which := range uint8(3) {
			for _, content := range seeds {
				f.Add(uint8(i), which, uint8(0), false, []byte(content))
			}
		}
		for at := range uint8(12) {
			f.Add(uint8(i), uint8(0), at+1, true, []byte(""))
			f.Add(uint8(i), uint8(0), at+1, at%2 == 0, []byte("null"))
		}
	}
	w := newFuzzWorld(f, z)
	w.lend(append(z.Leases, "")[0])
	f.Fuzz(func(t *testing.T, conf, which, at uint8, again bool, content []byte) {
		w.t = t
		w.must(os.RemoveAll(dir))
		defer w.reset()
		commands := []string{"CHECK", "STATUS", "GC", "DEL"}
		if again {
			commands = append([]string{"ADD"}, commands...)
		}
		w.damaged(compose(0, []byte(z.Confs[int(conf)%len(z.Confs)]), "", ""), commands,
			func() { w.damage(dir, which, at, content) })
	})
}

// RunRecord runs another target, for a plugin whose ADD cannot succeed here. Each call finds a seed as the attachment's
// record in dir, in which the fuzzer has replaced one value or everything. In a seed, IDENTITY stands for the identity
// of the container's namespace, and LINK for the index of its eth0.
func (z Fuzz) RunRecord(f *testing.F, dir string, seeds ...string) {
	for i := range seeds {
		for at := range uint8(24) {
			f.Add(uint8(i), at, []byte(""))
			f.Add(uint8(i), at, []byte("null"))
		}
	}
	w := newFuzzWorld(f, z)
	n, err := ns.Open(FuzzNetns)
	w.must(err)
	defer n.Close()
	id, err := n.Identity()
	w.must(err)
	identity, err := json.Marshal(id)
	w.must(err)
	file := filepath.Join(dir, cni.Attachment{Network: "net", ContainerID: "one", IfName: "eth0"}.Hash()+".json")
	w.must(os.MkdirAll(dir, 0o700))
	f.Fuzz(func(t *testing.T, which, at uint8, content []byte) {
		w.t = t
		defer w.reset()
		eth0, err := w.cont.Link("eth0")
		w.must(err)
		here := strings.NewReplacer("IDENTITY", string(identity), "LINK", strconv.Itoa(eth0.Index))
		seed := []byte(here.Replace(seeds[int(which)%len(seeds)]))
		c := compose(0, []byte(z.Confs[0]), "", "")
		for _, c.command = range []string{"CHECK", "STATUS", "ADD", "GC", "DEL"} {
			w.must(os.WriteFile(file, edited(seed, at, content), 0o600))
			w.call(c)
		}
	})
}

// damaged serves an ADD, damages its files, and serves the commands. It then repeats all of this without damage.
func (w *fuzzWorld) damaged(c fuzzCall, commands []string, damage func()) {
	w.t.Helper()
	conf := c.conf
	for range 2 {
		c.command, c.conf = "ADD", conf
		a := w.call(c)
		if a.Code != 0 {
			w.t.Fatalf("%s: %s", c, a.Stdout)
		}
		result := a.Stdout
		damage()
		damage = func() {}
		for _, c.command = range commands {
			if c.conf = conf; c.command != "ADD" {
				c.conf = withPrev(conf, result)
			}
			if a := w.call(c); c.command == "DEL" && a.Code != 0 {
				w.t.Fatalf("%s: %s", c, a.Stdout)
			}
		}
		w.reset()
	}
}

// damage edits the file below dir that which selects.
func (w *fuzzWorld) damage(dir string, which, at uint8, content []byte) {
	w.t.Helper()
	var files []string
	w.must(filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			files = append(files, path)
		}
		return err
	}))
	if slices.Sort(files); len(files) > 0 {
		file := files[int(which)%len(files)]
		before, err := os.ReadFile(file)
		w.must(err)
		w.must(os.WriteFile(file, edited(before, at, content), 0o600))
	}
}

// edited returns content if at is 0 or doc is not JSON. Otherwise it returns doc with content as its at-th value, or
// without this value if content is empty.
func edited(doc []byte, at uint8, content []byte) []byte {
	var all any
	d := json.NewDecoder(bytes.NewReader(doc))
	d.UseNumber()
	if at == 0 || d.Decode(&all) != nil {
		return content
	}
	value := json.RawMessage(content)
	if !json.Valid(content) {
		value, _ = json.Marshal(string(content))
	}
	n := int(at)
	replace(all, &n, value, len(content) == 0)
	out, err := json.Marshal(all)
	if err != nil {
		return content
	}
	return out
}

// replace replaces or removes the n-th value inside v, in the order of the keys.
func replace(v any, n *int, value json.RawMessage, remove bool) {
	switch v := v.(type) {
	case Object:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			if *n--; *n == 0 && remove {
				delete(v, key)
			} else if *n == 0 {
				v[key] = value
			} else {
				replace(v[key], n, value, remove)
			}
		}
	case []any:
		for i := range v {
			if *n--; *n == 0 {
				v[i] = value
			} else {
				replace(v[i], n, value, remove)
			}
		}
	}
}
