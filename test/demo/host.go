package main

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// command runs a program and returns its output.
func command(name string, args ...string) (string, error) {
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return string(out), nil
}

// hostSetup makes the host's uplink and a machine at its other end that knows no
// way back to the containers. Addresses are usable at once: a demonstration does
// not wait for duplicate address detection.
const hostSetup = `
ip link set lo up
ip netns add outside
ip link add ext type veth peer name eth0 netns outside
echo 0 >/proc/sys/net/ipv6/conf/ext/accept_dad
ip netns exec outside sh -c 'echo 0 >/proc/sys/net/ipv6/conf/eth0/accept_dad'
ip addr add 192.0.2.1/24 dev ext
ip addr add 2001:db8::1/64 dev ext
ip -n outside addr add 192.0.2.2/24 dev eth0
ip -n outside addr add 2001:db8::2/64 dev eth0
ip link set ext up
ip -n outside link set eth0 up
# The kernel gives link-local addresses a little after both ends are up.
for end in "-6" "-n outside -6"; do
	for try in $(seq 1000); do
		ip $end route show table local | grep -q "^local fe80:" && continue 2
	done
	echo "no link-local address: ip $end" >&2
	exit 1
done
`

// forwardDrop is a firewall as Docker or an administrator has it: the host forwards
// nothing that no rule accepts.
const forwardDrop = `
iptables -P FORWARD DROP
ip6tables -P FORWARD DROP
`

// makeHost makes the host. It forwards nothing of itself where the network has a
// plugin that can do something about that.
func makeHost(drops bool) error {
	setup := hostSetup
	if drops {
		setup += forwardDrop
	}
	_, err := command("sh", "-euc", setup)
	return err
}

// inside runs fn on a thread in a namespace of ip-netns(8), "" being the host's.
func inside(netns string, fn func() error) error {
	if netns == "" {
		return fn()
	}
	done := make(chan error)
	go func() {
		// Never unlocked: the thread ends in the namespace.
		runtime.LockOSThread()
		done <- func() error {
			f, err := os.Open("/run/netns/" + netns)
			if err != nil {
				return err
			}
			defer func() { _ = f.Close() }()
			if err := unix.Setns(int(f.Fd()), unix.CLONE_NEWNET); err != nil {
				return fmt.Errorf("setns %s: %w", netns, err)
			}
			return fn()
		}()
	}()
	return <-done
}
