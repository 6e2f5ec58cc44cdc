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

const kind = "tun" // as the kernel calls taps, too

// ready is why this host can make no tap, or none with the label.
func (w wireConfig) ready() error {
	if err := tun.Probe(); err != nil {
		return err
	}
	return w.checkLabel()
}

// make makes the tap. Until it is persistent it goes with our descriptor, so that nothing
// is left of one whose ADD was killed.
func (w wireConfig) make(ctx context.Context, s *attach.Call, name string) error {
	bridge, err := w.findBridge(s)
	if err != nil {
		return err
	}
	if err := w.checkLabel(); err != nil {
		return err
	}
	f, err := tun.Open(s.Req.NS)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := w.create(ctx, f, name); err != nil {
		return err
	}
	if err := w.allow(f); err != nil {
		return err
	}
	l, err := s.Cont.Link(name)
	if err != nil {
		return err
	}
	change := rtnl.LinkChange{MAC: s.Child.Link.MAC, MTU: s.Child.Link.MTU, Master: bridge,
		Group: new(cni.NetworkHash(s.Req.Network))}
	if err := s.Cont.SetLink(l.Index, change); err != nil {
		return err
	}
	return tun.Keep(f)
}

// findBridge returns the index of the bridge that the tap is to be a port of; nil = none.
func (w wireConfig) findBridge(s *attach.Call) (*int, error) {
	if w.Bridge == "" {
		return nil, nil
	}
	l, err := s.Cont.Link(w.Bridge)
	switch {
	case errors.Is(err, rtnl.ErrNoLink):
		return nil, cni.Refuse("bridge", w.Bridge,
			fmt.Sprintf("no such interface in the container: %v", rtnl.ErrNoLink))
	case err == nil && l.Kind != "bridge":
		return nil, cni.Refuse("bridge", w.Bridge, "is no bridge")
	}
	return &l.Index, err
}

// create makes the tap of the control device. The error matches EEXIST when the name is taken.
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

// allow lets the owner and the group open the tap.
func (w wireConfig) allow(f *os.File) error {
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

// verify says what differs of the tap itself.
func (w wireConfig) verify(s *attach.Call, l rtnl.Link) (differences []string) {
	compare := func(what string, is, want any) {
		if is != want {
			differences = append(differences, fmt.Sprintf("%s is %v instead of %v", what, is, want))
		}
	}
	compare("multiQueue", l.MultiQueue, w.MultiQueue)
	compare("owner", l.UID, *cmp.Or(w.Owner, new(uint32))) // 0 where nobody was named
	compare("group", l.GID, *cmp.Or(w.Group, new(uint32)))
	bridge, err := w.findBridge(s)
	if err != nil {
		return append(differences, err.Error())
	}
	if bridge != nil {
		compare("the index of its bridge", l.Master, *bridge)
	}
	return differences
}

// A tap has the SELinux label of the process that makes it, and a process gets another
// label only by running a program. So for a labelled tap the plugin runs itself, with the
// control device as descriptor 3, and this command.
const createCommand = "create-tap"

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

func (w wireConfig) createLabelled(ctx context.Context, f *os.File, name string, flags uint16) error {
	runtime.LockOSThread() // the label is the thread's
	defer runtime.UnlockOSThread()
	if err := setExecLabel(w.SELinux); err != nil {
		return cni.Refuse("selinuxContext", w.SELinux, err.Error())
	}
	defer func() { _ = setExecLabel("") }()
	err := createElsewhere(ctx, process.Command{Path: "/proc/self/exe", Files: []*os.File{f}}, name, flags)
	var started *os.PathError
	if errors.As(err, &started) && errors.Is(err, unix.EACCES) {
		return cni.Refuse("selinuxContext", w.SELinux, "may not be this program's by the host's policy: "+err.Error())
	}
	return err
}

// setExecLabel sets the label of the programs that this thread runs; "": the policy chooses again.
func setExecLabel(label string) error {
	f, err := os.OpenFile("/proc/thread-self/attr/exec", os.O_WRONLY, 0) // O_CREATE would be a denial in the audit log
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteString(label)
	return err
}

// createElsewhere does what tun.Create does in a process of its own, which ends with the errno.
func createElsewhere(ctx context.Context, own process.Command, name string, flags uint16) error {
	own.Name = "tap" // the program may be all plugins
	own.Args = []string{createCommand, name, strconv.Itoa(int(flags))}
	err := own.Run(ctx)
	var ended *process.ExitError
	if errors.As(err, &ended) && ended.ExitCode() > 0 {
		return os.NewSyscallError("TUNSETIFF", unix.Errno(ended.ExitCode()))
	}
	return err
}

// createHere is that process.
func createHere(env skel.Env) int {
	if len(env.Args) != 3 {
		fmt.Fprintf(env.Stderr, "tap: %s is for the plugin itself\n", createCommand)
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
