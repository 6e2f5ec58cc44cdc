package faults_test

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"sync"

	. "github.com/onsi/ginkgo/v2"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

// The attachment that faults happen to, and the one that must not notice.
const (
	victim    = "one"
	bystander = "other"
)

// lesson is what ADD and DEL of a scenario do when nothing disturbs them.
type lesson struct {
	scenario
	clean  state  // before ADD, and after DEL
	whole  state  // after ADD
	shared state  // on a cold host: what was there after the first DEL, and may stay
	result string // of ADD

	spare *node // one as it was made; nil for none
}

func learn(s scenario) *lesson {
	GinkgoHelper()
	l := &lesson{scenario: s}
	n, err := l.node()
	if err == nil {
		err = n.learn()
	}
	if err != nil {
		Fail(s.Name + ": " + err.Error())
	}
	l.leave(n)
	return l
}

// leave keeps a node that is as it was made for whoever takes one next.
func (l *lesson) leave(n *node) {
	if l.Cold {
		n.retire()
		return
	}
	l.spare = n
}

func (l *lesson) take() (n *node, err error) {
	making.Lock()
	n, l.spare = l.spare, nil
	making.Unlock()
	if n == nil {
		n, err = l.node()
	}
	return n, err
}

// node is a host on which a scenario is played.
type node struct {
	*lesson
	bin   string
	host  *nstest.Host
	conts map[string]*nstest.Host
	below map[string]string // results of the plugin below

	daemon *exec.Cmd // of dhcp
}

// making hosts is for one at a time: ginkgo's list of what to clean up has no lock.
var making sync.Mutex

func (l *lesson) empty() *node {
	making.Lock()
	defer making.Unlock()
	n := &node{lesson: l, below: map[string]string{}, conts: map[string]*nstest.Host{}}
	for _, name := range nstest.Plugins() {
		n.bin = filepath.Dir(nstest.Build(name))
	}
	n.host, n.conts[victim] = nstest.NewHost(), nstest.NewNetns()
	if l.Conf["master"] != nil {
		plugintest.Uplink(n.host)
	}
	if !l.Cold {
		n.conts[bystander] = nstest.NewNetns()
	}
	if l.plugin() == "dhcp" {
		n.lend()
	}
	return n
}

// node makes a node, up to where the plugin is called.
func (l *lesson) node() (*node, error) {
	n := l.empty()
	for _, id := range []string{bystander, victim} {
		if l.Conf["device"] != nil {
			n.host.Run(nstest.Program{Path: "sh", Args: []string{"-ec",
				`ip link add $0 address 0a:00:00:00:00:19 type veth peer name $0p
ip link set $0 up alias "mine $0" mtu 1400; ip link set $0p up`, id}})
		}
		if n.conts[id] == nil || l.Below == nil {
			continue
		}
		p := n.program("ADD", id, "")
		p.Path, p.Stdin = filepath.Join(n.bin, l.Below["type"].(string)), n.conf(l.Below, nil)
		out := n.host.Run(p)
		if out.Exit != 0 {
			return n, fmt.Errorf("the plugin below: %s", out.Stdout)
		}
		n.below[id] = out.Stdout
	}
	if n.conts[bystander] != nil {
		if out := n.host.Run(n.program("ADD", bystander, n.below[bystander])); out.Exit != 0 {
			return n, fmt.Errorf("ADD of the bystander: %s", out.Stdout)
		}
	}
	if l.Cold {
		return n, nil
	}
	result, err := n.add() // what the first of all makes is there from now on
	return n, errors.Join(err, n.del(result))
}

func (n *node) learn() error {
	n.clean = n.state()
	result, err := n.add()
	if err != nil {
		return err
	}
	n.whole, n.result = n.state(), n.normal(result)
	if err := n.del(result); err != nil {
		return err
	}
	if n.Cold {
		n.shared = n.state()
	}
	return n.isClean()
}

func (n *node) retire() {
	n.host.Unpin()
	for _, c := range n.conts {
		c.Unpin()
	}
}

