// Package image_test looks at the OCI image and at what is below deploy/. Scripts/test-release.sh installs what it
// needs; the readers of the manifests come from the Go module proxy.
package image_test

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

func TestImage(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "image: what installs the plugins on a cluster")
}

func run(dir string, env []string, name string, args ...string) string {
	GinkgoHelper()
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), "%s %s\n%s", name, strings.Join(args, " "), out)
	return string(out)
}

func contents(path string) []byte {
	GinkgoHelper()
	data, err := os.ReadFile(path)
	Expect(err).NotTo(HaveOccurred())
	return data
}

// copyTree makes a copy of this tree, without history, in a directory.
func copyTree(dir string) {
	GinkgoHelper()
	Expect(os.MkdirAll(dir, 0o755)).To(Succeed())
	files := "git ls-files -co --exclude-standard -z | xargs -0 ls -d 2>/dev/null"
	run("../..", nil, "bash", "-c", files+` | tar -cf - -T - | tar -xf - -C "$1"`, "copy", dir)
}

// files reads a tar archive: the headers in their order, and what is in each file.
func files(data []byte) ([]*tar.Header, map[string][]byte) {
	GinkgoHelper()
	var headers []*tar.Header
	out := map[string][]byte{}
	for r := tar.NewReader(bytes.NewReader(data)); ; {
		h, err := r.Next()
		if err == io.EOF {
			return headers, out
		}
		Expect(err).NotTo(HaveOccurred())
		headers = append(headers, h)
		out[h.Name], err = io.ReadAll(r)
		Expect(err).NotTo(HaveOccurred())
	}
}

func digest(data []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(data)) }

// descriptor is what points to a blob; the other types are what the OCI image specification puts into one.
type descriptor struct {
	MediaType, Digest string
	Size              int
	Platform          platform
	Annotations       map[string]string
}

type platform struct{ OS, Architecture, Variant string }

type index struct{ Manifests []descriptor }

type manifest struct {
	Config      descriptor
	Layers      []descriptor
	Annotations map[string]string
}

type config struct {
	platform
	Created time.Time
	Config  struct {
		Entrypoint, Cmd []string
		User            string
		Labels          map[string]string
	}
	RootFS struct {
		DiffIDs []string `json:"diff_ids"`
	}
}

// layout is the archive of an OCI layout.
type layout map[string][]byte

func (l layout) blob(d descriptor, mediaType string) []byte {
	GinkgoHelper()
	data := l["blobs/"+strings.Replace(d.Digest, ":", "/", 1)]
	Expect(digest(data)).To(Equal(d.Digest))
	Expect(d.Size).To(Equal(len(data)))
	Expect(d.MediaType).To(Equal("application/vnd.oci.image." + mediaType))
	return data
}

func decode[T any](data []byte) (out T) {
	GinkgoHelper()
	Expect(json.Unmarshal(data, &out)).To(Succeed())
	return out
}

var machines = map[platform]elf.Machine{
	{"linux", "amd64", ""}:    elf.EM_X86_64,
	{"linux", "arm64", "v8"}:  elf.EM_AARCH64,
	{"linux", "arm", "v7"}:    elf.EM_ARM,
	{"linux", "loong64", ""}:  elf.EM_LOONGARCH,
	{"linux", "ppc64le", ""}:  elf.EM_PPC64,
	{"linux", "s390x", ""}:    elf.EM_S390,
	{"linux", "riscv64", ""}:  elf.EM_RISCV,
	{"linux", "mips64le", ""}: elf.EM_MIPS,
}

