// Package release_test installs and releases the plugins from copies of this tree. Scripts/test-release.sh
// installs what it needs; the packaging tool comes from the Go module proxy.
package release_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"debug/buildinfo"
	"debug/elf"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

func TestRelease(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "release: what users install")
}

// plugins are the names of all in the default archive, in their order.
func plugins() []string {
	GinkgoHelper()
	mains, err := filepath.Glob("../../plugins/*/*/main.go")
	Expect(err).NotTo(HaveOccurred())
	var out []string
	for _, main := range mains {
		if filepath.Base(filepath.Dir(main)) == "cluster-local" {
			continue // has an archive of its own
		}
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

// withTool are the names in a directory where the one file is.
func withTool() []string {
	all := append(plugins(), "hawser")
	slices.Sort(all)
	return all
}

// copyTree makes a clone of a tree, as it is now, in a directory: the commit has
// the same name wherever and whenever it is made.
func copyTree(from, dir string) {
	GinkgoHelper()
	Expect(os.MkdirAll(dir, 0o755)).To(Succeed())
	// Without those that are deleted and not yet committed.
	files := "git ls-files -co --exclude-standard -z | xargs -0 ls -d 2>/dev/null"
	run(from, nil, "bash", "-c", files+` | tar -cf - -T - | tar -xf - -C "$1"`, "copy", dir)
	commit(dir)
}

// commit makes a directory a repository with one commit and a tag.
func commit(dir string) {
	GinkgoHelper()
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

// unpack returns the tarball's members in their order, and their contents.
func unpack(path string) ([]tar.Header, map[string][]byte) {
	GinkgoHelper()
	f, err := os.Open(path)
	Expect(err).NotTo(HaveOccurred())
	defer f.Close()
	z, err := gzip.NewReader(f)
	Expect(err).NotTo(HaveOccurred())
	var headers []tar.Header
	files := map[string][]byte{}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if err == io.EOF {
			return headers, files
		}
		Expect(err).NotTo(HaveOccurred())
		h.Name = strings.TrimPrefix(h.Name, "./")
		headers = append(headers, *h)
		files[h.Name], err = io.ReadAll(r)
		Expect(err).NotTo(HaveOccurred())
	}
}

// link is a link of Markdown to another file of the tree.
var link = regexp.MustCompile(`\]\(([^)#:]+)(#[^)]*)?\)`)

// deadLinks are the links of all pages below a directory that lead to no file in it.
func deadLinks(dir string) []string {
	var dead []string
	links := 0
	Expect(filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".md" {
			return err
		}
		for _, found := range link.FindAllStringSubmatch(contents(path), -1) {
			links++
			target := filepath.Join(filepath.Dir(path), found[1])
			if _, err := os.Stat(target); err != nil || !strings.HasPrefix(target, dir+"/") {
				dead = append(dead, strings.TrimPrefix(path, dir+"/")+": "+found[1])
			}
		}
		return nil
	})).To(Succeed())
	Expect(links).To(BeNumerically(">", 50))
	return dead
}

