package tool

import (
	"bytes"
	"cmp"
	"errors"
	"io/fs"
	"maps"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/mod/semver"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/skel"
)

// kind is the origin of a file.
type kind int

const (
	absent kind = iota
	ours
	reference
	foreign
	irregular // not a regular file
)

// isForeign reports whether the file is another program's or not a regular file.
func (k kind) isForeign() bool { return k != absent && k != ours }

// file describes the file at a plugin's name.
type file struct {
	name    string
	kind    kind
	version string      // of Hawser's and the reference's programs; empty = unknown
	info    fs.FileInfo // nil if the file is absent
	target  string      // target of a symbolic link
	isSelf  bool        // has the same content as the running program
	damaged bool        // Hawser's file, into which another program has written
}

func (f file) String() string {
	version := cmp.Or(f.version, "of unknown version")
	switch f.kind {
	case ours:
		return "Hawser's plugin, " + version
	case reference:
		return "the reference plugin, " + version
	}
	return "another program"
}

func isReference(path string) bool {
	f, err := inspect(path, "", nil)
	return err == nil && f.kind == reference
}

// cachedIsOurs returns a function that reports whether a file is a program of Hawser. The function reads a file again
// only after its modification time has changed.
func cachedIsOurs() func(path string) bool {
	type state struct {
		path    string
		modTime time.Time
	}
	var known sync.Map
	return func(path string) bool {
		info, err := os.Stat(path)
		if err != nil {
			return false
		}
		s := state{path, info.ModTime()}
		if isOurs, ok := known.Load(s); ok {
			return isOurs.(bool)
		}
		f, err := inspect(path, "", nil)
		known.Store(s, err == nil && f.kind == ours)
		return err == nil && f.kind == ours
	}
}

// inspect determines from the content of a file which project's program it is. It does not execute the file, because
// the file may be untrusted or built for another architecture. A link is treated as the file to which it points.
func inspect(path, name string, r *reader) (f file, err error) {
	f.name = name
	f.info, err = os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return f, nil
	}
	if err != nil {
		return f, err
	}
	f.kind = foreign
	if f.info.Mode()&fs.ModeSymlink != 0 {
		if f.target, err = os.Readlink(path); err != nil {
			return f, err
		}
		if f.target == toolName {
			f.kind = ours
		}
	}
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist): // k3s's link has a target on the node, but not in a container
		if ok, _ := regexp.MatchString(`/data/[0-9a-f]{64}/bin/cni$`, f.target); ok {
			f.kind = reference
		}
		return f, nil
	case err != nil:
		return f, err
	case !info.Mode().IsRegular():
		f.kind = irregular
		return f, nil
	case info.Size() > 256<<20: // the largest known plugin has less than a tenth of this size
		return f, nil
	}
	c, err := r.read(path)
	if err != nil {
		return f, err
	}
	if c.kind != foreign {
		f.kind, f.version = c.kind, c.version
	}
	f.isSelf = c.isSelf
	return f, nil
}

// reader determines which project a program file belongs to. It caches the answer until the file changes, so that a
// loop reads only changed files, and a file with several hard links only once. A nil reader caches nothing.
type reader struct {
	program []byte // the running program
	seen    map[identity]content
}

// identity differs after each change of a file, unless two changes get the same file time (see settleTime).
type identity struct {
	device, inode uint64
	size          int64
	mtime, ctime  unix.Timespec
}

// content describes the content of a file.
type content struct {
	kind      kind
	version   string
	isSelf    bool
	isSettled bool
}

// settleTime is the age of a change after which another change certainly gets a different file time, because kernels'
// clocks for file times have a finer resolution.
const settleTime = 100 * time.Millisecond

// dropUnsettled forgets files that may have changed again within the same clock tick, and files beyond the 256th. Each
// installation begins with it.
func (r *reader) dropUnsettled() {
	maps.DeleteFunc(r.seen, func(_ identity, c content) bool { return !c.isSettled || len(r.seen) > 256 })
}

func (r *reader) read(path string) (c content, err error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return c, err
	}
	id := identity{uint64(st.Dev), st.Ino, st.Size, st.Mtim, st.Ctim}
	if r != nil {
		if c, isSeen := r.seen[id]; isSeen {
			return c, nil
		}
	}
	data, err := os.ReadFile(path) // only the answer is cached, because an installing pod has little memory
	if err != nil {
		return c, err
	}
	c.kind, c.version = identifyProgram(data)
	if r != nil {
		c.isSelf, c.isSettled = bytes.Equal(data, r.program), time.Since(time.Unix(st.Ctim.Unix())) > settleTime
		r.seen[id] = c
	}
	return c, nil
}

// identifyProgram returns the origin and version of a program, from Hawser's stamp or from Go's module information.
func identifyProgram(program []byte) (k kind, version string) {
	stamp := regexp.MustCompile(skel.Stamp + `([-+.\w]+);`)
	for _, found := range stamp.FindAllSubmatch(program, -1) {
		switch text := string(found[1]); {
		case semver.IsValid("v" + text):
			return ours, text
		case text == "unknown": // initial value of skel.stamp, which stays in the file next to the linker's value
			k = ours
		}
	}
	if k == ours || bytes.Contains(program, []byte("path\tgithub.com/hawser-cni/plugins/")) { // 0.1.0 had no stamp
		return ours, ""
	}
	const module = "github.com/containernetworking/plugins" // k3s's multi-plugin program has exactly this path
	_, info, ok := bytes.Cut(program, []byte("path\t"+module))
	if !ok { // microk8s builds its program from a file in the reference's tree
		_, info, ok = bytes.Cut(program, []byte("dep\t"+module+"\t(devel)"))
	}
	if !ok {
		return foreign, ""
	}
	info = info[:min(len(info), 16<<10)]
	pattern := regexp.MustCompile(`buildversion\.BuildVersion=(v[-+.\w]+)|\nmod\t` + module + `\t(v[-+.\w]+)`)
	if found := pattern.FindSubmatch(info); found != nil {
		version = string(append(found[1], found[2]...))
	}
	return reference, version
}

// newer reports whether version a is newer than b. Versions have the forms X.Y.Z, X.Y.Z+3.gCOMMIT (three commits
// later), X.Y.Z+go1.26.9 (rebuilt with that Go), and X.Y.Z+go1.26.9.3.gCOMMIT. A valid version is newer than an invalid
// one.
func newer(a, b string) bool {
	a, b = "v"+strings.TrimPrefix(a, "v"), "v"+strings.TrimPrefix(b, "v")
	if !semver.IsValid(a) || !semver.IsValid(b) {
		return semver.IsValid(a)
	}
	goA, commitsA := buildOf(a)
	goB, commitsB := buildOf(b)
	return cmp.Or(semver.Compare(a, b), semver.Compare(goA, goB), cmp.Compare(commitsA, commitsB)) > 0
}

// buildOf returns the Go version of a rebuild, and the number of commits since the tag.
func buildOf(version string) (toolchain string, commits int) {
	pattern := regexp.MustCompile(`^(?:\+go(\d+\.\d+(?:\.\d+)?))?(?:[+.](\d+)\.g)?`)
	parts := pattern.FindStringSubmatch(semver.Build(version))
	commits, _ = strconv.Atoi(parts[2]) // 0 without commits
	return "v" + parts[1], commits
}
