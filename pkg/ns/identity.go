package ns

import "golang.org/x/sys/unix"

// Identity tells a namespace from all others, also from later ones, until the machine
// restarts.
type Identity struct {
	Cookie uint64 `json:"cookie,omitempty"` // the kernel's own number; 0 before Linux 5.14
	Device uint64 `json:"device"`
	Inode  uint64 `json:"inode"` // a new namespace can get that of a dead one
	// MAC is the MAC address of the attachment's interface in the namespace, for kernels without
	// cookies. The caller sets it; empty = unknown.
	MAC string `json:"mac,omitempty"`
}

// Is reports whether both are of one namespace. It compares the cookies where both have
// one, or device, inode and the MAC address where both have one.
func (i Identity) Is(other Identity) bool {
	if i.Cookie != 0 && other.Cookie != 0 {
		return i.Cookie == other.Cookie
	}
	if i.MAC != other.MAC && i.MAC != "" && other.MAC != "" {
		return false
	}
	return i.Device == other.Device && i.Inode == other.Inode
}

// Identity is the namespace's.
func (n *NS) Identity() (id Identity, err error) {
	err = n.Do(func() (err error) {
		id, err = n.IdentityInside()
		return err
	})
	return id, err
}

// IdentityInside is Identity for a caller who is in the namespace already.
func (n *NS) IdentityInside() (Identity, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(n.h), &st); err != nil {
		return Identity{}, n.wrap(err)
	}
	sock, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return Identity{}, err
	}
	defer unix.Close(sock)
	cookie, _ := unix.GetsockoptUint64(sock, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	return Identity{Cookie: cookie, Device: uint64(st.Dev), Inode: st.Ino}, nil
}
