package cni_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"strings"
	"testing"
	"unicode/utf8"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
)

// each returns a table entry for each version of the specification.
func each(body any) []any {
	args := []any{body}
	for _, v := range cni.Versions() {
		args = append(args, Entry(v, v))
	}
	return args
}

var _ = Describe("Result", func() {
	DescribeTable("is encoded in each version, with all fields", each(func(version string) {
		out := nstest.Must(richResult().Encode(version))
		expectGolden("rich-"+version+".json", out)
	})...)

	DescribeTable("is encoded in each version, without addresses", each(func(version string) {
		out := nstest.Must(l2Result().Encode(version))
		expectGolden("l2-"+version+".json", out)
	})...)

	DescribeTable("is the same after encoding and decoding", each(func(version string) {
		for _, r := range []*cni.Result{richResult(), l2Result(), {}} {
			want := asFar(r, version)
			out := nstest.Must(r.Encode(version))
			got := nstest.Must(cni.DecodeResult(out, "9.9.9"))
			Expect(got).To(Equal(want))
			again := nstest.Must(got.Encode(version))
			Expect(string(again)).To(Equal(string(out)))
		}
	})...)

	DescribeTable("is decoded in any version and encoded in any other", each(func(from string) {
		for _, to := range cni.Versions() {
			old := nstest.Must(richResult().Encode(from))
			read := nstest.Must(cni.DecodeResult(old, to))
			out := nstest.Must(read.Encode(to))
			want := nstest.Must(asFar(richResult(), from).Encode(to))
			Expect(string(out)).To(Equal(string(want)), "%s to %s", from, to)
		}
	})...)

	It("is not encoded in an unknown version", func() {
		for _, v := range []string{"", "0.3", "0.5.0", "1.2.0", "v1.0.0", "1.0.0 "} {
			_, err := richResult().Encode(v)
			Expect(err).To(MatchError(ContainSubstring("%q", v)))
			Expect(cni.AsError(err).Code).To(Equal(cni.CodeIncompatibleVersion))
		}
	})

	It("has an IPv4-mapped gateway as IPv4 in its JSON", func() {
		r := cni.Result{IPs: []cni.IP{{Address: prefix("10.0.0.5/8"), Gateway: addr("::ffff:10.0.0.1")}}}
		out := nstest.Must(r.Encode(cni.Newest))
		Expect(string(out)).To(ContainSubstring(`"gateway": "10.0.0.1"`))
	})

	It("has clones that can be changed independently", func() {
		c := richResult()
		d := c.Clone()
		d.Interfaces[0].Name, d.IPs[1].Gateway, d.IPs[0].Interface, d.Routes[1].MTU = "x", netip.Addr{}, nil, 9
		Expect(c).To(Equal(richResult()))
	})

	It("returns prefixes and gateways", func() {
		r := richResult()
		Expect(cni.Addresses(r.IPs)).To(HaveExactElements(prefix("10.244.0.5/24"), prefix("fd00::5/64"),
			prefix("192.0.2.9/32"), prefix("fd01::9/128")))
		Expect(r.Gateway(true)).To(Equal(addr("10.244.0.1")))
		Expect(r.Gateway(false)).To(Equal(addr("fd00::1")))
		Expect(l2Result().Gateway(true).IsValid()).To(BeFalse())
		late := cni.Result{IPs: []cni.IP{{Address: prefix("fd00::5/64")},
			{Address: prefix("fd01::5/64"), Gateway: addr("fd01::1")}}}
		Expect(late.Gateway(false)).To(Equal(addr("fd01::1")))
	})

	It("returns the addresses of the container's interface", func() {
		r := richResult()
		eth0, ok := r.ContainerInterface("eth0")
		Expect(ok).To(BeTrue())
		Expect(eth0).To(Equal(r.Interfaces[2]))
		_, ok = r.ContainerInterface("cni0")
		Expect(ok).To(BeFalse(), "it is on the host")
		Expect(cni.Addresses(r.ContainerIPs("eth0"))).To(HaveExactElements(prefix("10.244.0.5/24"),
			prefix("fd00::5/64"), prefix("fd01::9/128")))
		r.Interfaces[2].Sandbox = ""
		Expect(cni.Addresses(r.ContainerIPs("eth0"))).To(HaveExactElements(prefix("fd01::9/128")))
		Expect((*cni.Result)(nil).ContainerIPs("eth0")).To(BeEmpty())
	})
})

