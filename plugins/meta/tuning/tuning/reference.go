package tuning

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/pkg/statefile"
	"github.com/hawser-cni/plugins/pkg/sysctl"
)

const nameMax = 255 // maximum length of a file name, in bytes

// backupName returns the reference's name for the backup file of an interface.
func backupName(a cni.Attachment) string { return a.ContainerID + "_" + a.IfName + ".json" }

// putBackup writes an interface's backup file from the record, so that the reference's DEL restores the values.
func (s *store) putBackup(a cni.Attachment, r record) error {
	originals := r.attributes(a.IfName, 0)
	if len(originals) == 0 {
		return s.backups.Discard(backupName(a))
	}
	return s.backups.Replace(backupName(a), encodeBackup(originals), 0o600)
}

// backup reads the call's backup file. It returns no values if there is no readable file, or if the file is from an
// earlier boot, which is possible if dataDir is on a disk.
func (s *store) backup() (text []byte, originals []value, err error) {
	if s.backups == nil {
		return nil, nil, nil
	}
	name := backupName(s.req.Attachment)
	text, err = s.backups.Read(name)
	if info, statErr := os.Lstat(s.backups.Path() + "/" + name); err == nil && statErr == nil &&
		info.ModTime().Before(time.Now().Add(-sysctl.Uptime())) {
		return text, nil, nil
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil, nil
	case err != nil && !errors.Is(err, statefile.ErrIrregular):
		return nil, nil, err
	case err == nil:
		originals, err = decodeBackup(text)
	}
	if err != nil {
		s.req.Warn("backup %s/%s: %v", s.backups.Path(), name, err)
	}
	return text, originals, nil
}

// encodeBackup returns the content of a backup file, byte for byte as the reference writes it. If the interface was
// recreated, it contains the last value of each attribute.
func encodeBackup(originals []value) []byte {
	texts := map[string]string{}
	for _, v := range originals {
		texts[v.Key] = v.Value
		if v.Key == "mac" {
			texts[v.Key] = strconv.Quote(v.Value)
		}
	}
	var lines []string
	for _, name := range attributes {
		if text, ok := texts[name]; ok {
			lines = append(lines, fmt.Sprintf(" %q: %s", name, text))
		}
	}
	return []byte("{\n" + strings.Join(lines, ",\n") + "\n}")
}

func decodeBackup(data []byte) (originals []value, err error) {
	var file map[string]json.RawMessage
	if err := json.Unmarshal(data, &file); err != nil {
		return nil, fmt.Errorf("not a backup file: %w", err)
	}
	for _, name := range attributes {
		if raw, ok := file[name]; ok {
			v := value{Key: name, Value: strings.Trim(string(raw), `"`)}
			if _, err := v.linkChange(); err != nil {
				return nil, fmt.Errorf("not a backup file: %s: %w", name, err)
			}
			originals = append(originals, v)
		}
	}
	return originals, nil
}

// isFromReference reports whether DEL should restore a backup file that has no record: the interface must have the MAC
// address in prevResult. If prevResult has none, the configuration must set every value of the file, and the interface
// must have the configured values.
func (c container) isFromReference(backup []value) bool {
	if c.ContEnd.Index == 0 {
		return false
	}
	if i, _ := c.Req.PrevResult.ContainerInterface(c.Req.IfName); i.MAC != "" {
		return strings.EqualFold(i.MAC, c.ContEnd.MAC.String())
	}
	cfg, err := skel.ConfigOf(wireConfig{}, parseConfig).Parse(c.Req)
	if err != nil {
		return false
	}
	differs := func(want value) bool { return !want.matches(c.ContEnd) }
	isUnset := func(v value) bool { return indexOfValue(cfg.Attributes, v) < 0 }
	return !slices.ContainsFunc(cfg.Attributes, differs) && !slices.ContainsFunc(backup, isUnset)
}
