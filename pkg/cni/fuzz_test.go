package cni_test

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/hawser-cni/plugins/pkg/cni"
)

// FuzzResult: what can be read can be written in every version, and reads back
// the same.
func FuzzResult(f *testing.F) {
	for _, doc := range []string{specIPAM, specBridge, schemaExample, reference03, reference02, `null`, `{"ips":[{"address":"::ffff:1.2.3.4/96"}]}`} {
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

// FuzzArgs: a value is never lost, and never in a message.
func FuzzArgs(f *testing.F) {
	for _, s := range []string{"", "IP=10.0.0.5", "IgnoreUnknown=1;K8S_POD_NAME=a=b;;", "ip=x;IP=y", "FOO=BAR", "x;=;IgnoreUnknown=2"} {
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

// FuzzMark: a mark fits, is owned by who wrote it and by its network alone.
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
		if cni.NetworkOwns(other, mark) != (other == network) {
			t.Fatalf("%q: owner %q or %q", mark, network, other)
		}
	})
}

// FuzzUnmarshal: the search for all wrong values ends, and finds one exactly
// where the decoder does.
func FuzzUnmarshal(f *testing.F) {
	for _, seed := range []string{`{"mtu":"1","trunk":[{"id":[]},{}]}`, `{"a":[{"id":1,"x":"\u0000"}`, `[1]`, `{"IPAM":{"ranges":[[{"subnet":{}}]]}}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		plain, err := json.Unmarshal(data, new(keyed)), cni.Unmarshal(data, new(keyed))
		if (plain == nil) != (err == nil) {
			t.Fatalf("%q: decoder %v, Unmarshal %v", data, plain, err)
		}
	})
}
