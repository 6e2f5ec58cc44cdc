package install_test

import (
	"os"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
)

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
		unread := func(args ...string) []any {
			out := d.RunUnread(nstest.Program{Path: tool(), Args: append(args, "--to", d.path)})
			return []any{out.Exit, out.Stderr}
		}
		Expect(unread("install", "--links", "copy")).To(Equal([]any{141, ""}), "as of a program that SIGPIPE ended")
		Expect(d.names()).To(ConsistOf(all()))
		d.answers("vrf")
		Expect(unread("uninstall")).To(Equal([]any{141, ""}))
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
