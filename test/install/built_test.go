package install_test

import (
	"debug/buildinfo"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

// compile runs a command with the compiler flags of scripts/build.sh, so that the build cache has most packages.
func compile(env []string, name string, args ...string) {
	GinkgoHelper()
	flags := nstest.Must(exec.Command(nstest.Root() + "/scripts/flags.sh").Output())
	c := exec.Command(name, args...)
	c.Dir, c.Env = nstest.Root(), append(os.Environ(), append(env, "CGO_ENABLED=0", "GOPROXY=off",
		"GOFLAGS=-buildvcs=false "+strings.Join(strings.Fields(string(flags)), " "))...)
	text, err := c.CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), string(text))
}

var _ = DescribeTable("is built by the loop of the reference's build script", Label("build-loop"), func(
	folders string, names func() []string,
) {
	out := GinkgoT().TempDir()
	compile(nil, "bash", "-ec", `for d in `+folders+`; do
		if [ -d "$d" ]; then go build -o "$1/$(basename "$d")" ./"$d"; fi
	done`, "loop", out)
	d := dir{nstest.NewHost(), out}
	Expect(d.names()).To(ConsistOf(names()))
	for _, name := range slices.DeleteFunc(names(), func(name string) bool { return name == nstest.Apart }) {
		d.answers(name)
	}
},
	Entry("over all folders", Label("slow"), "plugins/meta/* plugins/main/* plugins/ipam/*", func() []string {
		return append(nstest.Plugins(), nstest.Apart)
	}),
	Entry("over one of each kind", "plugins/meta/sb* plugins/main/ta* plugins/ipam/sta*", func() []string {
		return []string{"sbr", "tap", "static"}
	}))

// flannel is an additional plugin of a distributor.
const flannel = `package flannel

import "github.com/hawser-cni/plugins/pkg/skel"

func Plugin() skel.Plugin[struct{}] {
	parse := func(*skel.Request) (struct{}, error) { return struct{}{}, nil }
	return skel.Plugin[struct{}]{Name: "flannel", Config: skel.Config[struct{}]{Keys: struct{}{}, Parse: parse}}
}
`

// stamp returns a version that was built with a patch release of Go.
func stamp(patch string) string { return "hawser-cni version 1.2.3+go1.26." + patch + ";" }

// distributed compiles a distributor's main, as docs/install.md has it, with a version and Go's FIPS 140-3 module. The
// folders of the main and of the additional plugin do not exist: the compiler is told that they do.
func distributed() string {
	GinkgoHelper()
	page := string(nstest.Must(os.ReadFile(filepath.Join(nstest.Root(), "docs", "install.md"))))
	main := regexp.MustCompile("(?s)```go\n(.*?)```").FindStringSubmatch(page)
	Expect(main).NotTo(BeEmpty())
	tree, work := nstest.Root()+"/cmd/", GinkgoT().TempDir()
	overlay := map[string]string{}
	for name, text := range map[string]string{"flannel/flannel.go": flannel,
		"own/main.go": strings.Replace(main[1], "example.org/", "github.com/hawser-cni/plugins/cmd/", 1)} {
		overlay[tree+name] = filepath.Join(work, filepath.Base(name))
		Expect(os.WriteFile(overlay[tree+name], []byte(text), 0o644)).To(Succeed())
	}
	file := filepath.Join(work, "overlay.json")
	data := nstest.Must(json.Marshal(map[string]any{"Replace": overlay}))
	Expect(os.WriteFile(file, data, 0o644)).To(Succeed())
	const variable = "github.com/hawser-cni/plugins/pkg/skel.stamp"
	program := filepath.Join(work, "hawser")
	compile([]string{"GOFIPS140=v1.0.0"}, "go", "build", "-o", program, "-overlay", file,
		"-ldflags", "-X '"+variable+"="+stamp("10")+"'", "./cmd/own")
	return program
}

// One program serves these specs, because the linker takes seconds.
var _ = Describe("a distributor's program", Ordered, ContinueOnFailure, func() {
	var program string
	BeforeAll(func() { program = distributed() })

	It("is all plugins, its own and the tool", Label("own-main"), func() {
		d := newDir(nil)
		out := d.Run(nstest.Program{Path: program, Args: []string{"install", "--to", d.path}})
		Expect(out.Exit).To(BeZero(), out.Stderr)
		for _, name := range append(nstest.Plugins(), "flannel") {
			d.answers(name)
		}
		Expect(d.names()).To(ConsistOf(append(all(), "flannel")))
		out = d.Run(nstest.Program{Path: d.path + "/hawser", Args: []string{"uninstall", "--to", d.path}})
		Expect(out.Exit).To(BeZero(), out.Stderr)
		Expect(d.names()).To(BeEmpty())
	})

	It("replaces a build with an older Go, and refuses one with a newer Go", Label("install"), func() {
		d := newDir(map[string]string{"bridge": stamp("9"), "tap": "hawser-cni version 1.2.3;"})
		install := nstest.Program{Path: program, Args: []string{"install", "--to", d.path}}
		out := d.Run(install)
		Expect(out.Exit).To(BeZero(), out.Stderr)
		Expect(out.Stdout).To(And(ContainSubstring("/bridge: installed, replacing Hawser's plugin, 1.2.3+go1.26.9\n"),
			ContainSubstring("/tap: installed, replacing Hawser's plugin, 1.2.3\n")))
		d.Do(func() { Expect(os.Remove(d.path + "/bridge")).To(Succeed()) }) // else it writes to all names
		d.fill(map[string]string{"bridge": stamp("11")})
		Expect(d.Run(install)).To(And(HaveField("Exit", 1), HaveField("Stderr", ContainSubstring(
			"/bridge: is the newer version 1.2.3+go1.26.11 (this is 1.2.3+go1.26.10); use --force to replace it"))))
	})

	It("serves with Go's FIPS 140-3 module where any other algorithm ends the program", Label("fips"), func() {
		var said []string
		for _, s := range nstest.Must(buildinfo.ReadFile(program)).Settings {
			said = append(said, s.Key+"="+s.Value)
		}
		Expect(said).To(ContainElements(HavePrefix("GOFIPS140=v1.0.0"), HavePrefix("DefaultGODEBUG=fips140=on")))
		w, pod := plugintest.NewNode(), plugintest.NewPod("c1")
		dir, calls := GinkgoT().TempDir(), 0
		w.Cmd(program, "install", "--to", dir)
		w.Dir, w.Other = dir, func(plugin string, c plugintest.Call) plugintest.Answer {
			p := c.Program(w, filepath.Join(dir, plugin))
			p.Env = append(p.Env, "GODEBUG=fips140=only")
			calls++
			return plugintest.Ran(w.Run(p))
		}
		list := plugintest.Usual("").Only("bridge", "portmap")
		for _, command := range []string{"ADD", "CHECK", "DEL"} {
			w.Must(command, pod, list)
		}
		Expect(calls).To(Equal(6))
	})
})
