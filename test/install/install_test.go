// The specs of this directory install the one file with its tool into directories of all kinds, and uninstall it.
package install_test

import (
	"bytes"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/skel"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func TestInstall(t *testing.T) { nstest.RunSpecs(t, "hawser install") }

// tool is the one file: of HAWSER_BIN, or compiled once.
var tool = sync.OnceValue(func() string {
	if dir := os.Getenv("HAWSER_BIN"); dir != "" {
		return filepath.Join(dir, "hawser")
	}
	out := filepath.Join(nstest.Must(os.MkdirTemp("", "install-")), "hawser")
	build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-o", out, "-ldflags",
		"-s -w -X 'github.com/hawser-cni/plugins/pkg/skel.stamp=hawser-cni version 0.2.0;'", "./cmd/hawser")
	build.Dir, build.Env = nstest.Root(), append(os.Environ(), "CGO_ENABLED=0", "GOPROXY=off")
	text, err := build.CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), string(text))
	return out
})

// self is the tool's content.
var self = sync.OnceValue(func() []byte { return nstest.Must(os.ReadFile(tool())) })

// What stands in for a file of somebody: whose it is shows in it, and running it fails.
const (
	referencePath = "path\tgithub.com/containernetworking/plugins/plugins/main/bridge\nbuild\t-ldflags=\"" +
		"-X github.com/containernetworking/plugins/pkg/utils/buildversion.BuildVersion="
	oldReference    = referencePath + "v1.4.0\"\n"
	newestReference = referencePath + skel.Reference + "\"\n"
	newReference    = referencePath + "v99.0.0-rc1\"\n"
	// What k3s builds in its GOPATH, of the fork's main package, which is at the root of the module.
	k3sReference = "path\tgithub.com/containernetworking/plugins\nbuild\t-ldflags=\"-X github.com/k3s-io/k3s/pkg/" +
		"version.Version=v1.35.0+k3s1 -X github.com/containernetworking/plugins/pkg/utils/buildversion." +
		"BuildVersion=v1.9.1-k3s1 -w -s\"\n"
	// What microk8s builds of a file in the reference's tree.
	microk8sReference = "path\tcommand-line-arguments\ndep\tgithub.com/containernetworking/plugins\t(devel)\t\n" +
		"build\t-ldflags=\"-s -w -X github.com/containernetworking/plugins/pkg/utils/buildversion." +
		"BuildVersion=v1.9.0\"\n"
	// A plugin of Hawser 0.1.0, whose files do not say a version.
	unstamped = "path\tgithub.com/hawser-cni/plugins/plugins/main/tuning\nmod\tgithub.com/hawser-cni/plugins\t(devel)\n"

	wrapper = "#!/bin/sh\nexec /usr/bin/false\n"
	newOurs = "hawser-cni version 99.0.0;"
	oldOurs = "hawser-cni version 0.0.1;"
)

// dir is a directory of plugins on a host.
type dir struct {
	*nstest.Host
	path string
}

// newDir makes one with these files, on the host's own tmpfs.
func newDir(files map[string]string) dir {
	GinkgoHelper()
	d := dir{nstest.NewHost(), "/run/cni/bin"}
	d.fill(files)
	return d
}

func (d dir) fill(files map[string]string) {
	GinkgoHelper()
	d.Do(func() {
		Expect(os.MkdirAll(d.path, 0o755)).To(Succeed())
		for name, text := range files {
			Expect(os.WriteFile(d.path+"/"+name, []byte(text), 0o755)).To(Succeed())
		}
	})
}

// try runs the tool and returns what it said.
func (d dir) try(env []string, command string, args ...string) nstest.Output {
	GinkgoHelper()
	return d.Run(nstest.Program{Path: tool(), Args: append([]string{command, "--to", d.path}, args...), Env: env})
}

func (d dir) install(args ...string) string {
	GinkgoHelper()
	out := d.try(nil, "install", args...)
	Expect(out.Exit).To(BeZero(), out.Stderr)
	return out.Stdout
}

// refuses is an installation that fails and changes nothing.
func (d dir) refuses(args ...string) string {
	GinkgoHelper()
	before := d.state()
	out := d.try(nil, "install", args...)
	Expect(out.Exit).To(Equal(1))
	Expect(d.state()).To(Equal(before))
	return out.Stderr
}

