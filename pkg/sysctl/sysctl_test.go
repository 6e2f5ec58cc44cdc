package sysctl_test

import (
	"io/fs"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/sysctl"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func TestSysctl(t *testing.T) { nstest.RunSpecs(t, "sysctl") }

var _ = DescribeTable("a key has a path and a dotted spelling", func(spelling, path, dotted string) {
	k := nstest.Must(sysctl.Parse(spelling))
	Expect(k.Path()).To(Equal(path))
	Expect(k.String()).To(Equal(dotted))
	Expect(sysctl.Parse(k.String())).To(Equal(k))
},
	Entry("dotted", "net.ipv4.ip_forward", "/proc/sys/net/ipv4/ip_forward", "net.ipv4.ip_forward"),
	Entry("slashed", "net/ipv4/ip_forward", "/proc/sys/net/ipv4/ip_forward", "net.ipv4.ip_forward"),
	Entry("dotted, with a dot in an interface name", "net.ipv4.conf.eth0/100.arp_notify",
		"/proc/sys/net/ipv4/conf/eth0.100/arp_notify", "net.ipv4.conf.eth0/100.arp_notify"),
	Entry("slashed, with a dot in an interface name", "net/ipv4/conf/eth0.100/arp_notify",
		"/proc/sys/net/ipv4/conf/eth0.100/arp_notify", "net.ipv4.conf.eth0/100.arp_notify"),
	Entry("with an interface name that consists of dots", "net/ipv4/conf/.../arp_notify",
		"/proc/sys/net/ipv4/conf/.../arp_notify", "net.ipv4.conf.///.arp_notify"),
)

var _ = DescribeTable("is not a key below net", Label("foreign-sysctl"), func(spelling string) {
	Expect(sysctl.Parse(spelling)).Error().To(MatchError(sysctl.ErrInvalidKey))
},
	Entry("nothing", ""),
	Entry("net itself", "net"),
	Entry("net and a dot", "net."),
	Entry("net and a slash", "net/"),
	Entry("another tree", "kernel.domainname"),
	Entry("a name that begins with net", "netfilter.x"),
	Entry("an absolute path", "/proc/sys/net/ipv4/ip_forward"),
	Entry("a parent directory, slashed", "net/ipv4/../../kernel/domainname"),
	Entry("a parent directory, dotted", "net.ipv4.//.//.kernel.domainname"),
	Entry("the current directory", "net/./ipv4/ip_forward"),
	Entry("an empty element", "net.ipv4..ip_forward"),
	Entry("an empty element, slashed", "net//ipv4"),
	Entry("a slash at the end", "net/ipv4/"),
	Entry("a NUL", "net.ipv4.ip_forward\x00x"),
)

var _ = DescribeTable("is not an element of a key", Label("foreign-sysctl"), func(parts ...string) {
	Expect(sysctl.Net(parts...).Read()).Error().To(MatchError(sysctl.ErrInvalidKey))
	Expect(sysctl.Net(parts...).Write("1")).To(MatchError(sysctl.ErrInvalidKey))
},
	Entry("none"),
	Entry("an empty one", "ipv4", ""),
	Entry("the current directory", "ipv4", "."),
	Entry("the parent directory", "ipv4", "conf", "..", "ip_forward"),
	Entry("two in one", "ipv4/conf"),
	Entry("a NUL", "ipv4", "ip\x00"),
)

var _ = DescribeTable("a placeholder", func(spelling, value, want string) {
	k := nstest.Must(sysctl.Parse(spelling))
	k, err := k.Replace("IFNAME", value)
	if want == "" {
		Expect(err).To(MatchError(sysctl.ErrInvalidKey))
		return
	}
	Expect(err).NotTo(HaveOccurred())
	Expect(k.Path()).To(Equal("/proc/sys/net/" + want))
},
	Entry("is replaced", "net.ipv4.conf.IFNAME.arp_notify", "eth0", "ipv4/conf/eth0/arp_notify"),
	Entry("is replaced by a name with a dot", "net.ipv4.conf.IFNAME.arp_notify", "eth0.100",
		"ipv4/conf/eth0.100/arp_notify"),
	Entry("is replaced in a part of an element", "net/ipv4/conf/IFNAME.7/arp_notify", "eth0",
		"ipv4/conf/eth0.7/arp_notify"),
	Entry("is replaced once", "net.IFNAME.IFNAME", "a", "a/IFNAME"),
	Entry("that does not occur changes nothing", "net.ipv4.ip_forward", "eth0", "ipv4/ip_forward"),
	Entry("never leads to a parent directory", "net.ipv4.conf.IFNAME.arp_notify", "..", ""),
	Entry("never leads to a subdirectory", "net.ipv4.conf.IFNAME.arp_notify", "a/b", ""),
)

var _ = DescribeTable("two values", func(a, b string, same bool) {
	Expect(sysctl.Equal(a, b)).To(Equal(same))
	Expect(sysctl.Equal(b, a)).To(Equal(same))
},
	Entry("with tabs and blanks", "4096 87380  6291456", "4096\t87380\t6291456\n", true),
	Entry("that are empty", "", "\n", true),
	Entry("that differ", "1", "2", false),
	Entry("with different lengths", "1 2", "1", false),
	Entry("that list ports", "8081,8080,9000", "8080-8081,9000", true),
	Entry("that list overlapping ports", "1-10,3-5,11", "1-11", true),
	Entry("that list other ports", "8080,8082", "8080-8082", false),
	Entry("that only look like lists", "1,x", "1-x", false),
	Entry("that are not lists", "01", "1", false),
)

func FuzzParse(f *testing.F) {
	f.Add("net.ipv4.conf.eth0/100.arp_notify")
	f.Add("net/../kernel")
	f.Fuzz(func(t *testing.T, s string) {
		k, err := sysctl.Parse(s)
		if err != nil {
			return
		}
		below, ok := strings.CutPrefix(k.Path(), "/proc/sys/net/")
		if !ok || below == "" || strings.ContainsRune(below, 0) {
			t.Fatalf("Parse(%q) = %q", s, k.Path())
		}
		for _, part := range strings.Split(below, "/") {
			if part == "" || part == "." || part == ".." {
				t.Fatalf("Parse(%q) = %q", s, k.Path())
			}
		}
	})
}

var _ = Describe("a value", func() {
	var h *nstest.Host
	BeforeEach(func() { h = nstest.NewHost() })
	key := func(s string) sysctl.Key {
		GinkgoHelper()
		return nstest.Must(sysctl.Parse(s))
	}
	write := func(s, value string) (err error) {
		h.Do(func() { err = key(s).Write(value) })
		return err
	}
	read := func(s string) (value string, err error) {
		h.Do(func() { value, err = key(s).Read() })
		return value, err
	}
	readOnly := func() {
		GinkgoHelper()
		// The host has its own mount namespace, so no other process sees this mount.
		h.Cmd("mount", "--bind", "/proc/sys", "/proc/sys")
		h.Cmd("mount", "-o", "remount,bind,ro", "/proc/sys")
	}

	It("is read and written in the thread's namespace", func() {
		other := nstest.NewHost()
		Expect(write("net.ipv4.ip_forward", "1")).To(Succeed())
		Expect(h.Sysctl("net/ipv4/ip_forward")).To(Equal("1"))
		Expect(other.Sysctl("net/ipv4/ip_forward")).To(Equal("0"))
		Expect(read("net.ipv4.ip_forward")).To(Equal("1"))
	})

	It("can belong to an interface with a dot in its name", func() {
		h.Cmd("ip", "link", "add", "one.100", "type", "veth", "peer", "name", "two")
		Expect(write("net.ipv4.conf.one/100.arp_notify", "1")).To(Succeed())
		Expect(h.Sysctl("net/ipv4/conf/one.100/arp_notify")).To(Equal("1"))
	})

	It("of several numbers is written unchanged, and compared number by number", func() {
		Expect(write("net.ipv4.ping_group_range", "5 7")).To(Succeed())
		Expect(h.Sysctl("net/ipv4/ping_group_range")).To(Equal("5\t7"))
		Expect(read("net.ipv4.ping_group_range")).To(Equal("5\t7"))
		readOnly()
		Expect(write("net.ipv4.ping_group_range", " 5  7\n")).To(Succeed())
		Expect(write("net.ipv4.ping_group_range", "5 8")).To(MatchError(unix.EROFS))
	})

	It("that is already set causes no error on a read-only file system", func() {
		readOnly()
		Expect(write("net.ipv4.ip_forward", "0")).To(Succeed())
		Expect(write("net.ipv4.ip_forward", "1")).To(
			And(MatchError(unix.EROFS), MatchError(`sysctl net.ipv4.ip_forward: write "1": read-only file system`)))
	})

	It("that cannot be read is written", func() {
		Expect(read("net.ipv4.route.flush")).Error().To(HaveOccurred())
		Expect(write("net.ipv4.route.flush", "1")).To(Succeed())
	})

	It("that the kernel refuses causes an error with key and value", func() {
		Expect(write("net.ipv4.ip_forward", "maybe")).To(
			And(MatchError(unix.EINVAL), MatchError(`sysctl net.ipv4.ip_forward: write "maybe": invalid argument`)))
	})

	It("that does not exist is fs.ErrNotExist", func() {
		Expect(read("net.ipv4.conf.absent.arp_notify")).Error().To(And(MatchError(fs.ErrNotExist),
			MatchError("sysctl net.ipv4.conf.absent.arp_notify: read: no such file or directory")))
		Expect(write("net.ipv4.conf.absent.arp_notify", "1")).To(MatchError(fs.ErrNotExist))
	})

	It("that is a list of ports is compared in the kernel's form", func() {
		Expect(write("net.ipv4.ip_local_reserved_ports", "8081,8080,9000")).To(Succeed())
		Expect(h.Sysctl("net/ipv4/ip_local_reserved_ports")).To(Equal("8080-8081,9000"))
		readOnly()
		Expect(write("net.ipv4.ip_local_reserved_ports", "8080,8081,9000")).To(Succeed())
	})

	It("of an invalid key causes an error", func() {
		Expect(sysctl.Key{}.Read()).Error().To(MatchError(unix.EISDIR))
		Expect(sysctl.Key{}.Write("1")).To(MatchError(unix.EISDIR))
	})
})