// asFar returns the parts of a result that a version can contain.
func asFar(r *cni.Result, version string) *cni.Result {
	r = r.Clone()
	old := strings.HasPrefix(version, "0.")
	for i := range r.Interfaces {
		if old {
			r.Interfaces[i].MTU, r.Interfaces[i].SocketPath, r.Interfaces[i].PCIID = 0, "", ""
		}
	}
	if version != "0.1.0" && version != "0.2.0" {
		return r
	}
	out := &cni.Result{DNS: r.DNS}
	for _, v4 := range []bool{true, false} {
		for _, ip := range r.IPs {
			if ip.Address.Addr().Is4() != v4 {
				continue
			}
			ip.Interface = nil
			out.IPs = append(out.IPs, ip)
			for _, route := range r.Routes {
				if route.Dst.Addr().Is4() == v4 {
					out.Routes = append(out.Routes, cni.Route{Dst: route.Dst, GW: route.GW})
				}
			}
			break
		}
	}
	return out
}

// Examples of the specification, and results of the reference plugins.
const (
	specIPAM = `{"ips": [{"address": "10.1.0.5/16", "gateway": "10.1.0.1"}],
		"routes": [{"dst": "0.0.0.0/0"}], "dns": {"nameservers": ["10.1.0.1"]}}`
	specBridge = `{"ips": [{"address": "10.1.0.5/16", "gateway": "10.1.0.1", "interface": 2}],
		"routes": [{"dst": "0.0.0.0/0"}],
		"interfaces": [{"name": "cni0", "mac": "00:11:22:33:44:55"}, {"name": "veth3243", "mac": "55:44:33:22:11:11"},
			{"name": "eth0", "mac": "99:88:77:66:55:44", "sandbox": "/var/run/netns/blue"}],
		"dns": {"nameservers": ["10.1.0.1"]}}`
	schemaExample = `{"cniVersion": "1.0.0", 
		"interfaces": [{"name": "cni0", "mac": "0a:58:0a:f4:00:01", "sandbox": ""}],
		"ips": [{"address": "10.244.0.5/24", "gateway": "10.244.0.1", "interface": 0}],
		"routes": [{"dst": "0.0.0.0/0", "gw": "10.244.0.1"}], "dns": {"options": ["ndots:5"]}}`
	reference03 = `{"cniVersion": "0.3.1",
		"interfaces": [{"name": "eth0", "mac": "0a:58:0a:f4:00:03", "sandbox": "/x"}],
		"ips": [{"version": "4", "interface": 0, "address": "10.1.2.3/24", "gateway": "10.1.2.1"},
			{"version": "6", "address": "fd00::3/64"}],
		"routes": [{"dst": "0.0.0.0/0", "mtu": 1400, "table": 0, "scope": 253}], "dns": {}}`
	reference02 = `{"cniVersion": "0.2.0",
		"ip4": {"ip": "10.1.2.3/24", "gateway": "10.1.2.1", "routes": [{"dst": "0.0.0.0/0"}]},
		"ip6": {"ip": "fd00::3/64", "routes": [{"dst": "::/0", "gw": "fd00::1"}]}, "dns": {"domain": "x.org"}}`
)

