package netplugin

import (
	"time"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

// NetnsRecord records what a plugin created in the container's namespace in addition to the container's interface.
type NetnsRecord struct {
	cni.Attachment
	NetnsPath string      `json:"netnsPath"` // CNI_NETNS
	Netns     ns.Identity `json:"netns"`
	Link      int         `json:"link"` // index of the interface
	Objects   []string    `json:"made"` // descriptions of what ADD created, in a notation of the plugin
}

// NetnsRecord returns the record of this attachment. FindInterface must have succeeded.
func (c *Call) NetnsRecord(objects ...string) NetnsRecord {
	return NetnsRecord{Attachment: c.Req.Attachment, NetnsPath: c.Req.Netns, Netns: c.NetnsID, Link: c.ContEnd.Index,
		Objects: objects}
}

// Plausible implements statefile.Record.
func (r NetnsRecord) Plausible() bool { return r.Link > 0 && len(r.Objects) > 0 }

// Remove calls remove with a socket in the record's namespace. It returns nil if the namespace no longer exists.
func (r NetnsRecord) Remove(finder *ns.Finder, remove func(*rtnl.Conn) error) error {
	conn, err := DialNetns(finder.Open, r.NetnsPath, r.Netns)
	if err != nil {
		return IgnoreNoLink(err)
	}
	defer conn.Close()
	return remove(conn)
}

// WithNetns returns the holdings of a record, with the container's namespace set in each.
func WithNetns(path string, id ns.Identity, holdings ...cni.Holding) []cni.Holding {
	for i := range holdings {
		holdings[i].NetnsPath, holdings[i].NetnsInode, holdings[i].NetnsCookie = path, id.Inode, id.Cookie
	}
	return holdings
}

// Holdings lists the holdings of all records. holdingsOf returns the holdings of one record; Holdings adds the path and
// time of its file.
func Holdings[T statefile.Record](records *statefile.Store[T], holdingsOf func(T) []cni.Holding) ([]cni.Holding,
	error) {
	var all []cni.Holding
	list, err := records.List()
	for _, r := range list {
		all = append(all, inFile(r.Path, r.Written, holdingsOf(r.Record))...)
	}
	return all, err
}

// inFile returns the holdings of a record, with the record's file and time set in each.
func inFile(path string, written time.Time, holdings []cni.Holding) []cni.Holding {
	for i := range holdings {
		holdings[i].Kept, holdings[i].Since = path, written
	}
	return holdings
}
