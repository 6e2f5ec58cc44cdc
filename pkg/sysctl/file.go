package sysctl

import (
	"errors"

	"golang.org/x/sys/unix"
)

// Plain system calls rather than os.File: files below /proc/sys can be polled,
// and os would set up its poller for each of them.

func (k Key) read() (string, error) {
	fd, err := k.open(unix.O_RDONLY)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	return readAll(fd)
}

// readAll reads a value: the kernel gives as much of it as there is room for.
func readAll(fd int) (string, error) {
	for buf := make([]byte, 256); ; buf = make([]byte, 4*len(buf)) {
		n, err := retry(func() (int, error) { return unix.Pread(fd, buf, 0) })
		if err != nil {
			return "", err
		}
		if n < len(buf) {
			return string(buf[:n]), nil
		}
	}
}

// update writes the value unless it is there, through one descriptor.
func (k Key) update(value string) error {
	fd, err := k.open(unix.O_RDWR)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if have, err := readAll(fd); err == nil && Equal(have, value) {
		return nil
	}
	return writeAll(fd, value)
}

func (k Key) write(value string) error {
	fd, err := k.open(unix.O_WRONLY)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return writeAll(fd, value)
}

// writeAll writes once: the kernel takes each write for a whole value.
func writeAll(fd int, value string) error {
	_, err := retry(func() (int, error) { return unix.Pwrite(fd, []byte(value+"\n"), 0) })
	return err
}

func (k Key) open(flags int) (int, error) {
	if len(k.parts) == 0 {
		return -1, ErrInvalidKey
	}
	return retry(func() (int, error) { return unix.Open(k.Path(), flags|unix.O_CLOEXEC, 0) })
}

func retry(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}
