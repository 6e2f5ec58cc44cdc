//go:build !amd64

package trace

// Younger architectures have ppoll and epoll_pwait alone.
const (
	pollCall      = -1
	epollWaitCall = -2
)
