package tool

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/mod/semver"

	"github.com/hawser-cni/plugins/cmd/hawser/node"
	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
)

type stepResult struct {
	Step    string  `json:"step"`
	Status  string  `json:"status"`        // ok, failed or skipped
	Why     string  `json:"why,omitempty"` // the reason; for ok, what was found
	Seconds float64 `json:"seconds"`
}

// trial is one run of the test. It is shown as JSON.
type trial struct {
	Network string       `json:"network"`
	File    string       `json:"file"`
	OK      bool         `json:"ok"`
	Steps   []stepResult `json:"steps"`

	node       *node.Node
	list       node.List
	out        io.Writer        // receives a line per step; nil = no output
	port       int              // host port of the first container; 0 = no plugin forwards ports
	containers []*testContainer // the containers for which ADD was called
	attached   int              // number of containers for which ADD succeeded
	delTime    time.Duration    // limit for each DEL
	isDetached bool             // all DELs succeeded
}

// skipped is the reason why a step was not performed.
type skipped string

func (s skipped) Error() string { return string(s) }

func testCommand(s *session) *cobra.Command {
	limit := 30 * time.Second
	c := s.command("test [LIST]", "Attach two containers with a list, test their network, and detach them",
		func(name string) error {
			if limit < time.Second {
				return fmt.Errorf("--timeout: %s is too short; pass 1s or more", limit)
			}
			list, err := chooseList(s.Node, name)
			if err != nil {
				return err
			}
			if err := checkSafety(s.Node, list); err != nil {
				return err
			}
			t := &trial{Network: list.Name, File: list.File, node: s.Node, list: list}
			if !s.json {
				t.out = s.out
				fmt.Fprintf(t.out, "network %s of %s\n", plain(list.Name), plain(list.File))
			}
			t.run(s.ctx, limit)
			if s.json {
				err = s.show(t, nil)
			}
			if !t.OK {
				err = errors.Join(err, exitStatus(1))
			}
			return err
		})
	c.Flags().DurationVar(&limit, "timeout", limit, "the time limit for all steps")
	return c
}

// chooseList returns the list of a network, the list in a file, or, without a name, the first list, which runtimes use.
func chooseList(n *node.Node, name string) (list node.List, err error) {
	lists, err := n.Lists()
	i := slices.IndexFunc(lists, func(l node.List) bool { return name == "" || l.Name == name })
	switch {
	case i >= 0:
		list, err = lists[i], nil
	case name == "":
		err = errors.Join(err, errors.New("no network list in "+n.ConfDir+"; pass a file or --conf"))
	default:
		if list, err = node.ReadList(name); errors.Is(err, os.ErrNotExist) {
			err = fmt.Errorf("%q is neither a file nor a network in %s", name, n.ConfDir)
		}
	}
	if err == nil && len(list.Plugins) == 0 {
		err = errors.New(list.File + " has no plugins")
	}
	return list, err
}

// testStep is a step with the number of attached containers that it needs.
type testStep struct {
	name  string
	needs int
	do    func(*trial, context.Context) (string, error)
}

func (t *trial) run(ctx context.Context, limit time.Duration) {
	t.runSteps(ctx, limit, []testStep{
		{"ADD", 0, (*trial).addFirst}, {"CHECK", 1, (*trial).check}, {"gateway", 1, (*trial).gateways},
		{"DNS", 1, (*trial).dns}, {"MTU", 1, (*trial).mtu}, {"second ADD", 1, (*trial).addSecond},
		{"neighbor", 2, (*trial).neighbors}, {"host port", 1, (*trial).hostPort},
	}, []testStep{
		{"DEL", 0, (*trial).del}, {"DEL again", 0, (*trial).delAgain}, {"leftovers", 0, (*trial).findLeftovers},
	})
	for _, s := range t.containers {
		_ = s.conn.Close()
		_ = s.netns.Close()
	}
}

