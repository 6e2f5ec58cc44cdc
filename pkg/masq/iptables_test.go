package masq_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ipt"
	"github.com/hawser-cni/plugins/pkg/masq"
	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

const (
	chainC1   = "CNI-c2d892b58e87e28a12fe6479" // net1, c1
	commentC1 = `-m comment --comment "name: \"net1\" id: \"c1\""`
)

// natRules returns table nat of both families as iptables lists it.
func natRules(h *nstest.Host) string {
	GinkgoHelper()
	return h.Cmd("iptables", "-t", "nat", "-S") + h.Cmd("ip6tables", "-t", "nat", "-S")
}

// eachVariant runs the same specs with either variant of the programs.
func eachVariant(specs func(host func() *nstest.Host, variant string)) {
	for _, variant := range []string{"nft", "legacy"} {
		Context("for "+variant, nstest.Variant(variant), func() {
			var host *nstest.Host
			BeforeEach(func() {
				nstest.UseVariant(variant)
				host = nstest.NewHost()
			})
			specs(func() *nstest.Host { return host }, variant)
		})
	}
}

var _ = Describe("masquerade with iptables", Label("kernel"), func() {
	one := config(ipt.IPTables, "c1", "eth0", "10.1.0.2/24", "fd01::2/64")
	two := config(ipt.IPTables, "c1", "net1", "10.2.0.2/24", "fd01::7/64")

	eachVariant(func(host func() *nstest.Host, variant string) {
		It("writes the reference plugin's rules", func() {
			before := natRules(host())
			Expect(add(host(), one)).To(Succeed())
			for _, family := range []struct{ program, addr, prefix, multicast string }{
				{"iptables", "10.1.0.2/32", "10.1.0.0/24", "224.0.0.0/4"},
				{"ip6tables", "fd01::2/128", "fd01::/64", "ff00::/8"},
			} {
				Expect(host().Cmd(family.program, "-t", "nat", "-S")).To(HaveSuffix(strings.Join([]string{
					"-N " + chainC1,
					"-A POSTROUTING -s " + family.addr + " " + commentC1 + " -j " + chainC1,
					"-A " + chainC1 + " -d " + family.prefix + " " + commentC1 + " -j ACCEPT",
					"-A " + chainC1 + " ! -d " + family.multicast + " " + commentC1 + " -j MASQUERADE",
				}, "\n") + "\n"))
			}
			for _, remove := range []func(*nstest.Host, masq.Config) error{del, delBlind} {
				Expect(add(host(), one)).To(Succeed())
				Expect(check(host(), one)).To(Succeed())
				Expect(remove(host(), one)).To(Succeed())
				Expect(natRules(host())).To(Equal(before))
				Expect(records(host())).To(BeEmpty())
				Expect(remove(host(), one)).To(Succeed())
			}
		})

		It("also removes the rules of an ADD without a DEL if the next ADD has other addresses", func() {
			before := natRules(host())
			again := config(ipt.IPTables, "c1", "eth0", "10.1.0.9/24", "fd01::2/64")
			for _, remove := range []func(*nstest.Host, masq.Config) error{del, delBlind} {
				Expect(add(host(), two)).To(Succeed())
				Expect(add(host(), one)).To(Succeed())
				Expect(add(host(), again)).To(Succeed())
				checkAll(host(), again, two)
				Expect(natRules(host())).NotTo(ContainSubstring("10.1.0.2/"))
				Expect(del(host(), two)).To(Succeed())
				Expect(remove(host(), again)).To(Succeed())
				Expect(natRules(host())).To(Equal(before))
			}
		})

		It("keeps both interfaces of a container working in the chain they share", Label("two-interfaces"), func() {
			Expect(add(host(), one)).To(Succeed())
			alone := natRules(host())
			Expect(add(host(), two)).To(Succeed())
			checkAll(host(), one, two)
			Expect(strings.Count(natRules(host()), "-j MASQUERADE")).To(Equal(2))
			for _, remove := range []func(*nstest.Host, masq.Config) error{del, delBlind} {
				Expect(add(host(), two)).To(Succeed())
				Expect(remove(host(), two)).To(Succeed())
				Expect(natRules(host())).To(Equal(alone))
				Expect(remove(host(), two)).To(Succeed())
				Expect(natRules(host())).To(Equal(alone))
			}
			Expect(add(host(), two)).To(Succeed())
			Expect(del(host(), one)).To(Succeed())
			Expect(check(host(), two)).To(Succeed())
			Expect(natRules(host())).NotTo(ContainSubstring("10.1.0."))
			Expect(del(host(), two)).To(Succeed())
			Expect(natRules(host())).NotTo(ContainSubstring("CNI-"))
		})

		It("finds its rules if other programs moved or removed some of them", func() {
			Expect(add(host(), one)).To(Succeed())
			host().Cmd("sh", "-c", "iptables -t nat -D POSTROUTING -s 10.1.0.2/32 "+commentC1+" -j "+chainC1)
			Expect(check(host(), one)).To(MatchError(ContainSubstring(`no rule "-A POSTROUTING -s 10.1.0.2/32`)))
			Expect(del(host(), one)).To(Succeed())
			Expect(natRules(host())).NotTo(ContainSubstring("CNI-"))
			Expect(check(host(), one)).To(MatchError(ContainSubstring("is missing")))
		})

		It("deletes and adds again, regardless of the state of its record", func() {
			for _, content := range []string{"", "x", "{}",
				`{"network":"net1","containerID":"c1","interfaces":{"eth0":[""]}}`,
				`{"network":"net1","containerID":"c1","interfaces":{"eth0":["fe80::1%-j/64"],"a\n-F":["0.0.0.0/0"]}}`,
				`{"network":"net1","containerID":"c2","interfaces":{"eth1":["10.1.0.2/24"]}}`} {
				Expect(add(host(), one)).To(Succeed())
				file := filepath.Join("/run/hawser/masq", chainC1+".json")
				host().Do(func() { Expect(os.WriteFile(file, []byte(content), 0o600)).To(Succeed()) })
				Expect(add(host(), one)).To(Succeed(), content)
				host().Do(func() { Expect(os.WriteFile(file, []byte(content), 0o600)).To(Succeed()) })
				Expect(del(host(), one)).To(Succeed(), content)
				Expect(natRules(host())).NotTo(ContainSubstring("CNI-"), content)
			}
			Expect(records(host())).To(BeEmpty())
		})

		It("starts one program for each family to write, and none on a clean host", Label("one-restore"), func() {
			log := shim(variant)
			Expect(delBlind(host(), one)).To(Succeed())
			Expect(gc(host(), "net1")).To(Succeed())
			Expect(log()).To(BeEmpty())
			Expect(add(host(), one)).To(Succeed())
			Expect(log()).To(Equal([]string{"iptables-restore", "ip6tables-restore"}))
			Expect(check(host(), one)).To(Succeed())
			if variant == "nft" { // one that says its version, and one that lists the table
				Expect(log()).To(Equal([]string{"iptables-nft", "iptables-nft", "ip6tables-nft", "ip6tables-nft"}))
			} else { // iptables-legacy-save
				Expect(log()).To(BeEmpty())
			}
			Expect(del(host(), config(ipt.Auto, "other", "eth0", "10.1.0.9/24"))).To(Succeed())
			Expect(log()).To(BeEmpty())
		})

		It("deletes the IPv4 rules if the IPv6 rules failed", func() {
			before := natRules(host())
			dir := GinkgoT().TempDir()
			Expect(os.WriteFile(dir+"/ip6tables-restore",
				[]byte("#!/bin/sh\necho no luck >&2\nexit 1\n"), 0o755)).To(Succeed())
			path := os.Getenv("PATH")
			GinkgoT().Setenv("PATH", dir+":"+path)
			Expect(add(host(), one)).To(MatchError(ContainSubstring("no luck")))
			Expect(del(host(), one)).To(Succeed())
			GinkgoT().Setenv("PATH", path)
			Expect(natRules(host())).To(Equal(before))
			Expect(records(host())).To(BeEmpty())
		})

		It("removes stale attachments of its own network only", func() {
			other := config(ipt.IPTables, "c1", "eth0", "10.7.0.2/24")
			other.Attachment.Network = "net2"
			for _, c := range []masq.Config{one, two, other, config(ipt.IPTables, "c2", "eth0", "10.1.0.3/24")} {
				Expect(add(host(), c)).To(Succeed())
			}
			Expect(gc(host(), "net1", cni.Attachment{ContainerID: "c1", IfName: "net1"})).To(Succeed())
			checkAll(host(), two, other)
			Expect(natRules(host())).NotTo(ContainSubstring("10.1.0."))
			Expect(gc(host(), "net1")).To(Succeed())
			Expect(natRules(host())).NotTo(ContainSubstring("net1"))
			Expect(check(host(), other)).To(Succeed())
		})

		It("deletes without programs if possible, and otherwise names them", func() {
			Expect(add(host(), one)).To(Succeed())
			var err error
			nstest.WithoutPrograms(func() { err = del(host(), one) })
			if variant == "nft" {
				Expect(err).NotTo(HaveOccurred())
				Expect(natRules(host())).NotTo(ContainSubstring("CNI-"))
				return
			}
			Expect(err).To(MatchError(And(ContainSubstring(`"nat"`), ContainSubstring("iptables-legacy-save"))))
			patient := one
			var warning string
			patient.Warn = func(format string, args ...any) { warning = fmt.Sprintf(format, args...) }
			nstest.WithoutPrograms(func() { Expect(del(host(), patient)).To(Succeed()) })
			Expect(warning).To(ContainSubstring("tables-legacy-save"))
			Expect(records(host())).To(Equal(chainC1 + ".json\n"))
			Expect(del(host(), one)).To(Succeed())
			Expect(natRules(host())).NotTo(ContainSubstring("CNI-"))
		})

		It("also deletes the rules of the other variant", func() {
			Expect(add(host(), one)).To(Succeed())
			other := map[string]string{"nft": "legacy", "legacy": "nft"}[variant]
			nstest.UseVariant(other)
			Expect(del(host(), one)).To(Succeed())
			nstest.UseVariant(variant)
			Expect(natRules(host())).NotTo(ContainSubstring("CNI-"))
		})
	})

	It("needs no ip6tables for IPv4", func() {
		nstest.Need("iptables")
		host := nstest.NewHost()
		c := config(ipt.IPTables, "c1", "eth0", "10.1.0.2/24")
		for _, f := range []struct {
			programs string
			enough   bool
		}{{"iptables", true}, {"ip6tables", false}} {
			var says, does error
			nstest.WithPrograms([]string{f.programs, f.programs + "-restore"}, func() {
				says, does = status(host, ipt.IPTables), errors.Join(add(host, c), check(host, c), del(host, c))
			})
			Expect([]bool{says == nil, does == nil}).To(Equal([]bool{f.enough, f.enough}),
				"%s alone: %v, %v", f.programs, says, does)
		}
	})

	It("writes no record if programs are missing, also with a legacy table", func() {
		host := nstest.NewHost()
		host.Cmd("iptables-legacy-save", "-t", "nat") // makes the table
		host.Cmd("ip6tables-legacy-save", "-t", "nat")
		c := one
		c.Warn = func(string, ...any) {}
		nstest.WithoutPrograms(func() {
			Expect(add(host, c)).To(MatchError(ContainSubstring(`program "iptables-restore"`)))
			Expect(del(host, c)).To(Succeed())
		})
		Expect(host.Cmd("find", "/run", "-name", chainC1+"*")).To(BeEmpty())
	})

	It("waits for the xtables lock until the deadline and names its holder", Label("locks"), func() {
		nstest.UseVariant("legacy")
		host := nstest.NewHost()
		host.Do(func() {
			held := nstest.Must(statefile.LockFile(context.Background(), "/run/xtables.lock", 0o600))
			defer func() { _ = held.Unlock() }()
			info := nstest.Must(os.Stat("/run/xtables.lock"))
			waiter := regexp.MustCompile(fmt.Sprintf(`-> FLOCK .*:%d `, info.Sys().(*syscall.Stat_t).Ino))
			isWaitedFor := func() bool { return waiter.Match(nstest.Must(os.ReadFile("/proc/locks"))) }
			nf := nft.New()
			err := masq.Add(nstest.DeadlineWhen(isWaitedFor), nf, one)
			Expect(err).To(MatchError(statefile.ErrBusy))
			Expect(err).To(MatchError(ContainSubstring("process %d ", os.Getpid())))
			Expect(masq.Del(context.Background(), nf, one)).To(Succeed())
			By("only for what is there")
			host.Cmd("iptables-legacy-save", "-t", "nat") // makes the table
			Expect(masq.Del(context.Background(), nf, config(ipt.Auto, "other", "eth0"))).To(Succeed())
			Expect(nf.Close()).To(Succeed())
		})
		Expect(records(host)).To(BeEmpty())
	})
})

