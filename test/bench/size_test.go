package bench

import (
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
)

// size is that of the plugins of a directory, bytes. What two names have in common counts once.
type size struct {
	name   string
	files  int
	plain  int64
	packed []int64 // of all files one after the other, by each of the programs that compress
}

// files are the plugins that the directory has.
func (p *plugins) files() (paths []string) {
	for _, name := range pluginNames() {
		if p.has(name) {
			paths = append(paths, filepath.Join(p.dir, name))
		}
	}
	return paths
}

// measureSizes takes those of ours, and of the first of the others.
func (b *bench) measureSizes() {
	GinkgoHelper()
	other := *b.others[0]
	if b.stripped != "" {
		other.name, other.dir = other.name+", stripped", b.stripped
	}
	var jobs []func()
	for _, p := range append(slices.Clone(b.forms), &other) {
		b.sizes = append(b.sizes, size{name: p.name, packed: make([]int64, len(b.packs))})
	}
	for i, p := range append(slices.Clone(b.forms), &other) {
		s := &b.sizes[i]
		var seen []os.FileInfo
		var contents []string
		for _, file := range p.files() {
			info := nstest.Must(os.Stat(file))
			if slices.ContainsFunc(seen, func(have os.FileInfo) bool { return os.SameFile(have, info) }) {
				continue
			}
			seen, contents = append(seen, info), append(contents, file)
			s.files, s.plain = s.files+1, s.plain+info.Size()
		}
		for pack := range b.packs {
			jobs = append(jobs, func() { s.packed[pack] = compressed(b.packs[pack], contents) })
		}
	}
	todo := make(chan func(), len(jobs))
	for _, job := range jobs {
		todo <- job
	}
	close(todo)
	nstest.AtOnce(runtime.NumCPU(), func(int) {
		for job := range todo {
			job()
		}
	})
}

// compressed is how many bytes a program makes of files.
func compressed(command string, files []string) int64 {
	GinkgoHelper()
	var in []io.Reader
	for _, name := range files {
		file := nstest.Must(os.Open(name))
		defer file.Close()
		in = append(in, file)
	}
	var out counter
	args := strings.Fields(command)
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdin, cmd.Stdout = io.MultiReader(in...), &out
	Expect(cmd.Run()).To(Succeed(), command)
	return int64(out)
}

// counter counts what is written.
type counter int64

func (c *counter) Write(p []byte) (int, error) {
	*c += counter(len(p))
	return len(p), nil
}

func (r *report) sizeTable() table {
	t := table{head: append([]string{"plugins", "files", "bytes"}, r.packs...)}
	for _, s := range r.sizes {
		cells := []string{s.name, fmt.Sprint(s.files), fmt.Sprint(s.plain)}
		for _, n := range s.packed {
			cells = append(cells, fmt.Sprint(n))
		}
		t.rows = append(t.rows, cells)
	}
	return t
}

func mebibytes(b *bench, form int) float64 {
	if len(b.sizes) == 0 {
		return math.NaN()
	}
	return float64(b.sizes[form].plain) / (1 << 20)
}
