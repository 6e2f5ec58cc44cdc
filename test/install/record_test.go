package install_test

import (
	"os"
	"os/exec"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
)

// unread runs the tool with a standard output that no process reads, and returns its exit status.
func (d dir) unread(command string, args ...string) (status int, stderr string) {
	GinkgoHelper()
	reader, writer, err := os.Pipe()
	Expect(err).NotTo(HaveOccurred())
	Expect(reader.Close()).To(Succeed())
	cmd := exec.Command(tool(), append([]string{command, "--to", d.path}, args...)...)
	cmd.Stdout = writer
	d.Do(func() { stderr = failure(cmd) })
	Expect(writer.Close()).To(Succeed())
	return cmd.ProcessState.ExitCode(), stderr
}

// failure runs a command and returns its standard error.
func failure(cmd *exec.Cmd) string {
	file := nstest.Must(os.CreateTemp(GinkgoT().TempDir(), "stderr"))
	defer file.Close()
	cmd.Stderr = file
	_ = cmd.Run()
	return string(nstest.Must(os.ReadFile(file.Name())))
}

var _ = Describe("the record of an installation", Label("install-record"), func() {
	damages := map[string]string{"empty": "", "cut": `{"bridge": {"ke`, "null": "null", "a list": "[]"}

	DescribeTable("is restored when it is damaged: uninstall brings back every file,", func(links, what string) {
		d := newDir(map[string]string{"bridge": oldReference, "tap": oldOurs, "other": wrapper})
		before := d.state()
		d.install("--links", links)
		d.fill(map[string]string{".hawser/installed.json": damages[what]})
		out := d.try(nil, "uninstall")
		Expect(out.Exit).To(BeZero(), out.Stderr)
		Expect(out.Stdout).To(HavePrefix(d.path + "/.hawser/installed.json: damaged: "))
		Expect(out.Stdout).To(ContainSubstring("; restored from the files in the directory\n"))
		Expect(d.state()).To(Equal(before))
	},
		Entry("empty, of hard links", "hard", "empty"), Entry("cut, of symbolic links", "symbolic", "cut"),
		Entry("null, of copies", "copy", "null"), Entry("a list, of hard links", "hard", "a list"))

	It("is restored and saved by install", func() {
		for what, text := range damages {
			d := newDir(map[string]string{"bridge": oldReference, "vrf": wrapper})
			before := d.state()
			d.install()
			d.fill(map[string]string{".hawser/installed.json": text})
			Expect(d.install()).To(HavePrefix(d.path+"/.hawser/installed.json: damaged: "), what)
			Expect(d.install()).NotTo(ContainSubstring("damaged"), what)
			d.uninstall(before)
		}
	})

	It("is restored when it is missing: uninstall never deletes a former plugin", func() {
		d := newDir(map[string]string{"bridge": oldReference})
		before := d.state()
		d.install()
		d.Do(func() { Expect(os.Remove(d.path + "/.hawser/installed.json")).To(Succeed()) })
		out := d.try(nil, "uninstall")
		Expect(out.Exit).To(BeZero(), out.Stderr)
		Expect(d.state()).To(HaveKeyWithValue("bridge", before["bridge"]))
	})

	It("does not claim a plugin of Hawser that another installer put there", func() {
		d := newDir(map[string]string{"vrf": oldOurs})
		d.install("--only", "bridge,tap")
		before := d.state()["vrf"]
		d.fill(map[string]string{".hawser/installed.json": ""})
		Expect(d.try(nil, "uninstall").Exit).To(BeZero())
		Expect(d.state()).To(Equal(map[string]string{"vrf": before}))
	})
})

var _ = Describe("output that no process reads", Label("install-unread"), func() {
	It("does not stop install or uninstall before the end", func() {
		d := newDir(map[string]string{"bridge": oldReference, "tap": oldOurs})
		before := d.state()
		status, stderr := d.unread("install", "--links", "copy")
		Expect([]any{status, stderr}).To(Equal([]any{141, ""}), "as of a program that SIGPIPE ended")
		Expect(d.names()).To(ConsistOf(all()))
		d.answers("vrf")
		status, stderr = d.unread("uninstall")
		Expect([]any{status, stderr}).To(Equal([]any{141, ""}))
		Expect(d.state()).To(Equal(before))
	})

	It("makes both fail, after all is done, where it cannot be written", func() {
		d := newDir(map[string]string{"bridge": oldReference})
		before := d.state()
		for _, command := range []string{"install", "uninstall"} {
			out := d.Run(nstest.Program{Path: "sh", Args: []string{"-c",
				`exec "$0" "$@" >/dev/full`, tool(), command, "--to", d.path}})
			Expect(out.Exit).To(Equal(1))
			Expect(out.Stderr).To(ContainSubstring("no space left on device"))
		}
		Expect(d.state()).To(Equal(before))
	})
})
