package release_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	slsa "github.com/in-toto/attestation/go/predicates/provenance/v1"
	intoto "github.com/in-toto/attestation/go/v1"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/openvex/go-vex/pkg/vex"
	spdxjson "github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdxlib"
	"google.golang.org/protobuf/encoding/protojson"
)

// noDatabase is one that cannot be reached.
const noDatabase = "GOVULNDB=file:///nowhere"

// vulnerabilities makes a database of two, one of which is in what `hawser` calls.
func vulnerabilities() string {
	GinkgoHelper()
	dir := GinkgoT().TempDir()
	const library, since = "github.com/spf13/cobra", "2026-01-01T00:00:00Z"
	var index []map[string]any
	symbols := map[string]string{"GO-2026-0001": "Command.Execute", "GO-2026-0002": "Command.MarkPersistentFlagDirname"}
	for id, symbol := range symbols {
		write(dir+"/ID/"+id+".json", map[string]any{
			"schema_version": "1.3.1", "id": id, "modified": since, "published": since, "summary": "a",
			"aliases": []string{"CVE" + strings.TrimPrefix(id, "GO")},
			"affected": []any{map[string]any{
				"package": map[string]any{"name": library, "ecosystem": "Go"},
				"ranges":  []any{map[string]any{"type": "SEMVER", "events": []any{map[string]any{"introduced": "0"}}}},
				"ecosystem_specific": map[string]any{"imports": []any{map[string]any{"path": library,
					"symbols": []string{symbol}}}},
			}},
		})
		index = append(index, map[string]any{"id": id, "modified": since})
	}
	write(dir+"/index/db.json", map[string]any{"modified": since})
	write(dir+"/index/modules.json", []any{map[string]any{"path": library, "vulns": index}})
	return "file://" + dir
}

func write(path string, v any) {
	GinkgoHelper()
	Expect(os.MkdirAll(filepath.Dir(path), 0o755)).To(Succeed())
	data, err := json.Marshal(v)
	Expect(err).NotTo(HaveOccurred())
	Expect(os.WriteFile(path, data, 0o644)).To(Succeed())
}

// newKey makes a key to sign with.
func newKey() string {
	GinkgoHelper()
	key := GinkgoT().TempDir() + "/releaser"
	run(".", nil, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "releaser", "-f", key)
	return key
}

func sha256Of(path string) string {
	GinkgoHelper()
	sum := sha256.Sum256([]byte(contents(path)))
	return hex.EncodeToString(sum[:])
}

// reproducible are the files of a release that two builders get alike.
func reproducible(dist string) []string {
	return slices.DeleteFunc(names(dist), func(name string) bool {
		return strings.HasSuffix(name, ".sig") || strings.HasSuffix(name, ".openvex.json")
	})
}