var _ = Describe("make release", Ordered, ContinueOnFailure, func() {
	var first, dist, key string
	statements(func() string { return dist }, func() string { return key })
	BeforeAll(func() {
		first, key = filepath.Join(GinkgoT().TempDir(), "tree"), newKey()
		dist = first + "/dist"
		copyTree("../..", first)
		run(first, []string{"ARCHS=amd64", "SIGNING_KEY=" + key, "VEX=1", "GOVULNDB=" + vulnerabilities()},
			"make", "release")
	})

	It("gives the same bytes to somebody else, elsewhere", func() {
		tree := filepath.Join(GinkgoT().TempDir(), "somewhere", "else", "with a blank")
		copyTree(first, tree)
		run(tree, nil, "chmod", "-R", "go-rwx", ".")
		run(tree, nil, "find", ".", "-exec", "touch", "-d", "2001-01-01", "{}", "+")
		out := run(tree, []string{"ARCHS=amd64", "GOFLAGS=-tags=other", "GOAMD64=v3", "GOEXPERIMENT=nodwarf5",
			"GOFIPS140=latest", "TZ=Asia/Tokyo", "LC_ALL=C.UTF-8", "SIGNING_KEY=", noDatabase},
			"bash", "-c", "umask 077; make release")
		Expect(out).To(ContainSubstring("no OpenVEX document"))
		Expect(names(tree + "/dist")).To(Equal(reproducible(dist)))
		for _, name := range names(tree + "/dist") {
			Expect(contents(tree+"/dist/"+name) == contents(dist+"/"+name)).To(BeTrue(), name)
		}
	})

	It("names the files as the tag, and sums them all", func() {
		files := []string{"SHA256SUMS", "SHA512SUMS", "hawser-9.8.7-oci.tar", "hawser-9.8.7.provenance.json",
			"hawser-cluster-local-linux-amd64-v9.8.7.tgz",
			"hawser-cni-9.8.7-1.x86_64.rpm", "hawser-cni-9.8.7-source.tgz",
			"hawser-cni-linux-amd64-v9.8.7.cdx.json", "hawser-cni-linux-amd64-v9.8.7.spdx.json",
			"hawser-cni-linux-amd64-v9.8.7.tgz", "hawser-cni_9.8.7-1_amd64.deb", "hawser-linux-amd64-v9.8.7"}
		Expect(reproducible(dist)).To(Equal(files))
		Expect(names(dist)).To(ConsistOf(append(files, "SHA256SUMS.sig", "hawser-9.8.7.openvex.json",
			"hawser-9.8.7.openvex.json.sig", "hawser-9.8.7.provenance.json.sig")))
		page := contents("../../docs/install.md")
		general := strings.NewReplacer("9.8.7", "VERSION", "amd64", "ARCH", "x86_64", "ARCH", ".spdx.", ".cdx.")
		for _, file := range files {
			Expect(page).To(ContainSubstring("`" + general.Replace(file) + "`"))
		}
		for _, sum := range []string{"256", "512"} {
			Expect(strings.Fields(contents(dist + "/SHA" + sum + "SUMS"))).To(ContainElements(files[2:]))
			run(dist, nil, "sha"+sum+"sum", "-c", "SHA"+sum+"SUMS")
		}
	})

	It("has the one file, which installs itself", func() {
		dir := GinkgoT().TempDir()
		run(dist, nil, "./hawser-linux-amd64-v9.8.7", "install", "--to", dir)
		Expect(names(dir)).To(Equal(append([]string{".hawser"}, withTool()...)))
		Expect(run(dir, nil, "./bridge", "--version")).To(HavePrefix("bridge 9.8.7 "))
		Expect(run(dir, nil, "./hawser", "--version")).To(Equal("hawser version 9.8.7\n"))
		run(dir, nil, "./hawser", "uninstall", "--to", dir)
		Expect(names(dir)).To(BeEmpty())
	})

	DescribeTable("keeps all plugins in one file small on", Label("size"), func(arch string) {
		dir, docs, out := GinkgoT().TempDir(), GinkgoT().TempDir(), GinkgoT().TempDir()
		file := dir + "/hawser"
		run("../..", []string{"GOARCH=" + arch, "VERSION=9.8.7"}, "scripts/build.sh", dir, "cmd/hawser")
		Expect(len(contents(file))).To(BeNumerically("<=", 9<<20))
		Expect(len(run(".", nil, "xz", "-9", "-c", file))).To(BeNumerically("<=", 3_300_000))
		Expect(os.WriteFile(docs+"/README.md", nil, 0o644)).To(Succeed())
		run(first, []string{"VERSION=9.8.7", "SOURCE_DATE_EPOCH=1"}, "scripts/release/packages.sh", arch, dir,
			docs+"/README.md", docs, out)
		Expect(names(out)).To(HaveLen(2))
		for _, name := range names(out) { // the packager's xz compresses less than xz -9
			Expect(len(contents(out+"/"+name))).To(BeNumerically("<=", 3_400_000), name)
		}
	}, Entry("amd64", "amd64"), Entry("arm64", "arm64"))

	It("makes a tarball that can be unpacked in the plugins' directory", func() {
		headers, files := unpack(one(dist, "hawser-cni-linux-*.tgz"))
		top := map[string]bool{}
		for _, h := range headers {
			root, _, nested := strings.Cut(h.Name, "/")
			top[root] = true
			mode := int64(0o644)
			isProgram := !nested && h.Name == strings.ToLower(h.Name) || strings.HasSuffix(h.Name, ".sh")
			if h.Typeflag == tar.TypeDir || isProgram {
				mode = 0o755
			}
			Expect(h).To(And(HaveField("Typeflag", BeElementOf(byte(tar.TypeReg), byte(tar.TypeDir))),
				HaveField("Mode", mode), HaveField("Uid", 0), HaveField("Gid", 0),
				HaveField("Uname", ""), HaveField("ModTime",
					BeTemporally("==", time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)))), h.Name)
		}
		Expect(slices.Collect(maps.Keys(top))).To(ConsistOf(append(plugins(), "LICENSE", "THIRD_PARTY.md",
			"hawser-cni")))
		Expect(files["bridge"]).To(ContainSubstring("9.8.7"))
		// As kind, for one, takes them from the reference's tarball.
		run(GinkgoT().TempDir(), nil, "tar", "-xzf", one(dist, "hawser-cni-linux-*.tgz"), "./bridge", "./host-local")
	})

	It("has cluster-local in an archive of its own, with its manifests, and nowhere else", func() {
		_, files := unpack(one(dist, "hawser-cluster-local-linux-*.tgz"))
		Expect(files["cluster-local"]).To(ContainSubstring("9.8.7"))
		notices := strings.ToLower(string(files["THIRD_PARTY.md"]))
		Expect(notices).To(ContainSubstring("\n## go.yaml.in/yaml/v3: license"))
		Expect(files).To(HaveKey("hawser-cni/deploy/cluster-local/crd.yaml"))
		Expect(files).NotTo(HaveKey("bridge"))
	})

	It("ships the documentation whole, in the tarball and in the packages: no link leads nowhere", func() {
		tarball, deb := GinkgoT().TempDir(), GinkgoT().TempDir()
		run(tarball, nil, "tar", "-xzf", one(dist, "hawser-cni-linux-*.tgz"))
		run(deb, nil, "dpkg-deb", "-x", one(dist, "*.deb"), deb)
		for _, docs := range []string{tarball + "/hawser-cni", deb + "/usr/share/doc/hawser-cni"} {
			Expect(deadLinks(docs)).To(BeEmpty(), docs)
			Expect(filepath.Join(docs, "docs/schema/network.json")).To(BeARegularFile())
		}
		shipped := run(tarball+"/hawser-cni", nil, "find", ".", "-type", "f", "-printf",
			"/usr/share/doc/hawser-cni/%P\n")
		Expect(strings.Fields(run(dist, nil, "rpm", "-qpl",
			one(dist, "*.rpm")))).To(ContainElements(strings.Fields(shipped)))
	})

	It("has a man page of the tool and of each plugin in the packages", func() {
		deb := GinkgoT().TempDir()
		run(deb, nil, "dpkg-deb", "-x", one(dist, "*.deb"), deb)
		man, want := deb+"/usr/share/man/man8", []string{"hawser.8.gz"}
		for _, plugin := range plugins() {
			want = append(want, "hawser-"+plugin+".8.gz")
		}
		Expect(names(man)).To(ConsistOf(want))
		listed := run(dist, nil, "rpm", "-qpl", one(dist, "*.rpm"))
		for _, name := range want {
			Expect(listed).To(ContainSubstring("/usr/share/man/man8/" + name + "\n"))
			Expect(contents(man + "/" + name)[:8]).To(Equal("\x1f\x8b\x08\x00\x00\x00\x00\x00"), "no name and no time")
			run(man, nil, "gunzip", name)
			page := strings.TrimSuffix(name, ".gz")
			out, err := try(man, nil, "mandoc", "-Tlint", "-W", "warning", page)
			Expect(out, err).To(BeEmpty())
			text := run(man, nil, "mandoc", "-Tutf8", "-O", "width=80", page)
			Expect(text).To(ContainSubstring("hawser 9.8.7"))
			Expect(text).NotTo(Or(ContainSubstring("]("), ContainSubstring("../"), ContainSubstring("mermaid")), page)
		}
	})

	It("lists everything that is linked, in the SBOM and with its licence in the notices", func() {
		_, files := unpack(one(dist, "hawser-cni-linux-*.tgz"))
		var sbom struct {
			BOMFormat, SpecVersion string
			Metadata               struct{ Timestamp string }
			Components             []struct {
				Name, Version, PURL string
				Hashes              []struct{ Content string }
				Licenses            []struct{ License struct{ ID string } }
			}
		}
		Expect(json.Unmarshal([]byte(contents(one(dist, "*.cdx.json"))), &sbom)).To(Succeed())
		Expect([]string{sbom.BOMFormat, sbom.SpecVersion, sbom.Metadata.Timestamp}).To(HaveExactElements("CycloneDX",
			"1.6", "2026-01-02T03:04:05Z"))
		got := map[string]string{}
		for _, c := range sbom.Components {
			got[c.Name] = c.Version
			if c.PURL == "" {
				if c.Name == "hawser" {
					files[c.Name] = []byte(contents(dist + "/hawser-linux-amd64-v9.8.7"))
				}
				sum := sha256.Sum256(files[c.Name])
				Expect(c.Hashes[0].Content).To(Equal(hex.EncodeToString(sum[:])), c.Name)
			} else {
				Expect(c.Licenses[0].License.ID).NotTo(BeEmpty(), c.Name)
			}
		}
		want := map[string]string{}
		notices := string(files["THIRD_PARTY.md"])
		for _, plugin := range withTool() {
			info, err := buildinfo.Read(bytes.NewReader(files[plugin]))
			Expect(err).NotTo(HaveOccurred())
			want[plugin], want["std"] = "9.8.7", strings.TrimPrefix(info.GoVersion, "go")
			for _, d := range info.Deps {
				want[d.Path] = d.Version
				Expect(strings.ToLower(notices)).To(ContainSubstring("\n## " + strings.ToLower(d.Path) + ": license"))
			}
		}
		Expect(got).To(Equal(want))
		Expect(notices).To(ContainSubstring("Copyright 2009 The Go Authors."))
	})

	DescribeTable("builds static programs for", func(arch string, machine elf.Machine, class elf.Class, data elf.Data) {
		dir := GinkgoT().TempDir()
		run("../..", []string{"GOARCH=" + arch}, "scripts/build.sh", dir)
		Expect(names(dir + "/one")).To(Equal(plugins()))
		Expect(os.RemoveAll(dir + "/one")).To(Succeed())
		built := append(withTool(), "cluster-local")
		Expect(names(dir)).To(ConsistOf(built))
		for _, plugin := range built {
			f, err := elf.Open(filepath.Join(dir, plugin))
			Expect(err).NotTo(HaveOccurred())
			defer f.Close()
			Expect(f.FileHeader).To(And(HaveField("Machine", machine), HaveField("Class", class),
				HaveField("Data", data)))
			for _, p := range f.Progs {
				Expect(p.Type).NotTo(Equal(elf.PT_INTERP), plugin)
			}
		}
	},
		Entry("amd64", "amd64", elf.EM_X86_64, elf.ELFCLASS64, elf.ELFDATA2LSB),
		Entry("arm64", "arm64", elf.EM_AARCH64, elf.ELFCLASS64, elf.ELFDATA2LSB),
		Entry("arm", "arm", elf.EM_ARM, elf.ELFCLASS32, elf.ELFDATA2LSB),
		Entry("loong64", "loong64", elf.EM_LOONGARCH, elf.ELFCLASS64, elf.ELFDATA2LSB),
		Entry("ppc64le", "ppc64le", elf.EM_PPC64, elf.ELFCLASS64, elf.ELFDATA2LSB),
		Entry("s390x", "s390x", elf.EM_S390, elf.ELFCLASS64, elf.ELFDATA2MSB),
		Entry("riscv64", "riscv64", elf.EM_RISCV, elf.ELFCLASS64, elf.ELFDATA2LSB),
		Entry("mips64le", "mips64le", elf.EM_MIPS, elf.ELFCLASS64, elf.ELFDATA2LSB),
	)

	It("makes an RPM that installs the plugins and refuses to be beside kubernetes-cni", func() {
		rpm := one(dist, "*.rpm")
		listed := run(dist, nil, "rpm", "-qplv", rpm)
		for _, plugin := range plugins() {
			Expect(listed).To(MatchRegexp("(?m)^l.* /opt/cni/bin/" + plugin + " -> hawser$"))
		}
		Expect(listed).To(MatchRegexp("(?m)^-rwxr-xr-x .* /opt/cni/bin/hawser$"))
		Expect(listed).To(MatchRegexp("(?m)^l.* /usr/bin/hawser -> /opt/cni/bin/hawser$"))
		deb := run(dist, nil, "dpkg-deb", "--contents", one(dist, "*.deb"))
		for _, unit := range []string{"cni-dhcp.service", "cni-dhcp.socket", "hawser-watch.service"} {
			file := "/usr/lib/systemd/system/" + unit + "\n"
			Expect([]string{run(dist, nil, "rpm", "-qpl", rpm), deb}).To(HaveEach(ContainSubstring(file)))
		}
		Expect(run(dist, nil, "rpm", "-qp", "--conflicts", rpm)).To(Equal("kubernetes-cni\n"))
		Expect(run(dist, nil, "rpm", "-qp", "--licensefiles", rpm)).To(Equal(
			"/usr/share/licenses/hawser-cni/LICENSE\n/usr/share/licenses/hawser-cni/THIRD_PARTY.md\n"))
	})

	DescribeTable("names a package's architecture as Debian and Fedora do:", func(arch, deb, rpm string) {
		all, docs, out := GinkgoT().TempDir(), GinkgoT().TempDir(), GinkgoT().TempDir()
		for _, file := range []string{all + "/hawser", docs + "/README.md"} {
			Expect(os.WriteFile(file, nil, 0o644)).To(Succeed())
		}
		run(first, []string{"VERSION=9.8.7", "SOURCE_DATE_EPOCH=1"}, "scripts/release/packages.sh", arch, all,
			docs+"/README.md", docs, out)
		Expect(run(out, nil, "dpkg-deb", "-f", one(out, "*.deb"), "Architecture")).To(Equal(deb + "\n"))
		Expect(run(out, nil, "rpm", "-qp", "--qf", "%{ARCH}", one(out, "*.rpm"))).To(Equal(rpm))
	},
		Entry("amd64", "amd64", "amd64", "x86_64"),
		Entry("arm64", "arm64", "arm64", "aarch64"),
		Entry("arm", "arm", "armhf", "armv7hl"),
		Entry("loong64", "loong64", "loong64", "loongarch64"),
		Entry("ppc64le", "ppc64le", "ppc64el", "ppc64le"),
		Entry("s390x", "s390x", "s390x", "s390x"),
		Entry("riscv64", "riscv64", "riscv64", "riscv64"),
		Entry("mips64le", "mips64le", "mips64el", "mips64el"),
	)

	DescribeTable("knows of all plugins in", func(script string) {
		Expect(contents("../../scripts/release/" + script)).To(ContainSubstring("for plugin in " +
			strings.Join(plugins(), " ") + "; do\n"))
	}, Entry("preinst", "preinst"), Entry("postrm", "postrm"))

	It("makes a Debian package that stands before kubernetes-cni, and steps aside", func() {
		d := newDebian()
		d.install(d.kubernetesCNI("1.2.0"))
		d.install(one(dist, "*.deb"))
		Expect(d.plugin("bridge")).To(ContainSubstring("9.8.7"))
		Expect(d.plugin("flannel")).To(Equal("flannel of 1.2.0"))
		d.install(d.kubernetesCNI("1.3.0"))
		d.install(one(dist, "*.deb"))
		Expect(d.plugin("bridge")).To(ContainSubstring("9.8.7"))
		Expect(d.plugin("flannel")).To(Equal("flannel of 1.3.0"))
		d.dpkg("--remove", "hawser-cni")
		Expect(names(d.bin())).To(Equal([]string{"bridge", "flannel", "portmap"}))
		Expect(d.plugin("bridge")).To(Equal("bridge of 1.3.0"))
		Expect(d.diversions()).To(BeEmpty())
	})

	It("makes a Debian package that may be there first, and leaves nothing behind", func() {
		d := newDebian()
		d.install(one(dist, "*.deb"))
		Expect(names(d.bin())).To(Equal(withTool()))
		Expect(os.Readlink(d.root+"/usr/bin/hawser")).To(Equal("/opt/cni/bin/hawser"), "the tool is in PATH")
		d.install(d.kubernetesCNI("1.2.0"))
		Expect(d.plugin("portmap")).To(ContainSubstring("9.8.7"))
		d.dpkg("--purge", "kubernetes-cni")
		Expect(names(d.bin())).To(Equal(withTool()))
		d.dpkg("--purge", "hawser-cni")
		Expect(d.bin()).NotTo(BeADirectory())
		Expect(d.root + "/usr").NotTo(BeADirectory())
		Expect(d.diversions()).To(BeEmpty())
	})

	It("makes a Debian package that gives files of nobody back", func() {
		d := newDebian()
		Expect(os.MkdirAll(d.bin(), 0o755)).To(Succeed())
		Expect(os.WriteFile(d.bin()+"/bridge", []byte("from a tarball"), 0o755)).To(Succeed())
		d.install(one(dist, "*.deb"))
		Expect(d.plugin("bridge")).To(ContainSubstring("9.8.7"))
		d.install(one(dist, "*.deb"))
		d.dpkg("--purge", "hawser-cni")
		Expect(names(d.bin())).To(Equal([]string{"bridge"}))
		Expect(d.plugin("bridge")).To(Equal("from a tarball"))
	})
})

