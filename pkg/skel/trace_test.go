package skel_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/skel"
)

const (
	traceID = "0af7651916cd43dd8448eb211c80319c"
	callers = "b7ad6b7169203331"
	parent  = "00-" + traceID + "-" + callers + "-01"
)

// spans are those of the only line of a log.
func spans(file string) (all []object, resource object) {
	GinkgoHelper()
	l := lines(file)
	Expect(l).To(HaveLen(1))
	of := l[0]["resourceSpans"].([]any)[0].(object)
	for _, s := range of["scopeSpans"].([]any)[0].(object)["spans"].([]any) {
		all = append(all, s.(object))
	}
	return all, of["resource"].(object)
}

var _ = Describe("the trace of a call", Label("traces"), func() {
	var file string
	BeforeEach(func() { file = filepath.Join(GinkgoT().TempDir(), "log") })
	traced := func(r request, vars ...string) request {
		r.more = append(append(r.more, "HAWSER_LOG="+file), vars...)
		return r
	}
	works := probe(func(*skel.Request) error { return nil })

	DescribeTable("is the caller's, in the log's line, as W3C says", func(sent, logged string) {
		traced(attach("ADD"), "TRACEPARENT="+sent, "TRACESTATE=a=b", "BAGGAGE=user=x").run(works)
		l := lines(file)[0]
		Expect(l).To(HaveKeyWithValue("baggage", "user=x"))
		if logged == "" {
			Expect(l).NotTo(Or(HaveKey("traceparent"), HaveKey("tracestate")))
			return
		}
		Expect(l).To(And(HaveKeyWithValue("traceparent", logged), HaveKeyWithValue("tracestate", "a=b")))
	},
		Entry("valid", parent, parent),
		Entry("of a later version", "cc"+parent[2:]+"-more", "cc"+parent[2:]+"-more"),
		Entry("none", "", ""), Entry("no such version", "ff"+parent[2:], ""),
		Entry("too long", parent+"-more", ""), Entry("too short", parent[:len(parent)-3], ""),
		Entry("capitals", strings.ToUpper(parent), ""),
		Entry("no hexadecimal", strings.Replace(parent, "0af", "0xf", 1), ""),
		Entry("no trace", "00-"+strings.Repeat("0", 32)+"-"+callers+"-01", ""),
		Entry("no span", "00-"+traceID+"-"+strings.Repeat("0", 16)+"-01", ""),
		Entry("a short ID", "00-"+traceID[1:]+"-"+callers+"-01", ""),
		Entry("flags without a digit", parent[:len(parent)-1], ""),
		Entry("blanks", " "+parent, ""),
	)

	DescribeTable("has no other variable that W3C forbids", func(variable string) {
		traced(attach("ADD"), "TRACEPARENT="+parent, variable).run(works)
		Expect(lines(file)[0]).NotTo(Or(HaveKey("tracestate"), HaveKey("baggage")))
	},
		Entry(nil, "TRACESTATE=a"), Entry(nil, "TRACESTATE=a=b,=c"), Entry(nil, "TRACESTATE=a=\x01"),
		Entry(nil, "TRACESTATE=a=b"+strings.Repeat(",a=b", 32)), Entry(nil, "BAGGAGE=a=\u00e9"),
		Entry(nil, "BAGGAGE="+strings.Repeat("x", 8193)),
	)

	It("has spans of the call, its steps and its roll-back where the log's name ends in .otlp", func() {
		file += ".otlp"
		traced(attach("ADD"), "TRACEPARENT="+parent, "TRACESTATE=a=b", "BAGGAGE=token=s3cr3t").
			run(probe(func(r *skel.Request) error {
				r.Step("make it")
				r.OnFail("take it back", func(context.Context) error { return errors.New("cannot") })
				r.Step("use it")
				r.Warn("careful")
				return &cni.Error{Code: cni.CodeConflict, Msg: "is used", Details: "token s3cr3t"}
			}))
		Expect(string(nstest.Must(os.ReadFile(file)))).NotTo(ContainSubstring("s3cr3t"))
		all, resource := spans(file)
		Expect(nstest.Must(json.Marshal(resource))).To(ContainSubstring(
			`{"key":"service.name","value":{"stringValue":"hawser"}}`))
		names := map[any]object{}
		var order []any
		for _, s := range all {
			names[s["name"]], order = s, append(order, s["name"])
			Expect(s).To(And(HaveKeyWithValue("traceId", traceID), HaveKeyWithValue("traceState", "a=b"),
				HaveKeyWithValue("kind", 1.0), HaveKeyWithValue("flags", 1.0)))
			Expect(s["spanId"]).To(MatchRegexp("^[0-9a-f]{16}$"))
			Expect(s["startTimeUnixNano"]).To(MatchRegexp("^[0-9]{19}$"))
			Expect(s["endTimeUnixNano"].(string) >= s["startTimeUnixNano"].(string)).To(BeTrue())
		}
		Expect(order).To(Equal([]any{"probe ADD", "decode", "make it", "use it", "roll-back", "take it back"}))
		below := map[any]any{"probe ADD": callers}
		for _, name := range order[1:5] {
			below[name] = all[0]["spanId"]
		}
		below["take it back"] = names["roll-back"]["spanId"]
		for name, id := range below {
			Expect(names[name]).To(HaveKeyWithValue("parentSpanId", id), "%v", name)
		}
		failed := func(msg string) any { return object{"code": 2.0, "message": msg} }
		Expect(all[0]["status"]).To(Equal(failed("is used")))
		Expect(names["make it"]).NotTo(HaveKey("status"))
		Expect(names["use it"]["status"]).To(Equal(failed("is used")))
		Expect(names["take it back"]["status"]).To(Equal(failed("cannot")))
		text := string(nstest.Must(json.Marshal(all[0]["attributes"])))
		for _, have := range []string{`{"key":"cni.plugin","value":{"stringValue":"probe"}}`,
			`{"key":"container.id","value":{"stringValue":"c1"}}`, `{"key":"cni.code","value":{"intValue":"103"}}`,
			`{"key":"cni.warnings","value":{"arrayValue":{"values":[{"stringValue":"careful"}]}}}`} {
			Expect(text).To(ContainSubstring(have))
		}
	})

	It("is one of its own without a caller's, also of a call that cannot be read", func() {
		file += ".otlp"
		for _, r := range []request{attach("ADD"), {command: "STATUS", conf: "{"}, {command: "VERSION", conf: "{}"}} {
			traced(r, "TRACEPARENT=00-bad").run(works)
			all, _ := spans(file)
			Expect(all[0]["name"]).To(Equal("probe " + r.command))
			Expect(all[0]["parentSpanId"]).To(BeEmpty())
			Expect(all[0]["traceId"]).To(MatchRegexp("^[0-9a-f]{32}$"))
			Expect(os.Remove(file)).To(Succeed())
		}
	})

	It("is not written where the caller samples it out", func() {
		file += ".otlp"
		a := traced(attach("ADD"), "TRACEPARENT="+strings.TrimSuffix(parent, "1")+"0").run(works)
		Expect(a.code).To(BeZero())
		Expect(file).NotTo(BeAnExistingFile())
	})

	It("goes to a file in /var/log/hawser that has spans alone, and a log's lines go to none of these", func() {
		keyed := attach("ADD")
		Expect(unix.Mount("none", "/var/log", "tmpfs", 0, "")).To(Succeed())
		DeferCleanup(unix.Unmount, "/var/log", unix.MNT_DETACH)
		for _, name := range []string{"x.otlp", "x.log"} {
			keyed.conf = `{"cniVersion": "1.1.0", "name": "net1", "type": "probe", "log": "` + name + `"}`
			Expect(keyed.run(works).stderr).To(BeEmpty())
			Expect(keyed.run(works).stderr).To(BeEmpty())
			Expect(lines("/var/log/hawser/" + name)).To(HaveLen(2))
		}
		Expect(unix.Rename("/var/log/hawser/x.otlp", "/var/log/hawser/y.log")).To(Succeed())
		Expect(unix.Rename("/var/log/hawser/x.log", "/var/log/hawser/y.otlp")).To(Succeed())
		for _, name := range []string{"y.otlp", "y.log"} {
			keyed.conf = strings.Replace(conf1, "{", `{"log": "`+name+`", `, 1)
			Expect(keyed.run(works).stderr).To(ContainSubstring("does not begin like a log"))
		}
	})
})
