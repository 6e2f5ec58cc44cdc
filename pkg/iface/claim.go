package iface

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
)

// claims is the file whose bytes stand for attachments. Who cannot open it, and
// that is everybody but root, cannot keep an attachment from being made.
const claims = "/run/hawser/claims"

// Claim makes the caller the only one that adds the attachment, until it calls
// release or ends, and refuses one that exists, with code 100. IPAM knows both
// of two at once by the same name: where it is asked before the interface is
// made the loser would give back the addresses of the winner. A host whose /run
// cannot be written to is told by warn, and has no more than the refusal.
func (p Pair) Claim(ctx context.Context, warn func(format string, args ...any)) (release func(), err error) {
	fd, err := openClaims()
	if err == nil {
		err = p.lock(fd)
	}
	release = func() { _ = unix.Close(fd) }
	if e := (*cni.Error)(nil); err != nil && !errors.As(err, &e) && !cni.Transient(err) {
		warn("%v; another ADD of the attachment would not be noticed", err)
		err = nil
	}
	if err == nil {
		err = p.RefuseExisting(ctx)
	}
	if err != nil {
		release()
		return nil, err
	}
	return release, nil
}

// lock takes the byte of the attachment. Such a lock needs no file of its own, and
// goes with the process, however that ends.
func (p Pair) lock(fd int) error {
	at, err := strconv.ParseUint(p.Attachment.Hash(), 16, 64)
	if err != nil {
		return err
	}
	err = unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK, Start: int64(at >> 1), Len: 1})
	switch {
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EACCES):
		return cni.Errorf(cni.CodeExists, "another ADD of this attachment is under way (%s)", p.Attachment)
	case err != nil:
		return &fs.PathError{Op: "lock", Path: claims, Err: err}
	}
	return nil
}

func openClaims() (fd int, err error) {
	open := func() error {
		fd, err = unix.Open(claims, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
		return err
	}
	if errors.Is(open(), unix.ENOENT) {
		if err := os.MkdirAll(filepath.Dir(claims), 0o755); err != nil {
			return -1, fmt.Errorf("claim the attachment: %w", err)
		}
		_ = open()
	}
	if err != nil {
		return -1, &fs.PathError{Op: "open", Path: claims, Err: err}
	}
	return fd, nil
}
