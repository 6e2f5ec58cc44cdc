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
	// formerDir is the directory, in that of the plugins, for what was there before and the record. No runtime finds a
	// plugin in it: the type of a configuration has no slash.
	formerDir = ".hawser"
	// partName is a file that has no name yet. Whoever has the lock may take it away.
	partName   = ".hawser.new"
	recordName = "installed.json"
)

// place is a directory of plugins, locked. What is done to it is done in an order in which the next call, whatever
// came between, knows what was there: first the former file has a second name in the store, then the record has
// the name, then the new file takes its place.
type place struct {
	dir    string
	file   *os.File
	lock   *statefile.Lock
	files  *reader
	record map[string]origin
}

// origin is what a name was before we took it.
type origin struct {
	Kept bool `json:"kept"` // in the store; else there was nothing
	// The file that we made: of the tool's name alone, whose file links lead to.
	Device uint64 `json:"device,omitempty"`
	Inode  uint64 `json:"inode,omitempty"`
}

// open locks the directory and reads the record. It waits for at most 30 seconds while another installation holds the
// lock. It restores a damaged record and reports that, so that a damaged record does not block installation or
// uninstallation.
func (p *place) open(ctx context.Context, programs []skel.Program, say io.Writer) (err error) {
	if p.file, err = os.Open(p.dir); err != nil {
		return err
	}
	if p.lock, err = statefile.LockFD(ctx, int(p.file.Fd()), p.dir); err != nil {
		_ = p.file.Close()
		if errors.Is(err, statefile.ErrBusy) {
			err = fmt.Errorf("nothing was changed: %w, which works on this directory: let it end, and try again", err)
		}
		return err
	}
	damage, err := p.readRecord(programs)
	if err != nil {
		p.close()
		return err
	}
	if damage != nil {
		fmt.Fprintf(say, "%s: damaged: %v; restored from the files in the directory\n", p.kept(recordName), damage)
	}
	return nil
}

// readRecord reads the record. It restores a missing record from the former files in the store, which exist only if an
// installation was killed or an administrator removed the record. A damaged record was written after names were
// replaced, so it also gets the names that have the tool's file but no former file.
func (p *place) readRecord(programs []skel.Program) (damage, err error) {
	p.record = map[string]origin{}
	data, err := os.ReadFile(p.kept(recordName))
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
		p.record = map[string]origin{}
	}
	entries, err := os.ReadDir(p.path(formerDir))
	for _, e := range entries {
		if e.Name() != recordName {
			p.record[e.Name()] = origin{Kept: true}
		}
	}
	if damage == nil || !p.hasTool() {
		return damage, ignoreAbsent(err)
	}
	for _, program := range append([]skel.Program{{Name: toolName}}, programs...) {
		if _, known := p.record[program.Name]; !known && p.isTool(program.Name) {
			p.record[program.Name] = origin{}
		}
	}
	return damage, errors.Join(ignoreAbsent(err), p.remember())
}

// isTool reports whether a name is a link to the tool's file or a copy of that file.
func (p *place) isTool(name string) bool {
	a, err := os.ReadFile(p.path(name))
	b, failed := os.ReadFile(p.path(toolName))
	return err == nil && failed == nil && bytes.Equal(a, b)
}

func (p *place) close() { _ = errors.Join(p.lock.Unlock(), p.file.Close()) }

func (p *place) path(name string) string { return filepath.Join(p.dir, name) }

func (p *place) kept(name string) string { return filepath.Join(p.dir, formerDir, name) }

// look says whose a file is. The one that we made and others have written into, by a name of it or through a link,
// is still ours.
func (p *place) look(name string) (file, error) {
	f, err := inspect(p.path(name), name, p.files)
	isTools := p.isMade(name) && (name == toolName || p.isMade(toolName) || p.hasTool())
	if err == nil && f.kind.isOthers() && isTools {
		f.kind, f.version, f.damaged = ours, "", true
	}
	return f, err
}

