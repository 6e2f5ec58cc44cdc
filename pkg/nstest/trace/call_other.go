//go:build !amd64

package trace

// Newer architectures have only ppoll and epoll_pwait.
const (
	pollCall      = -1
	epollWaitCall = -2
)