var _ = Describe("DecodeResult", func() {
	DescribeTable("decodes results of other programs", func(doc, version string, want *cni.Result) {
		got := nstest.Must(cni.DecodeResult([]byte(doc), version))
		Expect(got).To(Equal(want))
	},
		Entry("the specification's IPAM answer", specIPAM, "1.0.0", &cni.Result{
			IPs:    []cni.IP{{Address: prefix("10.1.0.5/16"), Gateway: addr("10.1.0.1")}},
			Routes: []cni.Route{{Dst: prefix("0.0.0.0/0")}}, DNS: cni.DNS{Nameservers: []string{"10.1.0.1"}}}),
		Entry("the specification's bridge answer", specBridge, "1.0.0", &cni.Result{
			Interfaces: []cni.Interface{{Name: "cni0", MAC: "00:11:22:33:44:55"},
				{Name: "veth3243", MAC: "55:44:33:22:11:11"},
				{Name: "eth0", MAC: "99:88:77:66:55:44", Sandbox: "/var/run/netns/blue"}},
			IPs:    []cni.IP{{Address: prefix("10.1.0.5/16"), Gateway: addr("10.1.0.1"), Interface: ptr(2)}},
			Routes: []cni.Route{{Dst: prefix("0.0.0.0/0")}}, DNS: cni.DNS{Nameservers: []string{"10.1.0.1"}}}),
		Entry("the schema's example", schemaExample, "0.1.0", &cni.Result{
			Interfaces: []cni.Interface{{Name: "cni0", MAC: "0a:58:0a:f4:00:01"}},
			IPs:        []cni.IP{{Address: prefix("10.244.0.5/24"), Gateway: addr("10.244.0.1"), Interface: ptr(0)}},
			Routes: []cni.Route{{Dst: prefix("0.0.0.0/0"),
				GW: addr("10.244.0.1")}}, DNS: cni.DNS{Options: []string{"ndots:5"}}}),
		Entry("a reference plugin at 0.3.1", reference03, "1.1.0", &cni.Result{
			Interfaces: []cni.Interface{{Name: "eth0", MAC: "0a:58:0a:f4:00:03", Sandbox: "/x"}},
			IPs: []cni.IP{{Address: prefix("10.1.2.3/24"), Gateway: addr("10.1.2.1"), Interface: ptr(0)},
				{Address: prefix("fd00::3/64")}},
			Routes: []cni.Route{{Dst: prefix("0.0.0.0/0"), MTU: 1400, Table: ptr[uint32](0), Scope: ptr(253)}}}),
		Entry("a reference plugin at 0.2.0", reference02, "1.1.0", &cni.Result{
			IPs: []cni.IP{{Address: prefix("10.1.2.3/24"), Gateway: addr("10.1.2.1")},
				{Address: prefix("fd00::3/64")}},
			Routes: []cni.Route{{Dst: prefix("0.0.0.0/0")}, {Dst: prefix("::/0"), GW: addr("fd00::1")}},
			DNS:    cni.DNS{Domain: "x.org"}}),
		Entry("a result without a version, in the given version",
			`{"ip4": {"ip": "10.1.2.3/24"}}`, "0.2.0", &cni.Result{IPs: []cni.IP{{Address: prefix("10.1.2.3/24")}}}),
		Entry("a result without any version, in the oldest version",
			`{"ip4": {"ip": "10.1.2.3/24"}}`, "", &cni.Result{IPs: []cni.IP{{Address: prefix("10.1.2.3/24")}}}),
		Entry("numbers of 32 bits",
			`{"routes": [{"dst": "10.0.0.0/8", "priority": 4294967295, "table": 4294967295}]}`, "1.0.0",
			&cni.Result{Routes: []cni.Route{{Dst: prefix("10.0.0.0/8"), Priority: 4294967295,
				Table: ptr[uint32](4294967295)}}}),
		Entry("keys in any case",
			`{"CNIVERSION": "1.0.0", "IPs": [{"Address": "10.1.2.3/24", "GateWay": "10.1.2.1"}]}`, "0.1.0",
			&cni.Result{IPs: []cni.IP{{Address: prefix("10.1.2.3/24"), Gateway: addr("10.1.2.1")}}}),
		Entry("null", `null`, "1.0.0", &cni.Result{}),
		Entry("an empty object", `{}`, "1.0.0", &cni.Result{}),
		Entry("nulls and empty texts",
			`{"ips": [{"address": "10.1.2.3/24", "gateway": "", "interface": null}],
				"routes": null, "dns": null}`, "1.0.0",
			&cni.Result{IPs: []cni.IP{{Address: prefix("10.1.2.3/24")}}}),
		Entry("an index of -1, which means none", `{"ips": [{"address": "10.1.2.3/24", "interface": -1}]}`, "1.0.0",
			&cni.Result{IPs: []cni.IP{{Address: prefix("10.1.2.3/24")}}}),
		Entry("an IPv4-mapped address as IPv4",
			`{"ips": [{"address": "::ffff:10.1.2.3/120", "gateway": "::ffff:10.1.2.1"}]}`, "1.0.0",
			&cni.Result{IPs: []cni.IP{{Address: prefix("10.1.2.3/24"), Gateway: addr("10.1.2.1")}}}),
		Entry("unknown keys, which are ignored",
			`{"cniVersion": "1.1.0", "x": [1], "ips": [{"address": "10.1.2.3/24", "y": {}}]}`, "1.0.0",
			&cni.Result{IPs: []cni.IP{{Address: prefix("10.1.2.3/24")}}}),
	)

	DescribeTable("returns the key and the value that it cannot decode",
		func(doc, version string, code uint, message string) {
			_, err := cni.DecodeResult([]byte(doc), version)
			Expect(err).To(MatchError(message))
			Expect(cni.AsError(err).Code).To(Equal(code))
		},
		Entry("nothing", ``, "1.0.0", cni.CodeDecode, "result: invalid JSON at byte 0: unexpected end of JSON input"),
		Entry("text", `hello`, "1.0.0", cni.CodeDecode,
			"result: invalid JSON at byte 1: invalid character 'h' looking for beginning of value"),
		Entry("two documents", `{}{}`, "1.0.0", cni.CodeDecode,
			"result: invalid JSON at byte 3: invalid character '{' after top-level value"),
		Entry("a list", `[]`, "1.0.0", cni.CodeDecode, "result: is a JSON array, want an object"),
		Entry("ips of another type", `{"ips": 5}`, "1.0.0", cni.CodeDecode,
			"result: ips: is a JSON number, want an array"),
		Entry("a version of another type", `{"cniVersion": 1.0}`, "1.0.0", cni.CodeDecode,
			"result: cniVersion: is a JSON number, want a string"),
		Entry("an unknown version", `{"cniVersion": "2.0.0"}`, "1.0.0", cni.CodeIncompatibleVersion,
			`result: cniVersion: "2.0.0" is not one of 0.1.0, 0.2.0, 0.3.0, 0.3.1, 0.4.0, 1.0.0, 1.1.0`),
		Entry("an unknown given version", `{}`, "1.0", cni.CodeIncompatibleVersion,
			`result: cniVersion: "1.0" is not one of 0.1.0, 0.2.0, 0.3.0, 0.3.1, 0.4.0, 1.0.0, 1.1.0`),
		Entry("no address", `{"ips": [{"address": "10.0.0.1/8"}, {}]}`, "0.4.0", cni.CodeDecode,
			`result: ips[1].address: "" is not an address in CIDR notation`),
		Entry("an address without length", `{"ips": [{"address": "10.0.0.1"}]}`, "1.0.0", cni.CodeDecode,
			`result: ips[0].address: "10.0.0.1" is not an address in CIDR notation`),
		Entry("a bad gateway", `{"ips": [{"address": "10.0.0.1/8", "gateway": "10.0.0.1/8"}]}`, "1.0.0",
			cni.CodeDecode, `result: ips[0].gateway: "10.0.0.1/8" is not an IP address`),
		Entry("a negative index", `{"ips": [{"address": "10.0.0.1/8", "interface": -2}]}`, "1.0.0", cni.CodeDecode,
			`result: ips[0].interface: -2 is not an index`),
		Entry("a bad ip4", `{"ip4": {"ip": "x"}}`, "0.1.0", cni.CodeDecode,
			`result: ip4.ip: "x" is not an address in CIDR notation`),
		Entry("a route without destination", `{"routes": [{"gw": "10.0.0.1"}]}`, "1.0.0", cni.CodeDecode,
			`result: routes[0].dst: missing`),
		Entry("a bad gw", `{"routes": [{"dst": "10.0.0.0/8", "gw": "me"}]}`, "1.0.0", cni.CodeDecode,
			`result: routes[0].gw: "me" is not an IP address`),
		Entry("a negative mtu", `{"routes": [{"dst": "10.0.0.0/8", "mtu": -1}]}`, "1.0.0", cni.CodeDecode,
			`result: routes[0].mtu: -1 is not between 0 and 2147483647`),
		Entry("a priority of 33 bits", `{"routes": [{"dst": "10.0.0.0/8", "priority": 4294967296}]}`, "1.0.0",
			cni.CodeDecode, `result: routes[0].priority: 4294967296 is not a whole number between 0 and 4294967295`),
		Entry("a scope of 9 bits", `{"routes": [{"dst": "10.0.0.0/8", "scope": 256}]}`, "1.0.0", cni.CodeDecode,
			`result: routes[0].scope: 256 is not between 0 and 255`),
	)
})

