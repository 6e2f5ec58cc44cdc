package statefile

// CreateNamed is Create as it works where there are no unnamed files.
func CreateNamed(d *Dir, name string, data []byte) error { return d.createNamed(name, data, 0o600) }

// HolderOf reads the text of /proc/locks.
var HolderOf = holderOf

// Successor is the name that a Replace which was killed may leave.
var Successor = successor
