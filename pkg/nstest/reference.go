package nstest

import (
	"os"
	"path/filepath"

	"github.com/onsi/ginkgo/v2"
)

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