// statements are specs of what a release says of itself.
func statements(dist, key func() string) {
	It("has the sources, which build the same programs without the network, the modules and git", func() {
		dir := GinkgoT().TempDir()
		run(dir, nil, "tar", "-xzf", dist()+"/hawser-cni-9.8.7-source.tgz")
		tree := dir + "/hawser-cni-9.8.7"
		Expect(contents(tree + "/VERSION")).To(Equal("9.8.7\n"))
		Expect(os.WriteFile(dir+"/git", []byte("#!/bin/sh\nexit 127\n"), 0o755)).To(Succeed())
		offline := []string{"GOPROXY=off", "GOFLAGS=", "GOMODCACHE=" + dir + "/modules",
			"PATH=" + dir + ":" + os.Getenv("PATH")}
		run(tree, offline, "make")
		_, files := unpack(one(dist(), "hawser-cni-linux-amd64-*.tgz"))
		for _, plugin := range plugins() {
			Expect(contents(tree+"/bin/"+plugin) == string(files[plugin])).To(BeTrue(), plugin)
		}
		Expect(contents(tree+"/bin/hawser") == contents(dist()+"/hawser-linux-amd64-v9.8.7")).To(BeTrue())
		run(tree, offline, "go", "test", "-run", "TestSource|TestScripts|TestWords", ".")
	})

	It("has the sources, which know what they are when they are unpacked in somebody's repository", func() {
		dir := GinkgoT().TempDir()
		Expect(os.WriteFile(dir+"/README.md", []byte("another's"), 0o644)).To(Succeed())
		commit(dir)
		run(dir, nil, "tar", "-xzf", dist()+"/hawser-cni-9.8.7-source.tgz")
		script := `. scripts/release/environment.sh; echo "$VERSION of '$REVISION' at $SOURCE_DATE_EPOCH"`
		Expect(run(dir+"/hawser-cni-9.8.7", []string{"VERSION="}, "bash", "-c", script)).To(Equal(
			"9.8.7 of '' at 1767323045\n"))
	})

	It("has an SBOM as SPDX too, of the same contents", func() {
		file, err := os.Open(one(dist(), "*.spdx.json"))
		Expect(err).NotTo(HaveOccurred())
		defer file.Close()
		doc, err := spdxjson.Read(file)
		Expect(err).NotTo(HaveOccurred())
		Expect(spdxlib.ValidateDocument(doc)).To(Succeed())
		Expect(doc.CreationInfo.Created).To(Equal("2026-01-02T03:04:05Z"))
		Expect(doc.DocumentNamespace).To(MatchRegexp(
			`^https://github.com/hawser-cni/plugins/spdx/hawser-cni-9.8.7-[0-9a-f-]{36}$`))
		var sbom struct {
			SerialNumber string
			Components   []struct {
				Name, PURL string
				Hashes     []struct{ Content string }
				Licenses   []struct{ License struct{ ID string } }
			}
		}
		Expect(json.Unmarshal([]byte(contents(one(dist(), "*.cdx.json"))), &sbom)).To(Succeed())
		Expect(doc.DocumentNamespace).To(HaveSuffix(strings.TrimPrefix(sbom.SerialNumber, "urn:uuid:")))
		want, got, ids := map[string]string{}, map[string]string{}, map[string]bool{}
		for _, c := range sbom.Components {
			if want[c.Name] = c.PURL; c.PURL == "" {
				want[c.Name] = c.Hashes[0].Content
			}
		}
		for _, p := range doc.Packages {
			ids[string(p.PackageSPDXIdentifier)] = true
			Expect(p.PackageLicenseConcluded).To(MatchRegexp(`^[A-Z0][\w.-]+( AND [\w.-]+)*$`), p.PackageName)
			if p.PackageName != "hawser-cni" {
				got[p.PackageName] = p.PackageExternalReferences[0].Locator
			}
		}
		for _, f := range doc.Files {
			ids[string(f.FileSPDXIdentifier)] = true
			got[strings.TrimPrefix(f.FileName, "./")] = f.Checksums[1].Value
		}
		Expect(got).To(Equal(want))
		Expect(ids).To(HaveLen(len(doc.Packages)+len(doc.Files)), "an identifier is there twice")
	})

	It("has provenance, of each file", func() {
		var statement intoto.Statement
		Expect(protojson.Unmarshal([]byte(contents(dist()+"/hawser-9.8.7.provenance.json")), &statement)).To(Succeed())
		Expect(statement.Validate()).To(Succeed())
		Expect(statement.GetPredicateType()).To(Equal("https://slsa.dev/provenance/v1"))
		got, want := map[string]string{}, map[string]string{}
		for _, s := range statement.GetSubject() {
			got[s.GetName()] = s.GetDigest()["sha256"]
		}
		for _, name := range reproducible(dist()) {
			if !strings.HasSuffix(name, "SUMS") && !strings.HasSuffix(name, ".provenance.json") {
				want[name] = sha256Of(dist() + "/" + name)
			}
		}
		Expect(got).To(Equal(want))
		data, err := protojson.Marshal(statement.GetPredicate())
		Expect(err).NotTo(HaveOccurred())
		var provenance slsa.Provenance
		Expect(protojson.Unmarshal(data, &provenance)).To(Succeed())
		Expect(provenance.Validate()).To(Succeed())
		commit := strings.TrimSpace(run(dist(), nil, "git", "rev-parse", "HEAD"))
		Expect(provenance.GetBuildDefinition().GetExternalParameters().AsMap()).To(Equal(map[string]any{
			"version": "9.8.7", "revision": commit, "archs": []any{"amd64"}, "sourceDateEpoch": "1767323045"}))
		Expect(provenance.GetBuildDefinition().GetResolvedDependencies()).To(ConsistOf(
			HaveField("Digest", HaveKeyWithValue("gitCommit", commit)),
			HaveField("Uri", "pkg:golang/std@"+strings.TrimPrefix(goVersion(), "go")),
			HaveField("Digest", HaveKeyWithValue("sha256", sha256Of("../../go.sum"))),
			HaveField("Digest", HaveKeyWithValue("sha256", sha256Of(dist()+"/hawser-cni-9.8.7-source.tgz")))))
	})

	It("says which vulnerabilities it has, of those in a database", func() {
		doc, err := vex.Open(dist() + "/hawser-9.8.7.openvex.json")
		Expect(err).NotTo(HaveOccurred())
		Expect(doc.Author).To(HavePrefix("The Hawser developers"))
		Expect(doc.ID).To(MatchRegexp(`/vex-[0-9a-f]{64}$`))
		Expect(doc.Timestamp.IsZero()).To(BeFalse())
		const product, library = "pkg:golang/github.com/hawser-cni/plugins@v9.8.7", "pkg:golang/github.com/spf13/cobra@"
		sbom := contents(one(dist(), "*.cdx.json"))
		Expect(sbom).To(ContainSubstring(`"` + product + `"`))
		got := map[string]vex.Statement{}
		for _, s := range doc.Statements {
			Expect(s.Validate()).To(Succeed())
			Expect(s.Products).To(HaveExactElements(HaveField("ID", product)))
			Expect(s.Products[0].Subcomponents).To(HaveExactElements(HaveField("ID", HavePrefix(library))))
			Expect(sbom).To(ContainSubstring(`"` + s.Products[0].Subcomponents[0].ID + `"`))
			got[string(s.Vulnerability.Name)] = s
		}
		Expect(got).To(HaveLen(2))
		Expect(got["GO-2026-0001"]).To(HaveField("Status", vex.StatusAffected))
		Expect(got["GO-2026-0002"]).To(And(HaveField("Status", vex.StatusNotAffected),
			HaveField("Justification", vex.VulnerableCodeNotInExecutePath)))
	})

	// verify runs the commands of the documentation on a release, for each signature; changed files are others.
	verify := func(change func(dir string)) (failed int) {
		GinkgoHelper()
		dir := GinkgoT().TempDir()
		run(dir, nil, "cp", "-rl", dist()+"/.", ".")
		run(dir, nil, "cp", key()+".pub", "releaser.pub")
		change(dir)
		block := regexp.MustCompile(`(?m)^    echo .*releaser.pub.*\n    ssh-keygen -Y verify .*\n    (sha256sum .*)\n`)
		found := block.FindStringSubmatch(contents("../../docs/install.md"))
		Expect(found).NotTo(BeNil())
		for _, file := range []string{"SHA256SUMS", "hawser-9.8.7.provenance.json", "hawser-9.8.7.openvex.json"} {
			signature := strings.ReplaceAll(strings.TrimSuffix(found[0], found[1]+"\n"), "SHA256SUMS", file)
			if _, err := try(dir, nil, "sh", "-c", "set -e\n"+signature+found[1]); err != nil {
				failed++
			}
		}
		return failed
	}

	It("is signed, and verified by the commands of docs/install.md", func() {
		Expect(verify(func(string) {})).To(BeZero())
	})

	DescribeTable("is signed, which sees", func(change func(dir string)) {
		Expect(verify(change)).To(BeNumerically(">", 0))
	},
		Entry("a byte of the sums", func(dir string) { flip(dir, "SHA256SUMS") }),
		Entry("a byte of the provenance", func(dir string) { flip(dir, "hawser-9.8.7.provenance.json") }),
		Entry("a byte of the OpenVEX document", func(dir string) { flip(dir, "hawser-9.8.7.openvex.json") }),
		Entry("a byte of the one file", func(dir string) { flip(dir, "hawser-linux-amd64-v9.8.7") }),
		Entry("a byte of a package", func(dir string) { flip(dir, "hawser-cni_9.8.7-1_amd64.deb") }),
		Entry("another's signature", func(dir string) {
			Expect(os.Remove(dir + "/SHA256SUMS.sig")).To(Succeed())
			run(dir, nil, "ssh-keygen", "-Y", "sign", "-n", "hawser-release", "-f", newKey(), "SHA256SUMS")
		}),
		Entry("a signature for something else", func(dir string) {
			Expect(os.Remove(dir + "/SHA256SUMS.sig")).To(Succeed())
			run(dir, nil, "ssh-keygen", "-Y", "sign", "-n", "git", "-f", key(), "SHA256SUMS")
		}),
	)

	DescribeTable("stops before it builds, and leaves dist/ as it was, with", func(says string, env func() []string) {
		before := sha256Of(dist() + "/SHA256SUMS")
		out, err := try(filepath.Dir(dist()), append([]string{"ARCHS=amd64"}, env()...), "make", "release")
		Expect(err).To(HaveOccurred())
		Expect(out).To(ContainSubstring(says))
		Expect(sha256Of(dist() + "/SHA256SUMS")).To(Equal(before))
	},
		Entry("a key that is not there", "SIGNING_KEY=/nowhere/key cannot sign",
			func() []string { return []string{noDatabase, "SIGNING_KEY=/nowhere/key"} }),
		Entry("no ssh-keygen", "ssh-keygen not found", func() []string {
			dir := GinkgoT().TempDir()
			run(dir, nil, "bash", "-c", "ln -s /usr/bin/* . && rm ssh-keygen")
			goroot := strings.TrimSpace(run(dir, nil, "go", "env", "GOROOT"))
			return []string{noDatabase, "SIGNING_KEY=" + key(), "PATH=" + dir + ":" + goroot + "/bin"}
		}),
		Entry("no database when the OpenVEX document is asked for", "cannot reach the vulnerability database",
			func() []string { return []string{noDatabase, "VEX=1"} }),
		Entry("the version of a rebuild with another Go", "set GOTOOLCHAIN=go1.25.1",
			func() []string { return []string{noDatabase, "VERSION=9.8.7+go1.25.1"} }),
	)
}

