package ns

// ID is the namespace's device and inode, by which it can be told later whether
// a path leads to it still where the kernel has no Cookie. The kernel gives the
// inode of a dead namespace to a new one.
func (n *NS) ID() (device, inode uint64, err error) {
	st, err := n.stat()
	return uint64(st.Dev), st.Ino, err
}
