package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// record is what one attachment found, with what the backup file has no room
// for: whose it is, and where. Several attachments may have changed the same
// thing of a namespace; then each record holds what its ADD found, and Since
// says in which order.
type record struct {
	Network     string    `json:"network"`
	ContainerID string    `json:"containerID"`
	IfName      string    `json:"ifname"`
	Place       place     `json:"place"`
	Since       int64     `json:"since"` // nanoseconds of the boot's clock
	Before      originals `json:"before"`
}

// place says which namespace and which interface.
type place struct {
	Boot   string `json:"boot"`
	Cookie uint64 `json:"cookie,omitempty"` // the namespace's; 0 = the kernel has none
	Device uint64 `json:"device"`
	Inode  uint64 `json:"inode"`
	Link   int    `json:"link,omitempty"` // index of the interface; 0 = there was none
	MAC    string `json:"mac,omitempty"`  // of the interface, as ADD left it
}

func (r record) attachment() cni.Attachment {
	return cni.Attachment{Network: r.Network, ContainerID: r.ContainerID, IfName: r.IfName}
}

// name is the record's file: the attachment, the backup file that it shares
// with other networks, and the namespace, so that each can be looked for
// without reading any.
func (r record) name() string {
	return r.attachment().Hash() + "." + backupHash(r.backup()) + "." + r.Place.namespace()
}

func (r record) backup() string { return backupName(r.attachment()) }

// nameMax is the longest name of a file, in bytes.
const nameMax = 255

// backupName is the reference plugin's name for the backup file.
func backupName(a cni.Attachment) string { return a.ContainerID + "_" + a.IfName + ".json" }

func backupHash(name string) string {
	return cni.Digest(name, 16)
}

// isRecord matches names of records by their parts; empty ones match any.
func isRecord(name, owner, backup, namespace string) bool {
	parts := strings.Split(name, ".")
	return len(parts) == 3 && (owner == "" || owner == parts[0]) &&
		(backup == "" || backup == parts[1]) && (namespace == "" || namespace == parts[2])
}

func decodeRecord(name string, data []byte) (record, error) {
	var r record
	err := json.Unmarshal(data, &r)
	if err == nil && r.name() != name {
		err = fmt.Errorf("is %q's", r.name())
	}
	return r, err
}

// sortRecords puts the oldest first.
func sortRecords(all []record) {
	slices.SortFunc(all, func(a, b record) int { return cmp.Compare(a.Since, b.Since) })
}

// findPlace describes n, which must be the calling thread's namespace, and
// the link in it, which may be the zero Link.
func findPlace(n *ns.NS, link rtnl.Link) (place, error) {
	var st unix.Stat_t
	if err := unix.Fstat(n.FD(), &st); err != nil {
		return place{}, fmt.Errorf("network namespace %q: %w", n.Path(), err)
	}
	boot, err := bootID()
	if err != nil {
		return place{}, err
	}
	p := place{Boot: boot, Device: uint64(st.Dev), Inode: st.Ino, Link: link.Index, MAC: link.MAC.String()}
	p.Cookie, _ = ns.CurrentCookie()
	return p, nil
}

// bootID tells one boot from another: after a reboot the kernel counts
// namespaces from the beginning, and dataDir need not be below /run.
func bootID() (string, error) {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if errors.Is(err, fs.ErrNotExist) { // then DEL does not find it either
		return "", nil
	}
	return strings.TrimSpace(string(data)), err
}

// namespace identifies the namespace in names of records.
func (p place) namespace() string {
	if p.Cookie != 0 {
		return fmt.Sprintf("c%x", p.Cookie)
	}
	return fmt.Sprintf("i%x-%x", p.Device, p.Inode)
}

func (p place) sameNetns(q place) bool {
	if p.Boot != q.Boot || p.Cookie != 0 && q.Cookie != 0 {
		return p.Boot == q.Boot && p.Cookie == q.Cookie
	}
	return p.Device == q.Device && p.Inode == q.Inode
}

// isNow reports whether the namespace that p describes is the one that now
// does. A cookie is given to one namespace only; an inode is used again, so
// there the MAC address must be as ADD left it.
func (p place) isNow(now place) bool {
	return p.sameNetns(now) && (p.Cookie != 0 && now.Cookie != 0 || p.MAC == now.MAC)
}

// bootClock orders records. It never steps back and only counts within a boot,
// as namespaces do.
func bootClock() (int64, error) {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		return 0, fmt.Errorf("boot clock: %w", err)
	}
	return t.Nano(), nil
}