var _ = Describe("Error", func() {
	DescribeTable("is encoded in every version", each(func(version string) {
		e := cni.Errorf(cni.CodeConfig, "mtu: %d <too> small & odd", 5)
		e.Details = "more\nto say"
		Expect(string(e.Encode(version))).To(Equal(`{
    "cniVersion": "` + version + `",
    "code": 7,
    "msg": "mtu: 5 <too> small & odd",
    "details": "more\nto say"
}`))
		back, ok := cni.DecodeError(e.Encode(version))
		Expect(ok).To(BeTrue())
		Expect([]any{back.Code, back.Msg, back.Details}).To(Equal([]any{uint(7), e.Msg, e.Details}))
	})...)

	It("distinguishes text of another program from its own, even if wrapped and joined", func() {
		back, _ := cni.DecodeError(cni.Errorf(7, "x").Encode("1.0.0"))
		own := cni.Errorf(11, "y")
		for _, err := range []error{
			back, fmt.Errorf("ipam: %w", back), errors.Join(own, back), cni.Errorf(5, "z: %w", back),
		} {
			Expect(cni.AsError(err).IsQuoted()).To(BeTrue(), "%v", err)
		}
		Expect(cni.AsError(errors.Join(own, errors.New("z"))).IsQuoted()).To(BeFalse())
	})

	It("need not have details", func() {
		Expect(string(cni.Errorf(11, "x").Encode("1.0.0"))).NotTo(ContainSubstring("details"))
	})

	It("wraps its causes", func() {
		e := cni.Errorf(cni.CodeIO, "file %q: %w", "f", fs.ErrExist)
		Expect(errors.Is(e, fs.ErrExist)).To(BeTrue())
		Expect(e.Error()).To(Equal(`file "f": file already exists`))
		e = cni.Errorf(cni.CodeIO, "%w, %w", fs.ErrClosed, fs.ErrInvalid)
		Expect(errors.Is(e, fs.ErrClosed)).To(BeTrue())
		Expect(errors.Is(e, fs.ErrInvalid)).To(BeTrue())
	})

	inner := &cni.Error{Code: 11, Msg: "busy", Details: "by 17"}
	DescribeTable("is converted from any error", func(err error, want cni.Error) {
		got := cni.AsError(err)
		Expect(cni.Error{Code: got.Code, Msg: got.Msg, Details: got.Details}).To(Equal(want))
		Expect(errors.Is(got, err)).To(BeTrue())
	},
		Entry("itself", inner, *inner),
		Entry("wrapped: its code and details, the outer message", fmt.Errorf("lease: %w", inner),
			cni.Error{Code: 11, Msg: "lease: busy", Details: "by 17"}),
		Entry("joined", errors.Join(errors.New("other"), inner),
			cni.Error{Code: 11, Msg: "other\nbusy", Details: "by 17"}),
		Entry("wrapped in one with another code", cni.Errorf(102, "answer: %w", inner),
			cni.Error{Code: 102, Msg: "answer: busy: by 17"}),
		Entry("wrapped, without details", fmt.Errorf("lease: %w", &cni.Error{Code: 11, Msg: "busy: "}),
			cni.Error{Code: 11, Msg: "lease: busy: "}),
		Entry("an error of a file", &fs.PathError{Op: "open", Path: "/x", Err: fs.ErrNotExist},
			cni.Error{Code: 5, Msg: "open /x: file does not exist"}),
		Entry("any other", errors.New("oops"), cni.Error{Code: 999, Msg: "oops"}),
	)

	It("is nil for nil", func() { Expect(cni.AsError(nil)).To(BeNil()) })

	It("never has code 0, which would mean success", func() {
		Expect(cni.AsError(&cni.Error{Msg: "x"}).Code).To(Equal(cni.CodeInternal))
		e, ok := cni.DecodeError([]byte(`{"code": 0, "msg": "x"}`))
		Expect(ok).To(BeTrue())
		Expect(e.Code).To(Equal(cni.CodeInternal))
	})

	DescribeTable("is not decoded from other documents", func(doc string) {
		_, ok := cni.DecodeError([]byte(doc))
		Expect(ok).To(BeFalse())
	},
		Entry("nothing", ""), Entry("text", "panic: x"), Entry("null", "null"), Entry("a list", "[]"),
		Entry("a result", `{"cniVersion": "1.0.0", "ips": []}`), Entry("a code that is text",
			`{"code": "7", "msg": "x"}`),
		Entry("a negative code", `{"code": -1, "msg": "x"}`), Entry("two documents", `{"code": 7}{"code": 7}`),
	)
})

