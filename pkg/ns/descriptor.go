package ns

import "golang.org/x/sys/unix"

// TakeDescriptor opens a descriptor and never closes it. A caller of vishvananda/netlink uses it after a socket could
// not be opened: the library has closed the socket's descriptor and closes the same number once more when its os.File
// is collected. By then another file may have the number, so TakeDescriptor takes it, which is the lowest free one.
func TakeDescriptor() { _, _ = unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0) }
