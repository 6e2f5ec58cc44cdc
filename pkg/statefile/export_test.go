package statefile

import "testing"

var (
	FindHolder = findHolder
	Temporary  = temporary
)

// FuzzHolder parses any text as /proc/locks.
func FuzzHolder(f *testing.F) {
	f.Add("1: FLOCK  ADVISORY  WRITE 4711 08:02:1234 0 EOF\n"+
		"1: -> FLOCK  ADVISORY  WRITE 4712 08:02:1234 0 EOF\n", uint64(1234), uint64(0x802))
	f.Add("2: FLOCK  ADVISORY  WRITE -1 00:1:1234 0 EOF\n3: POSIX x\n::\n", uint64(1234), uint64(0))
	f.Fuzz(func(t *testing.T, locks string, inode, device uint64) {
		findHolder(locks, inode, device)
	})
}
