package bench

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/nstest"
)

// way is a packet path: a client in one namespace and a server in another one. On the way, the destination may be
// translated.
type way struct {
	from, to *nstest.Host
	target   netip.Addr // to which the client sends
	tcp, udp [2]uint16  // the port of the target, and the port on which the server listens
}

// The client runs on the first processor, which also does the work of forwarding its packets. The server runs on the
// last one.
const clientCPU = 0

func serverCPU() int { return runtime.NumCPU() - 1 }

// silence is how long a client waits before it gives up.
const silence = 10 * time.Second

// onCPU runs fn in the namespaces on one processor. The thread ends with fn.
func onCPU(h *nstest.Host, cpu int, fn func()) {
	h.Do(func() {
		var set unix.CPUSet
		set.Set(cpu)
		_ = unix.SchedSetaffinity(0, &set)
		fn()
	})
}

func (w way) socket(kind int) (int, error) {
	family := unix.AF_INET
	if w.target.Is6() {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("socket: %w", err)
	}
	return fd, nil
}

// limit ends each call on the socket after silence. A signal of the Go runtime interrupts such a call with EINTR.
func limit(fd int) error {
	t := unix.NsecToTimeval(silence.Nanoseconds())
	return errors.Join(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &t),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &t))
}

func sockaddr(addr netip.Addr, port uint16) unix.Sockaddr {
	if addr.Is6() {
		return &unix.SockaddrInet6{Port: int(port), Addr: addr.As16()}
	}
	return &unix.SockaddrInet4{Port: int(port), Addr: addr.As4()}
}

// listen opens the server's socket, with all addresses of its namespace.
func (w way) listen(kind int) (fd int, err error) {
	all, port := netip.IPv4Unspecified(), w.tcp[1]
	if w.target.Is6() {
		all = netip.IPv6Unspecified()
	}
	if kind == unix.SOCK_DGRAM {
		port = w.udp[1]
	}
	w.to.Do(func() {
		if fd, err = w.socket(kind); err != nil {
			return
		}
		err = errors.Join(limit(fd), unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1),
			unix.Bind(fd, sockaddr(all, port)))
		if err == nil && kind == unix.SOCK_STREAM {
			err = unix.Listen(fd, 4096)
		}
	})
	return fd, err
}

// connect opens a client's socket on the calling thread. The kernel restarts an interrupted connect only on a socket
// without a limit, so the limit follows.
func (w way) connect(kind int) (int, error) {
	port := w.tcp[0]
	if kind == unix.SOCK_DGRAM {
		port = w.udp[0]
	}
	fd, err := w.socket(kind)
	if err == nil {
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_SYNCNT, 1) // three seconds; not for UDP
		err = errors.Join(unix.Connect(fd, sockaddr(w.target, port)), limit(fd))
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("connect to %s, port %d: %w", w.target, port, err)
	}
	return fd, nil
}

// serving runs the client on its processor while the server runs on another one. The server's socket is shut down when
// the client has ended.
func (w way) serving(kind int, server func(fd int), client func() error) error {
	fd, err := w.listen(kind)
	defer unix.Close(fd)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	var both sync.WaitGroup
	both.Go(func() { onCPU(w.to, serverCPU(), func() { server(fd) }) })
	onCPU(w.from, clientCPU, func() { err = client() })
	_ = unix.Shutdown(fd, unix.SHUT_RDWR)
	both.Wait()
	return err
}

// accept returns the next connection, or false after the end of the client.
func accept(fd int) (int, bool) {
	for {
		conn, _, err := unix.Accept4(fd, unix.SOCK_CLOEXEC)
		if err == nil || !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) &&
			!errors.Is(err, unix.ECONNABORTED) {
			return conn, err == nil
		}
	}
}

// connections returns the number of connections a second that one client opens and resets, one after the other.
func (w way) connections(d time.Duration) (perSecond float64, err error) {
	err = w.serving(unix.SOCK_STREAM, func(fd int) {
		for conn, ok := accept(fd); ok; conn, ok = accept(fd) {
			_ = unix.Close(conn)
		}
	}, func() error {
		began, n := time.Now(), 0
		for ; n == 0 || time.Since(began) < d; n++ {
			fd, err := w.connect(unix.SOCK_STREAM)
			if err != nil {
				return err
			}
			_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
			_ = unix.Close(fd)
		}
		perSecond = float64(n) / time.Since(began).Seconds()
		return nil
	})
	return perSecond, err
}