var _ = It("has nothing in iptables: Del does not wait for a lock", Label("kernel"), func() {
	nstest.UseVariant("nft")
	host := nstest.NewHost()
	one := config(ipt.IPTables, "c1", "eth0", "10.1.0.2/24")
	Expect(add(host, one)).To(Succeed())
	host.Do(func() {
		held := nstest.Must(statefile.LockFile(context.Background(), "/run/hawser/masq/lock", 0o600))
		defer func() { _ = held.Unlock() }()
		nf := nft.New()
		Expect(masq.Del(context.Background(), nf, config(ipt.Auto, "c2", "eth0", "10.1.0.3/24"))).To(Succeed())
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		defer cancel()
		Expect(masq.Del(ctx, nf, one)).To(MatchError(statefile.ErrBusy))
		Expect(nf.Close()).To(Succeed())
	})
})

// records returns the files of the records, without the lock.
func records(h *nstest.Host) string {
	GinkgoHelper()
	return h.Cmd("ls", "-A", "-I", "lock", "/run/hawser/masq")
}

// shim puts programs before the real ones that log their names.
func shim(variant string) (log func() []string) {
	GinkgoHelper()
	dir := GinkgoT().TempDir()
	logFile := filepath.Join(dir, "log")
	program := nstest.Must(exec.LookPath("iptables-" + variant))
	script := fmt.Sprintf("#!/bin/sh\nname=${0##*/}\necho $name >>%[1]s\n"+
		"case $name in ip6*) f=ip6tables;; *) f=iptables;; esac\n"+
		"tail=${name#$f}\nexec %[2]s/$f-%[3]s${tail#-%[3]s} \"$@\"\n", logFile, filepath.Dir(program), variant)
	real := filepath.Join(dir, "shim-"+variant)
	Expect(os.WriteFile(real, []byte(script), 0o755)).To(Succeed())
	for _, f := range []string{"iptables", "ip6tables"} {
		for _, tail := range []string{"", "-restore", "-" + variant, "-" + variant + "-restore"} {
			Expect(os.Symlink(real, filepath.Join(dir, f+tail))).To(Succeed())
		}
	}
	GinkgoT().Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return func() []string {
		data, err := os.ReadFile(logFile)
		if errors.Is(err, unix.ENOENT) {
			return nil
		}
		Expect(err).NotTo(HaveOccurred())
		Expect(os.Remove(logFile)).To(Succeed())
		return strings.Fields(string(data))
	}
}

