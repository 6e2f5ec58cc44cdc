package plugins_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// tracked returns the files of the tree: in a git repository, the tracked files and the untracked files that git does
// not ignore; otherwise all files.
func tracked(t *testing.T) []string {
	t.Helper()
	top, err := exec.Command("git", "rev-parse", "--show-prefix").Output()
	if err == nil && len(bytes.TrimSpace(top)) == 0 {
		out, err := exec.Command("git", "ls-files", "-co", "--exclude-standard").Output()
		if err != nil {
			t.Fatal(err)
		}
		return slices.DeleteFunc(strings.Fields(string(out)), func(name string) bool {
			_, err := os.Stat(name)
			return err != nil // deleted and not yet committed
		})
	}
	var files []string
	err = fs.WalkDir(os.DirFS("."), ".", func(name string, d fs.DirEntry, err error) error {
		top, _, _ := strings.Cut(name, "/")
		if err == nil && d.Type().IsRegular() && !slices.Contains([]string{".git", "bin", "dist", "vendor"}, top) {
			files = append(files, name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func TestPluginShape(t *testing.T) {
	files := tracked(t)
	for _, main := range files {
		dir := path.Dir(main)
		if !within(dir, "plugins") || path.Base(main) != "main.go" {
			continue
		}
		name := strings.ReplaceAll(path.Base(dir), "-", "")
		code := name + "/" + name + ".go"
		for _, want := range []string{code, name + "/plugin.go", "README.md"} {
			if !slices.Contains(files, dir+"/"+want) {
				t.Errorf("%s has no %s", dir, want)
			}
		}
		keys := name + "/config.go"
		if !slices.Contains(files, dir+"/"+keys) {
			keys = code // short plugins have no config.go
		}
		content, _ := os.ReadFile(dir + "/" + keys)
		if !bytes.Contains(content, []byte("\ntype wireConfig struct")) {
			t.Errorf("%s/%s does not have the keys of the configuration", dir, keys)
		}
	}
}

// TestSkipsAreSeen verifies that packages whose specs may skip use nstest.Main, which reports skipped specs.
func TestSkipsAreSeen(t *testing.T) {
	skips, watched := map[string]bool{}, map[string]bool{}
	for _, name := range tracked(t) {
		if !strings.HasSuffix(name, "_test.go") || path.Dir(name) == "." {
			continue
		}
		content, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if regexp.MustCompile(`\b(Skip|NeedOK|Need|NeedProgram)\(`).Match(content) {
			skips[path.Dir(name)] = true
		}
		if bytes.Contains(content, []byte("nstest.Main(m)")) {
			watched[path.Dir(name)] = true
		}
	}
	for dir := range skips {
		if !watched[dir] {
			t.Errorf("%s has specs that may skip, and a TestMain without nstest.Main", dir)
		}
	}
}

// mains returns the directories of all programs except cluster-local, which needs TLS for the API server.
func mains(t *testing.T) (dirs []string) {
	for _, name := range tracked(t) {
		dir := path.Dir(name)
		if within(dir, "plugins") && path.Base(name) == "main.go" && path.Base(dir) != "cluster-local" {
			dirs = append(dirs, "./"+dir)
		}
	}
	return dirs
}

func TestPluginDependencies(t *testing.T) {
	list := append([]string{"list", "-deps", "./plugins", "./cmd/..."}, mains(t)...)
	out, err := exec.Command("go", list...).Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		t.Fatalf("go list: %s", exit.Stderr)
	}
	for _, dep := range strings.Fields(string(out)) {
		for _, unwanted := range []string{"net/http", "net/rpc", "encoding/gob", "crypto/tls", "compress", "hash/crc32",
			"github.com/onsi", "github.com/containernetworking", module + "/" + harness} {
			if within(dep, unwanted) {
				t.Errorf("the plugins depend on %s", dep)
			}
		}
	}
}

// Only programs that use a library may pay for it at their start.
func TestPluginsWithoutIPTables(t *testing.T) {
	for _, plugin := range []string{"main/loopback", "ipam/host-local", "ipam/static", "meta/sbr", "meta/tuning"} {
		out, err := exec.Command("go", "list", "-deps", "./plugins/"+plugin).Output()
		if err != nil || strings.Contains(string(out), "coreos/go-iptables") {
			t.Errorf("%s depends on go-iptables (%v)", plugin, err)
		}
	}
}

// namedRelease matches the names of files and images of a release.
var namedRelease = regexp.MustCompile(`(?:hawser[\w:.-]*?|s/VERSION/)(\d+\.\d+\.\d+)`)

// TestVersion finds the version of the file VERSION in all other files that name it. While a release is developed, its
// pages may still name the former one.
func TestVersion(t *testing.T) {
	version := strings.TrimSuffix(read(t, "VERSION"), "\n")
	release, _, isDeveloped := strings.Cut(version, "-")
	if isDeveloped && version != release+"-dev" {
		t.Errorf("VERSION: %s is neither a release nor a development version", version)
	}
	if !strings.Contains(read(t, "deploy/chart/Chart.yaml"), "\nversion: "+release+"\nappVersion: "+release+"\n") {
		t.Errorf("deploy/chart/Chart.yaml: version and appVersion are not VERSION's %s", release)
	}
	first := regexp.MustCompile(`(?m)^## .*$`).FindString(read(t, "CHANGELOG.md"))
	section := `^## ` + regexp.QuoteMeta(release) + ` - \d{4}-\d\d-\d\d$`
	if isDeveloped {
		section = `^## \[Unreleased\], to be ` + regexp.QuoteMeta(release) + `$`
	}
	if !regexp.MustCompile(section).MatchString(first) {
		t.Errorf("CHANGELOG.md: the first section is %q, and VERSION is %s", first, version)
	}
	for _, page := range []string{"README.md", "docs/install.md", "docs/compat.md"} {
		names := namedRelease.FindAllStringSubmatch(read(t, page), -1)
		if len(names) == 0 {
			t.Errorf("%s names no release", page)
		}
		for _, name := range names {
			if !isDeveloped && name[1] != release {
				t.Errorf("%s: %s is not of release %s", page, name[0], release)
			}
		}
	}
}

var bash = regexp.MustCompile(`^#!.*\bbash\n(#.*\n|\n)*set -euo pipefail\n`)

func TestScripts(t *testing.T) {
	for _, name := range tracked(t) {
		content, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		first, _, _ := bytes.Cut(content, []byte("\n"))
		if bytes.HasPrefix(first, []byte("#!")) && bytes.HasSuffix(first, []byte("bash")) && !bash.Match(content) {
			t.Errorf("%s: does not begin with set -euo pipefail", name)
		}
	}
}

// foreign lists words that may only come from a developer's machine.
var foreign = regexp.MustCompile(`(?:^|[^\w.-])/(?:work|root|home/\w+|tmp/plan)/`)

// hosts lists the hosts that addresses in the tree may contain.
var hosts = []string{"github.com", "www.cni.dev", "keepachangelog.com", "semver.org", "www.apache.org",
	"man7.org", "wiki.nftables.org", "docs.kernel.org", "json-schema.org", "git.kernel.org", "datatracker.ietf.org",
	"pkg.go.dev", "go.dev", "www.w3.org", "slsa.dev"} // names in SVG files and in provenance

var address = regexp.MustCompile(`https?://([\w.-]+)`)

func TestWords(t *testing.T) {
	for _, name := range tracked(t) {
		content, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, fault := range foreignWords(string(content)) {
			t.Errorf("%s: %s", name, fault)
		}
	}
}

func foreignWords(content string) (faults []string) {
	for _, word := range foreign.FindAllString(content, -1) {
		faults = append(faults, "a path of a developer's machine: "+word)
	}
	for _, m := range address.FindAllStringSubmatch(content, -1) {
		example := strings.HasPrefix(m[1], "example.") || strings.HasSuffix(m[1], ".example")
		if !slices.Contains(hosts, m[1]) && !example {
			faults = append(faults, "an address with a host that is not in hosts: "+m[0])
		}
	}
	return faults
}

// TestReferenceVersion verifies that only skel.Reference names the release of the reference plugins that Hawser
// matches.
func TestReferenceVersion(t *testing.T) {
	const home = "pkg/skel/skel.go"
	source, err := os.ReadFile(home)
	if err != nil {
		t.Fatal(err)
	}
	constant := regexp.MustCompile(`(?m)^const Reference = "(v[\d.]+)"$`).FindSubmatch(source)
	if constant == nil {
		t.Fatal(home + " has no line that scripts/reference.sh can read")
	}
	for _, name := range tracked(t) {
		content, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, fault := range referenceVersions(name, string(content), string(constant[1])) {
			t.Errorf("%s: %s", name, fault)
		}
	}
}

var (
	namedReference = regexp.MustCompile(`(?im)^.*reference\w*\W{0,4}= *"?v?\d+\.\d+\.\d+.*$`)
	// constantVersion is any constant that has the form of a release. The former release has one of its own.
	constantVersion = regexp.MustCompile(`^\s*(const |var )?\w+\s*:?= *"v\d+\.\d+\.\d+"$`)
	quotedReference = regexp.MustCompile("CNI \\w+ plugin (v\\d+\\.\\d+\\.\\d+)|`(v\\d+\\.\\d+\\.\\d+)\\+hawser")
)

// referenceVersions returns the faults of a file, where version is the value of skel.Reference.
func referenceVersions(name, content, version string) (faults []string) {
	switch {
	case path.Base(name) == "go.mod" || path.Base(name) == "go.sum" || name == "CHANGELOG.md":
	case path.Ext(name) == ".md", path.Ext(name) == ".svg": // a plot names what it compares
		for _, m := range quotedReference.FindAllStringSubmatch(content, -1) {
			if m[1]+m[2] != version {
				faults = append(faults, "plugins print "+version+", not "+m[0])
			}
		}
	default:
		for _, line := range strings.Split(content, "\n") {
			isConstant := line == `const Reference = "`+version+`"` && name == "pkg/skel/skel.go"
			isProduct := path.Ext(name) == ".go" && !strings.HasSuffix(name, "_test.go") && name != "pkg/nstest/need.go"
			isOther := isProduct && constantVersion.MatchString(line)
			if !isConstant && (isOther || strings.Contains(line, version) || namedReference.MatchString(line)) {
				faults = append(faults, "a second version of the reference: "+strings.TrimSpace(line))
			}
		}
	}
	return faults
}

func TestReferenceVersions(t *testing.T) {
	for _, c := range []struct {
		name, line string
		faults     int
	}{
		{"pkg/skel/skel.go", "const R" + `eference = "v1.2.3"`, 0},
		{"pkg/nstest/need.go", "const R" + `eference = "v1.2.3"`, 1},
		{"pkg/x/x.go", "const matched = " + `"v1.2.4"`, 1},
		{"pkg/x/x.go", "	matched := " + `"v1.2.4"`, 1},
		{"scripts/x.sh", "version=v1.2.3", 1},
		{"scripts/x.sh", "r" + "eference=1.2.4", 1},
		{"test/x/x_test.go", "r" + `eference := "v1.2.4"`, 1},
		{"test/x/x_test.go", `list := "1.2.4" + reference`, 0},
		{"go.sum", "x v1.2.3", 0},
		{"docs/x.md", "`CNI bridge plugin v1.2.3` and `v1.2.3+hawser.0.1.0`", 0},
		{"docs/x.md", "`CNI bridge plugin v1.2.4` or `v1.2.4+hawser.0.1.0`", 2},
	} {
		if got := referenceVersions(c.name, c.line, "v1.2.3"); len(got) != c.faults {
			t.Errorf("%s: %s: got %q, want %d faults", c.name, c.line, got, c.faults)
		}
	}
}

// TestSuites finds each directory of test/ that has tests in the table of test/README.md.
func TestSuites(t *testing.T) {
	page := read(t, "test/README.md")
	for _, name := range tracked(t) {
		suite, file := path.Split(name)
		suite = strings.TrimSuffix(suite, "/")
		if path.Dir(suite) == "test" && strings.HasSuffix(file, "_test.go") &&
			!regexp.MustCompile("(?m)^\\| .*`"+regexp.QuoteMeta(suite)+"`.* \\|").MatchString(page) {
			t.Errorf("test/README.md: no row of %s, which has %s", suite, file)
		}
	}
}

// TestMarkdownWidth keeps prose in Markdown at 100 columns. Tables, code, comments and lines without a blank to break
// at are exempt.
func TestMarkdownWidth(t *testing.T) {
	for _, name := range tracked(t) {
		if !strings.HasSuffix(name, ".md") {
			continue
		}
		content, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, fault := range wideProse(string(content)) {
			t.Errorf("%s:%s", name, fault)
		}
	}
}

// unbroken matches what a formatter does not break: code and the targets of links.
var unbroken = regexp.MustCompile("`[^`]*`|\\]\\([^)]*\\)")

// wideProse returns the number and the width of each line of prose that is too wide.
func wideProse(text string) (faults []string) {
	isCode := false
	for i, line := range strings.Split(text, "\n") {
		trimmed := strings.TrimSpace(line)
		if strings.HasPrefix(trimmed, "```") {
			isCode = !isCode
		}
		isExempt := isCode || strings.HasPrefix(trimmed, "|") || strings.HasPrefix(trimmed, "<!--") ||
			strings.HasPrefix(line, "    ") || strings.HasPrefix(line, "#")
		width := utf8.RuneCountInString(unbroken.ReplaceAllString(line, ""))
		if !isExempt && width > 100 && strings.Contains(strings.TrimLeft(trimmed, "-*0123456789. "), " ") {
			faults = append(faults, fmt.Sprintf("%d: %d columns", i+1, width))
		}
	}
	return faults
}

func TestWideProse(t *testing.T) {
	long := strings.Repeat("word ", 25)
	text := strings.Join([]string{long, "| " + long, "    " + long, "```", long, "```", "- " + long,
		"- " + strings.Repeat("x", 120), "short"}, "\n")
	if faults := wideProse(text); !slices.Equal(faults, []string{"1: 125 columns", "7: 127 columns"}) {
		t.Error(faults)
	}
}

// shipped matches the files that scripts/release.sh copies into archives and packages as documentation.
var shipped = regexp.MustCompile(`^([^/]+\.md|LICENSE|(deploy|docs)/.*|(cmd|plugins/[^/]+)/[^/]+/README\.md)$`)

// TestLinks follows the relative links of all pages: file and heading exist, and a shipped page links only to shipped
// files.
func TestLinks(t *testing.T) {
	files := map[string]bool{}
	for _, name := range tracked(t) {
		for ; name != "."; name = path.Dir(name) {
			files[name] = true
		}
	}
	for page := range files {
		if !strings.HasSuffix(page, ".md") {
			continue
		}
		for _, link := range relativeLink.FindAllStringSubmatch(read(t, page), -1) {
			target, heading := page, link[2]
			if link[1] != "" {
				target = path.Join(path.Dir(page), link[1])
			}
			switch {
			case !files[target]:
				t.Errorf("%s: link to %s, which does not exist", page, target)
			case shipped.MatchString(page) && !shipped.MatchString(target) && !shipped.MatchString(target+"/x"):
				t.Errorf("%s: link to %s, which releases lack", page, target)
			case heading != "" && !slices.Contains(anchors(read(t, target)), heading):
				t.Errorf("%s: link to %s#%s: no such heading", page, target, heading)
			}
		}
	}
}

// relativeLink matches a Markdown link without a scheme: to a file, to a heading of the same page, or to both.
var relativeLink = regexp.MustCompile(`\]\(([^)#:\s]*)(?:#([^)\s]*))?\)`)

// anchors returns the fragments that GitHub gives to the headings of a page.
func anchors(page string) (fragments []string) {
	for _, heading := range regexp.MustCompile("(?m)^#+ +(.*)$").FindAllStringSubmatch(page, -1) {
		text := regexp.MustCompile(`\]\([^)]*\)`).ReplaceAllString(strings.ToLower(heading[1]), "")
		text = regexp.MustCompile(`[^\pL\pN_ -]`).ReplaceAllString(text, "")
		fragments = append(fragments, strings.ReplaceAll(text, " ", "-"))
	}
	return fragments
}