// keyed is a configuration with a value of each type.
type keyed struct {
	Name  string   `json:"name"`
	MTU   int      `json:"mtu"`
	Up    bool     `json:"up"`
	Names []string `json:"names"`
	Trunk []struct {
		ID *int `json:"id"`
	} `json:"trunk"`
	IPAM struct {
		Ranges [][]struct {
			Subnet string `json:"subnet"`
		} `json:"ranges"`
	} `json:"ipam"`
}

func lines(err error) []string {
	var out []string
	for _, p := range cni.ProblemsOf(err) {
		line := p.String()
		if p.Suggestion != "" {
			line += " -> " + p.Suggestion
		}
		out = append(out, line)
	}
	return out
}

var _ = Describe("Problems", func() {
	It("contain the first value of the wrong type with its path, and other values are decoded", func() {
		wire := keyed{Name: "default"}
		err := cni.Unmarshal([]byte(`{"names": ["a", "b"], "trunk": [{"id": 1}, {"id": "2"}, {"id": 3}],
			"MTU": "1400"}`), &wire)
		Expect(lines(err)).To(HaveExactElements(`trunk[1].id: is a JSON string, want a whole number`))
		Expect(wire.Name).To(Equal("default"))
		Expect(wire.Names).To(Equal([]string{"a", "b"}))
		Expect(*wire.Trunk[2].ID).To(Equal(3))
	})

	It("become one error with code and message of the first, and the others as details", func() {
		var all cni.Problems
		Expect(all.Err()).To(Succeed())
		all.Add(nil)
		Expect(all.Err()).To(Succeed())
		all.Add(cni.Refuse("mtu", 5, "is too small").Suggest("use %d", 68))
		all.Add(fmt.Errorf("vlan: %w", errors.New("boom")))
		all.Add(cni.Errorf(cni.CodeEnvironment, "CNI_ARGS: unknown keys A"))
		all.Add(cni.Refuse("ipam.type", nil, "missing"))
		all.Add(cni.Refuse("bridge", "a b", "is no name"))
		all.Add(cni.Refuse("port", json.RawMessage("[1]"), "is no number"))
		e := cni.AsError(all.Err())
		Expect([]any{e.Code, e.Msg}).To(HaveExactElements(cni.CodeConfig, "mtu: 5 is too small"))
		Expect(e.Details).To(Equal(`vlan: boom; CNI_ARGS: unknown keys A; ipam.type: missing; ` +
			`bridge: "a b" is no name; port: [1] is no number`))
		Expect(lines(e)[0]).To(Equal("mtu: 5 is too small -> use 68"))
		codes := []uint{}
		for _, p := range cni.ProblemsOf(e) {
			codes = append(codes, p.Code)
		}
		Expect(codes).To(HaveExactElements(cni.CodeConfig, cni.CodeInternal, cni.CodeEnvironment, cni.CodeConfig,
			cni.CodeConfig, cni.CodeConfig))
	})

	DescribeTable("are not repeated for a value", func(first, second string, both bool) {
		var all cni.Problems
		all.Add(cni.Refuse(first, 1, "is bad"))
		all.Add(cni.Refuse(second, 2, "is bad too"))
		Expect(cni.ProblemsOf(all.Err())).To(HaveLen(map[bool]int{true: 2, false: 1}[both]))
	},
		Entry("the same", "ipam.type", "ipam.type", false),
		Entry("the same in another case", "IPAM.type", "ipam.Type", false),
		Entry("a value inside of it", "ipam", "ipam.type", false),
		Entry("an element of it", "trunk", "trunk[1].id", false),
		Entry("a value that contains it", "trunk[1].id", "trunk[1]", true),
		Entry("a longer name", "mtu", "mtus", true),
		Entry("another value", "ipam.a", "ipam.b", true),
		Entry("no key", "", "", true),
	)

	It("of any other error consist of this error", func() {
		Expect(cni.ProblemsOf(nil)).To(BeEmpty())
		Expect(cni.ProblemsOf(errors.New("x"))).To(Equal([]cni.Problem{{Code: cni.CodeInternal, Reason: "x"}}))
	})
})

