package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func TestHostLocal(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "plugins/ipam/host-local")
}

func ours() string { return nstest.Build("host-local") }

// call is one call of a host-local.
type call struct {
	program, command string
	id, ifName       string
	args             string
	conf             string
}

type answer struct {
	out, err string
	status   int
}

func (c call) cmd() *exec.Cmd {
	cmd := exec.Command(c.program)
	if c.ifName == "" {
		c.ifName = "eth0"
	}
	cmd.Env = []string{"CNI_COMMAND=" + c.command, "CNI_CONTAINERID=" + c.id, "CNI_IFNAME=" + c.ifName,
		"CNI_NETNS=/not/looked/at", "CNI_PATH=/", "CNI_ARGS=" + c.args}
	cmd.Stdin = strings.NewReader(c.conf)
	return cmd
}

func (c call) run() answer {
	GinkgoHelper()
	cmd := c.cmd()
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		Fail(err.Error())
	}
	return answer{out.String(), errs.String(), cmd.ProcessState.ExitCode()}
}

// ok runs a call that must succeed and returns the addresses of its result.
func (c call) ok() []string {
	GinkgoHelper()
	a := c.run()
	Expect(a.status).To(BeZero(), "%s %s: %s %s", c.command, c.id, a.out, a.err)
	if c.command != "ADD" {
		Expect(a.out).To(BeEmpty())
		return nil
	}
	return a.addrs()
}

func (a answer) addrs() []string {
	GinkgoHelper()
	var result struct {
		IPs []struct{ Address string }
	}
	Expect(json.Unmarshal([]byte(a.out), &result)).To(Succeed(), a.out)
	var list []string
	for _, ip := range result.IPs {
		addr, _, _ := strings.Cut(ip.Address, "/")
		list = append(list, addr)
	}
	return list
}

// refused runs a call that must fail with a code; it returns the message.
func (c call) refused(code uint) string {
	GinkgoHelper()
	a := c.run()
	Expect(a.status).To(Equal(1), "%s %s: %s", c.command, c.id, a.out)
	var e struct {
		CNIVersion string
		Code       uint
		Msg        string
	}
	Expect(json.Unmarshal([]byte(a.out), &e)).To(Succeed(), a.out)
	Expect(e.Code).To(Equal(code), e.Msg)
	Expect(e.CNIVersion).NotTo(BeEmpty())
	return e.Msg
}

// network is a data directory with one network.
type network struct {
	dataDir string
	ipam    string // keys besides type and dataDir
	rest    string // keys of the network
	version string
}

const slash24 = `"ranges": [[{"subnet": "10.1.2.0/24"}]]`

func newNetwork(ipam string) network {
	GinkgoHelper()
	return network{dataDir: filepath.Join(GinkgoT().TempDir(), "networks"), ipam: ipam, version: "1.1.0"}
}

func (n network) conf() string {
	extra := n.ipam
	if extra != "" {
		extra = ", " + extra
	}
	return fmt.Sprintf(`{"cniVersion": %q, "name": "net", "type": "bridge"%s, "ipam": {"type": "host-local", "dataDir": %q%s}}`,
		n.version, n.rest, n.dataDir, extra)
}

func (n network) with(rest string) network {
	n.rest = ", " + rest
	return n
}

func (n network) call(program, command, id string) call {
	return call{program: program, command: command, id: id, conf: n.conf()}
}

func (n network) dir() string { return filepath.Join(n.dataDir, "net") }

func (n network) path(name string) string { return filepath.Join(n.dir(), name) }

// write puts a file into the lease directory as others do.
func (n network) write(name, content string) {
	GinkgoHelper()
	Expect(os.MkdirAll(n.dir(), 0o755)).To(Succeed())
	Expect(os.WriteFile(n.path(name), []byte(content), 0o600)).To(Succeed())
}

// leases reads the directory in the plainest way: name -> content.
func (n network) leases() map[string]string {
	GinkgoHelper()
	m := map[string]string{}
	list, err := os.ReadDir(n.dir())
	if os.IsNotExist(err) {
		return m
	}
	Expect(err).NotTo(HaveOccurred())
	for _, e := range list {
		if e.Name() == "lock" || strings.HasPrefix(e.Name(), "last_reserved_ip.") {
			continue
		}
		content, err := os.ReadFile(n.path(e.Name()))
		Expect(err).NotTo(HaveOccurred())
		m[e.Name()] = string(content)
	}
	return m
}

func keys(m map[string]string) []string {
	var list []string
	for k := range m {
		list = append(list, k)
	}
	sort.Strings(list)
	return list
}

func addrs(list ...string) []netip.Addr {
	var out []netip.Addr
	for _, s := range list {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}