var _ = Describe("make install", func() {
	var dest string
	var env []string
	BeforeEach(func() {
		root := GinkgoT().TempDir()
		dest = root + "/usr/libexec/cni"
		env = []string{"DESTDIR=" + root, "PREFIX=/usr/libexec/cni"}
	})
	install := func() { GinkgoHelper(); run("../..", env, "make", "install") }

	DescribeTable("puts every plugin under DESTDIR and PREFIX, for everybody to run", func(separate bool) {
		want := append([]string{".hawser"}, withTool()...)
		if separate {
			want, env = plugins(), append(env, "SEPARATE=1")
		}
		install()
		Expect(names(dest)).To(Equal(want))
		for _, plugin := range plugins() {
			info, err := os.Stat(filepath.Join(dest, plugin))
			Expect(err).NotTo(HaveOccurred())
			Expect(info.Mode()).To(Equal(os.FileMode(0o755)))
			out := run(dest, []string{"CNI_COMMAND=VERSION"}, "./"+plugin)
			Expect(out).To(ContainSubstring(`"supportedVersions"`))
			Expect(contents(dest+"/"+plugin) == contents("../../bin/hawser")).To(Equal(!separate), plugin)
		}
	}, Entry("as one file", false), Entry("as separate files", true))

	It("prints how to put the tool into PATH, except if it is there or in an image", func() {
		advice := "ln -s " + dest + "/hawser /usr/local/bin/\n"
		Expect(run("../..", []string{"PREFIX=" + dest}, "make", "install")).To(ContainSubstring(advice))
		Expect(run("../..", []string{"PREFIX=" + dest, "PATH=" + os.Getenv("PATH") + ":" + dest}, "make",
			"install")).NotTo(ContainSubstring("ln -s"))
		Expect(run("../..", env, "make", "install")).NotTo(ContainSubstring("ln -s"))
	})

	It("takes the tool's options from the environment", func() {
		env = append(env, "HAWSER_ONLY=bridge", "HAWSER_LINKS=symbolic")
		install()
		Expect(names(dest)).To(Equal([]string{".hawser", "bridge", "hawser"}))
		Expect(os.Readlink(dest + "/bridge")).To(Equal("hawser"))
	})

	It("leaves nothing half-written when it cannot go on", func() {
		Expect(os.MkdirAll(dest+"/loopback/of-somebody", 0o755)).To(Succeed())
		out, err := try("../..", env, "make", "install")
		Expect(err).To(HaveOccurred())
		Expect(out).To(ContainSubstring("loopback"))
		Expect(names(dest)).To(Equal([]string{"loopback"}))
		out, err = try("../..", append(env, "SEPARATE=1"), "make", "install")
		Expect(err).To(HaveOccurred())
		Expect(out).To(ContainSubstring("loopback"))
		all := plugins()
		Expect(names(dest)).To(Equal(all[:slices.Index(all, "loopback")+1]))
	})
})

