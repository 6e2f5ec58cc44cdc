package install_test

import (
	"bytes"
	"cmp"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/nstest/trace"
)

// changing are the system calls that change a directory or a file.
var changing = []int{unix.SYS_OPENAT, unix.SYS_WRITE, unix.SYS_FCHMOD, unix.SYS_FSYNC, unix.SYS_LINKAT,
	unix.SYS_SYMLINKAT, unix.SYS_RENAMEAT, unix.SYS_UNLINKAT, unix.SYS_MKDIRAT}

// killed runs the tool, and kills it before its nth call that may change something; false: it has fewer.
func (d dir) killed(nth int, command string, args ...string) bool {
	GinkgoHelper()
	calls := 0
	kill := func(number int) bool {
		if slices.Contains(changing, number) {
			calls++
		}
		return calls == nth
	}
	args = append([]string{command, "--to", d.path}, args...)
	var r *trace.Record
	d.Do(func() {
		r = nstest.Must(trace.Run(trace.Command{Path: tool(), Args: args, Env: os.Environ(), Kill: kill}))
	})
	if calls < nth {
		Expect(r.Exit).To(BeZero(), r.Stderr)
		return false
	}
	Expect(r.Exit).To(Equal(128 + int(unix.SIGKILL)))
	return true
}

// step is 1 in a run that is asked to last: else a sample of the calls.
func step() int {
	switch {
	case os.Getenv("HAWSER_LOAD") != "":
		return 1
	case nstest.Quick():
		return 9
	}
	return 5
}

var _ = DescribeTable("a kill before any call", Label("install-killed"), func(command, links string) {
	before := map[string]string{"bridge": oldReference, "tap": oldOurs, "vrf": wrapper}
	host := newDir(nil)
	args := []string{"--only", "bridge,tap,vrf,loopback", "--links", links}
	kill := args
	if command == "uninstall" {
		kill = nil
	}
	killed := 0
	for n := 1; ; n += step() {
		d := dir{host.Host, fmt.Sprintf("/run/%d", n)}
		d.fill(before)
		was := d.state()
		if command != "install" {
			d.install(args...)
		}
		if command == "repair" {
			d.fill(map[string]string{"tap": newReference}) // as cp does
		}
		after := d.killed(n, strings.Replace(command, "repair", "install", 1), kill...)
		now := d.state()
		for name := range before {
			if command == "repair" {
				continue // it is what was copied, or ours
			}
			Expect(now[name]).To(BeElementOf(was[name], "-rwxr-xr-x ours", "Lrwxrwxrwx hawser"), "%s: %d", name, n)
		}
		if n%2 == 1 { // the next installation completes it
			d.install(args...)
			d.answers("bridge")
			d.answers("tap")
			d.answers("loopback")
		}
		d.uninstall(was)
		d.Do(func() { Expect(os.RemoveAll(d.path)).To(Succeed()) })
		if !after {
			break
		}
		killed++
	}
	AddReportEntry("killed", killed)
	Expect(killed).To(BeNumerically(">=", 25/step()), "or the spec shows nothing") // an uninstallation has 29 calls
},
	Entry("of an installation is completed by the next, and undone", "install", "hard"),
	Entry("of one with symbolic links", Label("slow"), "install", "symbolic"),
	Entry("of one with copies", Label("slow"), "install", "copy"),
	Entry("of a repair is completed by the next, and undone", "repair", "hard"),
	Entry("of one through symbolic links", Label("slow"), "repair", "symbolic"),
	Entry("of an uninstallation is completed by the next, and undone", "uninstall", "hard"),
	Entry("of one of symbolic links", Label("slow"), "uninstall", "symbolic"))

// start starts the tool with --loop, and waits until it has installed once. When the process ends, what it wrote on
// standard error is in ended.
func (d dir) start(args ...string) (cmd *exec.Cmd, said *gbytes.Buffer, ended chan string) {
	GinkgoHelper()
	cmd = exec.Command(tool(), append([]string{"install", "--loop", "--to", d.path}, args...)...)
	said, ended = gbytes.NewBuffer(), make(chan string, 1)
	var stderr strings.Builder
	cmd.Stdout, cmd.Stderr = said, &stderr
	d.Do(func() { Expect(cmd.Start()).To(Succeed()) })
	go func() {
		_ = cmd.Wait()
		ended <- stderr.String()
	}()
	DeferCleanup(func() { _ = cmd.Process.Kill() })
	Eventually(said).Should(gbytes.Say(`^.*/hawser: (installed|is up to date)\n`), "it says so at the end")
	return cmd, said, ended
}

