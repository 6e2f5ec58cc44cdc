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
	var data []byte
	buf := make([]byte, 4096)
	for {
		n, err := retry(func() (int, error) { return unix.Read(fd, buf) })
		if err != nil {
			return "", err
		}
		if n == 0 {
			return string(data), nil
		}
		data = append(data, buf[:n]...)
	}
}

func (k Key) write(value string) error {
	fd, err := k.open(unix.O_WRONLY)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	// One write: the kernel takes each write for a whole value.
	_, err = retry(func() (int, error) { return unix.Write(fd, []byte(value+"\n")) })
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
