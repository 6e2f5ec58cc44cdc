package tuning

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/netplugin"
	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/pkg/statefile"
	"github.com/hawser-cni/plugins/pkg/sysctl"
)

// record contains the changes of all attachments of one container, in the order of their first ADD.
type record struct {
	Changes []change `json:"changes"`
}

// change contains the original values of the settings that one attachment has changed. If several attachments have
// changed a setting, each change has the original value, and the DEL of the last attachment restores it.
type change struct {
	cni.Attachment
	Boot      string      `json:"boot,omitempty"`   // boot ID of the host; empty in records of 0.1.0
	NetnsPath string      `json:"netnsPath"`        // CNI_NETNS; empty in records of 0.1.0
	Netns     ns.Identity `json:"netns"`            // includes the interface's MAC address after ADD
	Device    *device     `json:"device,omitempty"` // the interface, if it is hardware with ethtool settings
	Values    []value     `json:"values"`
}

// isOfEarlierBoot reports whether the change is from another boot, so that its namespace no longer exists. Such records
// exist if /run is on a disk. An unknown boot is not treated as another boot.
func (c change) isOfEarlierBoot(boot string) bool {
	return c.Boot != "" && boot != "" && c.Boot != boot
}

// Hash returns the name of the record's file, which depends on the container.
func (r record) Hash() string {
	if len(r.Changes) == 0 {
		return ""
	}
	return recordName(r.Changes[0].Attachment)
}

// Plausible always returns true, because DEL checks each value separately.
func (r record) Plausible() bool { return true }

func recordName(a cni.Attachment) string { return cni.Attachment{ContainerID: a.ContainerID}.Hash() }

// UnmarshalJSON also reads the layout of 0.1.0: values, each with the attachments that have changed it.
func (r *record) UnmarshalJSON(data []byte) error {
	var file struct {
		Changes []change          `json:"changes"`
		Netns   ns.Identity       `json:"netns"`
		MACs    map[string]string `json:"macs"`
		Values  []struct {
			value
			For []cni.Attachment `json:"for"`
		} `json:"values"`
	}
	if err := json.Unmarshal(data, &file); err != nil {
		return err
	}
	r.Changes = file.Changes
	for _, v := range file.Values {
		for _, a := range v.For {
			netns := file.Netns
			netns.MAC = file.MACs[a.IfName]
			ch := r.change(a)
			*ch = change{Attachment: a, Netns: netns, Values: append(ch.Values, v.value)}
		}
	}
	return nil
}

// change returns the change of an attachment. It adds an empty change if the record has none.
func (r *record) change(a cni.Attachment) *change {
	i := slices.IndexFunc(r.Changes, func(c change) bool { return c.Attachment == a })
	if i < 0 {
		i, r.Changes = len(r.Changes), append(r.Changes, change{Attachment: a})
	}
	return &r.Changes[i]
}

func (r record) values() (all []value) {
	for _, c := range r.Changes {
		all = append(all, c.Values...)
	}
	return all
}

// attributes returns the recorded attributes of an interface. Index 0 selects any interface of that name.
func (r record) attributes(ifName string, index int) (originals []value) {
	for _, c := range r.Changes {
		for _, v := range c.Values {
			if c.IfName == ifName && v.isAttribute() && (index == 0 || index == v.Link) {
				originals = append(originals, v)
			}
		}
	}
	return originals
}

// without returns the change of an attachment and the record without it. own lacks values that other attachments have
// also changed.
func (r record) without(a cni.Attachment) (own change, rest record) {
	for _, c := range r.Changes {
		if c.Attachment == a {
			own = c
		} else {
			rest.Changes = append(rest.Changes, c)
		}
	}
	shared := rest.values()
	own.Values = slices.DeleteFunc(slices.Clone(own.Values), func(v value) bool { return indexOfValue(shared, v) >= 0 })
	return own, rest
}

// owner returns the attachment whose change DEL removes: the call's own, or the only attachment with a change of the
// interface, because the network may have been renamed since ADD. If prevResult has the MAC address of another
// interface, the DEL is a repeated one, and the name belongs to an attachment of another network now.
func (r record) owner(req *skel.Request) cni.Attachment {
	all := slices.DeleteFunc(slices.Clone(r.Changes), func(c change) bool { return c.IfName != req.IfName })
	i, _ := req.PrevResult.ContainerInterface(req.IfName)
	if len(all) == 1 && (i.MAC == "" || all[0].Netns.MAC == "" || strings.EqualFold(i.MAC, all[0].Netns.MAC)) {
		return all[0].Attachment
	}
	return req.Attachment
}

// indexOfValue returns the index of the value with the key and link of v, or -1.
func indexOfValue(values []value, v value) int {
	return slices.IndexFunc(values, func(o value) bool { return o.Key == v.Key && o.Link == v.Link })
}

// store contains the records of all attachments with one dataDir, and the backup files in dataDir, which are derived
// from the records for the reference plugin. The records stay locked until the call ends.
type store struct {
	req     *skel.Request
	records *statefile.Store[record]
	backups *statefile.Dir // nil if dataDir does not exist; ADD opens it in writeRecord
	boot    string         // ID of this boot; empty: unknown
}

