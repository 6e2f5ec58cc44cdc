package node

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/hawser-cni/plugins/pkg/process"
)

// usualPath has the directories into which packages and runtimes put plugins.
const usualPath = "/opt/cni/bin:/usr/lib/cni:/usr/libexec/cni"

// configuredPath has the directories in which the CRI runtimes of the node look for plugins: those that their files
// name, or else each one's own. It is all usual ones where there are no such files, or podman, which looks in them all.
func configuredPath() string {
	_, err := process.LookPath("podman")
	var dirs []string
	for _, r := range [][]string{{"/opt/cni/bin", "/etc/containerd/config.toml", "/etc/containerd/conf.d/*.toml"},
		{"/opt/cni/bin:/usr/libexec/cni", "/etc/crio/crio.conf", "/etc/crio/crio.conf.d/*.conf"}} {
		var text []byte
		for _, pattern := range r[1:] {
			files, _ := filepath.Glob(pattern) // a good pattern
			for _, file := range files {
				more, _ := os.ReadFile(file)
				text = append(append(text, more...), '\n')
			}
		}
		isOff := regexp.MustCompile(`(?m)^\s*disabled_plugins\s*=.*\bcri\b`).Match(text) // as Docker has it
		if len(text) == 0 || isOff {
			continue
		}
		named := dirsIn(text)
		if named == nil {
			named = filepath.SplitList(r[0])
		}
		for _, dir := range named { // in the order in which a runtime looks
			if !slices.Contains(dirs, dir) {
				dirs = append(dirs, dir)
			}
		}
	}
	if err == nil || len(dirs) == 0 {
		return usualPath
	}
	return strings.Join(dirs, ":")
}

// dirsIn are those that containerd's or CRI-O's configuration names, one or several for a key: in the table of CNI,
// since others of containerd's have a bin_dir, too.
func dirsIn(text []byte) (dirs []string) {
	line := regexp.MustCompile(
		`(?m)^[ \t]*(?:\[([^\]\n]*)\]|(?:bin_dirs?|plugin_dirs)[ \t]*=[ \t]*(\[[^\]]*\]|.*))`)
	isCNI := false
	for _, m := range line.FindAllSubmatch(text, -1) {
		if m[2] == nil {
			isCNI = bytes.HasSuffix(m[1], []byte("cni")) || bytes.HasSuffix(m[1], []byte("crio.network"))
		}
		if !isCNI {
			continue
		}
		for _, m := range regexp.MustCompile(`["'](/[^"']*)["']`).FindAllSubmatch(m[2], -1) {
			dirs = append(dirs, filepath.Clean(string(m[1])))
		}
	}
	return dirs
}
