package node

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/process"
)

// Runtimes has the answers of the node's container runtimes about their containers.
type Runtimes struct {
	Answered []string          // runtimes that answered
	Silent   []string          // runtimes that exist and did not answer, with the reason
	listedBy map[string]string // program that listed the container, by the container's ID
	hasCtr   bool              // containerd listed all its containers, including nerdctl's
}

const queryTimeout = 10 * time.Second // for a runtime's answer

// queryRuntimes queries all runtimes of the node concurrently, with their own programs.
func (n *Node) queryRuntimes(ctx context.Context) *Runtimes {
	var answers []*Runtimes
	var wg sync.WaitGroup
	query := func(name string, do func(r *Runtimes) error) {
		r := &Runtimes{listedBy: map[string]string{}}
		answers = append(answers, r)
		wg.Go(func() {
			if err := do(r); err != nil {
				r.Silent = append(r.Silent, fmt.Sprintf("%s: %v", name, err))
			}
		})
	}
	for _, paths := range sockets() {
		socket := paths[0]
		if _, err := os.Stat(socket); err == nil {
			query(socket, func(r *Runtimes) error { return n.querySocket(ctx, r, socket) })
			continue
		}
		for _, state := range paths[1:] {
			if _, err := os.Stat(state); err == nil {
				const stopped = "does not exist, but %s does: the runtime is stopped, or was removed without its data"
				query(socket, func(*Runtimes) error { return fmt.Errorf(stopped, state) })
			}
		}
	}
	if _, err := process.LookPath("podman"); err == nil && hasStorage() {
		query("podman", func(r *Runtimes) error { return n.queryPodman(ctx, r) })
	}
	wg.Wait()
	all := &Runtimes{listedBy: map[string]string{}}
	for _, r := range answers {
		all.Answered, all.Silent = append(all.Answered, r.Answered...), append(all.Silent, r.Silent...)
		all.hasCtr = all.hasCtr || r.hasCtr
		maps.Copy(all.listedBy, r.listedBy)
	}
	return all
}

// sockets returns the sockets on which CRI runtimes usually listen, each with the directories that its runtime keeps
// while it is stopped. After them, it returns other sockets with these file names on which a process is listening. Any
// user can create such a socket, so it omits other sockets that verifyOwner refuses.
func sockets() [][]string {
	const k0s, microk8s = "/var/lib/k0s/containerd", "/var/snap/microk8s/common/var/lib/containerd"
	const k3s, rke2 = "/var/lib/rancher/k3s/agent/containerd", "/var/lib/rancher/rke2/agent/containerd"
	all := [][]string{{"/run/containerd/containerd.sock", "/var/lib/containerd"},
		{"/run/k0s/containerd.sock", k0s}, {"/var/snap/microk8s/common/run/containerd.sock", microk8s},
		{"/run/k3s/containerd/containerd.sock", k3s, rke2}, {"/run/crio/crio.sock", "/var/lib/crio"},
		{"/run/cri-dockerd.sock", "/var/lib/cri-dockerd"}}
	const listens = "00010000" // flag of a listening socket in /proc/net/unix
	bound, _ := os.ReadFile("/proc/net/unix")
	for line := range strings.Lines(string(bound)) {
		words := strings.Fields(line)
		if len(words) < 8 || words[3] != listens || !filepath.IsAbs(words[7]) {
			continue
		}
		switch filepath.Base(words[7]) {
		case "containerd.sock", "crio.sock", "cri-dockerd.sock":
			path, err := filepath.EvalSymlinks(words[7])
			isKnown := slices.ContainsFunc(all, func(paths []string) bool { return paths[0] == path })
			if err == nil && !isKnown && verifyOwner(path) == nil {
				all = append(all, []string{path})
			}
		}
	}
	return all
}

// verifyOwner returns an error unless root owns the file and all directories above it, and only root can replace root's
// files in them. Other users may write to a directory with the sticky bit, such as /tmp, because they cannot replace
// root's files there. The owner of the root directory is treated as root, because root has another user ID in a user
// namespace, and this owner can replace all files anyway.
func verifyOwner(path string) error {
	path, err := filepath.EvalSymlinks(path)
	var rootDir, st unix.Stat_t
	if err = cmp.Or(err, unix.Stat("/", &rootDir)); err != nil {
		return err
	}
	for p := path; ; p = filepath.Dir(p) {
		if err := unix.Lstat(p, &st); err != nil {
			return &fs.PathError{Op: "stat", Path: p, Err: err}
		}
		isWritable := st.Mode&unix.S_IWOTH != 0 || st.Mode&unix.S_IWGRP != 0 && st.Gid != 0
		isReplaceable := p != path && isWritable && st.Mode&unix.S_ISVTX == 0
		switch {
		case st.Uid != 0 && st.Uid != rootDir.Uid:
			return fmt.Errorf("not trusted: %s belongs to user %d", p, st.Uid)
		case isReplaceable:
			return fmt.Errorf("not trusted: %s can be written to by users other than root", p)
		case p == "/":
			return nil
		}
	}
}

