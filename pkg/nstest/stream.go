package nstest

import (
	"bufio"
	"io"
	"net"
	"os/exec"
	"strings"
	"sync/atomic"
	"time"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
)

// Stream is a TCP connection on which a client sends a block and waits until it comes back, again and again.
type Stream struct {
	blocks  atomic.Int64 // that came back
	longest atomic.Int64 // nanoseconds
	err     atomic.Pointer[error]
}

// OpenStream connects a client to an address that reaches port 81 of a server, which sends back what it receives. The
// client pauses between the blocks.
func OpenStream(server, client *Host, address string, pause time.Duration) *Stream {
	ginkgo.GinkgoHelper()
	var listener net.Listener
	server.Do(func() { listener = Must(net.Listen("tcp", ":81")) })
	ginkgo.DeferCleanup(listener.Close)
	go func() {
		if conn, err := listener.Accept(); err == nil {
			_, _ = io.Copy(conn, conn)
		}
	}()
	var conn net.Conn
	client.Do(func() { conn = Must(net.DialTimeout("tcp", address, Patience(Hang))) })
	ginkgo.DeferCleanup(conn.Close)
	s := &Stream{}
	go func() {
		var err error
		for block := make([]byte, 512); err == nil; <-time.After(pause) {
			began := time.Now()
			_, err = conn.Write(block)
			if err == nil {
				_, err = io.ReadFull(conn, block)
			}
			s.blocks.Add(1)
			s.longest.Store(max(s.longest.Load(), int64(time.Since(began))))
		}
		s.err.Store(&err)
	}()
	return s
}

// Flows waits until a block comes back that was sent since the call.
func (s *Stream) Flows() {
	ginkgo.GinkgoHelper()
	before := s.blocks.Load()
	gomega.Eventually(func(g gomega.Gomega) {
		g.Expect(s.Err()).NotTo(gomega.HaveOccurred())
		g.Expect(s.blocks.Load()).To(gomega.BeNumerically(">", before+1))
	}).Should(gomega.Succeed())
}

// Longest returns the longest time until a block came back.
func (s *Stream) Longest() time.Duration { return time.Duration(s.longest.Load()) }

// Err returns the error that ended the stream, or nil.
func (s *Stream) Err() error {
	if err := s.err.Load(); err != nil {
		return *err
	}
	return nil
}

// StartBus starts a message bus, which is the system bus of the programs that the spec starts from now on.
func StartBus() {
	ginkgo.GinkgoHelper()
	NeedProgram("dbus-daemon")
	bus := exec.Command("dbus-daemon", "--session", "--print-address", "--nofork", "--nopidfile")
	out := Must(bus.StdoutPipe())
	gomega.Expect(bus.Start()).To(gomega.Succeed())
	ginkgo.DeferCleanup(func() { _ = bus.Process.Kill(); _ = bus.Wait() })
	address := Must(bufio.NewReader(out).ReadString('\n'))
	ginkgo.GinkgoT().Setenv("DBUS_SYSTEM_BUS_ADDRESS", strings.TrimSpace(address))
}
