package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"

	"github.com/google/go-containerregistry/pkg/compression"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// layer returns a layer that contains only the program, owned by root and executable for all users. zstd makes it a
// tenth smaller than gzip would. containerd supports zstd since 1.5, podman since 1.6.2, CRI-O since 1.17, Docker since
// 23.
func (m maker) layer(program string) (v1.Layer, error) {
	content, err := os.ReadFile(program)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := m.add(w, &tar.Header{Name: "hawser", Mode: 0o755}, content); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	opener := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil }
	const best = 19 // the level of zstd -19
	return tarball.LayerFromOpener(opener, tarball.WithCompression(compression.ZStd),
		tarball.WithCompressionLevel(best), tarball.WithMediaType(types.OCILayerZStd))
}

func (m maker) add(w *tar.Writer, h *tar.Header, content []byte) error {
	h.Size, h.ModTime, h.Format = int64(len(content)), m.created, tar.FormatUSTAR
	if err := w.WriteHeader(h); err != nil {
		return err
	}
	_, err := w.Write(content)
	return err
}

// archive writes the index as an OCI layout into a tar file, with the image names that engines read.
func (m maker) archive(index v1.ImageIndex, version, out string) error {
	dir, err := os.MkdirTemp("", "image")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	names := map[string]string{
		"org.opencontainers.image.ref.name": name(version), // read by podman
		"io.containerd.image.name":          name(version),
	}
	top := mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: index,
		Descriptor: v1.Descriptor{Annotations: names}})
	if _, err := layout.Write(dir, top); err != nil {
		return err
	}
	f, err := os.Create(out)
	if err != nil {
		return err
	}
	err = m.pack(f, os.DirFS(dir))
	return errors.Join(err, f.Close())
}

// pack writes the files of a directory into a tar file, sorted by name.
func (m maker) pack(out io.Writer, dir fs.FS) error {
	w := tar.NewWriter(out)
	err := fs.WalkDir(dir, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := fs.ReadFile(dir, path)
		if err != nil {
			return err
		}
		return m.add(w, &tar.Header{Name: path, Mode: 0o644}, content)
	})
	return errors.Join(err, w.Close())
}
