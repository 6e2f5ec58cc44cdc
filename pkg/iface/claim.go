package iface

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
)

// Claim makes the caller the only one that adds the attachment, until it calls
// release or ends, and refuses one that exists, with code 100. IPAM knows both
// of two at once by the same name: where it is asked before the interface is
// made the loser would give back the addresses of the winner.
func (p Pair) Claim() (release func(), err error) {
	// An abstract socket of the host needs no file, and goes with the process,
	// however that ends.
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	release = func() { _ = unix.Close(fd) }
	err = unix.Bind(fd, &unix.SockaddrUnix{Name: "@hawser/" + p.Attachment.Hash()})
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		err = cni.Errorf(cni.CodeExists, "another ADD of this attachment is under way (%s)", p.Attachment)
	case err != nil:
		err = fmt.Errorf("claim the attachment: %w", err)
	default:
		err = p.RefuseExisting()
	}
	if err != nil {
		release()
		return nil, err
	}
	return release, nil
}
