package faults_test

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

// failing is one case: the call at which an error is injected into ADD or DEL.
type failing struct {
	command string
	fault   fault
}

var _ = Describe("an error at every call", Label("kernel", "error"), func() {
	for _, s := range scenarios() {
		It("of "+s.Name+" leaves nothing half done", func() {
			nstest.Need(s.Needs...)
			l := learn(s)
			each(l, failings(l))
		})
	}
})

func failings(l *lesson) (cases []failing) {
	for _, command := range l.commands() {
		for _, c := range l.calls(command, fault{}) {
			if messages() && c.File != "netlink" {
				continue
			}
			for pick := range c.Failures {
				cases = append(cases, failing{command, fault{At: c.N, Fail: true, Pick: pick}})
			}
		}
	}
	return cases
}

func (c failing) play(n *node) (hit bool, err error) {
	out, prev, err := n.disturbed(c.command, c.fault)
	if err == nil && out.Hit == nil { // it was over sooner this time
		return false, n.del(out.Stdout)
	}
	switch {
	case err != nil:
	case out.Exit != 0:
		err = errors.Join(explained(out), c.repeat(n, prev))
	case c.command == "ADD":
		err = n.isWhole(out)
	default:
		err = n.isGone(out)
	}
	if err == nil || errors.Is(err, errRetire) {
		return true, err
	}
	return true, fmt.Errorf("%s: %s at call %s:\n        %w\n        %s%s", c.command, out.Injected, out.Hit, err,
		out.Stdout, out.Stderr)
}

// repeat: an ADD that failed has left nothing; the repetition of a DEL that failed leaves nothing.
func (c failing) repeat(n *node, prev string) error {
	if c.command == "ADD" {
		if err := errors.Join(n.isClean(), n.del("")); err != nil || !n.Cold {
			return err
		}
		result, err := n.add()
		return errors.Join(err, n.del(result), n.isCleanAgain())
	}
	return errors.Join(n.del(prev), n.isClean())
}

// isWhole: an ADD that succeeded did all that it does undisturbed.
func (n *node) isWhole(out outcome) error {
	if got := n.normal(out.Stdout); got != n.result {
		return errors.New("succeeds, with another result")
	}
	if key, ok := strings.CutPrefix(out.Hit.File, "/proc/sys/net/"); ok && final[out.Injected.errno] {
		// /proc/sys may be read-only; some values only make the network better.
		key = " " + key + ":"
		err := n.state().without(key).differs(n.whole.without(key), nil)
		return cmp.Or(err, errRetire)
	}
	if strings.Contains(out.Stderr, "another ADD of the attachment would not be noticed") {
		// So may /run, where nothing is kept but locks.
		err := n.state().without("/run/hawser").differs(n.whole.without("/run/hawser"), nil)
		return cmp.Or(err, errRetire)
	}
	if err := n.state().differs(n.whole, nil); err != nil {
		return fmt.Errorf("succeeds, with a difference: %w", err)
	}
	return errors.Join(n.del(out.Stdout), n.isCleanAgain())
}

// isGone: a DEL that succeeded left nothing. In a container that cannot be entered, or does not take its values
// back, something may stay, and DEL says so: it must not fail for ever.
func (n *node) isGone(out outcome) error {
	if n.Inside && final[out.Injected.errno] && strings.Contains(out.Stderr, out.Injected.errno.Error()) {
		return errors.Join(n.isCleanOutside(), errRetire)
	}
	return n.isClean()
}

// final are errors that a repetition would bring again.
var final = map[unix.Errno]bool{unix.EPERM: true, unix.EACCES: true, unix.EROFS: true, unix.EINVAL: true,
	unix.EIO: true, unix.EBUSY: true}

// explained: there is one error object, and it names the cause; an interrupted call is no error.
func explained(out outcome) error {
	text := out.Stdout
	if text == "" { // what failed may be its writing
		_, text, _ = strings.Cut(out.Stderr, ": ")
	}
	var e struct {
		Msg, Details string
		Code         uint
	}
	err := json.Unmarshal([]byte(text), &e)
	said, cause := e.Msg+" "+e.Details, out.Injected.errno.Error()
	if !out.Hit.ours() {
		cause = "tables" // the name of the program
	}
	switch {
	case out.Exit != 1 || err != nil || e.Code == 0 || e.Msg == "":
		return fmt.Errorf("exit %d without an error object", out.Exit)
	case strings.Contains(said, "goroutine "):
		return errors.New("a panic")
	case out.Injected.errno == unix.EINTR && out.Hit.ours():
		return errors.New("an interrupted call was not repeated")
	case !strings.Contains(said, cause):
		return fmt.Errorf("the error does not say %q", cause)
	}
	return nil
}

// killing is one case: where ADD or DEL is killed, and what cleans up.
type killing struct {
	command string
	fault   fault
	remedy  string // DEL or GC
}

var _ = Describe("a kill at every call", Label("kernel", "killed"), func() {
	for _, s := range scenarios() {
		It("of "+s.Name+" loses nothing", func() {
			nstest.Need(s.Needs...)
			l := learn(s)
			each(l, killings(l))
		})
	}
})

// killings are all cases of a scenario. A kill between two calls that change nothing is like one before the
// next that does, so those are enough; HAWSER_FAULTS=all takes each call.
func killings(l *lesson) (cases []killing) {
	for _, command := range l.commands() {
		f := fault{Changes: !everything()}
		for _, c := range l.calls(command, f) {
			f.At = c.N
			f.Kill, f.Alone = true, false
			cases = append(cases, killing{command, f, "DEL"}, killing{command, f, "GC"})
			if !c.Main {
				f.Kill, f.Alone = false, true
				cases = append(cases, killing{command, f, "DEL"})
			}
		}
	}
	return cases
}