// loop is one that is ended by stop, with status 0.
func (d dir) loop(args ...string) (said *gbytes.Buffer, stop func()) {
	GinkgoHelper()
	cmd, said, ended := d.start(args...)
	return said, func() {
		GinkgoHelper()
		Expect(cmd.Process.Signal(syscall.SIGTERM)).To(Succeed())
		Eventually(ended).Should(Receive(BeEmpty()))
		Expect(cmd.ProcessState.ExitCode()).To(BeZero())
	}
}

// becomes waits until names are the one file, while others change the directory.
func (d dir) becomes(names ...string) {
	GinkgoHelper()
	var known fs.FileInfo // a file that is the tool
	d.Do(func() {
		for _, name := range names {
			Eventually(func() bool {
				info, err := os.Stat(d.path + "/" + name)
				if err != nil || known != nil && os.SameFile(known, info) {
					return err == nil
				}
				data, err := os.ReadFile(d.path + "/" + name)
				if err != nil || !bytes.Equal(data, self()) {
					return false
				}
				known = info
				return true
			}).Should(BeTrue(), name)
		}
	})
}

var _ = Describe("install --loop", Label("install-loop"), func() {
	It("installs again what changes or vanishes, and ends when it is told to", func() {
		d := newDir(map[string]string{"bridge": oldReference})
		before := d.state()
		_, stop := d.loop()
		d.becomes(all()...)
		d.Do(func() { Expect(os.Remove(d.path + "/tap")).To(Succeed()) })
		d.becomes(all()...)
		d.fill(map[string]string{"new": oldReference})
		d.Do(func() { Expect(os.Rename(d.path+"/new", d.path+"/bridge")).To(Succeed()) })
		d.becomes(all()...)
		d.Do(func() { Expect(os.Rename(d.path, "/run/away")).To(Succeed()) })
		Eventually(func() (err error) {
			d.Do(func() { _, err = os.Stat(d.path + "/vrf") })
			return err
		}).Should(Succeed())
		d.becomes(all()...)
		stop()
		d.uninstall(map[string]string{})
		d.fill(map[string]string{"bridge": oldReference})
		Expect(d.state()).To(Equal(before))
	})

	It("needs no more memory than its pod may have", func() {
		manifest := string(nstest.Must(os.ReadFile("../../deploy/daemonset.yaml")))
		limit := regexp.MustCompile(`(?s)limits:.*?memory: (\d+)Mi`).FindStringSubmatch(manifest)
		d := newDir(nil)
		d.install("--links", "copy")
		cmd, _, _ := d.start("--links", "copy")
		d.becomes(all()...)
		status := string(nstest.Must(os.ReadFile(fmt.Sprintf("/proc/%d/status", cmd.Process.Pid))))
		most := regexp.MustCompile(`VmHWM:\s+(\d+) kB`).FindStringSubmatch(status)
		Expect(strconv.Atoi(most[1])).To(BeNumerically("<", nstest.Must(strconv.Atoi(limit[1]))*1024))
	})

	DescribeTable("repairs all names after a file was copied onto one:", func(links string) {
		d := newDir(nil)
		said, stop := d.loop("--links", links)
		d.becomes(all()...)
		d.fill(map[string]string{"tap": newReference})
		// The second, if it had looked at the file already in the installation after its own changes.
		Eventually(said).Should(gbytes.Say(`/hawser: (repaired: |installed, replacing Hawser's plugin)`))
		d.becomes(all()...)
		d.answers("bridge")
		stop()
		d.uninstall(map[string]string{})
	}, Entry("hard links", "hard"), Entry("symbolic links", "symbolic"))

	It("ends with an error when the host has deleted the directory that is mounted into its container", func() {
		d := newDir(nil)
		pod := dir{d.Host, "/run/pod"}
		pod.fill(nil)
		d.Cmd("mount", "--bind", d.path, pod.path)
		_, _, ended := pod.start()
		d.becomes(all()...)
		d.Do(func() { // as `rm -rf` and `mkdir`, while the loop installs
			Eventually(func() error { return os.RemoveAll(d.path) }).Should(Succeed())
			Expect(os.Mkdir(d.path, 0o755)).To(Succeed())
		})
		Eventually(ended).Should(Receive(
			Equal("hawser: /run/pod: the directory was deleted, but is still mounted here\n")))
	})

	It("follows its path, also where no event comes, and leaves the directory that was moved away", func() {
		d := newDir(nil)
		cmd, said, _ := d.start("--only", "tap")
		Eventually(said).Should(gbytes.Say(`/tap: installed\n`))
		d.Do(func() { Expect(os.Rename("/run/cni", "/run/away")).To(Succeed()) }) // of a parent no event comes
		d.becomes("hawser", "tap")
		away := dir{d.Host, "/run/away/bin"}
		Eventually(said).Should(gbytes.Say(`/hawser: installed\n/run/cni/bin/tap: installed\n`))
		Expect(away.names()).To(ConsistOf("hawser", "tap"))
		// None while it turns to the directory once more after its own changes.
		Eventually(func() int {
			watches, _ := exec.Command("bash", "-c", `cat /proc/$1/fdinfo/* | grep ^inotify`, "watches",
				strconv.Itoa(cmd.Process.Pid)).Output()
			return strings.Count(string(watches), "\n")
		}).Should(Equal(1))
	})

	It("says what is new, once", func() {
		d := newDir(nil)
		for _, keep := range []string{"--keep=false", "--keep"} {
			said, stop := d.loop("--only", "bridge,tap", keep)
			d.becomes("hawser", "bridge", "tap")
			Eventually(said).Should(gbytes.Say(`/tap: .*\n`))
			for range 2 {
				d.Do(func() { Expect(os.Remove(d.path + "/tap")).To(Succeed()) })
				Eventually(said).Should(gbytes.Say(`/tap: installed\n`))
			}
			d.fill(map[string]string{"new": wrapper})
			d.Do(func() { Expect(os.Rename(d.path+"/new", d.path+"/tap")).To(Succeed()) })
			if keep != "--keep" {
				Eventually(said).Should(gbytes.Say(`/tap: left: it is neither Hawser's .*\n`))
			}
			d.Do(func() { Expect(os.Remove(d.path + "/tap")).To(Succeed()) })
			Eventually(said).Should(gbytes.Say(`/tap: installed\n`))
			stop()
			all := string(said.Contents())
			for _, name := range []string{"hawser", "bridge"} {
				Expect(strings.Count(all, "/"+name+": ")).To(Equal(1), all)
			}
		}
	})

	It("reads no plugin because of another file, and only the changed one because of a plugin", func() {
		d := newDir(nil)
		cmd, said, _ := d.start()
		d.becomes(all()...)
		Eventually(said).Should(gbytes.Say(`/tap: installed\n`))
		settled := time.Now().Add(2 * time.Second) // the files are older than the resolution of their times then
		read := func() int {
			io := string(nstest.Must(os.ReadFile(fmt.Sprintf("/proc/%d/io", cmd.Process.Pid))))
			bytes := regexp.MustCompile(`rchar: (\d+)`).FindStringSubmatch(io)
			return nstest.Must(strconv.Atoi(bytes[1]))
		}
		pass := func() { // all events before it are handled then
			d.Do(func() { Expect(os.Remove(d.path + "/tap")).To(Succeed()) })
			Eventually(said).Should(gbytes.Say(`/tap: installed\n`))
		}
		Eventually(time.Now).Should(BeTemporally(">", settled))
		pass()
		pass()
		settled = time.Now().Add(time.Second)
		Eventually(time.Now).Should(BeTemporally(">", settled))
		before, size := read(), len(self())
		for range 50 {
			d.fill(map[string]string{"another": wrapper})
		}
		pass()
		Expect(read()-before).To(BeNumerically("<", 4*size), "of 50 passes over %d names", len(all()))
		before = read()
		for range 20 {
			d.fill(map[string]string{"new": wrapper})
			d.Do(func() { Expect(os.Rename(d.path+"/new", d.path+"/vrf")).To(Succeed()) })
			pass()
		}
		Expect(read()-before).To(BeNumerically("<", 64*size), "of 60 passes over %d names", len(all()))
	})

	It("goes on after a refusal", func() {
		d := newDir(nil)
		said, stop := d.loop("--only", "bridge,tap")
		d.becomes("hawser", "bridge", "tap")
		d.fill(map[string]string{"new": newOurs})
		d.Do(func() { Expect(os.Rename(d.path+"/new", d.path+"/bridge")).To(Succeed()) })
		Eventually(said).Should(gbytes.Say("nothing was installed:\n" + d.path +
			"/bridge: is the newer version .*\nretrying after the next change in " + d.path + "\n"))
		d.Do(func() { Expect(os.Rename(d.path+"/bridge", d.path+"/away")).To(Succeed()) })
		d.becomes("hawser", "bridge", "tap")
		stop()
	})
})

