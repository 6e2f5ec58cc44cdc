package skel_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

var _ = Describe("what failed", Label("failures"), func() {
	var dir string
	BeforeEach(func() { dir = filepath.Join(GinkgoT().TempDir(), "failures") })

	fails := func(code uint, msg string) skel.Plugin[any] {
		return probe(func(*skel.Request) error { return &cni.Error{Code: code, Msg: msg, Details: "in detail"} })
	}
	run := func(r request, p skel.Plugin[any]) {
		var out bytes.Buffer
		skel.Run(context.Background(), p, skel.Env{Vars: r.vars(), Stdin: strings.NewReader(r.conf), Stdout: &out,
			Stderr: &out, Failures: dir})
	}
	kept := func() map[string]*skel.Failure {
		all := map[string]*skel.Failure{}
		for _, f := range nstest.Must(skel.Failures(dir).All()) {
			all[f.ContainerID] = f
		}
		return all
	}

	DescribeTable("is kept, with the pod and the message, and how often it happened", func(command string) {
		r := attach(command)
		r.more = []string{"CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0;K8S_POD_UID=u"}
		run(r, fails(7, "first"))
		run(r, fails(11, "second"))
		f := kept()["c1"]
		Expect(kept()).To(HaveLen(1))
		Expect(f.Attachment()).To(Equal(cni.Attachment{Network: "net1", ContainerID: "c1", IfName: "eth0"}))
		Expect([]any{f.Plugin, f.Command, f.Pod, f.NetnsPath, f.Count, f.Code, f.Msg, f.Details}).To(
			Equal([]any{"probe", command, "shop/web-0", r.netns, 2, uint(11), "second", "in detail"}))
		Expect(f.Time).To(BeTemporally(">", f.First))
	},
		Entry("ADD", "ADD"), Entry("DEL", "DEL"), Entry("CHECK", "CHECK"))

	It("is kept where the configuration cannot be read, without a word of it", func() {
		r := attach("ADD")
		r.conf = `{"cniVersion": "1.1.0", "name": "net1", "password": "hunter2"`
		run(r, fails(7, "unreached"))
		Expect(kept()["c1"].Code).To(BeEquivalentTo(6))
		Expect(json.Marshal(kept())).NotTo(ContainSubstring("hunter2"))
	})

	It("is nothing where a call succeeds, or concerns no container: then nothing is made", func() {
		for _, command := range []string{"ADD", "DEL", "CHECK"} {
			run(attach(command), probe(func(*skel.Request) error { return nil }))
		}
		run(attach("STATUS"), fails(50, "no"))
		r := attach("ADD")
		r.id = "../c1"
		run(r, fails(7, "no"))
		Expect(dir).NotTo(BeAnExistingFile())
	})

	It("is for root alone, and bounded: the newest 64, the first 4 KiB of each text", func() {
		for i := range 70 {
			r := attach("ADD")
			r.id = fmt.Sprintf("c%02d", i)
			run(r, fails(7, strings.Repeat("é", 3000)))
		}
		all := kept()
		Expect(all).To(HaveLen(64))
		Expect(all).NotTo(HaveKey("c05"))
		Expect(all).To(HaveKey("c06"))
		Expect(all["c69"].Msg).To(Equal(strings.Repeat("é", 2048)))
		Expect(nstest.Must(os.Stat(dir)).Mode().Perm()).To(BeEquivalentTo(0o700))
		for _, entry := range nstest.Must(os.ReadDir(dir)) {
			Expect(nstest.Must(entry.Info()).Mode().Perm()).To(BeEquivalentTo(0o600), entry.Name())
		}
	})

	It("replaces the failures from before the clock was set back", func() {
		for i := range 64 {
			f := skel.Failure{ContainerID: fmt.Sprint("before", i), Plugin: "probe", Command: "ADD", Count: 1,
				Time: time.Now().Add(time.Hour)}
			Expect(skel.Failures(dir).Put(context.Background(), f)).To(Succeed())
		}
		run(attach("ADD"), fails(7, "no"))
		Expect(kept()).To(And(HaveLen(64), HaveKey("c1")))
	})

	It("has no text of any length, and drops what an earlier version kept", func() {
		long := strings.Repeat("n", 1<<20)
		old := skel.Failure{Network: long, ContainerID: "old", Plugin: "probe", Command: "ADD", Count: 1}
		Expect(skel.Failures(dir).Put(context.Background(), old)).To(Succeed())
		for i, command := range []string{"ADD", "DEL", "CHECK"} {
			r := attach(command)
			r.id = fmt.Sprint("c", i)
			r.conf = strings.Replace(r.conf, "net1", long, 1)
			name := long[:1<<15]
			r.more = []string{"CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=" + name + ";K8S_POD_NAME=" + name}
			if command == "DEL" {
				r.netns = "/" + long[:1<<16]
			}
			run(r, fails(7, "no"))
		}
		Expect(kept()).To(And(HaveLen(3), Not(HaveKey("old"))))
		for _, entry := range nstest.Must(os.ReadDir(dir)) {
			Expect(nstest.Must(entry.Info()).Size()).To(BeNumerically("<", 16<<10), entry.Name())
		}
	})

	It("is read from a record of an earlier version", func() {
		var f skel.Failure
		Expect(statefile.Decode([]byte(`{"plugin": "probe", "netns": "/run/netns/c1"}`), &f)).To(Succeed())
		Expect(f).To(Equal(skel.Failure{Plugin: "probe", NetnsPath: "/run/netns/c1"}))
		Expect(json.Marshal(f)).To(ContainSubstring(`"netnsPath":"/run/netns/c1"`))
	})

	It("does not change the answer where it cannot be kept", func() {
		Expect(os.WriteFile(dir, nil, 0o600)).To(Succeed())
		r := attach("ADD")
		want := r.run(fails(7, "no"))
		var out, errs bytes.Buffer
		code := skel.Run(context.Background(), fails(7, "no"), skel.Env{Vars: r.vars(),
			Stdin: strings.NewReader(r.conf), Stdout: &out, Stderr: &errs, Failures: dir})
		Expect(answer{code, out.String(), errs.String()}).To(Equal(want))
	})
})