// hasStorage reports whether podman has storage at its default place or where its configuration puts it.
func hasStorage() bool {
	dirs := []string{"/var/lib/containers/storage"}
	for _, file := range []string{"/usr/share/containers/storage.conf", "/etc/containers/storage.conf"} {
		text, _ := os.ReadFile(file)
		dirs = append(dirs, stringsIn(regexp.MustCompile(`(?m)^[ \t]*graphroot[ \t]*=.*`).Find(text))...)
	}
	return slices.ContainsFunc(dirs, func(dir string) bool {
		_, err := os.Stat(dir)
		return err == nil
	})
}

// querySocket queries a CRI runtime for its pods, and containerd for its containers. The answer about containers is
// sufficient if crictl is not installed or containerd does not serve CRI.
func (n *Node) querySocket(ctx context.Context, r *Runtimes, socket string) error {
	if err := verifyOwner(socket); err != nil {
		return err
	}
	var pods struct{ Items []struct{ ID string } }
	err := n.query(ctx, &pods, "crictl", "--runtime-endpoint", "unix://"+socket, "pods", "-o", "json")
	if err == nil && pods.Items == nil {
		err = errors.New("crictl: its answer has no list of pods")
	}
	if err == nil {
		r.Answered = append(r.Answered, "crictl "+socket)
		for _, p := range pods.Items {
			r.listedBy[p.ID] = "crictl"
		}
	}
	if !strings.HasSuffix(socket, "containerd.sock") {
		return err
	}
	if errors.Is(err, process.ErrNotFound) || err != nil && strings.Contains(err.Error(), "Unimplemented") {
		err = nil
	}
	return errors.Join(err, n.queryContainerd(ctx, r, socket))
}

func (n *Node) queryPodman(ctx context.Context, r *Runtimes) error {
	var containers []struct{ ID string }
	err := n.query(ctx, &containers, "podman", "ps", "-a", "--no-trunc", "--format", "json")
	if err != nil {
		return err
	}
	r.Answered = append(r.Answered, "podman")
	for _, c := range containers {
		r.listedBy[c.ID] = "podman"
	}
	return nil
}

// queryContainerd queries all of containerd's namespaces. nerdctl's container IDs in CNI have the form NAMESPACE-ID.
func (n *Node) queryContainerd(ctx context.Context, r *Runtimes, socket string) error {
	var namespaces, ids []string
	if err := n.query(ctx, &namespaces, "ctr", "--address", socket, "namespaces", "ls", "-q"); err != nil {
		return err
	}
	for _, namespace := range namespaces {
		err := n.query(ctx, &ids, "ctr", "--address", socket, "-n", namespace, "containers", "ls", "-q")
		if err != nil {
			return err
		}
		for _, id := range ids {
			r.listedBy[id], r.listedBy[namespace+"-"+id] = "ctr", "ctr"
		}
	}
	r.hasCtr = true
	r.Answered = append(r.Answered, "ctr "+socket)
	return nil
}

// query executes a program and decodes its output, as words into a *[]string, as JSON into other types.
func (n *Node) query(ctx context.Context, answer any, program string, args ...string) error {
	file, args, err := findProgram(program, args)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	var stdout, stderr bytes.Buffer
	err = process.Command{Path: file, Args: args, Env: n.Env, Stdout: &stdout, Stderr: &stderr}.Run(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w: %s", program, err, strings.TrimSpace(stderr.String()))
	}
	if words, ok := answer.(*[]string); ok {
		*words = strings.Fields(stdout.String())
		return nil
	}
	if err := json.Unmarshal(stdout.Bytes(), answer); err != nil {
		return fmt.Errorf("%s: %w", program, err)
	}
	return nil
}

// findProgram returns a runtime's program and its arguments. It searches PATH and the directories of k3s and RKE2, and
// falls back to the k3s program, which contains the others.
func findProgram(program string, args []string) (string, []string, error) {
	file, err := process.LookPath(program)
	if err == nil {
		return file, args, nil
	}
	for _, dir := range []string{"/var/lib/rancher/k3s/data/current/bin", "/var/lib/rancher/rke2/bin"} {
		if file, err := process.LookPath(filepath.Join(dir, program)); err == nil {
			return file, args, nil
		}
	}
	if k3s, err := process.LookPath("k3s"); err == nil && program != "podman" {
		return k3s, append([]string{program}, args...), nil
	}
	return "", nil, err
}