// flip changes a byte in the middle of a file.
func flip(dir, name string) {
	GinkgoHelper()
	data := []byte(contents(dir + "/" + name))
	data[len(data)/2] ^= 1
	Expect(os.Remove(dir + "/" + name)).To(Succeed()) // it is a link
	Expect(os.WriteFile(dir+"/"+name, data, 0o644)).To(Succeed())
}

func goVersion() string {
	GinkgoHelper()
	return strings.TrimSpace(run("../..", nil, "go", "env", "GOVERSION"))
}

var _ = Describe("a release that is built again with a newer Go", func() {
	newer := func() string { GinkgoHelper(); return "9.8.7+" + goVersion() }

	It("has packages that replace the former ones, and stand before the next release", func() {
		all, docs, out := GinkgoT().TempDir(), GinkgoT().TempDir(), GinkgoT().TempDir()
		for _, file := range []string{all + "/hawser", docs + "/README.md"} {
			Expect(os.WriteFile(file, nil, 0o644)).To(Succeed())
		}
		version := newer()
		run("../..", []string{"VERSION=" + version, "SOURCE_DATE_EPOCH=1"}, "scripts/release/packages.sh", "amd64", all,
			docs+"/README.md", docs, out)
		Expect(names(out)).To(Equal([]string{"hawser-cni-" + version + "-1.x86_64.rpm",
			"hawser-cni_" + version + "-1_amd64.deb"}))
		deb := strings.TrimSpace(run(out, nil, "dpkg-deb", "--field", one(out, "*.deb"), "Version"))
		Expect(deb).To(Equal(version + "-1"))
		rpm := run(out, nil, "rpm", "-qp", "--qf", "%{VERSION}", one(out, "*.rpm"))
		Expect(rpm).To(Equal(version))
		order := []string{"9.8.7", "9.8.7+go1.0.9", version, "9.8.7+go1.99.1", "9.8.7+go1.99.10", "9.8.8"}
		for i, a := range order[1:] {
			run(out, nil, "dpkg", "--compare-versions", a+"-1", "gt", order[i]+"-1")
			compare := fmt.Sprintf("%%{lua:print(rpm.vercmp(%q, %q))}", a, order[i])
			Expect(run(out, nil, "rpm", "--eval", compare)).To(Equal("1\n"), a)
		}
	})

	It("replaces the former one by hawser install", func() {
		dir, work := GinkgoT().TempDir(), GinkgoT().TempDir()
		for _, version := range []string{"9.8.7", newer()} {
			run("../..", []string{"VERSION=" + version}, "scripts/build.sh", work, "cmd/hawser")
			run(work, nil, "./hawser", "install", "--to", dir)
			Expect(run(dir, nil, "./hawser", "--version")).To(Equal("hawser version " + version + "\n"))
		}
	})
})

