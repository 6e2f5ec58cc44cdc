// Payload is everything that a container of the specs runs: it answers on TCP and
// UDP port 80 with the address and port that it is asked from, until SIGTERM.
package main

import (
	"io"
	"net"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM, syscall.SIGINT)
	// A container without a network is one too: errors are no reason to end.
	if l, err := net.Listen("tcp", ":80"); err == nil {
		go serve(l)
	}
	if c, err := net.ListenPacket("udp", ":80"); err == nil {
		go answer(c)
	}
	<-end
}

func serve(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		_, _ = io.WriteString(conn, conn.RemoteAddr().String())
		_ = conn.Close()
	}
}

func answer(c net.PacketConn) {
	buf := make([]byte, 64)
	for {
		_, from, err := c.ReadFrom(buf)
		if err != nil {
			return
		}
		_, _ = c.WriteTo([]byte(from.String()), from)
	}
}
