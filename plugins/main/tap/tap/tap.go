package tap

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/attach"
	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/process"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/pkg/tun"
)

const mtuMax = 65521 // largest MTU of a tap, in bytes

type wireConfig struct {
	skel.LogKey
	MultiQueue bool    `json:"multiQueue" help:"allow up to 256 queues; the program that opens the device must also request them" default:"false"`
	MAC        string  `json:"mac" help:"MAC address; CNI_ARGS, runtimeConfig and args.cni override it" schema:"format=mac empty"`
	Owner      *uint32 `json:"owner" help:"user ID that may open the device without CAP_NET_ADMIN (any)"`
	Group      *uint32 `json:"group" help:"group ID that may open the device without CAP_NET_ADMIN (any)"`
	SELinux    string  `json:"selinuxContext" help:"SELinux label of the device (the runtime's)"`
	Bridge     string  `json:"bridge" help:"bridge in the container that the device becomes a port of (none)" schema:"format=ifname empty"`
	attach.IPAMKeys
	attach.MTUKeys
	attach.LinkKeys
}

func parseConfig(req *skel.Request, w wireConfig, problems *cni.Problems) attach.ChildConfig {
	if w.Bridge != "" {
		problems.Add(cni.CheckIfName(cni.CodeConfig, "bridge", w.Bridge))
	}
	problems.Add(cni.CheckName("selinuxContext", w.SELinux))
	problems.Add(w.IPAM.Check())
	link := w.LinkKeys.Parse(problems, w.MTUKeys, req.Args, w.MAC)
	if link.MTU > mtuMax {
		problems.Add(cni.Refuse("mtu", link.MTU, fmt.Sprintf("is above %d, the maximum of a tap", mtuMax)))
	}
	return attach.ChildConfig{New: rtnl.NewLink{Kind: kind}, Link: link,
		Make: w.makeTap, Probe: w.probe, Verify: w.verify}
}

const kind = "tun" // the kernel's kind of both tun and tap devices

// probe returns why this host cannot create the tap.
func (w wireConfig) probe() error {
	if err := tun.Probe(); err != nil {
		return err
	}
	return w.checkLabel()
}

// makeTap creates the tap. It makes the tap persistent last, so that the kernel deletes it if ADD is killed before.
func (w wireConfig) makeTap(ctx context.Context, c *attach.Call, name string) error {
	bridge, err := w.findBridge(c)
	if err != nil {
		return err
	}
	if err := w.checkLabel(); err != nil {
		return err
	}
	f, err := tun.Open(c.Req.NS)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := w.create(ctx, f, name); err != nil {
		return err
	}
	if err := w.setOwner(f); err != nil {
		return err
	}
	l, err := c.Cont.Link(name)
	if err != nil {
		return err
	}
	change := rtnl.LinkChange{MAC: c.Child.Link.MAC, MTU: c.Child.Link.MTU, Master: bridge,
		Group: new(cni.NetworkHash(c.Req.Network))}
	if err := c.Cont.SetLink(l.Index, change); err != nil {
		return err
	}
	return tun.Keep(f)
}

// findBridge returns the index of the configured bridge in the container, or nil if no bridge is configured.
func (w wireConfig) findBridge(c *attach.Call) (*int, error) {
	if w.Bridge == "" {
		return nil, nil
	}
	l, err := c.Cont.Link(w.Bridge)
	switch {
	case errors.Is(err, rtnl.ErrNoLink):
		return nil, cni.Refuse("bridge", w.Bridge,
			fmt.Sprintf("no such interface in the container: %v", rtnl.ErrNoLink))
	case err == nil && l.Kind != "bridge":
		return nil, cni.Refuse("bridge", w.Bridge, "is not a bridge")
	}
	return &l.Index, err
}

// create creates the tap through f, the control device. The error matches EEXIST if the name is taken.
func (w wireConfig) create(ctx context.Context, f *os.File, name string) error {
	flags := uint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_TUN_EXCL)
	if w.MultiQueue {
		flags |= unix.IFF_MULTI_QUEUE
	}
	var err error
	if w.SELinux == "" {
		_, err = tun.Create(f, name, flags)
	} else {
		err = w.createLabelled(ctx, f, name, flags)
	}
	if errors.Is(err, unix.EBUSY) {
		err = os.NewSyscallError("TUNSETIFF", unix.EEXIST)
	}
	return err
}