var _ = It("README.md's lines install the packages, whose plugins work", func() {
	all, docs, out, root := GinkgoT().TempDir(), GinkgoT().TempDir(), GinkgoT().TempDir(), GinkgoT().TempDir()
	version := regexp.MustCompile(`(?m)^ +(dpkg|rpm) --install (hawser-cni.)(\d+\.\d+\.\d+)(-1.\w+\.(?:deb|rpm))$`)
	lines := version.FindAllStringSubmatch(contents("../../README.md"), -1)
	Expect(lines).To(HaveLen(2))
	env := []string{"VERSION=" + lines[0][3], "SOURCE_DATE_EPOCH=1"}
	run("../..", env, "scripts/build.sh", all, "cmd/hawser/main.go")
	for _, plugin := range plugins() {
		Expect(os.Symlink("hawser", all+"/"+plugin)).To(Succeed())
	}
	Expect(os.WriteFile(docs+"/README.md", nil, 0o644)).To(Succeed())
	run("../..", env, "scripts/release/packages.sh", "amd64", all, docs+"/README.md", docs, out)
	var files []string
	for _, line := range lines {
		files = append(files, line[2]+line[3]+line[4])
	}
	Expect(names(out)).To(ConsistOf(files), "the names of README.md")
	run(out, nil, "unshare", "-r", "rpm", "--root", root, "--install", lines[1][2]+lines[1][3]+lines[1][4])
	Expect(names(root + "/opt/cni/bin")).To(Equal(withTool()))
	for _, plugin := range plugins() {
		Expect(run(root, []string{"CNI_COMMAND=VERSION"}, "opt/cni/bin/"+plugin)).To(ContainSubstring(
			"supportedVersions"))
	}
	run(out, nil, "unshare", "-r", "rpm", "--root", root, "--erase", "hawser-cni")
	Expect([]string{root + "/opt/cni", root + "/usr/share/licenses/hawser-cni"}).NotTo(ContainElement(BeADirectory()))
})