// runSteps performs the steps of attach, for at most two thirds of the limit and until a signal arrives, and then the
// steps of detach, for at most a third. Each DEL has its own limit, so that a plugin that hangs leaves time for the
// others.
func (t *trial) runSteps(ctx context.Context, limit time.Duration, attach, detach []testStep) {
	timeoutErr := fmt.Errorf("timed out (--timeout %s)", limit)
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGPIPE)
	defer stop()
	ctx, cancel := context.WithTimeoutCause(ctx, limit*2/3, timeoutErr)
	defer cancel()
	t.OK = true
	for _, a := range attach {
		t.runStep(ctx, a)
	}
	t.OK, t.delTime = t.OK && ctx.Err() == nil, limit/10
	ctx, cancel = context.WithTimeoutCause(context.WithoutCancel(ctx), limit/3, timeoutErr)
	defer cancel()
	for _, a := range detach {
		t.runStep(ctx, a)
	}
}

// runStep performs a step. A panic is treated as an error of the step, so that the containers are still detached.
func (t *trial) runStep(ctx context.Context, step testStep) {
	s, err, start := stepResult{Step: step.name, Status: "ok"}, error(nil), time.Now()
	func() {
		defer func() {
			if p := recover(); p != nil {
				err = fmt.Errorf("panic: %v", p)
			}
		}()
		switch {
		case ctx.Err() != nil:
			err = skipped(context.Cause(ctx).Error())
		case t.attached < step.needs:
			err = skipped("ADD did not succeed")
		default:
			s.Why, err = step.do(t, ctx)
		}
	}()
	s.Seconds = time.Since(start).Round(time.Millisecond).Seconds()
	if reason, ok := err.(skipped); ok {
		s.Status, s.Why = "skipped", string(reason)
	} else if err != nil {
		s.Status, s.Why, t.OK = "failed", err.Error(), false
	}
	t.Steps = append(t.Steps, s)
	if t.out != nil {
		line := fmt.Sprintf("%-10s %6.3fs  %s: %s", s.Step, s.Seconds, s.Status, s.Why)
		fmt.Fprintln(t.out, strings.TrimSuffix(oneLine(line), ":"))
	}
}

// add attaches a new container. Its namespace has no name, so it ends with this process at the latest.
func (t *trial) add(ctx context.Context, capabilities map[string]any) (string, error) {
	netns, err := ns.New()
	if err != nil {
		return "", err
	}
	conn, err := rtnl.Dial(netns)
	if err != nil {
		_ = netns.Close()
		return "", err
	}
	id := skel.TestIDPrefix + strconv.FormatInt(time.Now().UnixNano(), 36)
	name := "eth0"
	if t.isLoopback() {
		name = "lo"
	}
	s := &testContainer{netns: netns, conn: conn, result: &cni.Result{}, attachment: node.Attachment{
		Attachment: cni.Attachment{Network: t.Network, ContainerID: id, IfName: name}, Netns: netns.Path(),
		Cached: node.Cached{Args: [][2]string{{"IgnoreUnknown", "1"}}, Capabilities: capabilities}}}
	t.containers = append(t.containers, s)
	for _, c := range t.list.Calls("ADD", &s.attachment) {
		if s.attachment.RawResult, err = t.node.Run(ctx, c); err != nil {
			return "", err
		}
	}
	result, err := cni.DecodeResult(s.attachment.RawResult, t.list.CNIVersion)
	if err != nil {
		return "", err
	}
	s.result = result
	if s.link, err = conn.Link(name); err != nil {
		return "", err
	}
	for _, ip := range result.ContainerIPs(name) {
		s.ips = append(s.ips, ip.Address.Addr())
	}
	t.attached++
	return strings.Trim(fmt.Sprint(s.ips), "[]"), nil
}

func (t *trial) addFirst(ctx context.Context) (string, error) {
	if !slices.ContainsFunc(t.list.Plugins, hasPortMappings) {
		return t.add(ctx, nil)
	}
	l, err := net.ListenTCP("tcp", nil)
	if err != nil {
		return "", err
	}
	t.port = l.Addr().(*net.TCPAddr).Port
	_ = l.Close()
	return t.add(ctx, map[string]any{"portMappings": []map[string]any{
		{"hostPort": t.port, "containerPort": containerPort, "protocol": "tcp"}}})
}