// FuzzResult: a decoded result can be encoded in every version, and is the same when it is decoded again.
func FuzzResult(f *testing.F) {
	for _, doc := range []string{specIPAM, specBridge, schemaExample, reference03, reference02, `null`,
		`{"ips":[{"address":"::ffff:1.2.3.4/96"}]}`} {
		for _, v := range []string{"0.2.0", "0.4.0", "1.1.0"} {
			f.Add([]byte(doc), v)
		}
	}
	f.Fuzz(func(t *testing.T, doc []byte, version string) {
		first, err := cni.DecodeResult(doc, version)
		if err != nil {
			if code := cni.AsError(err).Code; code != cni.CodeDecode && code != cni.CodeIncompatibleVersion {
				t.Fatalf("code %d: %v", code, err)
			}
			return
		}
		for _, v := range cni.Versions() {
			out, err := first.Clone().Encode(v)
			if err != nil {
				t.Fatalf("%s: read but not written: %v", v, err)
			}
			second, err := cni.DecodeResult(out, "")
			if err != nil {
				t.Fatalf("%s: written but not read: %v\n%s", v, err, out)
			}
			again, err := second.Encode(v)
			if err != nil || string(again) != string(out) {
				t.Fatalf("%s: %v\n%s\n%s", v, err, out, again)
			}
		}
	})
}

