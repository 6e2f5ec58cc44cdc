package plugintest

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ns"
)

// RunFiles runs another target: between an ADD of one of Confs and its DEL, a
// file below dir is replaced by what the fuzzer makes up, or one value in it is; another ADD may
// follow. Seeds are contents. DEL must succeed all the same, and so must the next ADD and DEL.
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

// RunRecord runs another target, for a plugin whose ADD cannot succeed here: each call of the
// container finds a seed as the attachment's record in dir, in which one value, or all, is what the
// fuzzer makes up. IDENTITY in it is that of the container's namespace, LINK the index of its eth0.
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

// damaged serves the commands for a container whose files are damaged before.
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

// damage edits a file below dir, one of them all in turn.
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

// edited is content, or with at a JSON document whose at-th value is replaced by content, or
// taken away where that is empty.
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

// replace looks for the n-th value inside v, in the order of the keys.
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
