package nstest

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Specs do not see how administrators and packages set up the machine: programs print names of users, protocols and
// routing tables instead of numbers, and follow the environment, the umask and sysctls.

// settle sets what the processes of the tests inherit: the umask, the host name and the environment.
func settle() error {
	unix.Umask(0o022)
	for _, variable := range os.Environ() {
		name, _, _ := strings.Cut(variable, "=")
		if isForeign(name) {
			if err := os.Unsetenv(name); err != nil {
				return err
			}
		}
	}
	if err := unix.Sethostname([]byte("machine")); err != nil {
		return fmt.Errorf("host name: %w", err)
	}
	return os.Setenv("TZ", "UTC")
}

// isForeign reports whether an environment variable changes the behavior of plugins or of programs in specs, and is
// not one of the tests' own variables.
func isForeign(variable string) bool {
	for _, prefix := range []string{"CNI_", "LC_", "LISTEN_", "TRACE"} {
		if strings.HasPrefix(variable, prefix) {
			return true
		}
	}
	return strings.HasSuffix(strings.ToLower(variable), "_proxy") || slices.Contains([]string{"DBUS_SYSTEM_BUS_ADDRESS",
		"HAWSER_LOG", "LANG", "LANGUAGE", "NO_COLOR", "NOTIFY_SOCKET", "POSIXLY_CORRECT"}, variable)
}

// etc returns the files that /etc has in every spec, on every machine.
func etc() map[string]string {
	return map[string]string{
		"group":  accounts("/etc/group", "%s:x:%d:\n"),
		"passwd": accounts("/etc/passwd", "%s:x:%d:65534::/nonexistent:/usr/sbin/nologin\n"),

		"hostname":      "machine\n",
		"hosts":         "127.0.0.1 localhost machine\n::1 localhost\n",
		"nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\nprotocols: files\nservices: files\n",
		"protocols":     protocols,
		"resolv.conf":   "nameserver 192.0.2.53\n",
		"services":      "",
	}
}

// protocols are the protocols whose names nft prints, and that firewalld's services name.
const protocols = "ip 0 IP\nicmp 1 ICMP\nigmp 2 IGMP\nipencap 4 IP-ENCAP\ntcp 6 TCP\nudp 17 UDP\ndccp 33 DCCP\n" +
	"ipv6 41 IPv6\ngre 47 GRE\nesp 50 IPSEC-ESP\nah 51 IPSEC-AH\nipv6-icmp 58 IPv6-ICMP\nospf 89 OSPFIGP\n" +
	"pim 103 PIM\nipcomp 108 IPCOMP\nvrrp 112 VRRP\nl2tp 115 L2TP\nsctp 132 SCTP\nudplite 136 UDPLite\n"

// namedIDs is the first user or group ID without a name. Packages of Debian get lower ones as they are installed.
const namedIDs = 1000

// accounts returns a file of accounts in which each ID below namedIDs has a name, and of the others only 65534.
// Names from packages stay, because the packages' programs need them. So a spec that expects a number although a
// program prints a name fails on every machine, not only on those where a package uses that number.
func accounts(file, format string) string {
	var text strings.Builder
	named := map[int]bool{}
	data, _ := os.ReadFile(file)
	for line := range strings.Lines(string(data)) {
		fields := strings.Split(line, ":")
		if len(fields) < 3 {
			continue
		}
		id, err := strconv.Atoi(fields[2])
		if err == nil && (id < namedIDs || id == 65534) {
			named[id] = true
			text.WriteString(strings.TrimSuffix(line, "\n") + "\n")
		}
	}
	for id := 1; id < namedIDs; id++ {
		if !named[id] {
			fmt.Fprintf(&text, format, fmt.Sprint("package", id), id)
		}
	}
	return text.String()
}

// hideEtc mounts the files of etc over the machine's, and hides /etc/cni and /etc/iproute2 with empty directories.
// Files that a spec writes into /etc stay in memory. If the kernel refuses an overlay (in a user namespace before Linux
// 5.11), specs see the machine's /etc. hideEtc uses /run, which is mounted anew afterwards.
func hideEtc() (err error) {
	if err := mount("tmpfs", "/run", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unix.Unmount("/run", unix.MNT_DETACH)) }()
	for _, dir := range []string{"work", "etc/alternatives", "etc/cni", "etc/iproute2", "cni", "iproute2"} {
		err = errors.Join(err, os.MkdirAll("/run/"+dir, 0o755))
	}
	for name, text := range etc() {
		err = errors.Join(err, os.WriteFile("/run/etc/"+name, []byte(text), 0o644))
	}
	for _, program := range []string{"iptables", "ip6tables"} { // of the usual variant
		for _, suffix := range []string{"", "-restore", "-save"} {
			target := "/usr/sbin/" + program + "-nft" + suffix
			if _, failed := os.Stat(target); failed == nil {
				err = errors.Join(err, os.Symlink(target, "/run/etc/alternatives/"+program+suffix))
			}
		}
	}
	const layers = "lowerdir=/etc,upperdir=/run/etc,workdir=/run/work"
	if err != nil || unix.Mount("overlay", "/etc", "overlay", 0, layers) != nil {
		return err
	}
	return errors.Join(mount("/run/cni", "/etc/cni", "", unix.MS_BIND),
		mount("/run/iproute2", "/etc/iproute2", "", unix.MS_BIND))
}

// inherited has the kernel's values, for "all" and for interfaces, of the IPv4 settings that a new network namespace
// copies from the machine's first one. Systemd, Docker and administrators change them there. Forwarding comes first
// because it changes other settings.
var inherited = []struct{ name, all, link string }{
	{"forwarding", "0", "0"}, {"accept_local", "0", "0"}, {"accept_redirects", "1", "1"},
	{"accept_source_route", "0", "1"}, {"arp_announce", "0", "0"}, {"arp_filter", "0", "0"}, {"arp_ignore", "0", "0"},
	{"log_martians", "0", "0"}, {"promote_secondaries", "0", "0"}, {"proxy_arp", "0", "0"},
	{"route_localnet", "0", "0"}, {"rp_filter", "0", "0"}, {"secure_redirects", "1", "1"},
	{"send_redirects", "1", "1"}, {"src_valid_mark", "0", "0"},
}

// disinherit sets the kernel's values in the calling thread's network namespace, which is new.
func disinherit() error {
	for _, setting := range inherited {
		for of, value := range map[string]string{"all": setting.all, "default": setting.link, "lo": setting.link} {
			path := "/proc/sys/net/ipv4/conf/" + of + "/" + setting.name
			if is, ok := readSysctl(path); !ok || strings.TrimSpace(is) == value {
				continue
			}
			if err := os.WriteFile(path, []byte(value), 0); err != nil {
				return err
			}
		}
	}
	return nil
}