// FuzzArgs: no value is lost, and no value is in a message.
func FuzzArgs(f *testing.F) {
	for _, s := range []string{"", "IP=10.0.0.5", "IgnoreUnknown=1;K8S_POD_NAME=a=b;;", "ip=x;IP=y", "FOO=BAR",
		"x;=;IgnoreUnknown=2"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, args string) {
		const secret = "\u2603hunter2"
		if strings.Contains(args, secret) || !utf8.ValidString(args) {
			return
		}
		if _, err := cni.ParseArgs(args+";SECRET="+secret, "IP"); err != nil {
			if cni.AsError(err).Code != cni.CodeEnvironment || strings.Contains(err.Error(), secret) {
				t.Fatalf("%q: %v", args, err)
			}
		}
		values, err := cni.ParseArgs(args+";ip="+secret, "IP")
		if err == nil && values["IP"] != secret {
			t.Fatalf("%q: %q", args, values)
		}
		if err != nil && strings.Contains(err.Error(), secret) {
			t.Fatalf("%q: %v", args, err)
		}
	})
}

// FuzzMark: a mark is short enough, and only its attachment and its network own it.
func FuzzMark(f *testing.F) {
	f.Add("net1", "c1", "eth0", "net2")
	f.Add(long, long, "a\"b", long+"x")
	f.Fuzz(func(t *testing.T, network, id, ifname, other string) {
		if !cni.ValidName(network) || !cni.ValidName(id) || !cni.ValidIfName(ifname) || !cni.ValidName(other) {
			return
		}
		a := cni.Attachment{Network: network, ContainerID: id, IfName: ifname}
		mark := a.Mark()
		if len(mark) > 128 || !a.Owns(mark) || strings.ContainsAny(mark, "\"\n\\") {
			t.Fatalf("%q", mark)
		}
		read, ok := cni.ParseMark(mark)
		whole := len(mark) < 128 && len(network) <= 64 && !strings.Contains(mark, "?")
		if !ok || whole && read != a || !(cni.Holding{Attachment: read}).BelongsTo(network) ||
			(cni.Holding{Attachment: read}).BelongsTo(other) != (other == network) {
			t.Fatalf("%q: read as %+v, %v", mark, read, ok)
		}
		if networkOwns(other, mark) != (other == network) {
			t.Fatalf("%q: owner %q or %q", mark, network, other)
		}
	})
}