// isLoopback reports whether runtimes use the list for the interface lo.
func (t *trial) isLoopback() bool { return t.list.Plugins[0].Is("loopback") }

func hasPortMappings(e node.Entry) bool { return e.Capabilities["portMappings"] }

func (t *trial) addSecond(ctx context.Context) (string, error) {
	switch main := t.list.Plugins[0]; {
	case t.isLoopback():
		return "", skipped("each container has its own loopback")
	case main.Is("host-device"):
		return "", skipped("host-device has only one device")
	case main.Is("vlan"):
		return "", skipped("a master has only one interface for each VLAN")
	case main.Is("macvlan") && rawText(main.Raw["mode"]) == "passthru":
		return "", skipped("passthru has only one interface on a master")
	}
	addrs, err := t.add(ctx, nil)
	if err != nil {
		return "", err
	}
	for _, ip := range t.containers[1].ips {
		if slices.Contains(t.containers[0].ips, ip) {
			return "", fmt.Errorf("both containers have %s", ip)
		}
	}
	return addrs, nil
}

func (t *trial) check(ctx context.Context) (string, error) {
	switch {
	case t.list.NoCheck:
		return "", skipped("disableCheck is true")
	case semver.Compare("v"+t.list.CNIVersion, "v0.4.0") < 0:
		return "", skipped("cniVersion is older than 0.4.0")
	}
	for _, c := range t.list.Calls("CHECK", &t.containers[0].attachment) {
		if _, err := t.node.Run(ctx, c); err != nil {
			return "", err
		}
	}
	return "", nil
}

func (t *trial) del(ctx context.Context) (string, error) {
	var errs []error
	for _, s := range t.containers {
		for _, c := range slices.Backward(t.list.Calls("DEL", &s.attachment)) {
			timeoutErr := fmt.Errorf("timed out after %s", t.delTime)
			delCtx, cancel := context.WithTimeoutCause(ctx, t.delTime, timeoutErr)
			_, err := t.node.Run(delCtx, c)
			cancel()
			errs = append(errs, err)
		}
	}
	err := errors.Join(errs...)
	t.isDetached = err == nil
	return "", err
}

func (t *trial) delAgain(ctx context.Context) (string, error) {
	if !t.isDetached {
		return "", skipped("DEL did not succeed")
	}
	return t.del(ctx)
}

// findLeftovers finds objects that DEL should have removed: holdings, interfaces, and rules for the addresses in the
// chains of the reference's firewall.
func (t *trial) findLeftovers(ctx context.Context) (string, error) {
	all, _, err := t.node.Read(ctx) // damaged files are not about these containers
	var leftovers []string
	host, nf := rtnl.Host(), nft.New()
	defer host.Close()
	defer nf.Close()
	for _, s := range t.containers {
		for _, a := range all {
			for i := range a.Holdings {
				if h := &a.Holdings[i]; h.ContainerID == s.attachment.ContainerID {
					leftovers = append(leftovers, fmt.Sprintf("%s %s (%s)", h.Kind, h.Value, h.Kept))
				}
			}
		}
		if _, err := s.conn.Link(s.attachment.IfName); err == nil && !t.isLoopback() {
			leftovers = append(leftovers, "interface "+s.attachment.IfName+" of the container")
		}
		for _, i := range s.result.Interfaces {
			if link, err := host.Link(i.Name); i.Sandbox == "" && err == nil && link.IsPairEnd() {
				leftovers = append(leftovers, "host end "+i.Name)
			}
		}
		for _, ip := range s.ips {
			table := nft.Table{Family: nft.FamilyOf(ip), Name: "filter"}
			rules, _ := nf.Rules(table, node.CNIForward)
			if slices.ContainsFunc(rules, func(r nft.LiveRule) bool { return r.Mentions(ip.AsSlice()) }) {
				leftovers = append(leftovers, fmt.Sprintf("rule for %s in %s, chain %s", ip, table, node.CNIForward))
			}
		}
	}
	if leftovers != nil {
		err = errors.New(strings.Join(leftovers, ", "))
	}
	return "", err
}