// program is a call of the plugin. prev is its prevResult, "" for none.
func (n *node) program(command, id, prev string) nstest.Program {
	more := object{}
	if prev != "" {
		more["prevResult"] = json.RawMessage(prev)
	}
	if command == "GC" {
		valid := []object{}
		if n.conts[bystander] != nil {
			valid = append(valid, object{"containerID": bystander, "ifname": cmp.Or(n.IfName, "eth0")})
		}
		more["cni.dev/valid-attachments"] = valid
	}
	if id == bystander {
		more["runtimeConfig"] = nil // a host port is one attachment's
		if n.Conf["device"] != nil {
			more["device"] = bystander
		}
		if n.Conf["vlanId"] != nil { // the kernel has each once on a link
			more["vlanId"] = 6
		}
		maps.Copy(more, n.Other)
	}
	return nstest.Program{Path: filepath.Join(n.bin, n.plugin()), Stdin: n.conf(n.Conf, more), Env: []string{
		"CNI_COMMAND=" + command, "CNI_CONTAINERID=" + id, "CNI_IFNAME=" + cmp.Or(n.IfName, "eth0"),
		"CNI_NETNS=" + n.conts[id].Path, "CNI_PATH=" + n.bin, "CNI_ARGS=",
	}}
}

func (n *node) conf(conf, more object) string {
	return plugintest.Text(plugintest.Merge(object{"cniVersion": "1.1.0", "name": "pods"}, conf, more))
}

// add is an undisturbed ADD, which must succeed.
func (n *node) add() (result string, err error) {
	out := n.host.Run(n.program("ADD", victim, n.below[victim]))
	if out.Exit != 0 {
		return "", fmt.Errorf("the next ADD fails: %s", out.Stdout)
	}
	return out.Stdout, nil
}

func (n *node) del(prev string) error { return n.quiet("DEL", prev) }

// quiet is an undisturbed call other than ADD, which must succeed and say nothing.
func (n *node) quiet(command, prev string) error {
	out := n.host.Run(n.program(command, victim, cmp.Or(prev, n.below[victim])))
	if out.Exit != 0 || out.Stdout != "" {
		return fmt.Errorf("%s: exit %d: %s%s", command, out.Exit, out.Stdout, out.Stderr)
	}
	return nil
}

// disturbed is a call to which the fault happens. prev is the result of the ADD before a DEL.
func (n *node) disturbed(command string, f fault) (out outcome, prev string, err error) {
	if command == "DEL" {
		if prev, err = n.add(); err != nil {
			return outcome{}, "", err
		}
	}
	out, err = run(n.host, n.program(command, victim, cmp.Or(prev, n.below[victim])), f)
	n.rest()
	if err == nil && out.Hit == nil && out.Exit != 0 {
		err = fmt.Errorf("fails undisturbed: %s", out.Stdout)
	}
	return out, prev, err
}

// isClean compares with the state before ADD. On a cold host what all attachments
// share may be there besides, also half made.
func (n *node) isClean() error { return n.state().differs(n.clean, n.shared) }

// isCleanOutside does not look into the container.
func (n *node) isCleanOutside() error {
	return n.state().outside().differs(n.clean.outside(), n.shared)
}

// isCleanAgain is isClean after an undisturbed ADD and DEL, which have made whole what was half made.
func (n *node) isCleanAgain() error {
	if n.Cold {
		return n.state().differs(n.shared, nil)
	}
	return n.isClean()
}

// calls are those of an undisturbed ADD or DEL, as far as the fault counts them.
func (l *lesson) calls(command string, f fault) []call {
	GinkgoHelper()
	n, err := l.take()
	var out outcome
	if err == nil {
		out, _, err = n.disturbed(command, f)
	}
	if err == nil && command == "ADD" {
		err = n.del(out.Stdout)
	}
	if err != nil {
		Fail(l.Name + ": " + err.Error())
	}
	l.leave(n)
	return out.Calls
}
