package ipam_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ipam"
	"github.com/hawser-cni/plugins/pkg/nstest"
)

var _ = Describe("Client", func() {
	ctx := context.Background()
	var stderr *log
	fake := func(script string) *ipam.Client {
		GinkgoHelper()
		c, written := client(script)
		stderr = written
		return c
	}
	add := func(c *ipam.Client) (*cni.Result, error) {
		adding, err := c.Start(ctx, "ADD")
		if err != nil {
			return nil, err
		}
		return c.Result(ctx, adding)
	}
	run := func(command string) func(*ipam.Client, context.Context) error {
		return func(c *ipam.Client, ctx context.Context) error { return c.Run(ctx, command) }
	}
	print := func(doc string) string { return fmt.Sprintf("cat >/dev/null; cat <<'EOF'\n%s\nEOF", doc) }

	DescribeTable("reads the answer to ADD", func(doc string) {
		Expect(add(fake(print(doc)))).To(Equal(&cni.Result{
			IPs:    []cni.IP{{Address: netip.MustParsePrefix("10.0.0.5/24"), Gateway: netip.MustParseAddr("10.0.0.1")}},
			Routes: []cni.Route{{Dst: netip.MustParsePrefix("0.0.0.0/0")}},
		}))
	},
		Entry("in the configuration's version",
			`{"cniVersion": "0.3.1", "ips": [{"version": "4", "address": "10.0.0.5/24", "gateway": "10.0.0.1"}],
				"routes": [{"dst": "0.0.0.0/0"}]}`),
		Entry("without a version",
			`{"ips": [{"address": "10.0.0.5/24", "gateway": "10.0.0.1"}], "routes": [{"dst": "0.0.0.0/0"}]}`),
		Entry("in another version",
			`{"cniVersion": "0.2.0", "ip4": {"ip": "10.0.0.5/24", "gateway": "10.0.0.1",
				"routes": [{"dst": "0.0.0.0/0"}]}}`),
		Entry("with interfaces, of which it can know nothing",
			`{"interfaces": [{"name": "eth9"}], "ips": [{"address": "10.0.0.5/24", "gateway": "10.0.0.1",
				"interface": 7}], "routes": [{"dst": "0.0.0.0/0"}]}`),
	)

	DescribeTable("refuses an answer that it cannot use", Label("bad-answer"), func(doc, message string) {
		res, err := add(fake(print(doc)))
		Expect(res).To(BeNil())
		Expect(err).To(MatchError(And(HavePrefix(`IPAM plugin "ipam": `), ContainSubstring(message))))
		Expect(cni.AsError(err).Code).To(Equal(cni.CodeIPAM))
	},
		Entry("nothing", ``, "unexpected end of JSON input"), Entry("text", `hello`, "no valid JSON"), Entry("a cut",
			`{"ips": [`, "no valid JSON"),
		Entry("two documents", `{}{}`, "no valid JSON"), Entry("a list", `[]`, "is a JSON array"),
		Entry("null", `null`, "no addresses"), Entry("empty", `{}`, "no addresses"), Entry("no addresses",
			`{"ips": []}`,
			"no addresses"),
		Entry("an error object, but status 0", `{"code": 11, "msg": "busy"}`, "no addresses"),
		Entry("a bad version", `{"cniVersion": "9.9.9", "ips": [{"address": "10.0.0.5/24"}]}`, `cniVersion: "9.9.9"`),
		Entry("a bad address", `{"ips": [{"address": "10.0.0.5"}]}`, `ips[0].address: "10.0.0.5"`),
		Entry("an address twice", `{"ips": [{"address": "10.0.0.5/24"}, {"address": "10.0.0.5/16"}]}`,
			"address 10.0.0.5 twice"),
		Entry("a bad gateway", `{"ips": [{"address": "10.0.0.5/24", "gateway": "x"}]}`, `ips[0].gateway: "x"`),
		Entry("a bad route", `{"ips": [{"address": "10.0.0.5/24"}], "routes": [{"dst": "x"}]}`, `routes[0].dst: "x"`),
		Entry("its family's shape, which is not its version's", `{"cniVersion": "1.0.0", "ip4": {"ip": "10.0.0.5/24"}}`,
			"no addresses"),
	)

	type command = func(*ipam.Client, context.Context) error

	DescribeTable("hands the plugin's own error on", Label("delegate-error"), func(call command, code uint) {
		err := call(fake(fmt.Sprintf(`echo '{"cniVersion": "0.3.1", "code": %d, "msg": "no",
			"details": "more"}'; exit 1`, code)), ctx)
		var e *cni.Error
		Expect(errors.As(err, &e)).To(BeTrue())
		Expect([]any{e.Code, e.Msg, e.Details}).To(HaveExactElements(code, "no", "more"))
	},
		Entry("ADD", func(c *ipam.Client, _ context.Context) error { _, err := add(c); return err }, cni.CodeTryAgain),
		Entry("DEL", run("DEL"), cni.CodeIO), Entry("CHECK", run("CHECK"), cni.CodeDrift),
		Entry("GC", run("GC"), cni.CodeIncompatibleVersion),
		Entry("STATUS", (*ipam.Client).Status, cni.CodeUnavailable),
	)

	DescribeTable("gives back what the attachment has already, once, and asks again", func(fails string, code uint,
		calls string) {
		c := fake(fmt.Sprintf(`cat >/dev/null; echo "$CNI_COMMAND" >&2; cd "${0%%/*}"
			fail() { echo '{"cniVersion": "0.3.1", "code": '"$1"', "msg": "no"}'; exit 1; }
			case $CNI_COMMAND in DEL) touch released; %s;; esac
			[ -e released ] || fail 100
			echo '{"ips": [{"address": "10.0.0.5/24"}]}'`, fails))
		res, err := add(c)
		Expect(stderr.String()).To(Equal(calls))
		if code != 0 {
			Expect(cni.AsError(err).Code).To(Equal(code))
			return
		}
		Expect(err).NotTo(HaveOccurred())
		Expect(res.IPs).To(HaveLen(1))
	},
		Entry("from before a reboot", "exit", uint(0), "ADD\nDEL\nADD\n"),
		Entry("which stays", "rm released; exit", cni.CodeExists, "ADD\nDEL\nADD\n"),
		Entry("which cannot be given back", "fail 5", cni.CodeExists, "ADD\nDEL\n"),
	)

	DescribeTable("runs one command with the whole configuration, and minds no output but ADD's",
		func(call command, verb string) {
			c := fake(`echo "$CNI_COMMAND $(cat)" >&2; echo garbage`)
			Expect(call(c, ctx)).To(Succeed())
			Expect(stderr.String()).To(Equal(verb + ` {"name": "net1"}` + "\n"))
		},
		Entry("DEL", run("DEL"), "DEL"), Entry("CHECK", run("CHECK"), "CHECK"), Entry("GC", run("GC"), "GC"),
		Entry("STATUS", (*ipam.Client).Status, "STATUS"),
	)

	It("ends in a roll-back a plugin that was not awaited, and its DEL with the roll-back's time", func() {
		c := fake(`echo "$CNI_COMMAND" >&2; touch "$0.$CNI_COMMAND"; exec sleep 60`)
		adding, err := c.Start(ctx, "ADD")
		Expect(err).NotTo(HaveOccurred())
		began := time.Now()
		brief := nstest.DeadlineWhen(func() bool {
			_, err := os.Stat(c.Path + "/ipam.DEL")
			return err == nil
		})
		Expect(cni.AsError(c.Release(brief, adding)).Code).To(Equal(cni.CodeTryAgain))
		Expect(time.Since(began)).To(BeNumerically("<", nstest.Hang))
		Expect(stderr.String()).To(HaveSuffix("DEL\n"))
	})

	DescribeTable("refuses a type that is no file name, naming the key", func(name string) {
		c := fake("")
		c.Type = name
		_, err := add(c)
		Expect(err).To(MatchError(ContainSubstring("ipam.type: %q", name)))
		for _, err := range []error{err, c.Run(ctx, "DEL"), c.Status(ctx)} {
			Expect(cni.AsError(err).Code).To(Equal(cni.CodeConfig))
		}
	}, Entry("none", ""), Entry("a path", "../ipam"), Entry("absolute", "/bin/true"), Entry("parent", ".."))

	It("names CNI_PATH when there is no such plugin", func() {
		c := fake("")
		c.Type = "nobody"
		_, err := add(c)
		Expect(err).To(MatchError(ContainSubstring(`CNI_PATH: no plugin "nobody"`)))
		Expect(cni.AsError(err).Code).To(Equal(cni.CodeEnvironment))
		Expect(c.String()).To(Equal(`IPAM plugin "nobody"`))
	})
})