// hasTool says that the tool's file is ours: a repair that was killed has made it, and not all the other names.
func (p *place) hasTool() bool {
	f, err := inspect(p.path(toolName), toolName, p.files)
	return err == nil && f.kind == ours
}

// isMade says that a name leads to the file that the last installation made, whatever is in it.
func (p *place) isMade(name string) bool {
	made, now := p.record[toolName], unix.Stat_t{}
	return made.Inode != 0 && unix.Stat(p.path(name), &now) == nil &&
		now.Ino == made.Inode && uint64(now.Dev) == made.Device
}

// remember records which file we made.
func (p *place) remember() error {
	if p.isMade(toolName) {
		return nil
	}
	var made unix.Stat_t
	if err := unix.Stat(p.path(toolName), &made); err != nil {
		return err
	}
	p.record[toolName] = origin{p.record[toolName].Kept, uint64(made.Dev), made.Ino}
	return p.save()
}

// note saves the files that are about to be replaced, and records which names we take.
func (p *place) note(steps []step) error {
	changed := false
	for _, s := range steps {
		if s.said != "" {
			continue
		}
		f := s.file
		was, known := p.record[f.name]
		if was.Kept && !exists(p.kept(f.name)) { // an uninstallation that was not finished has brought it back
			known = false
		}
		if known && (f.kind == ours || f.kind == absent) {
			continue
		}
		if err := os.Mkdir(p.path(formerDir), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		if err := p.setAside(f); err != nil {
			return fmt.Errorf("keep %s: %w", p.path(f.name), err)
		}
		p.record[f.name], changed = origin{Kept: f.kind != absent}, true
	}
	if !changed {
		return nil
	}
	return p.save()
}

func (p *place) save() error {
	data, err := json.MarshalIndent(p.record, "", "  ")
	if err != nil {
		return err
	}
	return errors.Join(p.write(p.kept(recordName), append(data, '\n'), 0o600), syncDir(p.path(formerDir)), p.sync())
}

// setAside gives a file a second name in the store; where there are no hard links, a copy.
func (p *place) setAside(f file) error {
	if f.kind == absent {
		return ignoreAbsent(os.Remove(p.kept(f.name))) // of an installation that was killed
	}
	err := p.swap(p.kept(f.name), func(temporary string) error { return os.Link(p.path(f.name), temporary) })
	switch {
	case !cannotLink(err):
		return err
	case f.target != "":
		return p.swap(p.kept(f.name), func(temporary string) error { return os.Symlink(f.target, temporary) })
	}
	data, err := os.ReadFile(p.path(f.name))
	if err != nil {
		return err
	}
	return p.write(p.kept(f.name), data, f.info.Mode().Perm())
}

// write makes a file whole and safe on the disk before it has its name. pkg/statefile does not sync, as its files need
// not survive a power cut; a plugin must.
func (p *place) write(path string, data []byte, mode fs.FileMode) error {
	return p.swap(path, func(temporary string) error {
		f, err := os.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
		if err != nil {
			return err
		}
		_, err = f.Write(data)
		return errors.Join(err, f.Chmod(mode), f.Sync(), f.Close())
	})
}

// swap makes a file under the temporary name and gives it its own, in the place of what has that.
func (p *place) swap(path string, create func(string) error) error {
	temporary := p.path(partName)
	err := ignoreAbsent(os.Remove(temporary))
	if err == nil {
		err = create(temporary)
	}
	if err == nil {
		err = os.Rename(temporary, path)
	}
	// Rename leaves both names of one file as they are.
	return errors.Join(err, ignoreAbsent(os.Remove(temporary)))
}

func (p *place) sync() error { return p.file.Sync() }

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

// cannotLink says that a file system has no hard links, or not for this file.
func cannotLink(err error) bool {
	link, _ := errors.AsType[*os.LinkError](err)
	return link != nil && link.Op == "link" &&
		slices.Contains([]error{unix.EPERM, unix.EOPNOTSUPP, unix.ENOSYS, unix.EMLINK, unix.EXDEV}, link.Err)
}
