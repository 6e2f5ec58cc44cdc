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
	// The namespaces have no way to the network; what the tests were compiled
	// from is in the module cache.
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

// Alone are the plugins that serve a call alone: not dhcp, which needs its daemon, and
// a server.
func Alone() []string {
	ginkgo.GinkgoHelper()
	return slices.DeleteFunc(Plugins(), func(name string) bool { return name == "dhcp" })
}

// Root returns the top directory of the checkout that the tests run in.
func Root() string {
	ginkgo.GinkgoHelper()
	dir, err := os.Getwd()
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
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
