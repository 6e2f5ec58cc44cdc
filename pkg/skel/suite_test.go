package skel_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/netip"
	"os"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/nstest/plugintest"
	"github.com/hawser-cni/plugins/pkg/skel"
)

func TestMain(m *testing.M) {
	if mode := os.Getenv(modeEnv); mode != "" {
		skel.Main(processPlugin(mode))
	}
	for _, arg := range os.Args[1:] {
		if strings.HasPrefix(arg, "-test.fuzz") { // its workers speak over inherited descriptors
			os.Exit(m.Run())
		}
	}
	nstest.Main(m)
}

func TestSkel(t *testing.T) { nstest.RunSpecs(t, "pkg/skel") }

// request is a call of a plugin; its fields are what a runtime would give.
type request struct {
	command, id, netns, ifname string
	more                       []string // further variables
	args                       []string
	conf                       string
	stdin                      io.Reader // instead of conf
}

func (r request) vars() []string {
	vars := []string{"PATH=/bin", "CNI_PATH=/opt/cni/bin"}
	for key, value := range map[string]string{"CNI_COMMAND": r.command, "CNI_CONTAINERID": r.id, "CNI_NETNS": r.netns,
		"CNI_IFNAME": r.ifname} {
		if value != "" {
			vars = append(vars, key+"="+value)
		}
	}
	return append(vars, r.more...)
}

// answer is what came of a call.
type answer struct {
	code           int
	stdout, stderr string
}

func (r request) run(p skel.Plugin[any]) answer {
	return r.runIn(context.Background(), p)
}

func (r request) runIn(ctx context.Context, p skel.Plugin[any]) answer {
	var out, errs bytes.Buffer
	stdin := r.stdin
	if stdin == nil {
		stdin = strings.NewReader(r.conf)
	}
	code := skel.Run(ctx, p, skel.Env{Args: r.args, Vars: r.vars(), Stdin: stdin, Stdout: &out, Stderr: &errs})
	return answer{code, out.String(), errs.String()}
}

type object = map[string]any

// document is the one JSON document on stdout.
func (a answer) document() object {
	GinkgoHelper()
	var doc object
	d := json.NewDecoder(strings.NewReader(a.stdout))
	Expect(d.Decode(&doc)).To(Succeed(), "stdout %q, stderr %q", a.stdout, a.stderr)
	Expect(d.Decode(new(any))).To(MatchError(io.EOF), "more than one document: %s", a.stdout)
	return doc
}

// expectError checks that the answer is one error object.
func (a answer) expectError(code uint, message any) object {
	GinkgoHelper()
	doc := a.document()
	Expect(a.code).To(Equal(1))
	Expect(doc).To(HaveKeyWithValue("code", BeEquivalentTo(code)), a.stdout)
	Expect(doc).To(HaveKey("cniVersion"))
	if text, ok := message.(string); ok {
		message = Equal(text)
	}
	Expect(doc).To(HaveKeyWithValue("msg", message))
	return doc
}

func (a answer) expectSilence() {
	GinkgoHelper()
	Expect(a).To(Equal(answer{}))
}

const conf1 = `{"cniVersion": "1.1.0", "name": "net1", "type": "probe"}`

var errHandler = errors.New("the handler was called")

// probe is a plugin whose handlers all run fn.
func probe(fn func(*skel.Request) error) skel.Plugin[any] {
	handler := func(_ context.Context, r *skel.Request) error { return fn(r) }
	return skel.Plugin[any]{
		Name: "probe", About: "does nothing",
		Add: func(_ context.Context, r *skel.Request, _ any) (*cni.Result, error) { return oneAddress(), fn(r) },
		Del: handler, Check: parsed(handler), GC: handler, Status: parsed(handler),
	}
}

// parsed is a handler that ignores the parsed configuration.
func parsed(handler func(context.Context, *skel.Request) error) func(context.Context, *skel.Request, any) error {
	return func(ctx context.Context, r *skel.Request, _ any) error { return handler(ctx, r) }
}

// forbidden is a plugin whose handlers must not be reached.
func forbidden() skel.Plugin[any] { return probe(func(*skel.Request) error { return errHandler }) }

func oneAddress() *cni.Result {
	return &cni.Result{IPs: []cni.IP{{Address: netip.MustParsePrefix("10.0.0.5/24")}}}
}

// attach is a call with everything that an attachment needs, in an own netns.
func attach(command string) request {
	GinkgoHelper()
	return request{command: command, id: "c1", netns: nstest.NewNetns().Path, ifname: "eth0", conf: conf1}
}

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
