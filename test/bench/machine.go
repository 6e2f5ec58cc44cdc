package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// lookAround describes the machine, a line each.
func lookAround(work string) []string {
	var u unix.Utsname
	_ = unix.Uname(&u)
	var info unix.Sysinfo_t
	_ = unix.Sysinfo(&info)
	var fs unix.Statfs_t
	_ = unix.Statfs(work, &fs)
	return []string{
		fmt.Sprintf("%s, %d cores, %d GiB of memory", field("/proc/cpuinfo", "model name"), runtime.NumCPU(),
			uint64(info.Totalram)*uint64(info.Unit)>>30),
		fmt.Sprintf("Linux %s; leases on %s; load at the end %s", unix.ByteSliceToString(u.Release[:]),
			fileSystem(int64(fs.Type)), firstWords("/proc/loadavg", 3)),
		fmt.Sprintf("compiled by %s; %s", runtime.Version(), said("iptables", "--version")),
	}
}

// field is a value of a file of lines "key : value".
func field(path, key string) string {
	f, err := os.Open(path)
	if err != nil {
		return "?"
	}
	defer func() { _ = f.Close() }()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if k, v, ok := strings.Cut(lines.Text(), ":"); ok && strings.TrimSpace(k) == key {
			return strings.TrimSpace(v)
		}
	}
	return runtime.GOARCH
}

func firstWords(path string, n int) string {
	text, _ := os.ReadFile(path)
	words := strings.Fields(string(text))
	return strings.Join(words[:min(n, len(words))], " ")
}

func said(name string, args ...string) string {
	out, err := exec.Command(name, args...).Output()
	if err != nil {
		return name + ": " + err.Error()
	}
	return strings.TrimSpace(string(out))
}

func fileSystem(magic int64) string {
	names := map[int64]string{unix.EXT4_SUPER_MAGIC: "ext4", unix.TMPFS_MAGIC: "tmpfs", unix.XFS_SUPER_MAGIC: "xfs",
		unix.BTRFS_SUPER_MAGIC: "btrfs", unix.OVERLAYFS_SUPER_MAGIC: "overlay"}
	if name, ok := names[magic]; ok {
		return name
	}
	return fmt.Sprintf("file system %#x", magic)
}