// reference runs the bridge plugin of a reference release in the host.
func reference(ref nstest.Reference, h *nstest.Host, command, ipMasq string, c masq.Config, netns string) {
	GinkgoHelper()
	var addrs []string
	for _, p := range c.Addrs {
		addrs = append(addrs, fmt.Sprintf(`{"address": %q}`, p))
	}
	out := h.Run(nstest.Program{Path: ref.Program("bridge"), Stdin: fmt.Sprintf(`{
		"cniVersion": "1.0.0", "name": %q, "type": "bridge", "bridge": "br0", "ipMasq": %s, "isGateway": true,
		"ipam": {"type": "static", "addresses": [%s]}}`, c.Attachment.Network, ipMasq, strings.Join(addrs, ",")),
		Env: []string{"CNI_COMMAND=" + command, "CNI_CONTAINERID=" + c.Attachment.ContainerID, "CNI_NETNS=" + netns,
			"CNI_IFNAME=" + c.Attachment.IfName, "CNI_PATH=" + ref.Dir()}})
	Expect(out.Exit).To(BeZero(), out.Stdout+out.Stderr)
}

var _ = Describe("beside the reference", Label("kernel"), func() {
	for _, ref := range nstest.QuickReferences() {
		Context("of "+ref.Name, func() { besideReference(ref) })
	}
})

