package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/skel"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func TestTuning(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "tuning")
}

const (
	firstMAC = "02:00:00:00:00:01"
	otherMAC = "02:00:00:00:00:02"
)

// world is a host, a container with eth0, and directories for the plugin.
type world struct {
	host, cont *nstest.Host
	dir        string // dataDir, made by nobody yet
	tuning     tuning
}

func newWorld() *world {
	GinkgoHelper()
	tmp := GinkgoT().TempDir()
	w := &world{host: nstest.NewHost(), cont: nstest.NewNetns(), dir: tmp + "/cni/tuning",
		tuning: tuning{allowList: allowList{Path: tmp + "/allowlist.conf"}}}
	w.link(w.cont, "eth0")
	return w
}

// link makes a veth's end in a container, with firstMAC.
func (w *world) link(cont *nstest.Host, name string) {
	GinkgoHelper()
	w.host.Cmd("ip", "link", "add", name, "address", firstMAC, "netns", cont.Name, "type", "veth", "peer", "name", "to"+cont.Name+name)
}

func (w *world) allow(lines string) {
	GinkgoHelper()
	Expect(os.WriteFile(w.tuning.allowList.Path, []byte(lines), 0o644)).To(Succeed())
}

// call is one call of the plugin; fields left zero have their usual values.
type call struct {
	command string
	network string // net1
	id      string // c1
	ifName  string // eth0
	netns   string // the container's; "none" = CNI_NETNS empty
	version string // 1.1.0
	conf    string // keys of the configuration, without braces
	args    string // CNI_ARGS
	prev    string // prevResult; "none" = none
	stdout  io.Writer
}

// outcome is what a call left; failed is its error object.
type outcome struct {
	exit           int
	stdout, stderr string
	code           int
	msg, details   string
}

func (w *world) run(c call) outcome {
	GinkgoHelper()
	c = w.complete(c)
	var out, errs bytes.Buffer
	env := skel.Env{Vars: c.vars(), Stdin: strings.NewReader(w.conf(c)), Stdout: &out, Stderr: &errs}
	if c.stdout != nil {
		env.Stdout = c.stdout
	}
	var exit int
	w.host.Do(func() { exit = skel.Run(context.Background(), w.tuning.plugin(), env) })
	return finish(outcome{exit: exit, stdout: out.String(), stderr: errs.String()})
}

// process is run for a program of its own.
func (w *world) process(path string, c call) outcome {
	GinkgoHelper()
	c = w.complete(c)
	out := w.host.Run(nstest.Program{Path: path, Env: append(c.vars(), "CNI_PATH=/nowhere"), Stdin: w.conf(c)})
	return finish(outcome{exit: out.Exit, stdout: out.Stdout, stderr: out.Stderr})
}

func finish(o outcome) outcome {
	var e struct {
		Code         int
		Msg, Details string
	}
	if o.exit != 0 && json.Unmarshal([]byte(o.stdout), &e) == nil {
		o.code, o.msg, o.details = e.Code, e.Msg, e.Details
	}
	return o
}

func (w *world) complete(c call) call {
	for _, f := range []struct {
		field *string
		usual string
	}{{&c.network, "net1"}, {&c.id, "c1"}, {&c.ifName, "eth0"}, {&c.netns, w.cont.Path}, {&c.version, "1.1.0"}} {
		if *f.field == "" {
			*f.field = f.usual
		}
	}
	if c.netns == "none" {
		c.netns = ""
	}
	if c.prev == "" {
		c.prev = prevResult(c, firstMAC)
	}
	return c
}

func (c call) vars() []string {
	vars := []string{"CNI_COMMAND=" + c.command, "CNI_ARGS=" + c.args}
	if c.command != "GC" && c.command != "STATUS" {
		vars = append(vars, "CNI_CONTAINERID="+c.id, "CNI_IFNAME="+c.ifName, "CNI_NETNS="+c.netns)
	}
	return vars
}

func (w *world) conf(c call) string {
	keys := []string{fmt.Sprintf(`"cniVersion":%q,"name":%q,"type":"tuning"`, c.version, c.network)}
	if !strings.Contains(c.conf, `"dataDir"`) {
		keys = append(keys, fmt.Sprintf(`"dataDir":%q`, w.dir))
	}
	if c.prev != "none" {
		keys = append(keys, `"prevResult":`+c.prev)
	}
	if c.conf != "" {
		keys = append(keys, c.conf)
	}
	return "{" + strings.Join(keys, ",") + "}"
}

// prevResult is the result of the plugin before us.
func prevResult(c call, mac string) string {
	return fmt.Sprintf(`{"cniVersion":%q,"interfaces":[{"name":"eth0"},{"name":%q,"mac":%q,"sandbox":%q}]}`,
		c.version, c.ifName, mac, c.netns)
}

func (w *world) ok(c call) outcome {
	GinkgoHelper()
	out := w.run(c)
	Expect(out.exit).To(Equal(0), "%+v", out)
	return out
}

func (w *world) add(conf string) outcome {
	GinkgoHelper()
	return w.ok(call{command: "ADD", conf: conf})
}

func (w *world) del(conf string) outcome {
	GinkgoHelper()
	out := w.ok(call{command: "DEL", conf: conf, prev: "none"})
	Expect(out.stdout).To(BeEmpty())
	return out
}

// state is ip(8)'s view of a container's interface.
func state(h *nstest.Host, name string) string {
	GinkgoHelper()
	var links []struct {
		Address     string
		MTU, Txqlen int
		Flags       []string
	}
	h.JSON(&links, "ip", "-j", "-d", "link", "show", "dev", name)
	Expect(links).To(HaveLen(1))
	l := links[0]
	s := fmt.Sprintf("%s mtu %d txqlen %d", l.Address, l.MTU, l.Txqlen)
	for _, flag := range []string{"PROMISC", "ALLMULTI"} {
		if slices.Contains(l.Flags, flag) {
			s += " " + strings.ToLower(flag)
		}
	}
	return s
}

const untouched = firstMAC + " mtu 1500 txqlen 1000"

// files lists what is in dataDir, without the lock.
func (w *world) files() []string {
	GinkgoHelper()
	var names []string
	_ = filepath.Walk(w.dir, func(path string, info os.FileInfo, err error) error {
		if err == nil && !info.IsDir() && info.Name() != lockName {
			name, _ := filepath.Rel(w.dir, path)
			names = append(names, name)
		}
		return nil
	})
	return names
}

// backup is the content of a backup file.
func (w *world) backup(name string) string {
	GinkgoHelper()
	data, err := os.ReadFile(filepath.Join(w.dir, name))
	Expect(err).NotTo(HaveOccurred())
	return string(data)
}

// put writes a file into dataDir, as other software might.
func (w *world) put(name, content string) {
	GinkgoHelper()
	path := filepath.Join(w.dir, name)
	Expect(os.MkdirAll(filepath.Dir(path), 0o700)).To(Succeed())
	Expect(os.WriteFile(path, []byte(content), 0o600)).To(Succeed())
}

// full is a standard output that cannot be written.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("no room") }
