package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
)

// side is a host with one of the directories, for one scenario.
type side struct {
	*host
	*plugins
	crowd []object // the attachments of the other pods
	fresh int      // number of the last pod that was made for one ADD
	// devices says that each pod has a device of the host for it to take.
	devices bool
}

// pod is a container whose attachment is measured.
type pod struct {
	id, ifName, ns string
	port           int
	before, result json.RawMessage // of the plugin before those that are measured, and of the last
}

const network = "bench"

// config is a step's configuration.
func (s *side) config(st step, verb string, p *pod, prev json.RawMessage) object {
	conf := merged(object{"cniVersion": s.versions[len(s.versions)-1], "name": network, "type": st.plugin},
		st.conf(p.port))
	switch {
	case verb == "GC":
		conf["cni.dev/valid-attachments"] = append([]object{p.attachment()}, s.crowd...)
	case prev != nil && verb != "STATUS" && verb != "VERSION":
		conf["prevResult"] = prev
	}
	return conf
}

func (p *pod) attachment() object { return object{"containerID": p.id, "ifname": p.ifName} }

// serve has the plugins of a chain serve a verb as a runtime would. Each call is
// handed to one, which returns the result.
func (s *side) serve(steps []step, verb string, p *pod, one func(call) (json.RawMessage, error)) error {
	if verb == "DEL" {
		steps = slices.Clone(steps)
		slices.Reverse(steps)
	}
	prev := p.result
	if verb == "ADD" {
		prev = p.before
	}
	for _, st := range steps {
		result, err := one(call{verb: verb, plugin: st.plugin, id: p.id, ifName: p.ifName, ns: p.ns,
			conf: s.config(st, verb, p, prev)})
		if err != nil {
			return err
		}
		if verb == "ADD" {
			prev = result
		}
	}
	if verb == "ADD" {
		p.result = prev
	}
	return nil
}

// quietly is serve with nothing measured, on the calling thread.
func (s *side) quietly(steps []step, verb string, p *pod) error {
	return s.serve(steps, verb, p, func(c call) (json.RawMessage, error) {
		spent, err := c.timed(s.plugins)
		return spent.result, err
	})
}

// prepare brings the side to where the scenario begins, with the pod that is measured.
func (s *side) prepare(sc *scenario) (*pod, error) {
	if err := s.reserve(sc.reserved); err != nil {
		return nil, err
	}
	if err := s.populate(sc); err != nil {
		return nil, fmt.Errorf("%d others: %w", sc.others, err)
	}
	if sc.daemon {
		if err := s.lend(); err != nil {
			return nil, fmt.Errorf("dhcp: %w", err)
		}
	}
	s.devices = sc.steps[0].plugin == "host-device"
	return s.attached(sc, 0)
}

// lend starts a DHCP server on the bridge, and the side's own daemon.
func (s *side) lend() error {
	err := s.command("link add cni0 type bridge\naddr add 10.22.0.1/16 dev cni0\nlink set cni0 up\n",
		"ip", "-batch", "-")
	if err != nil {
		return err
	}
	err = s.start("dnsmasq", "--no-daemon", "--conf-file=/dev/null", "--port=0", "--interface=cni0",
		"--bind-interfaces", "--user=root", "--group=root", "--pid-file=", "--dhcp-leasefile=/run/leases",
		"--no-ping", "--dhcp-authoritative", "--dhcp-range=10.22.1.1,10.22.1.250,1h")
	if err != nil {
		return err
	}
	if err := s.start(filepath.Join(s.dir, "dhcp"), "daemon"); err != nil {
		return err
	}
	return s.do(func() error { return awaitSocket("/run/cni/dhcp.sock") })
}

// attached makes pod number i, with what comes before the scenario's plugins.
func (s *side) attached(sc *scenario, i int) (*pod, error) {
	p, err := s.newPod(i)
	if err != nil || sc.before == nil {
		return p, err
	}
	err = s.do(func() error { return s.quietly(sc.before, "ADD", p) })
	p.before = p.result
	return p, err
}

