package plugintest

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// RunFiles runs another target: between an ADD of one of Confs and its DEL, a
// file below dir is replaced by what the fuzzer makes up. Seeds are contents.
// DEL must succeed all the same, and so must the next ADD and DEL.
func (z Fuzz) RunFiles(f *testing.F, dir string, seeds ...string) {
	for i := range z.Confs {
		for which := range uint8(3) {
			for _, content := range seeds {
				f.Add(uint8(i), which, []byte(content))
			}
		}
	}
	w := newFuzzWorld(f, z)
	w.lend(append(z.Leases, "")[0])
	f.Fuzz(func(t *testing.T, conf, which uint8, content []byte) {
		w.t = t
		w.must(os.RemoveAll(dir))
		defer w.reset()
		w.damaged(compose(0, []byte(z.Confs[int(conf)%len(z.Confs)]), "", ""), func() { w.damage(dir, which, content) })
	})
}

// damaged serves the calls of a container whose files are damaged in between.
func (w *fuzzWorld) damaged(c fuzzCall, damage func()) {
	w.t.Helper()
	conf := c.conf
	for range 2 {
		c.command, c.conf = "ADD", conf
		a := w.call(c)
		if a.Code != 0 {
			w.t.Fatalf("%s: %s", c, a.Stdout)
		}
		c.conf = withPrev(conf, a.Stdout)
		damage()
		damage = func() {}
		for _, command := range []string{"CHECK", "STATUS", "GC", "DEL"} {
			c.command = command
			if a := w.call(c); command == "DEL" && a.Code != 0 {
				w.t.Fatalf("%s: %s", c, a.Stdout)
			}
		}
		w.reset()
	}
}

// damage replaces a file below dir, one of them all in turn.
func (w *fuzzWorld) damage(dir string, which uint8, content []byte) {
	w.t.Helper()
	var files []string
	w.must(filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			files = append(files, path)
		}
		return err
	}))
	if slices.Sort(files); len(files) > 0 {
		w.must(os.WriteFile(files[int(which)%len(files)], content, 0o600))
	}
}