func besideReference(ref nstest.Reference) {
	one := config(ipt.IPTables, "c1", "eth0", "10.1.0.2/24", "fd01::2/64")
	two := config(ipt.IPTables, "c1", "net1", "10.1.0.8/24", "fd01::8/64")

	eachVariant(func(host func() *nstest.Host, _ string) {
		It("writes the same rules", Label("iptables-format"), func() {
			reference(ref, host(), "ADD", "true", one, nstest.NewNetns().Path)
			theirs := natRules(host())
			Expect(check(host(), one)).To(Succeed())
			upgraded := one
			upgraded.Backend = ipt.Auto
			Expect(check(host(), upgraded)).To(Succeed())
			twin := nstest.NewHost()
			Expect(add(twin, one)).To(Succeed())
			Expect(natRules(twin)).To(Equal(theirs))
		})

		DescribeTable("deletes its rules", Label("reference-left"), func(remove func(*nstest.Host, masq.Config) error) {
			before := natRules(host())
			reference(ref, host(), "ADD", "true", one, nstest.NewNetns().Path)
			bystander := config(ipt.IPTables, "c2", "eth0", "10.1.0.3/24")
			reference(ref, host(), "ADD", "true", bystander, nstest.NewNetns().Path)
			Expect(remove(host(), one)).To(Succeed())
			Expect(natRules(host())).NotTo(ContainSubstring(chainC1))
			Expect(check(host(), bystander)).To(Succeed())
			Expect(gc(host(), "net1", cni.Attachment{ContainerID: "c2", IfName: "eth0"})).To(Succeed())
			Expect(check(host(), bystander)).To(Succeed())
			Expect(gc(host(), "net2")).To(Succeed())
			Expect(check(host(), bystander)).To(Succeed())
			Expect(gc(host(), "net1")).To(Succeed())
			Expect(natRules(host())).To(Equal(before))
			Expect(host().Cmd("sh", "-c", "ls -I lock /run/hawser/masq || true")).To(BeEmpty())
		},
			Entry("by their addresses", del),
			Entry("without knowing them", delBlind),
			Entry("by GC", func(h *nstest.Host, _ masq.Config) error {
				return gc(h, "net1", cni.Attachment{ContainerID: "c2", IfName: "eth0"})
			}),
		)

		It("deletes one interface of the reference plugin's container, and keeps the other", func() {
			netns := nstest.NewNetns().Path
			reference(ref, host(), "ADD", "true", one, netns)
			reference(ref, host(), "ADD", "true", two, netns)
			Expect(del(host(), two)).To(Succeed())
			Expect(check(host(), one)).To(Succeed())
			Expect(natRules(host())).NotTo(ContainSubstring("10.1.0.8"))
			Expect(del(host(), one)).To(Succeed())
			Expect(natRules(host())).NotTo(ContainSubstring("CNI-"))
		})

		It("adds an interface to a container of the reference plugin", func() {
			three := config(ipt.IPTables, "c1", "net2", "10.4.0.8/24", "fd04::8/64")
			reference(ref, host(), "ADD", "true", one, nstest.NewNetns().Path)
			Expect(add(host(), three)).To(Succeed())
			checkAll(host(), one, three)
			Expect(delBlind(host(), three)).To(Succeed())
			Expect(check(host(), one)).To(Succeed())
			Expect(delBlind(host(), one)).To(Succeed())
			Expect(natRules(host())).NotTo(ContainSubstring("CNI-"))
		})

		It("lets the reference plugin delete its own rules", Label("reference-del"), func() {
			netns := nstest.NewNetns().Path
			before := natRules(host())
			reference(ref, host(), "ADD", "false", one, netns)
			Expect(add(host(), one)).To(Succeed())
			Expect(natRules(host())).NotTo(Equal(before))
			reference(ref, host(), "DEL", "true", one, netns)
			Expect(natRules(host())).To(Equal(before))
			Expect(del(host(), one)).To(Succeed())
			Expect(records(host())).To(BeEmpty())
		})

		It("deletes the jumps of older versions", func() {
			reference(ref, host(), "ADD", "true", one, nstest.NewNetns().Path)
			host().Cmd("sh", "-c", "iptables -t nat -A POSTROUTING -s 10.1.0.2/24 "+commentC1+" -j "+chainC1)
			Expect(del(host(), one)).To(Succeed())
			Expect(natRules(host())).NotTo(ContainSubstring("CNI-"))
		})
	})
}

