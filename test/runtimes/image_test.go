package runtimes_test

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
)

// image is the name of the one image that every container is of.
const image = "localhost/payload:1"

type object = map[string]any

// compiled is the payload, once in a run.
var compiled = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "payload-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", dir+"/payload",
		"./payload")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOPROXY=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w\n%s", err, out)
	}
	return os.ReadFile(dir + "/payload")
})

func writeImage(dir string) string {
	GinkgoHelper()
	payload := nstest.Must(compiled())
	return pack(dir, image, []string{"/bin/payload"}, &tar.Header{Name: "bin/payload", Mode: 0o755}, payload)
}

// pack writes an image, an OCI layout that is a docker archive too, as an archive into
// dir, and returns its path. Its files are pairs of a header and a content.
func pack(dir, name string, entrypoint []string, files ...any) string {
	GinkgoHelper()
	layer := archive(append([]any{
		&tar.Header{Name: "bin/", Typeflag: tar.TypeDir, Mode: 0o755}, nil,
		&tar.Header{Name: "etc/", Typeflag: tar.TypeDir, Mode: 0o755}, nil,
		&tar.Header{Name: "etc/passwd", Mode: 0o644}, []byte("root:x:0:0:root:/:/bin/sh\n"),
		&tar.Header{Name: "proc/", Typeflag: tar.TypeDir, Mode: 0o755}, nil,
		&tar.Header{Name: "sys/", Typeflag: tar.TypeDir, Mode: 0o755}, nil,
		&tar.Header{Name: "dev/", Typeflag: tar.TypeDir, Mode: 0o755}, nil,
	}, files...)...)
	var parts []any
	blob := func(mediaType string, content []byte) object {
		sum := fmt.Sprintf("%x", sha256.Sum256(content))
		parts = append(parts, &tar.Header{Name: "blobs/sha256/" + sum, Mode: 0o644}, content)
		return object{"mediaType": mediaType, "digest": "sha256:" + sum, "size": len(content)}
	}
	path := func(blob object) string { return "blobs/sha256/" + blob["digest"].(string)[len("sha256:"):] }
	l := blob("application/vnd.oci.image.layer.v1.tar", layer)
	c := blob("application/vnd.oci.image.config.v1+json", encode(object{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": object{"Entrypoint": entrypoint, "WorkingDir": "/", "Env": []string{"PATH=/bin"}},
		"rootfs": object{"type": "layers", "diff_ids": []any{l["digest"]}},
	}))
	m := blob("application/vnd.oci.image.manifest.v1+json", encode(object{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "config": c, "layers": []any{l},
	}))
	m["platform"] = object{"architecture": runtime.GOARCH, "os": "linux"}
	m["annotations"] = object{"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name}
	parts = append(parts,
		&tar.Header{Name: "index.json", Mode: 0o644}, encode(object{"schemaVersion": 2, "manifests": []any{m}}),
		&tar.Header{Name: "oci-layout", Mode: 0o644}, encode(object{"imageLayoutVersion": "1.0.0"}),
		&tar.Header{Name: "manifest.json", Mode: 0o644}, encode([]any{object{
			"Config": path(c), "RepoTags": []string{name}, "Layers": []string{path(l)}}}),
	)
	out := filepath.Join(dir, fmt.Sprintf("image-%x.tar", sha256.Sum256([]byte(name))))
	Expect(os.WriteFile(out, archive(parts...), 0o644)).To(Succeed())
	return out
}

func archive(files ...any) []byte {
	GinkgoHelper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for i := 0; i < len(files); i += 2 {
		h := files[i].(*tar.Header)
		content, _ := files[i+1].([]byte)
		h.Size = int64(len(content))
		Expect(w.WriteHeader(h)).To(Succeed())
		nstest.Must(w.Write(content))
	}
	Expect(w.Close()).To(Succeed())
	return b.Bytes()
}

func encode(v any) []byte {
	GinkgoHelper()
	data := nstest.Must(json.Marshal(v))
	return data
}