// events runs fn and returns what happened to the entries of the directory meanwhile, but to those of the tool itself.
func (d dir) events(fn func()) (all []string) {
	GinkgoHelper()
	fd := nstest.Must(unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK))
	defer unix.Close(fd)
	d.Do(func() { nstest.Must(unix.InotifyAddWatch(fd, d.path, unix.IN_ALL_EVENTS&^unix.IN_ATTRIB)) })
	fn()
	buffer := make([]byte, 4<<20)
	buffer = buffer[:nstest.Must(unix.Read(fd, buffer))]
	for len(buffer) > 0 {
		event := (*unix.InotifyEvent)(unsafe.Pointer(&buffer[0]))
		end := unix.SizeofInotifyEvent + int(event.Len)
		name := strings.TrimRight(string(buffer[unix.SizeofInotifyEvent:end]), "\x00")
		what := map[uint32]string{unix.IN_MOVED_TO: "is replaced", unix.IN_OPEN: "", unix.IN_ACCESS: "",
			unix.IN_CLOSE_NOWRITE: ""}
		said, known := what[event.Mask&^unix.IN_ISDIR]
		if !known {
			said = fmt.Sprintf("event %x", event.Mask)
		}
		if said != "" && name != "" && !strings.HasPrefix(name, ".hawser") {
			all = append(all, name+" "+said)
		}
		buffer = buffer[end:]
	}
	return all
}

