package tool

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

const (
	// formerDir is the subdirectory of the plugins' directory with the former files and the record. No runtime finds a
	// plugin in it, because a plugin's type has no slash.
	formerDir = ".hawser"
	// partName is the temporary name of a new file. Each holder of the lock may remove it.
	partName   = ".hawser.new"
	recordName = "installed.json"
)

// pluginDir is a locked directory of plugins.
//
// Changes are made in an order that lets the next call continue after an interruption at any point: first a former file
// gets a second name in formerDir, then the record gets the name, then the new file replaces the former one.
type pluginDir struct {
	dir    string
	handle *os.File // the open directory
	lock   *statefile.Lock
	files  *reader
	record map[string]original
}

// original is the state of a name before its first installation.
type original struct {
	Kept bool `json:"kept"` // the former file is in formerDir; false = there was none
	// Device and Inode identify the installed file. Only the tool's name has them, because links point to its file.
	Device uint64 `json:"device,omitempty"`
	Inode  uint64 `json:"inode,omitempty"`
}

// open locks the directory and reads the record. It waits for at most 30 seconds while another installation holds the
// lock. It restores and reports a damaged record, so that the damage does not block installation or uninstallation.
func (p *pluginDir) open(ctx context.Context, programs []skel.Program, out io.Writer) (err error) {
	if p.handle, err = os.Open(p.dir); err != nil {
		return err
	}
	if p.lock, err = statefile.LockFD(ctx, int(p.handle.Fd()), p.dir); err != nil {
		_ = p.handle.Close()
		if errors.Is(err, statefile.ErrBusy) {
			err = fmt.Errorf("nothing was changed: %w; wait until it ends, then try again", err)
		}
		return err
	}
	damage, err := p.readRecord(programs)
	if err != nil {
		p.close()
		return err
	}
	if damage != nil {
		fmt.Fprintf(out, "%s: damaged: %v; restored from the files in the directory\n", p.backup(recordName), damage)
	}
	return nil
}

// readRecord reads the record. It restores a missing record from the former files in formerDir. Former files without a
// record exist only if an installation was killed or an administrator removed the record. If the record is damaged,
// names may have been replaced already. Therefore, the restored record also gets the names that have the tool's file
// but no former file.
func (p *pluginDir) readRecord(programs []skel.Program) (damage, err error) {
	p.record = map[string]original{}
	data, err := os.ReadFile(p.backup(recordName))
	isMissing := errors.Is(err, fs.ErrNotExist)
	switch {
	case err != nil && !isMissing:
		return nil, err
	case !isMissing:
		damage = json.Unmarshal(data, &p.record)
		if damage == nil && p.record != nil {
			return nil, nil
		}
		damage = cmp.Or(damage, errors.New("no object"))
		p.record = map[string]original{}
	}
	entries, err := os.ReadDir(p.path(formerDir))
	for _, e := range entries {
		if e.Name() != recordName {
			p.record[e.Name()] = original{Kept: true}
		}
	}
	if damage == nil || !p.hasTool() {
		return damage, ignoreAbsent(err)
	}
	for _, program := range append([]skel.Program{{Name: toolName}}, programs...) {
		if _, known := p.record[program.Name]; !known && p.isTool(program.Name) {
			p.record[program.Name] = original{}
		}
	}
	return damage, errors.Join(ignoreAbsent(err), p.recordTool())
}

// isTool reports whether a name is a link to the tool's file or a copy of that file.
func (p *pluginDir) isTool(name string) bool {
	a, err := os.ReadFile(p.path(name))
	b, toolErr := os.ReadFile(p.path(toolName))
	return err == nil && toolErr == nil && bytes.Equal(a, b)
}

func (p *pluginDir) close() { _ = errors.Join(p.lock.Unlock(), p.handle.Close()) }

func (p *pluginDir) path(name string) string { return filepath.Join(p.dir, name) }

func (p *pluginDir) backup(name string) string { return filepath.Join(p.dir, formerDir, name) }

// inspect returns the origin of a name's file. The installed file is still treated as Hawser's after another program
// has written into it, through one of its names or a link.
func (p *pluginDir) inspect(name string) (file, error) {
	f, err := inspect(p.path(name), name, p.files)
	isDamaged := p.isRecordedTool(name) && (name == toolName || p.isRecordedTool(toolName) || p.hasTool())
	if err == nil && f.kind.isForeign() && isDamaged {
		f.kind, f.version, f.damaged = ours, "", true
	}
	return f, err
}