// isAuthoritative reports whether the answers include each live container with an ID of this form. Nomad, BuildKit and
// other programs whose containers no runtime lists use IDs of other forms. A runtime that did not answer may have any
// container.
func (r *Runtimes) isAuthoritative(id string) bool {
	if len(r.Silent) > 0 || len(r.Answered) == 0 {
		return false
	}
	return regexp.MustCompile(`^[0-9a-f]{64}$`).MatchString(id) ||
		r.hasCtr && regexp.MustCompile(`-[0-9a-f]{64}$`).MatchString(id)
}

// usualPath has the directories into which packages and runtimes install plugins.
const usualPath = "/opt/cni/bin:/usr/lib/cni:/usr/libexec/cni"

type runtimeConfig struct {
	path string // the default directories of plugins
	text []byte // the contents of its files; empty = the runtime is not configured, or has CRI disabled
}

// readRuntimeConfigs reads the configurations of containerd and CRI-O, with the files that containerd imports.
func readRuntimeConfigs() (all []runtimeConfig) {
	for _, r := range []struct{ path, file, dropIns string }{
		{"/opt/cni/bin", "/etc/containerd/config.toml", "/etc/containerd/conf.d/*.toml"},
		{"/opt/cni/bin:/usr/libexec/cni", "/etc/crio/crio.conf", "/etc/crio/crio.conf.d/*.conf"},
	} {
		main, _ := os.ReadFile(r.file)
		patterns := []string{r.file, r.dropIns}
		imports := regexp.MustCompile(`(?m)^[ \t]*imports[ \t]*=[ \t]*\[[^\]]*\]`)
		for _, pattern := range stringsIn(imports.Find(main)) {
			if !filepath.IsAbs(pattern) {
				pattern = filepath.Join(filepath.Dir(r.file), pattern)
			}
			patterns = append(patterns, pattern)
		}
		c, seen := runtimeConfig{path: r.path}, map[string]bool{}
		for _, pattern := range patterns {
			files, _ := filepath.Glob(pattern) // an invalid pattern matches nothing
			for _, file := range files {
				if !seen[file] {
					seen[file] = true
					more, _ := os.ReadFile(file)
					c.text = append(append(c.text, more...), '\n')
				}
			}
		}
		// Docker's package disables CRI in this way.
		if regexp.MustCompile(`(?m)^\s*disabled_plugins\s*=.*\bcri\b`).Match(c.text) {
			c.text = nil
		}
		all = append(all, c)
	}
	return all
}

// ConfiguredLists returns the directories of network lists that the configurations of CRI runtimes name.
func ConfiguredLists() (dirs []string) {
	for _, c := range readRuntimeConfigs() {
		dirs = append(dirs, dirsIn(c.text, "conf_dir|network_dir")...)
	}
	return dirs
}

// configuredPath returns the directories in which the CRI runtimes of the node search for plugins: the configured ones,
// or each runtime's default. It returns all usual ones if no CRI runtime is configured, or if podman is installed,
// because podman searches all of them.
func configuredPath() string {
	var dirs []string
	for _, c := range readRuntimeConfigs() {
		if len(c.text) == 0 {
			continue
		}
		configured := dirsIn(c.text, "bin_dirs?|plugin_dirs")
		if configured == nil {
			configured = filepath.SplitList(c.path)
		}
		for _, dir := range configured { // in the runtime's search order
			if !slices.Contains(dirs, dir) {
				dirs = append(dirs, dir)
			}
		}
	}
	if _, err := process.LookPath("podman"); err == nil || len(dirs) == 0 {
		return usualPath
	}
	return strings.Join(dirs, ":")
}

// dirsIn returns the directories of keys in containerd's or CRI-O's configuration. It only reads the tables for CNI,
// because other tables of containerd also have a key bin_dir.
func dirsIn(text []byte, keys string) (dirs []string) {
	line := regexp.MustCompile(`(?m)^[ \t]*(?:\[([^\]\n]*)\]|(?:` + keys + `)[ \t]*=[ \t]*(\[[^\]]*\]|.*))`)
	isCNI := false
	for _, m := range line.FindAllSubmatch(text, -1) {
		if m[2] == nil {
			isCNI = bytes.HasSuffix(m[1], []byte("cni")) || bytes.HasSuffix(m[1], []byte("crio.network"))
		}
		for _, dir := range stringsIn(m[2]) {
			if isCNI && filepath.IsAbs(dir) {
				dirs = append(dirs, filepath.Clean(dir))
			}
		}
	}
	return dirs
}

func stringsIn(value []byte) (all []string) {
	for _, m := range regexp.MustCompile(`["']([^"']+)["']`).FindAllSubmatch(value, -1) {
		all = append(all, string(m[1]))
	}
	return all
}
