package main

import (
	"crypto/sha1"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// binary is one plugin.
type binary struct {
	name    string
	sha1    [20]byte // required by SPDX
	sha256  [32]byte
	arch    string
	main    string   // path of the plugins' own module
	modules []string // paths of the linked modules, with the standard library
	info    *buildinfo.BuildInfo
}

// module is a Go module that is linked into a binary, or the standard library.
type module struct {
	path, version string
	sum           string // h1:, as in go.sum; empty for the standard library
	dir           string
	licence       string // SPDX identifiers, joined by AND
	files         []noticeFile
}

type noticeFile struct{ name, text string }

func readBinaries(paths []string) ([]binary, error) {
	if len(paths) == 0 {
		return nil, errors.New("no binaries")
	}
	var out []binary
	for _, path := range paths {
		info, err := buildinfo.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		b := binary{name: filepath.Base(path), sha1: sha1.Sum(data), sha256: sha256.Sum256(data),
			main: info.Main.Path, info: info, modules: []string{stdlib}}
		for _, s := range info.Settings {
			if s.Key == "GOARCH" {
				b.arch = s.Value
			}
		}
		for _, d := range info.Deps {
			if d.Replace != nil {
				return nil, fmt.Errorf("%s: module %s is replaced by %s, which is not allowed in a release",
					path, d.Path, d.Replace.Path)
			}
			b.modules = append(b.modules, d.Path)
		}
		out = append(out, b)
	}
	return out, nil
}

const stdlib = "std"

// findModules returns the modules that are linked into the binaries, sorted by path.
func findModules(binaries []binary) ([]module, error) {
	byPath := map[string]module{}
	for _, b := range binaries {
		byPath[stdlib] = module{path: stdlib, version: b.info.GoVersion}
		for _, d := range b.info.Deps {
			byPath[d.Path] = module{path: d.Path, version: d.Version, sum: d.Sum}
		}
	}
	if err := locate(byPath); err != nil {
		return nil, err
	}
	r, err := newRecognizer()
	if err != nil {
		return nil, err
	}
	var out []module
	var faults []error
	for _, path := range slices.Sorted(maps.Keys(byPath)) {
		m := byPath[path]
		err := m.read()
		if err == nil {
			m.licence, err = r.licenceOf(m.files)
		}
		if err != nil {
			faults = append(faults, fmt.Errorf("%s %s: %w", m.path, m.version, err))
		}
		out = append(out, m)
	}
	return out, errors.Join(faults...)
}

// locate sets the directories of the sources from which the binaries were built, and verifies the modules' checksums.
func locate(modules map[string]module) error {
	root, err := goOutput("list", "-f", "{{.Root}}", "errors")
	if err != nil {
		return err
	}
	std := modules[stdlib]
	std.dir = strings.TrimSpace(string(root))
	modules[stdlib] = std
	args := []string{"mod", "download", "-json"}
	for path, m := range modules {
		if path != stdlib {
			args = append(args, path+"@"+m.version)
		}
	}
	out, err := goOutput(args...)
	if err != nil {
		return err
	}
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var found struct{ Path, Dir, Sum string }
		if err := dec.Decode(&found); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		m := modules[found.Path]
		if m.sum != "" && m.sum != found.Sum { // empty if the binary was built from vendor/
			return fmt.Errorf("%s %s: built from %s, found %s", m.path, m.version, m.sum, found.Sum)
		}
		m.sum, m.dir = found.Sum, found.Dir
		modules[found.Path] = m
	}
}

func goOutput(args ...string) ([]byte, error) {
	cmd := exec.Command("go", args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go %s: %w", strings.Join(args, " "), err)
	}
	return out, nil
}

// notice matches the names of files that licenses require to be shipped.
var notice = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|patents)([.-].*)?$`)

// read reads the module's license and notice files.
func (m *module) read() error {
	entries, err := os.ReadDir(m.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !e.Type().IsRegular() || !notice.MatchString(e.Name()) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(m.dir, e.Name()))
		if err != nil {
			return err
		}
		m.files = append(m.files, noticeFile{e.Name(), string(text)})
	}
	return nil
}