var _ = It("replaces a plugin in one step: it is there at each moment, and whole", Label("install"), func() {
	d := newDir(map[string]string{"bridge": oldReference})
	var want []string
	for _, name := range all() {
		want = append(want, name+" is replaced")
	}
	Expect(d.events(func() { d.install() })).To(ConsistOf(want))
	for _, links := range []string{"copy", "symbolic"} {
		rest := slices.DeleteFunc(slices.Clone(want), func(s string) bool { return s == "hawser is replaced" })
		Expect(d.events(func() { d.install("--links", links) })).To(ConsistOf(rest), links)
	}
	Expect(d.events(func() { d.try(nil, "uninstall") })).To(ContainElement("bridge is replaced"))
})

// pace is how long the calls beside installations go on.
func pace() time.Duration {
	usual := "5s"
	if nstest.Quick() {
		usual = "1s"
	}
	return nstest.Must(time.ParseDuration(cmp.Or(os.Getenv("HAWSER_LOAD"), usual))) / 2
}

var _ = DescribeTable("no call fails beside installations", Label("install-load"), func(looping bool) {
	d := newDir(nil)
	// Another build of the same version: each installation replaces all files.
	other := d.path + "-other"
	d.Do(func() {
		Expect(os.WriteFile(other, append(nstest.Must(os.ReadFile(tool())), '\n'), 0o755)).To(Succeed())
	})
	d.install()
	if looping {
		_, stop := d.loop()
		defer stop()
	}
	const callers = 8
	var pods []*nstest.Host
	for range callers {
		pods = append(pods, nstest.NewHost())
	}
	var inProcess, executed, short, installs, busy atomic.Int64
	calls := func() int64 { return inProcess.Load() + executed.Load() + short.Load() }
	least := int64(100 * pace().Seconds())
	over := time.Now().Add(pace())
	began := time.Now()
	nstest.AtOnce(callers+1, func(worker int) {
		lacks := func() bool { // with hard links alone IPAM is always in process
			return calls() < least || installs.Load() < 4 || inProcess.Load() == 0 || !looping && executed.Load() == 0
		}
		for i := 0; time.Now().Before(over) || lacks(); i++ {
			switch {
			case worker == callers && looping: // what the loop has to mend
				d.Do(func() { Expect(os.WriteFile(d.path+"/.other", []byte(oldReference), 0o755)).To(Succeed()) })
				d.Do(func() { Expect(os.Rename(d.path+"/.other", d.path+"/tap")).To(Succeed()) })
				d.becomes("tap")
				installs.Add(1)
			case worker == callers:
				path := []string{other, tool()}[i%2]
				links := []string{"copy", "symbolic", "hard"}[i%3]
				out := d.Run(nstest.Program{Path: path, Args: []string{"install", "--to", d.path, "--links", links}})
				Expect(out.Exit).To(BeZero(), out.Stderr)
				installs.Add(1)
			case worker%2 == 0:
				d.attach(fmt.Sprintf("c%d-%d", worker, i), pods[worker], &busy, &inProcess, &executed)
			default:
				d.loops(fmt.Sprintf("c%d-%d", worker, i), pods[worker], &busy, &short)
			}
		}
	})
	took := time.Since(began).Seconds()
	each := time.Duration(busy.Load() / calls())
	AddReportEntry("pace", fmt.Sprintf("%.0f calls a second, each %s of CPU: %d with host-local in process, "+
		"%d with it executed, %d of loopback; %.0f installations a second", float64(calls())/took, each,
		inProcess.Load(), executed.Load(), short.Load(), float64(installs.Load())/took))
	// Two processors that do nothing else make a hundred a second. The wall's time depends on who else computes.
	Expect(each).To(BeNumerically("<", nstest.Patience(20*time.Millisecond)), "of CPU")
}, Entry("in a loop", Label("slow"), false), Entry("of --loop", true))