// uninstall brings back what was there, and does nothing when it is done again.
func (d dir) uninstall(before map[string]string) {
	GinkgoHelper()
	for range 2 {
		out := d.try(nil, "uninstall")
		Expect(out.Exit).To(BeZero(), out.Stderr)
		Expect(d.state()).To(Equal(before))
	}
}

// state is each file below the directory: its mode, what it is and what it contains, a long text by its length. Of the
// one file and its links it says that alone.
func (d dir) state() map[string]string {
	GinkgoHelper()
	all := map[string]string{}
	d.Do(func() {
		var known fs.FileInfo // a file that is the tool
		err := filepath.WalkDir(d.path, func(path string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() {
				return err
			}
			info := nstest.Must(os.Lstat(path))
			text := info.Mode().String() + " "
			if info.Mode().Type() == fs.ModeSymlink {
				text += nstest.Must(os.Readlink(path))
			} else if known != nil && os.SameFile(known, info) {
				text += "ours"
			} else if data := nstest.Must(os.ReadFile(path)); bytes.Equal(data, self()) {
				text, known = text+"ours", info
			} else {
				text += string(data[:min(len(data), 200)])
			}
			all[strings.TrimPrefix(path, d.path+"/")] = text
			return nil
		})
		Expect(err).NotTo(HaveOccurred())
	})
	return all
}

// isAllOurs checks that each name is the tool.
func (d dir) isAllOurs() {
	GinkgoHelper()
	now := d.state()
	for _, name := range all() {
		Expect(now).To(HaveKeyWithValue(name, "-rwxr-xr-x ours"))
	}
}

// inode is that of a name, not of what a link leads to.
func (d dir) inode(name string) (ino uint64) {
	GinkgoHelper()
	d.Do(func() {
		var st unix.Stat_t
		Expect(unix.Lstat(d.path+"/"+name, &st)).To(Succeed())
		ino = st.Ino
	})
	return ino
}

func (d dir) names() []string {
	var names []string
	for name := range d.state() {
		if !strings.HasPrefix(name, ".hawser") {
			names = append(names, name)
		}
	}
	return names
}

// answers says that a name in the directory is a plugin that works.
func (d dir) answers(name string) {
	GinkgoHelper()
	out := d.Run(nstest.Program{Path: d.path + "/" + name, Env: []string{"CNI_COMMAND=VERSION"}})
	Expect(out.Stdout).To(ContainSubstring("supportedVersions"), name+": "+out.Stderr)
}

func all() []string { return append(nstest.Plugins(), "hawser") }