// hasTool reports whether the tool's file is Hawser's. A repair that was killed may have replaced the tool's file only,
// while other names are still links to the damaged file.
func (p *pluginDir) hasTool() bool {
	f, err := inspect(p.path(toolName), toolName, p.files)
	return err == nil && f.kind == ours
}

// isRecordedTool reports whether a name points to the file that the last installation created, with any content.
func (p *pluginDir) isRecordedTool(name string) bool {
	recorded, st := p.record[toolName], unix.Stat_t{}
	return recorded.Inode != 0 && unix.Stat(p.path(name), &st) == nil &&
		st.Ino == recorded.Inode && uint64(st.Dev) == recorded.Device
}

func (p *pluginDir) recordTool() error {
	if p.isRecordedTool(toolName) {
		return nil
	}
	var st unix.Stat_t
	if err := unix.Stat(p.path(toolName), &st); err != nil {
		return err
	}
	p.record[toolName] = original{p.record[toolName].Kept, uint64(st.Dev), st.Ino}
	return p.save()
}

// saveOriginals saves the files that will be replaced, and records their names.
func (p *pluginDir) saveOriginals(steps []step) error {
	isChanged := false
	for _, s := range steps {
		if s.result != "" {
			continue
		}
		f := s.file
		former, isRecorded := p.record[f.name]
		if former.Kept && !exists(p.backup(f.name)) { // restored by an uninstallation that was interrupted
			isRecorded = false
		}
		if isRecorded && (f.kind == ours || f.kind == absent) {
			continue
		}
		if err := os.Mkdir(p.path(formerDir), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		if err := p.backUp(f); err != nil {
			return fmt.Errorf("keep %s: %w", p.path(f.name), err)
		}
		p.record[f.name], isChanged = original{Kept: f.kind != absent}, true
	}
	if !isChanged {
		return nil
	}
	return p.save()
}

func (p *pluginDir) save() error {
	data, err := json.MarshalIndent(p.record, "", "  ")
	if err != nil {
		return err
	}
	return errors.Join(p.write(p.backup(recordName), append(data, '\n'), 0o600), syncDir(p.path(formerDir)), p.sync())
}

// backUp gives a file a second name in formerDir, or copies it if hard links are not possible.
func (p *pluginDir) backUp(f file) error {
	if f.kind == absent {
		return ignoreAbsent(os.Remove(p.backup(f.name))) // left by an installation that was killed
	}
	err := p.swap(p.backup(f.name), func(temporary string) error { return os.Link(p.path(f.name), temporary) })
	switch {
	case !cannotLink(err):
		return err
	case f.target != "":
		return p.swap(p.backup(f.name), func(temporary string) error { return os.Symlink(f.target, temporary) })
	}
	data, err := os.ReadFile(p.path(f.name))
	if err != nil {
		return err
	}
	return p.write(p.backup(f.name), data, f.info.Mode().Perm())
}

// write creates a complete file that is synced to the disk before it gets its name. pkg/statefile does not sync,
// because its files need not survive a power failure. A plugin must.
func (p *pluginDir) write(path string, data []byte, mode fs.FileMode) error {
	return p.swap(path, func(temporary string) error {
		f, err := os.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
		if err != nil {
			return err
		}
		_, err = f.Write(data)
		return errors.Join(err, f.Chmod(mode), f.Sync(), f.Close())
	})
}

// swap creates a file under the temporary name and renames it to path.
func (p *pluginDir) swap(path string, create func(string) error) error {
	temporary := p.path(partName)
	err := ignoreAbsent(os.Remove(temporary))
	if err == nil {
		err = create(temporary)
	}
	if err == nil {
		err = os.Rename(temporary, path)
	}
	// Rename has no effect if both names are the same file.
	return errors.Join(err, ignoreAbsent(os.Remove(temporary)))
}

func (p *pluginDir) sync() error { return p.handle.Sync() }

func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func ignoreAbsent(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// cannotLink reports whether the file system does not support a hard link of this file.
func cannotLink(err error) bool {
	link, _ := errors.AsType[*os.LinkError](err)
	return link != nil && link.Op == "link" &&
		slices.Contains([]error{unix.EPERM, unix.EOPNOTSUPP, unix.ENOSYS, unix.EMLINK, unix.EXDEV}, link.Err)
}
