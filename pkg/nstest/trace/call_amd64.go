package trace

import "golang.org/x/sys/unix"

const (
	pollCall      = unix.SYS_POLL
	epollWaitCall = unix.SYS_EPOLL_WAIT
)
