package runtimes_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/test/pods"
)

// replay plays a mishap on a node that has a pod which shall notice nothing.
type replay struct {
	story
	*daemon
	tool tooled
	live sandboxed
	// crowded: the plugins' GC takes what is left. The tool looks at the node again before each of a thousand.
	crowded bool
}

// short is the network of the replays, with a range of 13 addresses.
var short = pods.Network{Versions: network.Versions, Last: "10.88.0.14"}.Conflist()

func replayOf(s story, d *daemon, tool tooled) replay {
	GinkgoHelper()
	r := replay{story: s, daemon: d, tool: tool}
	r.live.id, r.live.Pod = d.start("live")
	return r
}

// expectLive looks at the pod that shall notice nothing, and at whose its address is.
func (r replay) expectLive() {
	GinkgoHelper()
	r.live.ExpectUp()
	Expect(r.Cmd("cat", "/var/lib/cni/networks/pods/"+r.live.Addr)).To(HavePrefix(r.live.id))
}

// fail starts pods, some at once, none of which gets ready.
func (r replay) fail(many int) {
	GinkgoHelper()
	const atOnce = 8
	nstest.AtOnce(atOnce, func(first int) {
		for i := first; i < many; i += atOnce {
			_, err := r.run(fmt.Sprint("failed", i))
			Expect(err).To(HaveOccurred())
		}
	})
}

// others are all pods but the one that shall notice nothing.
func (r replay) others() []string {
	GinkgoHelper()
	return slices.DeleteFunc(r.all(), func(id string) bool { return id == r.live.id })
}

// mended is the end of each replay: the runtime ends what it knows, a good pod starts, the tool takes what is left.
func (r replay) mended(what string, end func(ids ...string)) {
	GinkgoHelper()
	end(r.others()...)
	r.write(what+": addresses held", fmt.Sprint(len(r.heldAtRest())))
	r.step("a good pod starts", func() {
		id, good := r.start("good")
		good.ExpectUp()
		end(id)
	})
	r.step("the live pod has its address", r.expectLive)
	if !r.theirs && !r.crowded {
		_, exit := hawser[collected](r.tool, "gc", "--yes", "--older", "0s")
		Expect(exit).To(BeZero())
		Expect(pods.Leases(r.Host)).To(ConsistOf(r.live.Addr))
		r.expectLive()
	}
	r.step("nothing is left", func() {
		end(r.live.id)
		if r.crowded && !r.theirs {
			r.collect()
		}
		pods.ExpectNothingLeft(r.Host)
	})
}

// heldAtRest are the leases, once the kernel has cleared up the namespaces that are gone: it takes the links with them.
func (r replay) heldAtRest() []string {
	GinkgoHelper()
	count := func(command string) func() int {
		return func() int { return len(strings.Fields(r.Cmd("sh", "-c", command))) }
	}
	Eventually(count("ls /sys/class/net/cni0/brif")).Should(BeNumerically("<=", count("ls /run/netns")()))
	return pods.Leases(r.Host)
}

func (r replay) missingProgram(many int) {
	r.without("tuning", func() { r.fail(many) })
	if !r.theirs { // with the reference plugins, all addresses are leased
		// Retried as by the kubelet, because CRI-O reads the list again only after an event of its directory.
		Eventually(func() error { _, err := r.run("again"); return err }).Should(Succeed())
	}
	r.mended(fmt.Sprintf("%d pods fail for want of a program", many), r.end)
}

// killedRuntime kills the runtime at random moments while pods start and stop.
func (r replay) killedRuntime(starts, kills int) {
	random := rand.New(rand.NewPCG(uint64(GinkgoRandomSeed()), 0))
	AddReportEntry("seed", GinkgoRandomSeed())
	var up atomic.Int32
	for kill := range kills {
		var calls sync.WaitGroup
		var ended atomic.Int32
		call := func(do func()) { calls.Go(func() { do(); ended.Add(1) }) }
		old := r.others()
		for _, id := range old {
			call(func() {
				if r.stop(id) == nil {
					_ = r.remove(id)
				}
			})
		}
		for i := range starts / kills {
			call(func() {
				if _, err := r.run(fmt.Sprintf("pod%d-%d", kill, i)); err == nil {
					up.Add(1)
				}
			})
		}
		some := random.Int32N(int32(len(old) + starts/kills))
		Eventually(ended.Load).Should(BeNumerically(">=", some))
		<-time.After(time.Duration(random.Int64N(int64(time.Second / 5))))
		r.crash()
		calls.Wait()
		r.launch()
		Eventually(func() error { _, _, err := r.condition("RuntimeReady"); return err }).Should(Succeed())
		r.expectLive()
	}
	AddReportEntry("starts that no kill interrupted", up.Load())
	r.mended(fmt.Sprintf("%d kills, %d pods start and stop", kills, starts), r.end)
}