// stream returns the Gbit/s of one TCP connection as its receiver sees them, from the first data on. The sender ends
// when isOver returns true.
func (w way) stream(isOver func() bool) (gigabits float64, err error) {
	const piece = 256 << 10
	err = w.serving(unix.SOCK_STREAM, func(fd int) {
		conn, ok := accept(fd)
		if !ok {
			return
		}
		defer unix.Close(conn)
		buf, bytes := make([]byte, piece), 0
		var began time.Time
		for {
			n, err := unix.Read(conn, buf)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if err != nil || n == 0 {
				break
			}
			if began.IsZero() {
				began = time.Now()
			} else {
				bytes += n
			}
		}
		gigabits = float64(bytes) * 8 / 1e9 / time.Since(began).Seconds()
	}, func() error {
		fd, err := w.connect(unix.SOCK_STREAM)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		for buf := make([]byte, piece); err == nil && !isOver(); {
			if _, err = unix.Write(fd, buf); errors.Is(err, unix.EINTR) {
				err = nil
			}
		}
		return err
	})
	return gigabits, err
}

// lasting returns a function that reports whether a time has passed since now.
func lasting(d time.Duration) func() bool {
	end := time.Now().Add(d)
	return func() bool { return time.Now().After(end) }
}

// packets returns the number of small UDP packets a second that one processor sends along the way, and the CPU time of
// a packet in microseconds. The kernel forwards and delivers a packet before the call returns. The server does not read
// them, so that its thread takes no part.
func (w way) packets(d time.Duration) (perSecond, micros float64, err error) {
	err = w.serving(unix.SOCK_DGRAM, func(int) {}, func() error {
		fd, err := w.connect(unix.SOCK_DGRAM)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		packet, n := make([]byte, 64), 0
		began, cpu := time.Now(), threadTime()
		for isOver := lasting(d); n == 0 || !isOver(); {
			for range 64 {
				if err := retried(unix.Write, fd, packet); err != nil {
					return fmt.Errorf("send to %s: %w", w.target, err)
				}
				n++
			}
		}
		perSecond, micros = float64(n)/time.Since(began).Seconds(), (threadTime()-cpu).Seconds()*1e6/float64(n)
		return nil
	})
	return perSecond, micros, err
}

// threadTime returns the CPU time of the calling thread.
func threadTime() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t)
	return time.Duration(t.Nano())
}

// retried repeats a read or write that a signal interrupts.
func retried(call func(int, []byte) (int, error), fd int, buf []byte) (err error) {
	for err = unix.EINTR; errors.Is(err, unix.EINTR); {
		_, err = call(fd, buf)
	}
	return err
}

// roundTrips returns the times in microseconds in which small UDP packets were answered, one after the other.
func (w way) roundTrips(d time.Duration) (micros []float64, err error) {
	var over atomic.Bool
	err = w.serving(unix.SOCK_DGRAM, func(fd int) {
		for buf := make([]byte, 64); !over.Load(); {
			n, from, err := unix.Recvfrom(fd, buf, 0)
			if err == nil && from != nil {
				_ = unix.Sendto(fd, buf[:n], 0, from)
			}
		}
	}, func() error {
		defer over.Store(true) // the end of the socket wakes the server
		fd, err := w.connect(unix.SOCK_DGRAM)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		buf := make([]byte, 64)
		for isOver := lasting(d); len(micros) == 0 || !isOver(); {
			began := time.Now()
			err := retried(unix.Write, fd, buf)
			if err == nil {
				err = retried(unix.Read, fd, buf)
			}
			if err != nil {
				return fmt.Errorf("round trip to %s: %w", w.target, err)
			}
			micros = append(micros, float64(time.Since(began).Nanoseconds())/1e3)
		}
		return nil
	})
	return micros, err
}

// underLoad returns round trips while a TCP connection sends along the same way, and the Gbit/s of that connection.
func (w way) underLoad(d time.Duration) (micros []float64, gigabits float64, err error) {
	var over atomic.Bool
	var streamErr error
	var both sync.WaitGroup
	both.Go(func() { gigabits, streamErr = w.stream(over.Load) })
	<-time.After(d / 4) // until the connection sends at full speed
	micros, err = w.roundTrips(d)
	over.Store(true)
	both.Wait()
	return micros, gigabits, errors.Join(err, streamErr)
}

// kernelMemory returns the memory in bytes of what the kernel allocated in pieces: slabs, vmalloc areas and data of
// each processor.
func kernelMemory() (bytes float64) {
	info := string(nstest.Must(os.ReadFile("/proc/meminfo")))
	for _, name := range []string{"Slab", "VmallocUsed", "Percpu"} {
		bytes += 1024 * memoryField(info, name)
	}
	return bytes
}
