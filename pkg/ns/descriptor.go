package ns

import "golang.org/x/sys/unix"

// TakeDescriptor opens a descriptor and never closes it. Call it after vishvananda/netlink has failed to open a socket:
// the library has closed the socket's descriptor, and closes the same number again when the socket's os.File is garbage
// collected. Another file could have this number by then. TakeDescriptor occupies it, because the kernel assigns the
// lowest free number.
func TakeDescriptor() { _, _ = unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0) }