// renew puts another pod into the place of one, before an ADD of a scenario that wants it.
func (s *side) renew(sc *scenario, verb string, p *pod) error {
	if !sc.fresh || verb != "ADD" {
		return nil
	}
	p.result = p.before
	if err := s.do(func() error { return s.quietly(sc.before, "DEL", p) }); err != nil {
		return err
	}
	if err := s.command("", "ip", "netns", "del", filepath.Base(p.ns)); err != nil {
		return err
	}
	s.fresh++
	other, err := s.attached(sc, s.fresh)
	if err == nil {
		*p = *other
	}
	return err
}

// newPod makes pod number i, and publishes its ports from a place of its own.
func (s *side) newPod(i int) (*pod, error) {
	ns, err := s.netns(fmt.Sprintf("pod%d", i))
	p := &pod{id: fmt.Sprintf("%064x", i+1), ifName: "eth0", ns: ns, port: 8000 + i}
	if err == nil && s.devices {
		name := deviceName(p.port)
		err = errors.Join(s.command("", "ip", "link", "add", name, "type", "veth", "peer", "name", name+"p"),
			s.command("", "ip", "link", "set", name, "up"), s.command("", "ip", "link", "set", name+"p", "up"))
	}
	return p, err
}

// reserve writes reservations as host-local keeps them.
func (s *side) reserve(n int) error {
	if n == 0 {
		return nil
	}
	dir := filepath.Join(s.disk, "networks", network)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	last := ""
	for i := range n {
		last = fmt.Sprintf("10.22.%d.%d", (i+2)>>8, (i+2)&255)
		owner := fmt.Sprintf("%064x\r\neth0", 1<<20+i)
		s.crowd = append(s.crowd, object{"containerID": owner[:64], "ifname": "eth0"})
		if err := os.WriteFile(filepath.Join(dir, last), []byte(owner), 0o600); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(dir, "last_reserved_ip.0"), []byte(last), 0o600)
}

// copied is a directory of programs, copied several times into a new one.
func copied(name, from, work string, copies int) (*plugins, error) {
	p := &plugins{name: name}
	for i := range copies {
		p.copies = append(p.copies, filepath.Join(work, strconv.Itoa(i)))
		if err := os.CopyFS(p.copies[i], os.DirFS(from)); err != nil {
			return nil, fmt.Errorf("copy %s: %w", name, err)
		}
		p.turn(i)
		if err := p.warm(); err != nil {
			return nil, fmt.Errorf("start %s: %w", name, err)
		}
	}
	p.turn(0)
	return p, nil
}

// warm starts every program once: the first start of a file that was just written takes several times as long as
// those that follow.
func (p *plugins) warm() error {
	programs, err := os.ReadDir(p.dir)
	for _, program := range programs {
		path, env, stdin, _ := call{verb: "VERSION", plugin: program.Name()}.start(p)
		_, _ = output(path, env, stdin) // not all know it
	}
	return err
}

// open is copied for a directory of plugins, and looks at them.
func open(name, from, work string, copies int) (*plugins, error) {
	p, err := copied(name, from, work, copies)
	if err != nil {
		return nil, err
	}
	program, err := os.ReadFile(filepath.Join(p.dir, "bridge"))
	if err != nil {
		return nil, fmt.Errorf("%s plugins: %w", name, err)
	}
	// A plugin ignores keys that it does not know.
	p.nft = bytes.Contains(program, []byte("ipMasqBackend"))
	c := call{verb: "VERSION", plugin: "bridge", conf: object{"cniVersion": "1.0.0"}}
	path, env, stdin, err := c.start(p)
	if err != nil {
		return nil, err
	}
	answer, err := output(path, env, stdin)
	if err != nil {
		return nil, fmt.Errorf("VERSION of %s: %w", path, err)
	}
	var v struct{ SupportedVersions []string }
	if err := json.Unmarshal(answer, &v); err != nil {
		return nil, fmt.Errorf("VERSION of %s: %w: %s", path, err, answer)
	}
	p.versions = v.SupportedVersions
	return p, nil
}