var _ = Describe("make image", Label("image"), Ordered, ContinueOnFailure, func() {
	const version, file = "9.8.7+3.gabc", "/dist/hawser-9.8.7+3.gabc-oci.tar"
	env := []string{"VERSION=" + version, "SOURCE_DATE_EPOCH=1767323045"}
	created := time.Unix(1767323045, 0).UTC()
	var tree, revision string
	var oci layout
	var platforms []descriptor
	BeforeAll(func() {
		tree = filepath.Join(GinkgoT().TempDir(), "tree")
		copyTree(tree)
		run(tree, env, "git", "init", "-q")
		run(tree, env, "git", "-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "-q", "--allow-empty",
			"-m", "a")
		revision = strings.TrimSpace(run(tree, nil, "git", "rev-parse", "HEAD"))
		run(tree, env, "make", "image")
		_, oci = files(contents(tree + file))
		top := decode[index](oci["index.json"])
		Expect(top.Manifests).To(HaveLen(1))
		platforms = decode[index](oci.blob(top.Manifests[0], "index.v1+json")).Manifests
	})

	It("gives the same bytes to somebody else, elsewhere, without the history", func() {
		other := filepath.Join(GinkgoT().TempDir(), "somewhere", "else", "with a blank")
		copyTree(other)
		run(other, nil, "find", ".", "-exec", "touch", "-d", "2001-01-01", "{}", "+")
		around := []string{"GOFLAGS=-tags=other", "GOAMD64=v3", "GOARM=5", "GOMAXPROCS=1", "TZ=Asia/Tokyo",
			"TMPDIR=" + GinkgoT().TempDir(), "REVISION=" + revision}
		run(other, append(env, around...), "bash", "-c", "umask 077; make image")
		Expect(bytes.Equal(contents(other+file), contents(tree+file))).To(BeTrue())
	})

	It("is an OCI layout whose one index has a name that every engine takes, and no registry's", func() {
		Expect(oci["oci-layout"]).To(MatchJSON(`{"imageLayoutVersion": "1.0.0"}`))
		Expect(decode[index](oci["index.json"]).Manifests[0].Annotations).To(Equal(map[string]string{
			"org.opencontainers.image.ref.name": "localhost/hawser:9.8.7_3.gabc",
			"io.containerd.image.name":          "localhost/hawser:9.8.7_3.gabc",
		}))
		headers, _ := files(contents(tree + file))
		for _, h := range headers {
			Expect(*h).To(And(HaveField("Uid", 0), HaveField("Gid", 0), HaveField("Mode", int64(0o644)),
				HaveField("ModTime", BeTemporally("==", created))), h.Name)
		}
	})

	It("is there for each architecture of a release, with one program of it in one layer", func() {
		seen := map[platform]bool{}
		for _, d := range platforms {
			seen[d.Platform] = true
			m := decode[manifest](oci.blob(d, "manifest.v1+json"))
			Expect(m.Layers).To(HaveLen(1))
			layer := oci.blob(m.Layers[0], "layer.v1.tar+zstd")
			z, err := zstd.NewReader(bytes.NewReader(layer))
			Expect(err).NotTo(HaveOccurred())
			unpacked, err := io.ReadAll(z)
			Expect(err).NotTo(HaveOccurred())
			c := decode[config](oci.blob(m.Config, "config.v1+json"))
			Expect(c.RootFS.DiffIDs).To(Equal([]string{digest(unpacked)}))
			Expect(c.platform).To(Equal(d.Platform))

			headers, in := files(unpacked)
			Expect(headers).To(HaveExactElements(HaveValue(And(HaveField("Name", "hawser"),
				HaveField("Typeflag", byte(tar.TypeReg)), HaveField("Mode", int64(0o755)), HaveField("Uid", 0),
				HaveField("Gid", 0), HaveField("ModTime", BeTemporally("==", created))))))
			program, err := elf.NewFile(bytes.NewReader(in["hawser"]))
			Expect(err).NotTo(HaveOccurred())
			Expect(program.Machine).To(Equal(machines[c.platform]), d.Platform.Architecture)
			Expect(bytes.Contains(in["hawser"], []byte(version))).To(BeTrue())
			Expect(len(layer)).To(BeNumerically("<=", 3_300_000), d.Platform.Architecture)
		}
		Expect(seen).To(HaveLen(len(machines)))
		Expect(platforms).To(HaveLen(len(machines)))
	})

	It("runs the program, which installs into a mounted directory, and says what it is", func() {
		for _, d := range platforms {
			m := decode[manifest](oci.blob(d, "manifest.v1+json"))
			c := decode[config](oci.blob(m.Config, "config.v1+json"))
			Expect(c.Config.Entrypoint).To(HaveExactElements("/hawser"))
			Expect(c.Config.Cmd).To(HaveExactElements("install", "--to", "/host/opt/cni/bin"))
			Expect(c.Created).To(BeTemporally("==", created))
			for _, labels := range []map[string]string{c.Config.Labels, m.Annotations} {
				Expect(labels).To(And(
					HaveKeyWithValue("org.opencontainers.image.title", "hawser"),
					HaveKeyWithValue("org.opencontainers.image.version", version),
					HaveKeyWithValue("org.opencontainers.image.revision", revision),
					HaveKeyWithValue("org.opencontainers.image.licenses", "Apache-2.0"),
					HaveKeyWithValue("org.opencontainers.image.source", "https://github.com/hawser-cni/plugins")))
			}
		}
	})
})