var _ = It("a tree that differs from its commit is not released as that", func() {
	dir := GinkgoT().TempDir()
	copyTree("../..", dir)
	says := func(env ...string) string {
		GinkgoHelper()
		script := `. scripts/release/environment.sh; echo "'$REVISION'"`
		return run(dir, append(env, "VERSION=9.8.7"), "bash", "-c", script)
	}
	Expect(os.WriteFile(dir+"/untracked", nil, 0o644)).To(Succeed())
	Expect(says()).To(MatchRegexp("^'[0-9a-f]{40}'\n$"))
	Expect(os.WriteFile(dir+"/VERSION", []byte("1.2.3\n"), 0o644)).To(Succeed())
	Expect(says()).To(Equal("''\n"))
	Expect(says("REVISION=mine")).To(Equal("'mine'\n"))
	key := []string{"VERSION=9.8.7", "SIGNING_KEY=/nowhere/key"} // which is tried next
	out, err := try(dir, key, "scripts/release.sh")
	Expect(err).To(HaveOccurred())
	Expect(out).To(And(ContainSubstring("these files differ from the commit"), ContainSubstring(" M VERSION\n")))
	out, err = try(dir, append(key, "REVISION=mine"), "scripts/release.sh")
	Expect(err).To(HaveOccurred())
	Expect(out).To(ContainSubstring("cannot sign"))
})

var _ = DescribeTable("the version of a commit after a tag is a semantic one", func(tag, version string) {
	dir := GinkgoT().TempDir()
	run(dir, nil, "mkdir", "scripts")
	run("../..", nil, "cp", "scripts/version.sh", dir+"/scripts/")
	run("../..", nil, "cp", "VERSION", dir)
	run(dir, nil, "sh", "-ec", `git init -q; git config user.name a; git config user.email a@example.org; git add -A
		git commit -qm one; git tag "$1"; git commit -qm two --allow-empty`, "history", tag)
	Expect(run(dir, nil, "scripts/version.sh")).To(MatchRegexp(version))
},
	Entry("of a release", "v1.2.3", `^1\.2\.3\+1\.g[0-9a-f]{12}\n$`),
	Entry("of a rebuild", "v1.2.3+go1.26.9", `^1\.2\.3\+go1\.26\.9\.1\.g[0-9a-f]{12}\n$`))
