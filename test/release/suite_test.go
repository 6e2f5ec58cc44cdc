// Package release_test installs and releases the plugins from copies of this tree. Scripts/test-release.sh
// installs what it needs; the packaging tool comes from the Go module proxy.
package release_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

func TestRelease(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "release: what users install")
}

// plugins are the names of all that have a main.go two directories below plugins/, in their order.
func plugins() []string {
	GinkgoHelper()
	mains, err := filepath.Glob("../../plugins/*/*/main.go")
	Expect(err).NotTo(HaveOccurred())
	var out []string
	for _, main := range mains {
		out = append(out, filepath.Base(filepath.Dir(main)))
	}
	slices.Sort(out)
	Expect(len(out)).To(BeNumerically(">=", 6))
	return out
}

func run(dir string, env []string, name string, args ...string) string {
	GinkgoHelper()
	out, err := try(dir, env, name, args...)
	Expect(err).NotTo(HaveOccurred(), "%s %s\n%s", name, strings.Join(args, " "), out)
	return out
}

func try(dir string, env []string, name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// copyTree makes a clone of a tree, as it is now, in a directory: the commit has
// the same name wherever and whenever it is made.
func copyTree(from, dir string) {
	GinkgoHelper()
	Expect(os.MkdirAll(dir, 0o755)).To(Succeed())
	// Without those that are deleted and not yet committed.
	files := "git ls-files -co --exclude-standard -z | xargs -0 ls -d 2>/dev/null"
	run(from, nil, "bash", "-c", files+` | tar -cf - -T - | tar -xf - -C "$1"`, "copy", dir)
	date := "2026-01-02T03:04:05Z"
	as := []string{"GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null"}
	for _, who := range []string{"AUTHOR", "COMMITTER"} {
		as = append(as, fmt.Sprintf("GIT_%s_NAME=a", who), fmt.Sprintf("GIT_%s_EMAIL=a@example.org", who),
			fmt.Sprintf("GIT_%s_DATE=%s", who, date))
	}
	for _, args := range [][]string{{"init", "-q"}, {"add", "-A"}, {"commit", "-qm", "release"}, {"tag", "v9.8.7"}} {
		run(dir, as, "git", args...)
	}
}

func contents(path string) string {
	GinkgoHelper()
	data, err := os.ReadFile(path)
	Expect(err).NotTo(HaveOccurred())
	return string(data)
}

func names(dir string) []string {
	GinkgoHelper()
	entries, err := os.ReadDir(dir)
	Expect(err).NotTo(HaveOccurred())
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func one(pattern ...string) string {
	GinkgoHelper()
	found, err := filepath.Glob(filepath.Join(pattern...))
	Expect(err).NotTo(HaveOccurred())
	Expect(found).To(HaveLen(1))
	return found[0]
}