// play kills and cleans up, and sees that nothing is left, and nothing in the way.
func (k killing) play(n *node) (hit bool, err error) {
	out, prev, err := n.disturbed(k.command, k.fault)
	if err != nil {
		return false, err
	}
	if out.Hit == nil { // it was over sooner this time
		return false, n.del(cmp.Or(prev, out.Stdout))
	}
	if err := k.recover(n, prev); err != nil {
		return true, fmt.Errorf("%s at call %s:\n        %w", k, out.Hit, err)
	}
	return true, nil
}

func (k killing) String() string {
	if k.fault.Alone {
		return k.command + ", killed without its children, then " + k.remedy
	}
	return k.command + ", killed, then " + k.remedy
}

func (k killing) recover(n *node, prev string) error {
	if err := n.quiet(k.remedy, prev); err != nil {
		return err
	}
	if k.remedy == "GC" && n.Inside {
		return cmp.Or(n.isCleanOutside(), errRetire)
	}
	if err := n.isClean(); err != nil || k.command == "DEL" || k.remedy == "GC" {
		return err // the next case begins with an ADD
	}
	result, err := n.add()
	if err != nil {
		return err
	}
	if err := errors.Join(n.del(result), n.isCleanAgain()); err != nil {
		return fmt.Errorf("after the next ADD and DEL: %w", err)
	}
	return nil
}

// lend starts a DHCP server, which lends each container an address of its own, and the daemon.
func (n *node) lend() {
	n.host.IP("link add cni0 type bridge", "addr add 10.1.0.1/24 dev cni0", "link set cni0 up")
	var own []string
	for i, id := range []string{victim, bystander} {
		client := fmt.Sprintf("% x", "\x00"+id+"/pods/eth0")
		own = append(own, fmt.Sprintf("--dhcp-host=id:%s,10.1.0.%d", strings.ReplaceAll(client, " ", ":"), 2+i))
	}
	plugintest.ServeDHCP(n.host, "cni0", "10.1.0.2,10.1.0.3", own...)
	n.daemon = plugintest.DHCPDaemon(n.host, n.bin)
}

// rest waits until the daemon has done with all calls, also with those whose plugin has
// ended before. It takes them in their order.
func (n *node) rest() {
	if n.daemon == nil {
		return
	}
	Expect(n.quiet("STATUS", "")).To(Succeed())
	Eventually(func() int { return plugintest.OpenFiles(n.daemon.Process.Pid, "socket:") }).
		Should(Equal(1), "on which it listens")
}

// daemonKill is one case: where the daemon is killed.
type daemonKill struct{ fault }

var _ = It("a kill of dhcp's daemon at every call loses nothing", Label("kernel", "daemon-killed"), func() {
	l := learn(scenarioOf("dhcp"))
	n := nstest.Must(l.node())
	f := fault{Changes: !everything()}
	out, _, err := n.life(f)
	Expect(err).NotTo(HaveOccurred())
	var cases []daemonKill
	for _, c := range out.Calls {
		cases = append(cases, daemonKill{fault{Changes: f.Changes, At: c.N, Kill: true}})
	}
	each(l, cases)
})

func (n *node) startDaemon() {
	making.Lock()
	defer making.Unlock()
	n.daemon = plugintest.DHCPDaemon(n.host, n.bin)
}

// play kills the daemon, starts another one, and sees that this has the leases that
// were given and not taken back, and no other.
func (k daemonKill) play(n *node) (hit bool, err error) {
	out, lent, err := n.life(k.fault)
	n.startDaemon()
	if err == nil && lent != "" {
		err = n.quiet("CHECK", lent)
	}
	err = errors.Join(err, n.del(lent), n.isClean())
	if err == nil {
		err = n.serves()
	}
	if err != nil && out.Hit != nil {
		err = fmt.Errorf("the daemon, killed at call %s:\n        %w\n%s", out.Hit, err, out.Stderr)
	}
	return out.Hit != nil, err
}

// serves plays ADD and DEL undisturbed: they succeed and leave nothing.
func (n *node) serves() error {
	result, err := n.add()
	return errors.Join(err, n.del(result), n.isClean())
}

// life has another daemon, to which the fault happens, take over the leases, serve ADD
// and DEL, and end. lent is ADD's result where DEL was not asked for.
func (n *node) life(f fault) (out outcome, lent string, err error) {
	GinkgoHelper()
	Expect(n.daemon.Process.Signal(syscall.SIGTERM)).To(Succeed())
	_ = n.daemon.Wait()
	n.daemon = nil
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer GinkgoRecover()
		out, err = run(n.host, nstest.Program{Path: filepath.Join(n.bin, "dhcp"),
			Args: []string{"daemon", "-pidfile", "/run/dhcp.pid"}}, f)
	}()
	hasEnded := func() bool {
		select {
		case <-ended:
			return true
		default:
			return false
		}
	}
	Eventually(func() bool { return hasEnded() || n.quiet("STATUS", "") == nil }).Should(BeTrue())
	lent, failed := n.add()
	if failed == nil && !hasEnded() {
		_ = n.del(lent)
		lent = ""
	}
	n.host.Run(nstest.Program{Path: "sh", Args: []string{"-c", "kill $(cat /run/dhcp.pid)"}})
	<-ended
	return out, lent, err
}
