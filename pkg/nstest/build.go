package nstest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
)

// module is the first line of the go.mod below which plugins/ lies.
const module = "module github.com/hawser-cni/plugins\n"

// built are the plugins that this run has compiled.
var built struct {
	sync.Mutex
	paths map[string]string
}

// Build returns the path of a plugin's binary: the one in the directory named by
// HAWSER_BIN, else one compiled now, once in a run, from this checkout.
func Build(plugin string) string {
	ginkgo.GinkgoHelper()
	path, err := build(plugin)
	gomega.Expect(err).NotTo(gomega.HaveOccurred(), "build "+plugin)
	return path
}

func build(plugin string) (string, error) {
	ginkgo.GinkgoHelper()
	if dir := os.Getenv("HAWSER_BIN"); dir != "" {
		path := filepath.Join(dir, plugin)
		_, err := os.Stat(path)
		return path, err
	}
	built.Lock()
	defer built.Unlock()
	if path, ok := built.paths[plugin]; ok {
		return path, nil
	}
	pattern := filepath.Join(Root(), "plugins", "*", plugin)
	sources, err := filepath.Glob(pattern)
	if err != nil || len(sources) != 1 {
		return "", fmt.Errorf("%d directories %s", len(sources), pattern)
	}
	path := filepath.Join(run.workDir, "bin", plugin)
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-o", path, ".")
	cmd.Dir = sources[0]
	// The namespaces have no way to the network; what the tests were compiled from is in the module cache.
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOPROXY=off", "GOFLAGS=-mod=readonly")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	if built.paths == nil {
		built.paths = make(map[string]string)
	}
	built.paths[plugin] = path
	return path, nil
}

// Plugins are the names of all plugins of this checkout, sorted.
func Plugins() []string {
	ginkgo.GinkgoHelper()
	mains, _ := filepath.Glob(filepath.Join(Root(), "plugins", "*", "*", "main.go"))
	var names []string
	for _, main := range mains {
		names = append(names, filepath.Base(filepath.Dir(main)))
	}
	slices.Sort(names)
	return names
}

// Alone are the plugins that serve a call alone: not dhcp, which needs its daemon, and a server.
func Alone() []string {
	ginkgo.GinkgoHelper()
	return slices.DeleteFunc(Plugins(), func(name string) bool { return name == "dhcp" })
}

// Root returns the top directory of the checkout that the tests run in.
func Root() string {
	ginkgo.GinkgoHelper()
	dir := Must(os.Getwd())
	for dir != "/" {
		data, _ := os.ReadFile(filepath.Join(dir, "go.mod"))
		if strings.HasPrefix(string(data), module) {
			return dir
		}
		dir = filepath.Dir(dir)
	}
	ginkgo.Fail("no directory above has a go.mod with " + module)
	return ""
}

// Reference is a release of the reference plugins.
type Reference struct {
	Name   string
	dir    string
	remedy string // for who has it not
}

// References are the releases that specs have beside ours: Debian's, which knows
// neither nftables nor a version after 1.0.0, and the newest.
func References() []Reference { return []Reference{Debian(), Newest()} }

// Debian is the release that Debian has.
func Debian() Reference {
	return Reference{"Debian's reference", "/usr/lib/cni", "package containernetworking-plugins"}
}

// Newest is the newest release, as scripts/reference.sh builds it.
func Newest() Reference {
	const version = "v1.9.1"
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = err.Error() // is no directory, and says why
	}
	return Reference{"the reference " + version, filepath.Join(cache, "hawser", "reference-"+version),
		"scripts/reference.sh"}
}

// Has says whether the release has a plugin: Debian's is older than two of them.
func (r Reference) Has(plugin string) bool {
	return r != Debian() || plugin != "dummy" && plugin != "tap"
}

// Dir is the directory of the release's plugins. It skips the spec where they are
// not installed, and fails it where NSTEST_REQUIRE is set: no kernel lacks them.
func (r Reference) Dir() string {
	ginkgo.GinkgoHelper()
	if _, err := os.Stat(filepath.Join(r.dir, "bridge")); err != nil {
		if required() {
			ginkgo.Fail(r.Name + " (" + r.remedy + "): " + err.Error())
		}
		skip(r.Name+" ("+r.remedy+")", err.Error())
	}
	return r.dir
}

// Program is the path of one of the release's plugins, as Dir.
func (r Reference) Program(plugin string) string {
	ginkgo.GinkgoHelper()
	return filepath.Join(r.Dir(), plugin)
}