// FuzzUnmarshal: there is an error if and only if the decoder has one, and it has a code.
func FuzzUnmarshal(f *testing.F) {
	for _, seed := range []string{`{"mtu":"1","trunk":[{"id":[]},{}]}`, `{"a":[{"id":1,"x":"\u0000"}`, `[1]`,
		`{"IPAM":{"ranges":[[{"subnet":{}}]]}}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		plain, err := json.Unmarshal(data, new(keyed)), cni.Unmarshal(data, new(keyed))
		if (plain == nil) != (err == nil) || err != nil && cni.AsError(err).Code == cni.CodeInternal {
			t.Fatalf("%q: decoder %v, Unmarshal %v", data, plain, err)
		}
	})
}

// FuzzConfig: any text is decoded or refused, and no value of an unknown key is in a message.
func FuzzConfig(f *testing.F) {
	for _, conf := range []string{
		`{"cniVersion":"1.1.0","name":"n","type":"t","ipam":{"type":"i"},
			"prevResult":{"ips":[{"address":"10.1.0.2/24","gateway":"10.1.0.1"}]},
			"cni.dev/valid-attachments":[{"containerID":"c","ifname":"e"}]}`,
		`{"name":7,"ipam":[],"prevResult":{"cniVersion":"0.2.0","ip4":{"ip":"x"}},
			"cni.dev/valid-attachments":null,"cni.dev/attachments":[{"secret":"x"}]}`,
		`{"NAME":{"a":[[1e999]]},"type":null,"prevResult":7,"cni.dev/attachments":[{"containerID":""}]}`,
	} {
		f.Add([]byte(conf))
	}
	f.Fuzz(func(t *testing.T, conf []byte) {
		const secret = "\u2603hunter2"
		conf = bytes.ReplaceAll(conf, []byte("secret"), []byte(`secret":"`+secret+`","x`))
		c, err := cni.DecodeConfig(conf)
		_, prevErr := c.PrevResult()
		refs, _, validErr := c.ValidAttachments()
		cni.NewSet(c.Name, refs).HasContainer("x")
		for _, err := range []error{err, prevErr, validErr} {
			if err == nil {
				continue
			}
			e := cni.AsError(err)
			if e.Code != cni.CodeConfig && e.Code != cni.CodeDecode {
				t.Fatalf("code %d: %v", e.Code, err)
			}
			if strings.Contains(e.Error(), secret) {
				t.Fatal(err)
			}
			e.Encode("1.1.0")
		}
	})
}
