package cni_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/hawser-cni/plugins/pkg/cni"
)

// FuzzResult: what can be read can be written in every version, and reads back the same.
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

// FuzzArgs: a value is never lost, and never in a message.
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
		if networkOwns(other, mark) != (other == network) {
			t.Fatalf("%q: owner %q or %q", mark, network, other)
		}
	})
}

// FuzzUnmarshal: an error exactly where the decoder has one, with a code of its own.
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

// FuzzConfig: whatever is sent is read or refused, and no value of a key that nobody knows is in a message.
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
		cni.NewSet(c.Name, refs).All()
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

// FuzzError: what is taken for an error object has a code, and reads back the same.
func FuzzError(f *testing.F) {
	f.Add([]byte(`{"cniVersion":"1.1.0","code":11,"msg":"later","details":"pool"}`))
	f.Add([]byte(`{"code":0,"msg":"\u0000"}`))
	f.Add([]byte(`{"code":-1}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		e, ok := cni.DecodeError(data)
		if !ok {
			return
		}
		again, ok := cni.DecodeError(e.Encode("1.1.0"))
		if !ok || e.Code == 0 || again.Code != e.Code || again.Msg != e.Msg || again.Details != e.Details {
			t.Fatalf("%q: %+v, %+v", data, e, again)
		}
	})
}