// debian is the root directory of a machine whose packages dpkg keeps.
type debian struct{ root, work string }

func newDebian() debian {
	GinkgoHelper()
	d := debian{root: GinkgoT().TempDir(), work: GinkgoT().TempDir()}
	Expect(os.MkdirAll(d.root+"/var/lib/dpkg", 0o755)).To(Succeed())
	Expect(os.WriteFile(d.root+"/var/lib/dpkg/status", nil, 0o644)).To(Succeed())
	return d
}

// dpkg runs the packages' scripts outside of the root, and tells them of it.
func (d debian) dpkg(args ...string) {
	GinkgoHelper()
	run(d.work, nil, "dpkg", append([]string{"--root=" + d.root, "--force-script-chrootless", "--force-not-root",
		"--log=/dev/null"}, args...)...)
}

func (d debian) install(deb string) { GinkgoHelper(); d.dpkg("--install", deb) }

func (d debian) bin() string { return d.root + "/opt/cni/bin" }

func (d debian) plugin(name string) string {
	GinkgoHelper()
	return contents(filepath.Join(d.bin(), name))
}

func (d debian) diversions() string {
	GinkgoHelper()
	return run(d.work, nil, "dpkg-divert", "--root="+d.root, "--list")
}

// kubernetesCNI makes a package like that of Kubernetes: with two of our names,
// and a plugin that we do not have.
func (d debian) kubernetesCNI(version string) string {
	GinkgoHelper()
	tree := filepath.Join(d.work, version)
	for _, plugin := range []string{"bridge", "portmap", "flannel"} {
		file := filepath.Join(tree, "opt/cni/bin", plugin)
		Expect(os.MkdirAll(filepath.Dir(file), 0o755)).To(Succeed())
		Expect(os.WriteFile(file, []byte(plugin+" of "+version), 0o755)).To(Succeed())
	}
	Expect(os.MkdirAll(tree+"/DEBIAN", 0o755)).To(Succeed())
	control := fmt.Sprintf("Package: kubernetes-cni\nVersion: %s\nArchitecture: amd64\n"+
		"Maintainer: a <a@example.org>\nDescription: a\n",
		version)
	Expect(os.WriteFile(tree+"/DEBIAN/control", []byte(control), 0o644)).To(Succeed())
	run(d.work, nil, "dpkg-deb", "--build", "--root-owner-group", tree, tree+".deb")
	return tree + ".deb"
}