func (w wireConfig) setOwner(f *os.File) error {
	if w.Owner != nil {
		if err := tun.SetOwner(f, *w.Owner); err != nil {
			return cni.Refuse("owner", *w.Owner, err.Error())
		}
	}
	if w.Group != nil {
		if err := tun.SetGroup(f, *w.Group); err != nil {
			return cni.Refuse("group", *w.Group, err.Error())
		}
	}
	return nil
}

// verify returns the differences of the values that only a tap has.
func (w wireConfig) verify(c *attach.Call, l rtnl.Link) (differences []string) {
	compare := func(what string, have, want any) {
		if have != want {
			differences = append(differences, fmt.Sprintf("%s is %v instead of %v", what, have, want))
		}
	}
	compare("multiQueue", l.MultiQueue, w.MultiQueue)
	compare("owner", l.UID, *cmp.Or(w.Owner, new(uint32))) // 0 if none is configured
	compare("group", l.GID, *cmp.Or(w.Group, new(uint32)))
	bridge, err := w.findBridge(c)
	if err != nil {
		return append(differences, err.Error())
	}
	if bridge != nil {
		compare("the index of its bridge", l.Master, *bridge)
	}
	return differences
}

const createCommand = "create-tap" // command of the process that creates a labeled tap, see the package comment

// checkLabel refuses a label on a host without SELinux.
func (w wireConfig) checkLabel() error {
	var fs unix.Statfs_t
	if w.SELinux == "" {
		return nil
	}
	if unix.Statfs("/sys/fs/selinux", &fs) == nil && uint32(fs.Type) == unix.SELINUX_MAGIC {
		return nil
	}
	return cni.Refuse("selinuxContext", w.SELinux, "this host has no SELinux").WithCode(cni.CodeUnsupportedField)
}

// createLabelled creates the tap in a process with the configured SELinux label.
func (w wireConfig) createLabelled(ctx context.Context, f *os.File, name string, flags uint16) error {
	runtime.LockOSThread() // the label is the thread's
	defer runtime.UnlockOSThread()
	if err := setExecLabel(w.SELinux); err != nil {
		return cni.Refuse("selinuxContext", w.SELinux, err.Error())
	}
	defer func() { _ = setExecLabel("") }()
	err := runCreateCommand(ctx, process.Command{Path: "/proc/self/exe", Files: []*os.File{f}}, name, flags)
	var pathErr *os.PathError
	if errors.As(err, &pathErr) && errors.Is(err, unix.EACCES) {
		return cni.Refuse("selinuxContext", w.SELinux,
			"is not allowed for this program by the host's policy: "+err.Error())
	}
	return err
}

// setExecLabel sets the label of the programs that this thread executes. An empty label restores the policy's choice.
func setExecLabel(label string) error {
	f, err := os.OpenFile("/proc/thread-self/attr/exec", os.O_WRONLY, 0) // O_CREATE would log a denial in the audit log
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteString(label)
	return err
}

// runCreateCommand runs createTap in another process, whose exit status is the errno.
func runCreateCommand(ctx context.Context, cmd process.Command, name string, flags uint16) error {
	cmd.Name = "tap" // the program selects the plugin by argv[0]
	cmd.Args = []string{createCommand, name, strconv.Itoa(int(flags))}
	err := cmd.Run(ctx)
	var exitErr *process.ExitError
	if errors.As(err, &exitErr) && exitErr.ExitCode() > 0 {
		return os.NewSyscallError("TUNSETIFF", unix.Errno(exitErr.ExitCode()))
	}
	return err
}

// createTap implements createCommand: it creates a tap through descriptor 3 and returns the errno.
func createTap(env skel.Env) int {
	if len(env.Args) != 3 {
		fmt.Fprintf(env.Stderr, "tap: %s is an internal command of the plugin\n", createCommand)
		return int(unix.EINVAL)
	}
	flags, _ := strconv.ParseUint(env.Args[2], 10, 16)
	_, err := tun.Create(os.NewFile(3, "tun"), env.Args[1], uint16(flags))
	var errno unix.Errno
	if err != nil && !errors.As(err, &errno) {
		errno = unix.EINVAL
	}
	return int(errno)
}