// loops is an ADD and a DEL of loopback, which counts each, and the CPU time that they take.
func (d dir) loops(id string, pod *nstest.Host, busy, short *atomic.Int64) {
	GinkgoHelper()
	for _, command := range []string{"ADD", "DEL"} {
		out := d.Run(nstest.Program{Path: d.path + "/loopback",
			Env: []string{"CNI_COMMAND=" + command, "CNI_CONTAINERID=" + id, "CNI_NETNS=" + pod.Path,
				"CNI_IFNAME=lo", "CNI_PATH=" + d.path},
			Stdin: `{"cniVersion": "1.0.0", "name": "lo", "type": "loopback"}`})
		Expect(out.Exit).To(BeZero(), out.Stdout+out.Stderr)
		busy.Add(int64(out.CPU))
		short.Add(1)
	}
}

// attach is an ADD and a DEL of bridge. It counts the calls that served host-local in bridge's own process: their lines
// of the log have one process, and the others two.
func (d dir) attach(id string, pod *nstest.Host, busy, inProcess, executed *atomic.Int64) {
	GinkgoHelper()
	log := "/run/log-" + id
	for _, command := range []string{"ADD", "DEL"} {
		out := d.Run(nstest.Program{Path: d.path + "/bridge",
			Env: []string{"CNI_COMMAND=" + command, "CNI_CONTAINERID=" + id, "CNI_NETNS=" + pod.Path,
				"CNI_IFNAME=eth0", "CNI_PATH=" + d.path, "HAWSER_LOG=" + log},
			Stdin: `{"cniVersion": "1.0.0", "name": "n", "type": "bridge", "bridge": "br",
				"ipam": {"type": "host-local", "subnet": "10.1.0.0/16"}}`})
		Expect(out.Exit).To(BeZero(), out.Stdout+out.Stderr)
		busy.Add(int64(out.CPU))
		var lines []byte
		d.Do(func() {
			lines = nstest.Must(os.ReadFile(log))
			Expect(os.Remove(log)).To(Succeed())
		})
		pids := regexp.MustCompile(`"pid":\d+`).FindAllString(string(lines), -1)
		Expect(pids).To(HaveLen(2), string(lines))
		if pids[0] == pids[1] {
			inProcess.Add(1)
		} else {
			executed.Add(1)
		}
	}
}

var _ = It("keeps its own files apart from plugins", Label("install"), func() {
	d := newDir(map[string]string{"bridge": oldReference})
	d.install()
	names := slices.Sorted(maps.Keys(d.state()))
	kept := slices.DeleteFunc(names, func(name string) bool { return !strings.HasPrefix(name, ".") })
	Expect(kept).To(Equal([]string{".hawser/bridge", ".hawser/installed.json"}))
	Expect(d.Cmd("stat", "-c", "%a", d.path+"/.hawser")).To(Equal("700\n"))
})
