package runtimes_test

import (
	"fmt"
	"os"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/test/pods"
)

// user is an ordinary one: its number, and its name on the machine.
const user = "5000"

// newUsersPodman is podman as an ordinary user has it: plugins run in a user
// namespace, and in a network namespace that slirp4netns joins to the machine's.
func newUsersPodman(m *machine, conflist string) *podman {
	nstest.NeedProgram("podman", "runc", "newuidmap", "slirp4netns", "setpriv")
	_, err := os.Stat("/dev/net/tun")
	nstest.NeedOK("tun", err)
	Expect(os.Chmod(m.dir, 0o755)).To(Succeed())
	m.Cmd("sh", "-ec", `
		mount -t tmpfs tmpfs /mnt
		mkdir /mnt/upper /mnt/work
		mount -t overlay overlay -o lowerdir=/etc,upperdir=/mnt/upper,workdir=/mnt/work /etc
		echo "user:x:$0:$0::$1/home:/bin/sh" >> /etc/passwd
		echo "user:x:$0:" >> /etc/group
		echo "user:100000:65536" | tee /etc/subuid > /etc/subgid
		mknod -m 666 /mnt/tun c 10 200
		mount --bind /mnt/tun /dev/net/tun
		install -d -o "$0" -g "$0" -m 700 /run/user /run/user/"$0" "$1/home"`, user, m.dir)
	p := &podman{machine: m,
		command: []string{"setpriv", "--reuid", user, "--regid", user, "--clear-groups", "podman"},
		env:     []string{"HOME=" + m.dir + "/home", "XDG_RUNTIME_DIR=/run/user/" + user}}
	p.configure(conflist, fmt.Sprintf("[storage]\ndriver = \"vfs\"\nrootless_storage_path = %q\n",
		m.dir+"/home/storage"))
	return p
}

func (p *podman) inside(command string) string {
	GinkgoHelper()
	return p.must("unshare", "--rootless-netns", "bash", "-c", command)
}

func (p *podman) ask(sandbox, address string) func() (string, error) {
	return func() (string, error) {
		host, port, _ := strings.Cut(address, ":")
		return p.try("unshare", "--rootless-netns", "nsenter", "--net="+sandbox, "timeout", "5", "bash", "-c",
			"cat < /dev/tcp/"+host+"/"+port)
	}
}

var _ = Describe("podman of an ordinary user", func() {
	It("has containers with addresses, traffic and host ports; reloads, stops and removes them", func() {
		p := newUsersPodman(newMachine(""), pods.Network{Version: "0.4.0"}.Conflist())
		p.must("run", "-d", "--name", "client", "--network", "pods", image)
		p.must("run", "-d", "--name", "server", "--network", "pods", "-p", "8080:80", image)
		client, server := p.find("client"), p.find("server")
		outside := p.outside.Serve("tcp", "192.0.2.2:0")
		for range 2 {
			Eventually(p.ask(client.Path, server.Addr+":80")).Should(HavePrefix(client.Addr + ":"))
			Eventually(p.ask(client.Path, outside)).Should(HavePrefix("192.0.2.1:"))
			for _, from := range []*nstest.Host{p.outside, p.Host} { // podman's own forwarder
				Eventually(func() error { _, err := from.Ask("tcp", "192.0.2.1:8080"); return err }).Should(Succeed())
			}
			Expect(p.inside("nft list map inet hawser portmap4_v1")).To(ContainSubstring(server.Addr + " . 80"))
			p.must("network", "reload", "--all")
			Expect(p.find("server").Addr).To(Equal(server.Addr))
		}
		there := func() string {
			return p.inside("nft list ruleset; find /var/lib/cni/networks /run/hawser -type f; " +
				"ip -br link show type veth")
		}
		ofServer := []OmegaMatcher{ContainSubstring(server.Addr + " . 80"),
			ContainSubstring(server.Addr + ` comment "`), ContainSubstring("/" + server.Addr + "\n"),
			MatchRegexp(`portmap/\S+\.json`),
			MatchRegexp(`(?s)firewall/\S+\.json.*firewall/\S+\.json`), MatchRegexp("(?s)veth.*\nveth")}
		Expect(there()).To(And(ofServer...))
		for range 2 {
			p.must("stop", "-t", "0", "server")
		}
		p.must("rm", "server")
		Expect(there()).NotTo(Or(ofServer...))
		p.must("rm", "-f", "-t", "0", "client")
		Expect(there()).NotTo(Or(ContainSubstring(client.Addr), ContainSubstring("veth"), ContainSubstring(".json")))
	})
})
