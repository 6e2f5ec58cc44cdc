// Command image writes Hawser's OCI image for several architectures as an archive of an OCI layout. Each image is built
// from scratch and has one layer with one file. The same programs produce the same bytes.
//
//	image -version V -revision COMMIT -created SECONDS -out FILE DIR
//
// DIR contains the program of each architecture as ARCH/hawser.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// variants has the OCI names of the CPU variants for which the programs are built.
var variants = map[string]string{"arm": "v7", "arm64": "v8"}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	flags := flag.NewFlagSet("image", flag.ContinueOnError)
	version := flags.String("version", "", "version of the programs")
	revision := flags.String("revision", "", "`commit` that the programs are built from")
	created := flags.Int64("created", 0, "time of files and images, in `seconds` since 1970")
	out := flags.String("out", "", "`file` for the archive")
	if err := flags.Parse(args); err != nil {
		return err
	}
	programs, err := filepath.Glob(filepath.Join(flags.Arg(0), "*", "hawser"))
	if err != nil {
		return err
	}
	if flags.NArg() != 1 || *version == "" || *out == "" || len(programs) == 0 {
		return fmt.Errorf("-version, -out and a directory with ARCH/hawser are required")
	}
	m := maker{created: time.Unix(*created, 0).UTC(), labels: labels(*version, *revision)}
	index, err := m.index(programs)
	if err != nil {
		return err
	}
	return m.archive(index, *version, *out)
}

func labels(version, revision string) map[string]string {
	const prefix = "org.opencontainers.image."
	out := map[string]string{
		prefix + "title":       "hawser",
		prefix + "description": "CNI plugins in one program, which installs itself into a mounted directory",
		prefix + "version":     version,
		prefix + "licenses":    "Apache-2.0",
		prefix + "source":      "https://github.com/hawser-cni/plugins",
	}
	if revision != "" {
		out[prefix+"revision"] = revision
	}
	return out
}

// maker contains the properties that all images of an index share.
type maker struct {
	created time.Time
	labels  map[string]string
}

// index returns the index with an image for each of the programs, in their order.
func (m maker) index(programs []string) (v1.ImageIndex, error) {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, program := range programs {
		arch := filepath.Base(filepath.Dir(program))
		platform := v1.Platform{OS: "linux", Architecture: arch, Variant: variants[arch]}
		image, err := m.image(program, platform)
		if err != nil {
			return nil, err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image,
			Descriptor: v1.Descriptor{Platform: &platform}})
	}
	return mutate.Annotations(index, m.labels).(v1.ImageIndex), nil
}

func (m maker) image(program string, platform v1.Platform) (v1.Image, error) {
	layer, err := m.layer(program)
	if err != nil {
		return nil, err
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err = mutate.ConfigFile(image, &v1.ConfigFile{
		Architecture: platform.Architecture, Variant: platform.Variant, OS: platform.OS,
		Created: v1.Time{Time: m.created},
		RootFS:  v1.RootFS{Type: "layers"},
		Config: v1.Config{
			Entrypoint: []string{"/hawser"},
			Cmd:        []string{"install", "--to", "/host/opt/cni/bin"},
			WorkingDir: "/",
			Labels:     m.labels,
		},
	})
	if err != nil {
		return nil, err
	}
	image, err = mutate.Append(image, mutate.Addendum{Layer: layer,
		History: v1.History{Created: v1.Time{Time: m.created}, CreatedBy: "scripts/image"}})
	if err != nil {
		return nil, err
	}
	return mutate.Annotations(image, m.labels).(v1.Image), nil
}

// name returns the name that the image has after an engine has loaded the archive. A tag cannot contain a plus sign.
func name(version string) string {
	return "localhost/hawser:" + strings.ReplaceAll(version, "+", "_")
}