const recordRoot = "/run/hawser/tuning/"

// recordsIn returns the records for a dataDir. They are not in dataDir, because a container may be able to write there,
// and DEL uses records to restore hardware that has returned to the host.
func recordsIn(dataDir string) *statefile.Store[record] {
	return statefile.NewStore[record](recordRoot+cni.Digest(filepath.Clean(dataDir), 16), statefile.DefaultWait)
}

// formerRecords returns the records of releases that kept them in dataDir. Only records in the default directory are
// used, because only root can write to it.
func formerRecords(dataDir string) *statefile.Store[record] {
	return statefile.NewStore[record](filepath.Join(dataDir, ".hawser"), statefile.DefaultWait)
}

// openStore opens and locks the records of a dataDir. It also opens dataDir itself, except for ADD, which creates
// dataDir only when it has values to record. Calls other than ADD work without either directory.
func openStore(ctx context.Context, req *skel.Request, dataDir string, isADD bool) (*store, error) {
	records, former := recordsIn(dataDir), formerRecords(dataDir)
	_, statErr := os.Stat(former.Path)
	hasFormer := statErr == nil
	open := records.OpenExisting
	if isADD || hasFormer {
		open = records.Open
	}
	s := &store{req: req}
	var err error
	if s.records, err = open(ctx); err != nil {
		return nil, fmt.Errorf("saved values: %w", err)
	}
	req.OnDone(func() { _ = s.records.Close() })
	if !isADD {
		err = s.openBackups(dataDir, 0)
	}
	if err == nil && hasFormer {
		err = s.moveFormer(ctx, former)
	}
	if err != nil {
		return nil, fmt.Errorf("dataDir: %w", err)
	}
	if s.boot, err = sysctl.BootID(); err != nil && isADD { // the other calls treat the boot as unknown
		return nil, fmt.Errorf("saved values: %w", err)
	}
	return s, nil
}

// openBackups opens dataDir. A missing dataDir is created with perm or, if perm is 0, ignored.
func (s *store) openBackups(dataDir string, perm fs.FileMode) error {
	backups, err := statefile.Open(dataDir, perm)
	switch {
	case err == nil:
		s.backups = backups
		s.req.OnDone(func() { _ = backups.Close() })
	case perm == 0 && statefile.IsAbsent(err):
		return nil
	}
	return err
}

// moveFormer moves the records of an earlier release to their present directory. It reads records only from the default
// directory. From another directory, it only drops the record of the call's container.
func (s *store) moveFormer(ctx context.Context, former *statefile.Store[record]) error {
	if former.Path != formerRecords(defaultDataDir).Path {
		if err := former.Drop(ctx, recordName(s.req.Attachment)); err != nil {
			s.req.Warn("record of an earlier release: %v", err)
		}
		return nil
	}
	all := func(record) bool { return true }
	return former.Collect(ctx, all, func(old record) error {
		r, _, err := s.records.Get(old.Hash())
		for _, ch := range old.Changes {
			if c := r.change(ch.Attachment); c.Values == nil {
				*c = ch
			}
		}
		return errors.Join(err, s.records.Put(ctx, r))
	})
}

// openExisting opens the store for DEL and GC. It reads only the key dataDir, because other keys may be invalid.
func openExisting(ctx context.Context, req *skel.Request) (*store, error) {
	var w struct {
		DataDir string `json:"dataDir"`
	}
	if err := req.Decode(&w); err != nil {
		return nil, err
	}
	return openStore(ctx, req, cmp.Or(w.DataDir, defaultDataDir), false)
}

// list returns the changed settings with their former values, for each dataDir.
func list(_ context.Context, req *skel.Request) (all []cni.Holding, err error) {
	boot, _ := sysctl.BootID()
	dirs, _ := filepath.Glob(recordRoot + "*") // the pattern is valid
	var errs []error
	for _, dir := range append(dirs, formerRecords(defaultDataDir).Path) {
		records := statefile.NewStore[record](dir, statefile.DefaultWait)
		held, err := netplugin.Holdings(records, func(r record) (held []cni.Holding) {
			for _, c := range r.Changes {
				if c.isOfEarlierBoot(boot) {
					continue
				}
				for _, v := range c.Values {
					h := cni.Holding{Attachment: c.Attachment, Kind: cni.HeldSetting, Value: v.String()}
					held = append(held, netplugin.WithNetns(c.NetnsPath, c.Netns, h)...)
				}
			}
			return held
		})
		all, errs = append(all, held...), append(errs, err)
	}
	return all, errors.Join(errs...)
}

// put writes the record of an attachment's container and the backup file of its interface, or removes them if the
// record has no changes. It writes the backup file first, because a retry finds the record, but would not find a backup
// file without a record.
func (s *store) put(ctx context.Context, a cni.Attachment, r record) error {
	if s.backups != nil {
		if err := s.putBackup(a, r); err != nil {
			return err
		}
	}
	if len(r.Changes) == 0 {
		return s.records.Drop(ctx, recordName(a))
	}
	return s.records.Put(ctx, r)
}