var _ = Describe("install", Label("install"), func() {
	DescribeTable("gives the file the name of each plugin", func(links string) {
		d := newDir(nil)
		said := d.install("--links", links)
		Expect(d.names()).To(ConsistOf(all()))
		before := d.state()
		for _, name := range nstest.Plugins() {
			d.answers(name)
			Expect(said).To(ContainSubstring(d.path + "/" + name + ": installed\n"))
			Expect(d.inode(name) == d.inode("hawser")).To(Equal(links == "hard"), name)
			want := "-rwxr-xr-x ours"
			if links == "symbolic" {
				want = "Lrwxrwxrwx hawser"
			}
			Expect(before[name]).To(Equal(want))
		}
		Expect(strings.Count(d.install("--links", links), ": is up to date\n")).To(Equal(len(all())))
		Expect(d.state()).To(Equal(before))
		d.uninstall(map[string]string{})
	}, Entry("as a hard link", "hard"), Entry("as a symbolic link", "symbolic"), Entry("as a copy", "copy"))

	It("changes one way of links to another", func() {
		d := newDir(nil)
		for _, links := range []string{"hard", "copy", "symbolic", "hard", "symbolic", "copy", "hard"} {
			d.install("--links", links)
			Expect(d.inode("bridge") == d.inode("hawser")).To(Equal(links == "hard"), links)
			d.answers("bridge")
		}
		d.uninstall(map[string]string{})
	})

	It("makes copies where there are no hard links, keeps what was there, and says so", func() {
		d := newDir(map[string]string{"bridge": oldReference})
		before := d.state()
		install := func() nstest.Output {
			return d.Run(nstest.Program{Path: tool(), Args: []string{"install", "--to", d.path},
				Before: func() { nstest.FailCall(unix.SYS_LINKAT, unix.EPERM) }})
		}
		out := install()
		Expect(out.Exit).To(BeZero(), out.Stderr)
		Expect(out.Stdout).To(ContainSubstring("hard links are not possible"))
		Expect(d.names()).To(ConsistOf(all()))
		Expect(d.inode("bridge")).NotTo(Equal(d.inode("hawser")))
		d.answers("bridge")
		Expect(strings.Count(install().Stdout, ": is up to date\n")).To(Equal(len(all())))
		d.uninstall(before)
	})

	DescribeTable("takes the plugins that it is told", func(env []string, args ...string) {
		d := newDir(nil)
		out := d.try(env, "install", args...)
		Expect(out.Exit).To(BeZero(), out.Stderr)
		Expect(d.names()).To(ConsistOf("hawser", "bridge", "tap"))
		d.uninstall(map[string]string{})
	},
		Entry("only", nil, "--only", "bridge,tap"),
		Entry("only, but", nil, "--only", "bridge,tap,vrf", "--skip", "vrf"),
		Entry("from the environment", []string{"HAWSER_ONLY=bridge,tap"}),
		Entry("the command line wins", []string{"HAWSER_ONLY=vrf"}, "--only", "tap,bridge"),
		Entry("Rancher's variable, which may name others", []string{"SKIP_CNI_BINARIES=flannel, vrf"}, "--only",
			"bridge,tap,vrf"))

	It("takes the directory from the environment", func() {
		d := newDir(nil)
		env := []string{"HAWSER_TO=" + d.path, "HAWSER_LINKS=symbolic"}
		Expect(d.Run(nstest.Program{Path: tool(), Args: []string{"install"}, Env: env}).Exit).To(BeZero())
		Expect(d.state()["vrf"]).To(Equal("Lrwxrwxrwx hawser"))
		env = env[:1]
		Expect(d.Run(nstest.Program{Path: tool(), Args: []string{"uninstall"}, Env: env}).Exit).To(BeZero())
		Expect(d.state()).To(BeEmpty())
	})

	DescribeTable("leaves what is there, when it is told", func(env []string, args ...string) {
		d := newDir(map[string]string{"bridge": oldReference, "tap": oldOurs, "vrf": wrapper})
		before := d.state()
		out := d.try(env, "install", args...)
		Expect(out.Exit).To(BeZero(), out.Stderr)
		after := d.state()
		for name := range before {
			Expect(after[name]).To(Equal(before[name]))
			Expect(out.Stdout).To(ContainSubstring(d.path + "/" + name + ": left: --keep leaves existing files\n"))
		}
		Expect(d.names()).To(ConsistOf(all()))
		d.uninstall(before)
	},
		Entry("by an option", nil, "--keep"), Entry("by the environment", []string{"HAWSER_KEEP=true"}),
		Entry("by Rancher's variable", []string{"UPDATE_CNI_BINARIES=false"}))

	It("replaces its own file all the same, so that no new name leads to an older one", func() {
		d := newDir(map[string]string{"hawser": oldOurs, "bridge": oldReference})
		before := d.state()
		d.install("--keep")
		Expect(d.state()).To(And(HaveKeyWithValue("hawser", "-rwxr-xr-x ours"), HaveKeyWithValue("bridge",
			before["bridge"])))
		d.answers("tap")
		d.uninstall(before)
		for _, text := range []string{newOurs, wrapper} {
			d.fill(map[string]string{"hawser": text})
			before = d.state()
			Expect(d.refuses("--keep")).To(ContainSubstring("/hawser: "))
			d.install("--keep", "--force")
			Expect(d.state()).To(And(HaveKeyWithValue("hawser", "-rwxr-xr-x ours"), HaveKeyWithValue("bridge",
				before["bridge"])))
			d.uninstall(before)
		}
	})

	DescribeTable("refuses", func(says string, args ...string) {
		Expect(newDir(nil).refuses(args...)).To(ContainSubstring(says))
	},
		Entry("unknown plugins", `--only: "brigde" is not a plugin of this program; it has bandwidth, bridge,`,
			"--only", "brigde"),
		Entry("unknown plugins to skip", `--skip: "x" is not a plugin`, "--skip", "x"),
		Entry("unknown links", `--links: "soft" is not one of hard, symbolic and copy`, "--links", "soft"),
		Entry("no directory", `--to is missing`, "--to", ""),
		Entry("arguments", `unexpected argument "bridge"; pass the directory with --to`, "bridge"))

	It("takes no permission from the environment", func() {
		d := newDir(map[string]string{"hawser": wrapper})
		out := d.try([]string{"HAWSER_FORCE=true"}, "install")
		Expect(out.Exit).To(Equal(1))
		Expect(out.Stderr).To(And(HavePrefix("hawser: HAWSER_FORCE: ignored; pass --force\n"),
			ContainSubstring("/hawser: exists and is not a Hawser program")))
		Expect(d.names()).To(ConsistOf("hawser"))
		Expect(d.try([]string{"HAWSER_FORCE=true"}, "install", "--force").Stderr).To(BeEmpty())
	})

	It("refuses values of the environment by their names", func() {
		d := newDir(nil)
		out := d.try([]string{"HAWSER_LOOP=sometimes"}, "install")
		Expect(out.Stderr).To(ContainSubstring("HAWSER_LOOP"))
		out = d.try([]string{"UPDATE_CNI_BINARIES=perhaps"}, "install")
		Expect(out.Stderr).To(ContainSubstring(`UPDATE_CNI_BINARIES: "perhaps" is neither true nor false`))
		Expect(d.state()).To(BeEmpty())
	})

	It("replaces older versions and the reference's, and brings them back", func() {
		d := newDir(map[string]string{"bridge": oldReference, "tap": oldOurs, "hawser": oldOurs,
			"tuning": unstamped, "vrf": microk8sReference})
		before := d.state()
		said := d.install()
		Expect(said).To(And(ContainSubstring("/tuning: installed, replacing Hawser's plugin, of unknown version\n"),
			ContainSubstring("/bridge: installed, replacing the reference plugin, v1.4.0\n"),
			ContainSubstring("/tap: installed, replacing Hawser's plugin, 0.0.1\n"),
			ContainSubstring("/vrf: installed, replacing the reference plugin, v1.9.0\n")))
		d.isAllOurs()
		d.uninstall(before)
	})

	DescribeTable("refuses to replace, unless it is told,", func(name, text, says string) {
		d := newDir(map[string]string{name: text, "tap": oldReference})
		before := d.state()
		Expect(d.refuses()).To(And(ContainSubstring(d.path+"/"+name+": "+says),
			ContainSubstring("; use --force to replace it")))
		d.install("--force")
		Expect(d.state()[name]).To(Equal("-rwxr-xr-x ours"))
		d.uninstall(before)
	},
		Entry("a plugin of a newer version", "bridge", newOurs, "is the newer version 99.0.0 (this is "),
		Entry("a newer file", "hawser", newOurs, "is the newer version 99.0.0 (this is "),
		Entry("another's program of the file's name", "hawser", wrapper, "exists and is not a Hawser program"))

	DescribeTable("leaves, unless it is told,", func(text, says string) {
		d := newDir(map[string]string{"bridge": text})
		before := d.state()
		Expect(d.install()).To(ContainSubstring(d.path + "/bridge: left: " + says))
		Expect(d.state()["bridge"]).To(Equal(before["bridge"]))
		d.uninstall(before)
		d.install("--force")
		Expect(d.state()["bridge"]).To(Equal("-rwxr-xr-x ours"))
		d.uninstall(before)
	},
		Entry("another's program", wrapper, "it is neither Hawser's nor the reference's"),
		Entry("a program that speaks of us", wrapper+"# hawser-cni version unknow",
			"it is neither Hawser's nor the reference's"))

	It("replaces newer plugins of the reference with one line of warning, and brings them back", func() {
		d := newDir(map[string]string{"bridge": newReference, "portmap": newReference, "vrf": newestReference})
		before := d.state()
		said := d.install()
		Expect(said).To(ContainSubstring("/bridge: installed, replacing the reference plugin, v99.0.0-rc1\n"))
		Expect(regexp.MustCompile(`(?m)^.*warning.*$`).FindAllString(said, -1)).To(Equal([]string{
			d.path + ": warning: replaced plugins of the reference v99.0.0-rc1, newer than " + skel.Reference +
				", which Hawser matches: bridge, portmap; --skip-newer leaves them"}))
		d.isAllOurs()
		Expect(d.install()).NotTo(ContainSubstring("warning"))
		d.uninstall(before)
	})

	DescribeTable("leaves newer plugins of the reference when it is told", func(env []string, args ...string) {
		d := newDir(map[string]string{"bridge": newReference, "vrf": newestReference})
		before := d.state()
		out := d.try(env, "install", args...)
		Expect(out.Exit).To(BeZero(), out.Stderr)
		Expect(out.Stdout).To(And(Not(ContainSubstring("warning")), ContainSubstring(d.path+
			"/bridge: left by --skip-newer: the reference plugin v99.0.0-rc1, newer than "+skel.Reference+"\n")))
		Expect(d.state()).To(And(HaveKeyWithValue("bridge", before["bridge"]),
			HaveKeyWithValue("vrf", "-rwxr-xr-x ours")))
		d.uninstall(before)
	},
		Entry("by an option", nil, "--skip-newer"), Entry("also with --force", nil, "--skip-newer", "--force"),
		Entry("by the environment", []string{"HAWSER_SKIP_NEWER=true"}))

	DescribeTable("fails, and says so last, when no main plugin of Hawser is in place:", func(
		text string, args ...string,
	) {
		files := map[string]string{}
		for _, name := range nstest.Plugins() {
			files[name] = text
		}
		d := newDir(files)
		before := d.state()
		out := d.try(nil, "install", args...)
		Expect(out.Exit).To(Equal(1))
		Expect(out.Stdout).To(ContainSubstring("/bridge: left"))
		Expect(out.Stderr).To(MatchRegexp(`^hawser: ` + d.path + `: no main plugin of Hawser is in place, .*\n$`))
		d.uninstall(before)
		d.Do(func() { Expect(os.Remove(d.path + "/ptp")).To(Succeed()) })
		d.install(args...)
		d.install(append(args, "--only", "bridge")...)
	},
		Entry("newer plugins of the reference are left", newReference, "--skip-newer"),
		Entry("everything is left", oldReference, "--keep"), Entry("the files are others'", wrapper))

	It("succeeds without a main plugin if none was requested", func() {
		d := newDir(map[string]string{"bridge": wrapper})
		d.install("--only", "portmap,host-local")
	})

	It("warns of links in other directories to the plugins that it replaces", func() {
		d := newDir(nil)
		d.path = "/run/local/libexec/cni" // as in nerdctl's full archive
		d.fill(map[string]string{"bridge": oldReference, "firewall": oldReference, "vrf": oldOurs})
		beside := dir{d.Host, "/run/local/bin"}
		beside.fill(nil)
		path := dir{d.Host, "/run/path"}
		path.fill(nil)
		d.Do(func() {
			for link, target := range map[string]string{
				"/run/local/bin/buildkit-cni-bridge":   "../libexec/cni/bridge",
				"/run/local/bin/buildkit-cni-firewall": "../libexec/cni/firewall",
				"/run/local/bin/buildkit-cni-vrf":      "../libexec/cni/vrf", // it was ours
				"/run/local/bin/else":                  "/run/local/bin/bridge",
				"/run/path/br":                         d.path + "/bridge",
				d.path + "/cnv-bridge":                 "bridge",
			} {
				Expect(os.Symlink(target, link)).To(Succeed())
			}
		})
		env := []string{"PATH=/run/path:/run/nowhere:/run/path"}
		out := d.try(env, "install")
		Expect(out.Exit).To(BeZero(), out.Stderr)
		Expect(regexp.MustCompile(`(?m)^.*warning.*$`).FindAllString(out.Stdout, -1)).To(ConsistOf(
			"/run/local/bin: warning: links to replaced plugins run Hawser now: buildkit-cni-bridge, "+
				"buildkit-cni-firewall",
			d.path+": warning: links to replaced plugins run Hawser now: cnv-bridge",
			"/run/path: warning: links to replaced plugins fail now, because their names do not end in a plugin's: br"))
		Expect(d.try(env, "install").Stdout).NotTo(ContainSubstring("warning"))
	})

	It("knows the releases of the reference", func() {
		for _, ref := range nstest.References() {
			d := newDir(map[string]string{"bridge": string(nstest.Must(os.ReadFile(ref.Program("bridge"))))})
			before := d.inode("bridge")
			version := strings.TrimPrefix(ref.Name, "the reference ")
			if ref.Name == nstest.Debian().Name {
				version = "of unknown version"
			}
			Expect(d.install("--only", "bridge")).To(ContainSubstring("the reference plugin, " + version + "\n"))
			Expect(d.inode("bridge")).NotTo(Equal(before))
			Expect(d.try(nil, "uninstall").Exit).To(BeZero())
			Expect(d.inode("bridge")).To(Equal(before), "the same file")
		}
	})

	// where is a file that lies beside, as an archive or its user puts it.
	DescribeTable("goes over the reference's plugins as they lie there, by the command of docs/install.md if it has "+
		"one, and brings them back:", func(path, where string) {
		page := string(nstest.Must(os.ReadFile(filepath.Join(nstest.Root(), "docs", "install.md"))))
		Expect(page).To(ContainSubstring("`" + path + "`"))
		pattern := "`(\\./hawser install --to " + regexp.QuoteMeta(path) + ")`"
		command := regexp.MustCompile(pattern).FindStringSubmatch(page)
		Expect(command == nil).To(Equal(strings.HasPrefix(path, "/usr/lib")), "what packages own is theirs")
		path = strings.Replace(path, "~", "/var/me", 1) // as a shell does
		d := dir{nstest.NewHost(), "/run/root" + path}
		files := map[string]string{"LICENSE": "its license", "README.md": "its page", "calico": wrapper}
		for _, name := range nstest.Plugins() {
			files[name] = newestReference
		}
		d.fill(files)
		beside := dir{d.Host, "/run/root" + filepath.Dir(where)}
		beside.fill(map[string]string{filepath.Base(where): wrapper})
		before, others := d.state(), beside.state()
		if command == nil {
			d.install()
		} else {
			d.Cmd("sh", "-ec", `cd /run/root; cp "$0" hawser; mkdir proc; mount --rbind /proc proc
				exec chroot . `+strings.Replace(command[1], "~", "/var/me", 1), tool())
		}
		after := d.state()
		for name, was := range before {
			if slices.Contains(nstest.Plugins(), name) {
				was = "-rwxr-xr-x ours"
				d.answers(name)
			}
			Expect(after[name]).To(Equal(was), name)
		}
		d.uninstall(before)
		Expect(beside.state()).To(Equal(others))
	},
		Entry("the reference's tarball, kubeadm", "/opt/cni/bin", "/usr/bin/kubelet"),
		Entry("Nomad", Label("slow"), "/opt/cni/bin", "/opt/cni/config/net.conflist"),
		Entry("nerdctl's full archive", Label("slow"), "/usr/local/libexec/cni", "/usr/local/bin/nerdctl"),
		Entry("nerdctl without root", "~/.local/libexec/cni", "/var/me/.local/bin/nerdctl"),
		Entry("Debian's package", "/usr/lib/cni", "/usr/bin/containerd"),
		Entry("Fedora's package", Label("slow"), "/usr/libexec/cni", "/usr/bin/containerd"),
		Entry("k3s", "/var/lib/rancher/k3s/data/cni", "/usr/local/bin/k3s"))

	It("is done by the command of README.md", func() {
		page := string(nstest.Must(os.ReadFile(filepath.Join(nstest.Root(), "README.md"))))
		command := regexp.MustCompile(`(?m)^ +(\./hawser install .*)$`).FindStringSubmatch(page)
		Expect(command).NotTo(BeEmpty())
		d := dir{nstest.NewHost(), "/opt/cni/bin"}
		d.Cmd("mount", "-t", "tmpfs", "none", "/opt") // the machine's is not the spec's to write to
		d.fill(map[string]string{"bridge": oldReference})
		before := d.state()
		d.Cmd("bash", "-ec", "cd "+filepath.Dir(tool())+"; "+command[1])
		Expect(d.names()).To(ConsistOf(all()))
		d.answers("bridge")
		d.uninstall(before)
	})

	It("takes a symbolic link for what it leads to, and brings the link back", func() {
		d := newDir(map[string]string{"cni": oldReference})
		d.Do(func() {
			Expect(os.Symlink("cni", d.path+"/bridge")).To(Succeed())
			Expect(os.Symlink("gone", d.path+"/tap")).To(Succeed())
		})
		before := d.state()
		Expect(d.install()).To(ContainSubstring("/tap: left: it is neither Hawser's"))
		Expect(d.state()).To(And(HaveKeyWithValue("bridge", "-rwxr-xr-x ours"), HaveKeyWithValue("cni", before["cni"])))
		d.uninstall(before)
	})

	DescribeTable("replaces k3s's links to its one program, and brings them back,", func(mounted bool, says string) {
		d := newDir(nil)
		program := d.path + "/../data/" + strings.Repeat("0d", 32) + "/bin"
		if mounted {
			dir{d.Host, program}.fill(map[string]string{"cni": k3sReference})
		}
		d.Do(func() {
			for _, name := range []string{"bridge", "flannel", "host-local", "portmap", "cni"} {
				Expect(os.Symlink(program+"/cni", d.path+"/"+name)).To(Succeed())
			}
		})
		before := d.state()
		Expect(d.install()).To(ContainSubstring(
			"/bridge: installed, replacing the reference plugin, " + says + "\n"))
		after := d.state()
		for name, want := range map[string]string{"bridge": "-rwxr-xr-x ours", "host-local": "-rwxr-xr-x ours",
			"portmap": "-rwxr-xr-x ours", "flannel": before["flannel"], "cni": before["cni"]} {
			Expect(after[name]).To(Equal(want), name)
		}
		d.uninstall(before)
	},
		Entry("on the node", true, "v1.9.1-k3s1"),
		Entry("in a container, which has the links and not the program", false, "of unknown version"))

	It("keeps what others put there meanwhile, and does not take it away", func() {
		d := newDir(map[string]string{"bridge": oldReference})
		d.install()
		again := strings.Replace(oldReference, "v1.4.0", "v1.9.0", 1)
		d.Do(func() { Expect(os.Remove(d.path + "/bridge")).To(Succeed()) })
		d.fill(map[string]string{"bridge": again})
		d.install()
		d.uninstall(map[string]string{"bridge": "-rwxr-xr-x " + again})
		d.install()
		d.Do(func() { Expect(os.Remove(d.path + "/tap")).To(Succeed()) })
		d.fill(map[string]string{"tap": wrapper})
		Expect(d.try(nil, "uninstall").Stdout).To(ContainSubstring("/tap: left: it is not Hawser's"))
		Expect(d.state()).To(HaveKeyWithValue("tap", "-rwxr-xr-x "+wrapper))
	})

	It("uninstall gives back later what was there before a file of others", func() {
		d := newDir(map[string]string{"bridge": oldReference})
		before := d.state()
		d.install()
		d.Do(func() { Expect(os.Remove(d.path + "/bridge")).To(Succeed()) })
		d.fill(map[string]string{"bridge": wrapper})
		for range 2 {
			Expect(d.try(nil, "uninstall").Stdout).To(ContainSubstring(
				"/bridge: left: it is not Hawser's; the former file stays in " + d.path + "/.hawser/bridge\n"))
			Expect(d.state()).To(And(HaveKeyWithValue("bridge", "-rwxr-xr-x "+wrapper),
				HaveKeyWithValue(".hawser/bridge", before["bridge"])))
		}
		d.Do(func() { Expect(os.Remove(d.path + "/bridge")).To(Succeed()) })
		d.uninstall(before)
	})

	copied := func(links, command string, args ...string) {
		for _, text := range []string{newReference, wrapper} {
			d := newDir(map[string]string{"bridge": oldReference})
			before := d.state()
			d.install("--links", links)
			d.fill(map[string]string{"tap": text}) // as cp does
			Expect(d.state()["hawser"]).NotTo(HaveSuffix("ours"))
			if command == "install" {
				said := d.install(append(args, "--links", links)...)
				Expect(said).To(ContainSubstring(d.path + "/hawser: repaired: "))
				Expect(d.names()).To(ConsistOf(all()))
				for _, name := range nstest.Plugins() {
					Expect(d.inode(name) == d.inode("hawser")).To(Equal(links == "hard"), name)
					d.answers(name)
				}
			}
			d.uninstall(before)
		}
	}
	DescribeTable("a file that is copied onto a name, and so into all of them, is", copied,
		Entry("repaired, of hard links", "hard", "install"), Entry("of symbolic links", "symbolic", "install"),
		Entry("repaired everywhere when one name is asked for", "hard", "install", "--only", "tap"),
		Entry("of symbolic links too", "symbolic", "install", "--only", "vrf"),
		Entry("repaired when all that is there is to stay", "hard", "install", "--keep"),
		Entry("no harm to uninstall, of hard links", "hard", "uninstall"),
		Entry("of symbolic links", "symbolic", "uninstall"))

	It("a file that is copied onto a copy is in that alone", func() {
		d := newDir(nil)
		d.install("--links", "copy")
		d.fill(map[string]string{"tap": oldReference})
		d.answers("bridge")
		Expect(d.install("--links", "copy")).To(
			ContainSubstring("/tap: installed, replacing the reference plugin"))
		d.uninstall(map[string]string{"tap": "-rwxr-xr-x " + oldReference})
	})

	It("fails without a trace where it cannot write, and succeeds there when nothing is to be done", func() {
		d := newDir(map[string]string{"bridge": oldReference})
		d.Cmd("mount", "--bind", d.path, d.path)
		d.Cmd("mount", "-o", "remount,ro,bind", d.path)
		Expect(d.refuses()).To(ContainSubstring("read-only file system"))
		d.Cmd("mount", "-o", "remount,rw,bind", d.path)
		d.install()
		d.Cmd("mount", "-o", "remount,ro,bind", d.path)
		d.install()
		out := d.try(nil, "uninstall")
		Expect(out.Exit).To(Equal(1))
		Expect(out.Stderr).To(MatchRegexp(`^hawser: \w+ ` + d.path + `/bandwidth: read-only file system\n$`))
		d.answers("bridge")
	})

	It("has the capabilities in the manifests that it needs where the directory is not root's", func() {
		nstest.Need("realroot")
		nstest.NeedProgram("setpriv")
		manifest := string(nstest.Must(os.ReadFile(filepath.Join(nstest.Root(), "deploy", "daemonset.yaml"))))
		set := "-all"
		for _, found := range regexp.MustCompile(`add: \[(.*)\]`).FindAllStringSubmatch(manifest, -1) {
			set += ",+" + strings.ToLower(found[1])
		}
		d := newDir(map[string]string{"bridge": oldReference})
		d.Cmd("chown", "-R", "997:0", d.path) // as kubespray has it
		before := d.state()
		for range 2 {
			d.Cmd("setpriv", "--no-new-privs", "--bounding-set", set, tool(), "install", "--to", d.path)
			Expect(d.names()).To(ConsistOf(all()))
		}
		d.answers("bridge")
		d.Cmd("setpriv", "--no-new-privs", "--bounding-set", set, tool(), "uninstall", "--to", d.path)
		Expect(d.state()).To(Equal(before))
		Expect(d.Cmd("stat", "-c", "%u", d.path+"/bridge")).To(Equal("997\n"), "the same file")
	})

	It("leaves whole files where the disk is full, and goes on when it is not", func() {
		d := newDir(nil)
		d.Cmd("mount", "-t", "tmpfs", "-o", "size=24m", "none", d.path)
		d.fill(map[string]string{"bridge": oldReference, "vrf": oldReference})
		before := d.state()
		out := d.try(nil, "install", "--links", "copy")
		Expect(out).To(And(HaveField("Exit", 1), HaveField("Stderr", ContainSubstring("no space left on device")),
			HaveField("Stdout", ContainSubstring("/bandwidth: installed\n"))))
		Expect(d.state()).To(And(HaveKeyWithValue("vrf", before["vrf"]), Not(HaveKey(".hawser.new"))))
		d.install("--links", "hard")
		d.answers("vrf")
		d.uninstall(before)
	})

	It("refuses a directory that has a plugin's name", func() {
		d := newDir(map[string]string{"tap": oldReference})
		d.Do(func() { Expect(os.MkdirAll(d.path+"/loopback/of-somebody", 0o755)).To(Succeed()) })
		Expect(d.refuses("--force")).To(ContainSubstring(
			"/loopback: is not a regular file (drwxr-xr-x); move it to another directory"))
		Expect(d.refuses("--keep")).To(ContainSubstring("/loopback: is not a regular file"))
	})

	It("is done by the installed file itself", func() {
		d := newDir(nil)
		d.install()
		out := d.Run(nstest.Program{Path: d.path + "/hawser", Args: []string{"install", "--to", d.path}})
		Expect(out.Exit).To(BeZero(), out.Stderr)
		Expect(strings.Count(out.Stdout, ": is up to date\n")).To(Equal(len(all())))
		out = d.Run(nstest.Program{Path: d.path + "/hawser", Args: []string{"uninstall", "--to", d.path}})
		Expect(out.Exit).To(BeZero(), out.Stderr)
		Expect(d.state()).To(BeEmpty())
	})
})
