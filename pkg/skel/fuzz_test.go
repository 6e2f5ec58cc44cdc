package skel_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"strings"
	"testing"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest/plugintest"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// FuzzRun: whatever environment and input, a call never panics and prints exactly one JSON value when it fails,
// a result when ADD succeeds and nothing when any other succeeds.
func FuzzRun(f *testing.F) {
	for _, command := range []string{"ADD", "DEL", "CHECK", "GC", "STATUS", "VERSION", "", "FOO"} {
		for _, conf := range []string{conf1, confPrev,
			`{"cniVersion":"1.1.0","name":"n","cni.dev/valid-attachments":null,"dns":{"serch":[]}}`, "x", ""} {
			f.Add(command, "c1", "/proc/self/ns/net", "eth0", "IP=x", []byte(conf))
		}
	}
	f.Fuzz(func(t *testing.T, command, id, netns, ifname, args string, conf []byte) {
		plugin := probe(func(r *skel.Request) error {
			r.OnFail("nothing", func(context.Context) error { return nil })
			var own wireConfig
			if err := r.Decode(&own); err != nil {
				return err
			}
			_, err := cni.ParseArgs(r.Args, "IP")
			return err
		})
		plugin.Keys, plugin.IPAM = wireConfig{}, true
		var out, errs bytes.Buffer
		code := skel.Run(context.Background(), plugin, skel.Env{
			Vars: []string{"CNI_COMMAND=" + command, "CNI_CONTAINERID=" + id, "CNI_NETNS=" + netns,
				"CNI_IFNAME=" + ifname, "CNI_ARGS=" + args},
			Stdin: bytes.NewReader(conf), Stdout: &out, Stderr: &errs,
		})
		a := plugintest.Answer{Code: code, Stdout: out.String(), Stderr: errs.String()}
		if err := a.Verdict(command); err != nil {
			t.Fatalf("%s: status %d: %v\n%s%s", command, code, err, &out, &errs)
		}
	})
}

// FuzzCheckConfig: --check-config always answers, with status 2 for what is no JSON object or null.
func FuzzCheckConfig(f *testing.F) {
	for _, seed := range []string{conf1, list(probeEntry),
		`{"plugins":[{"type":"probe","vlanTrunk":[{"id":-1},7]},{"type":5},[]],"name":[]}`, `{"plugins":{"a":1}`} {
		f.Add([]byte(seed), false)
		f.Add([]byte(seed), true)
	}
	f.Fuzz(func(t *testing.T, conf []byte, ipam bool) {
		plugin := picky()
		plugin.IPAM = ipam
		var out bytes.Buffer
		code := skel.Run(context.Background(), plugin, skel.Env{
			Args: []string{"--check-config"}, Stdin: bytes.NewReader(conf), Stdout: &out, Stderr: io.Discard})
		var object map[string]any
		switch unreadable := json.Unmarshal(conf, &object) != nil; {
		case unreadable && code != 2,
			strings.Contains("\n"+out.String(), "\nerror: ") != (code == 1 || code == 2),
			!strings.Contains("\n"+out.String(), "\nprobe: "):
			t.Fatalf("status %d: %s", code, out.String())
		}
	})
}