var _ = Describe("beside the reference's nftables", Label("kernel"), func() {
	DescribeTable("deletes its nftables rules", Label("reference-left"), func(
		remove func(*nstest.Host, masq.Config) error,
	) {
		nstest.Need("nft", "nft-inet-nat")
		host := nstest.NewHost()
		rule := func(addr, comment string) string {
			return fmt.Sprintf(
				"add rule inet cni_plugins_masquerade masq_checks ip saddr == %s ip daddr != 10.1.0.0/24 "+
					"masquerade comment \"%s\"\n", addr, comment)
		}
		// Test vectors from the reference plugins: network unit-test, interface eth0, container one.
		const mine = "6fd94d501e58f0aa-287fc69eff0574a2, net: unit-test, if: eth0, id: one"
		script := "add table inet cni_plugins_masquerade\n" +
			"add chain inet cni_plugins_masquerade masq_checks\n" +
			"add chain inet cni_plugins_masquerade postrouting { type nat hook postrouting priority srcnat; }\n" +
			"add rule inet cni_plugins_masquerade postrouting goto masq_checks\n"
		keep := rule("10.1.0.3", "6fd94d501e58f0aa-0000000000000000, net: unit-test, if: eth1, id: two") +
			rule("10.1.0.4", "c84a55673dc39168-f4d01f2ef4b92245, net: pnet7, if: eth0, id: c1")
		host.Run(nstest.Program{Path: "nft", Args: []string{"-f", "-"}, Stdin: script + keep})
		before := host.Cmd("nft", "list", "ruleset")
		host.Run(nstest.Program{Path: "nft", Args: []string{"-f", "-"},
			Stdin: rule("10.1.0.2", mine) + rule("10.1.0.7", mine)})
		Expect(host.Cmd("nft", "list", "ruleset")).NotTo(Equal(before))
		c := masq.Config{Attachment: cni.Attachment{Network: "unit-test", ContainerID: "one", IfName: "eth0"}}
		nstest.WithoutPrograms(func() { Expect(remove(host, c)).To(Succeed()) })
		if want := host.Cmd("nft", "list", "ruleset"); strings.Contains(want, "id: two") {
			Expect(want).To(Equal(before))
		} else {
			Expect(want).To(And(ContainSubstring("pnet7"), Not(ContainSubstring("unit-test"))))
		}
	},
		Entry("by Del", del),
		Entry("by GC", func(h *nstest.Host, _ masq.Config) error { return gc(h, "unit-test") }),
	)

	It("keeps its nftables rules that are valid", func() {
		nstest.Need("nft", "nft-inet-nat")
		host := nstest.NewHost()
		host.Cmd("sh", "-c", `nft add table inet cni_plugins_masquerade
			nft add chain inet cni_plugins_masquerade masq_checks
			nft add rule inet cni_plugins_masquerade masq_checks ip saddr 10.1.0.2 masquerade \
				comment \"6fd94d501e58f0aa-287fc69eff0574a2, net: unit-\"`)
		Expect(gc(host, "unit-test", cni.Attachment{ContainerID: "one", IfName: "eth0"})).To(Succeed())
		Expect(host.Cmd("nft", "list", "ruleset")).To(ContainSubstring("10.1.0.2"))
	})
})