// forcedRemoval removes pods with crictl rmp -f while a program is missing, and again when it is back.
func (r replay) forcedRemoval() {
	nstest.NeedProgram("crictl")
	remove := func(ids ...string) (failed error) {
		for _, id := range ids {
			_, err := runtimeUnderTest{r.machine, r.socket, nil}.crictl("rmp", "-f", id)
			failed = errors.Join(failed, err)
		}
		return failed
	}
	const many = 12 // the range is full
	for i := range many {
		r.start(fmt.Sprint("pod", i))
	}
	r.without("tuning", func() { GinkgoWriter.Println("rmp -f without a program:", remove(r.others()...)) })
	r.mended(fmt.Sprintf("crictl rmp -f of %d pods for want of a program", many), func(ids ...string) {
		Expect(remove(ids...)).To(Succeed())
	})
}

// brokenDisk has the leases on a disk that is full for a while, then read-only. Pods fail and others stop meanwhile.
func (r replay) brokenDisk(many int) {
	for _, c := range []struct{ is, spoil, mend string }{
		{"full", "! cat /dev/zero >full 2>&1", "rm full"},
		{"read-only", "mount -o remount,ro $PWD", "mount -o remount,rw $PWD"},
	} {
		for i := range 4 {
			r.start(fmt.Sprint("pod", i))
		}
		r.Cmd("sh", "-ec", "cd /var/lib/cni/networks; "+c.spoil)
		r.fail(many)
		for _, id := range r.others() {
			GinkgoWriter.Println("stopped meanwhile:", r.stop(id))
		}
		r.expectLive()
		r.Cmd("sh", "-ec", "cd /var/lib/cni/networks; "+c.mend)
		r.end(r.others()...)
		r.write(fmt.Sprintf("%d pods fail while the disk is %s: addresses held", many, c.is),
			fmt.Sprint(len(r.heldAtRest())))
	}
	r.mended("after both", r.end)
}

var _ = Describe("a mishap is played again", Label("replay"), func() {
	prepare := func(plugins string) *machine {
		m := newMachine(plugins) // with a disk for the leases alone
		m.Cmd("sh", "-ec", `mkdir -p /var/lib/cni/networks
			mount -t tmpfs -o size=4m tmpfs /var/lib/cni/networks`)
		return m
	}
	onContainerd := func(s story, plugins, conflist string) replay {
		GinkgoHelper()
		c := newContainerd(prepare(plugins), built(), conflist)
		return replayOf(s, c, c.tooled("/run/containerd/containerd.sock", false, c.program.Env...))
	}
	onCrio := func(s story, plugins, conflist string) replay {
		GinkgoHelper()
		p := newPodman(prepare(plugins), conflist)
		c := newCrioOf(p)
		return replayOf(s, c, c.tooled("/run/crio/crio.sock", true, p.env...))
	}
	mishap := func(name string, play func(s story, plugins string)) {
		Describe(name, func() { told(name, play) })
	}

	mishap("containerd 2.4.2, missing program", func(s story, plugins string) {
		onContainerd(s, plugins, short).missingProgram(24)
	})
	mishap("containerd 2.4.2, killed", func(s story, plugins string) {
		onContainerd(s, plugins, short).killedRuntime(10, 2)
	})
	mishap("containerd 2.4.2, disk", func(s story, plugins string) {
		onContainerd(s, plugins, short).brokenDisk(10)
	})
	It("where reclaim is false a good pod starts after the tool's GC alone", Label("all"), func() {
		off := strings.Replace(short, `"type": "host-local"`, `"type": "host-local", "reclaim": false`, 1)
		r := onContainerd(story{client: "containerd 2.4.2, reclaim false"}, "", off)
		r.without("tuning", func() { r.fail(40) })
		_, err := r.run("good")
		Expect(err).To(MatchError(ContainSubstring(`"reclaim" is false`)))
		r.write("addresses held", fmt.Sprint(len(r.heldAtRest())))
		_, exit := hawser[collected](r.tool, "gc", "--yes", "--older", "0s")
		Expect(exit).To(BeZero())
		r.start("good")
		r.expectLive()
	})
	Describe("at length", Label("all"), func() {
		mishap("containerd 2.4.2, missing program, at length", func(s story, plugins string) {
			r := onContainerd(s, plugins, network.Conflist())
			r.crowded = true
			r.missingProgram(1000)
		})
		mishap("containerd 2.4.2, killed, at length", func(s story, plugins string) {
			onContainerd(s, plugins, short).killedRuntime(100, 20)
		})
		mishap("containerd 2.4.2, rmp -f", func(s story, plugins string) {
			onContainerd(s, plugins, short).forcedRemoval()
		})
		mishap(crioName+", missing program", func(s story, plugins string) {
			onCrio(s, plugins, short).missingProgram(40)
		})
		mishap(crioName+", killed", func(s story, plugins string) {
			onCrio(s, plugins, short).killedRuntime(100, 20)
		})
		mishap(crioName+", rmp -f", func(s story, plugins string) {
			onCrio(s, plugins, short).forcedRemoval()
		})
	})
})
