package trace_test

import (
	"os"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/nstest/trace"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func TestTrace(t *testing.T) { nstest.RunSpecs(t, "pkg/nstest/trace") }

// sh traces a shell script on a host.
func sh(h *nstest.Host, script string) *trace.Record {
	GinkgoHelper()
	var r *trace.Record
	command := trace.Command{Path: "/bin/sh", Args: []string{"-c", script}, Env: os.Environ(), Stdin: "given\n"}
	h.Do(func() { r = nstest.Must(trace.Run(command)) })
	return r
}

// words returns the names of a program's messages.
func words(p *trace.Program) (all []string) {
	for _, m := range p.Messages {
		all = append(all, m.String())
	}
	return all
}

var _ = Describe("a traced command", func() {
	It("has its programs listed, and the system calls of each counted", func() {
		r := sh(nstest.NewHost(), "(true; exec uname) & wait; env sh -c 'echo a; uname'")
		Expect(r.Names()).To(Equal([]string{"sh", "uname", "env", "sh", "uname"}))
		Expect(r.Programs[1].Path).To(HaveSuffix("/uname"))
		loop := func(n string) *trace.Program {
			script := "i=0; while [ $i -lt " + n + " ]; do : </dev/null; i=$((i+1)); done; sh -c :"
			return sh(nstest.NewHost(), script).Programs[0]
		}
		few, many := loop("10"), loop("110")
		// open, fcntl or dup, close: the number depends on the shell
		Expect(many.Calls - few.Calls).To(BeNumerically(">=", 200))
		Expect((many.Calls - few.Calls) % 100).To(BeZero())
		Expect(many.Syscalls).To(BeNumerically(">=", many.Calls))
	})

	It("has a system call counted once, however often signals of the scheduler interrupt it", func() {
		reader := func(signals string) *trace.Program {
			fifo := GinkgoT().TempDir() + "/fifo"
			asleep := "until read -r pid name state rest </proc/$!/stat; [ $state = S ]; do :; done"
			return sh(nstest.NewHost(), "mkfifo "+fifo+"; cat "+fifo+" & exec 3>"+fifo+
				"; for i in "+signals+"; do "+asleep+"; kill -URG $!; done; exec 3>&-; wait").Programs[2]
		}
		quiet, busy := reader(""), reader("1 2 3 4 5")
		Expect(quiet.Name()).To(Equal("cat"))
		Expect(busy.Calls).To(Equal(quiet.Calls))
		Expect(busy.Syscalls).To(BeNumerically(">", quiet.Syscalls), "the signals interrupted no call")
	})

	It("has its netlink messages recorded with their names", func() {
		h := nstest.NewHost()
		r := sh(h, "ip link add br0 type bridge && ip addr add 10.0.0.1/24 dev br0 && ip link show dev lo; ip -4 route")
		Expect(r.Exit).To(BeZero(), r.Stderr)
		Expect(r.Names()).To(Equal([]string{"sh", "ip", "ip", "ip", "ip"}))
		Expect(words(r.Programs[0])).To(BeEmpty())
		Expect(words(r.Programs[1])).To(ContainElement("RTM_NEWLINK"))
		Expect(words(r.Programs[2])).To(ContainElement(MatchRegexp(`^RTM_NEWADDR of link \d+$`)))
		Expect(words(r.Programs[3])).To(ContainElement("RTM_GETLINK"))
		Expect(words(r.Programs[3])).NotTo(ContainElement(ContainSubstring("dump")))
		Expect(words(r.Programs[4])).To(ContainElement("RTM_GETROUTE dump"))
		for _, p := range r.Programs[1:] {
			Expect(p.Sends).To(Equal(len(p.Messages)), "ip sends each message separately")
			Expect(p.Received).To(BeNumerically(">", 0))
		}
	})

	It("has each message of a batch counted", Label("kernel"), func() {
		nstest.Need("nft")
		r := sh(nstest.NewHost(), "nft 'add table inet t; add chain inet t c'")
		Expect(r.Exit).To(BeZero(), r.Stderr)
		Expect(words(r.Programs[1])).To(ContainElements("BATCH_BEGIN", "NFT_NEWTABLE", "NFT_NEWCHAIN", "BATCH_END"))
		Expect(r.Programs[1].Sends).To(BeNumerically("<", len(r.Programs[1].Messages)))
	})

	It("has its sleeps recorded, but not its waits for an event", func() {
		h := nstest.NewHost()
		r := sh(h, "sleep 0.02; true")
		Expect(r.Programs[1].Sleeps).To(ConsistOf(HavePrefix("clock_nanosleep for 20")), "newer versions add 1 ns")
		Expect(sh(h, "echo | cat; sh -c : & wait").Programs).To(HaveEach(HaveField("Sleeps", BeEmpty())))
	})

	It("has the bytes that it reads counted", func() {
		r := sh(nstest.NewHost(), "head -c 5000 /dev/zero | cat >/dev/null")
		Expect(r.Programs[0].Read).To(BeNumerically("<", 5000))
		Expect(r.Programs[1:]).To(HaveEach(HaveField("Read", BeNumerically(">=", 5000))))
	})

	It("has its memory measured", func() {
		r := sh(nstest.NewHost(), "dd if=/dev/zero of=/dev/null bs=32M count=1")
		Expect(r.Programs[1].Peak).To(BeNumerically("~", 34<<20, 4<<20))
	})

	It("that does not exist is an error", func() {
		_, err := trace.Run(trace.Command{Path: "/nowhere"})
		Expect(err).To(MatchError(unix.ENOENT))
	})
})
