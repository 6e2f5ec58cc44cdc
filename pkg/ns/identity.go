package ns

import "golang.org/x/sys/unix"

// Identity tells a namespace from others, also later, by another process, and
// when it is gone, until the machine restarts.
type Identity struct {
	// Cookie is the number that the kernel gives to this namespace and to no
	// other; 0 = the kernel has no such number (before 5.14).
	Cookie uint64 `json:"cookie,omitempty"`
	// The kernel gives the inode of a dead namespace to a new one.
	Device uint64 `json:"device"`
	Inode  uint64 `json:"inode"`
	// MAC is the MAC address of the attachment's interface in the namespace. The caller sets it.
	// On a kernel without cookies it tells apart two namespaces that had the same inode one after
	// the other. Empty: not looked for.
	MAC string `json:"mac,omitempty"`
}

// Is tells whether both are of one namespace: by the cookie, or, where one of
// them has none, by device and inode, and the MAC address where both have it.
func (i Identity) Is(other Identity) bool {
	if i.Cookie != 0 && other.Cookie != 0 {
		return i.Cookie == other.Cookie
	}
	return i.Device == other.Device && i.Inode == other.Inode &&
		(i.MAC == other.MAC || i.MAC == "" || other.MAC == "")
}

// Identity is the namespace's.
func (n *NS) Identity() (id Identity, err error) {
	err = n.Do(func() (err error) {
		id, err = n.IdentityInside()
		return err
	})
	return id, err
}

// IdentityInside is Identity for a caller who is in the namespace already, as
// Do's function is: it takes no other thread.
func (n *NS) IdentityInside() (Identity, error) {
	st, err := n.stat()
	if err != nil {
		return Identity{}, err
	}
	sock, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return Identity{}, err
	}
	defer unix.Close(sock)
	cookie, _ := unix.GetsockoptUint64(sock, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	return Identity{Cookie: cookie, Device: uint64(st.Dev), Inode: st.Ino}, nil
}
