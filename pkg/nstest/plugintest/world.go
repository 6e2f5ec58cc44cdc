// Package plugintest runs one plugin as a runtime would, on a host of package nstest, with an IPAM plugin that
// does as the spec says. Tests import it, and nothing else.
package plugintest

import (
	"context"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"strings"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// Object is a JSON object.
type Object = map[string]any

// World is a throw-away host on which plugins are called: one, in this process, with an IPAM plugin that does
// as the spec says ([NewWorld]), or whole lists of programs for its pods ([NewNode]).
type World struct {
	*nstest.Host
	Dir    string           // CNI_PATH
	Plugin skel.Plugin[any] // the one

	// For lists:
	Version string   // of configurations; the newest when empty
	Env     []string // of the programs, beside that of the protocol
	// Before are commands of bash that run before each plugin, in its process: "umask 0".
	Before string
	// Other serves the calls instead of [World.Invoke].
	Other func(plugin string, c Call) Answer

	// Spoiled says that the spec has put something in the way, and that the end need not be clean.
	Spoiled bool

	programs string // directory of the plugins; ours when empty
	attached *attached
}

// Refusal makes the IPAM plugin refuse with code 11, message "later" and details "pool".
const Refusal = `cat >/dev/null; echo '{"cniVersion":"1.1.0","code":11,"msg":"later","details":"pool"}'; exit 1`

// NewWorld makes a host, and "fake", an IPAM plugin that writes down each call and answers as On and Lend tell
// it to. As "whereabouts" it is a plugin that is known to need no interface.
func NewWorld[C any](p skel.Plugin[C]) *World {
	ginkgo.GinkgoHelper()
	w := &World{Host: nstest.NewHost(), Dir: ginkgo.GinkgoT().TempDir(), Plugin: Any(p)}
	w.Script("fake", `d=${0%/*}; echo "$CNI_COMMAND $CNI_CONTAINERID $CNI_IFNAME" >>"$d/calls"
for f in "$d/on.$CNI_COMMAND.$CNI_CONTAINERID" "$d/on.$CNI_COMMAND"; do [ ! -e "$f" ] || { . "$f"; exit; }; done
cat >/dev/null`)
	gomega.Expect(os.Symlink("fake", filepath.Join(w.Dir, "whereabouts"))).To(gomega.Succeed())
	return w
}

// Any returns p as a plugin like any other, whatever its configuration's type.
func Any[C any](p skel.Plugin[C]) skel.Plugin[any] {
	untyped := func(h func(context.Context, *skel.Request, C) error) func(context.Context, *skel.Request, any) error {
		if h == nil {
			return nil
		}
		return func(ctx context.Context, r *skel.Request, c any) error {
			cfg, _ := c.(C) // nil without Parse
			return h(ctx, r, cfg)
		}
	}
	return skel.Plugin[any]{
		Name: p.Name, About: p.About, IPAM: p.IPAM, Chained: p.Chained, Commands: p.Commands,
		Config: skel.Config[any]{Keys: p.Keys, Parse: func(r *skel.Request) (any, error) {
			if p.Parse == nil {
				return nil, nil
			}
			return p.Parse(r)
		}},
		Add: func(ctx context.Context, r *skel.Request, c any) (*cni.Result, error) {
			cfg, _ := c.(C)
			return p.Add(ctx, r, cfg)
		},
		Del: p.Del, Check: untyped(p.Check), GC: p.GC, Status: untyped(p.Status),
	}
}

// Script makes a plugin of shell commands.
func (w *World) Script(name, body string) {
	ginkgo.GinkgoHelper()
	gomega.Expect(os.WriteFile(filepath.Join(w.Dir, name), []byte("#!/bin/sh\n"+body+"\n"), 0o755)).To(gomega.Succeed())
}

// On says what fake does on a command: a piece of shell, in which $d is Dir.
// With a container ID it is for that container alone.
func (w *World) On(command, body string, id ...string) {
	ginkgo.GinkgoHelper()
	name := strings.Join(append([]string{"on", command}, id...), ".")
	gomega.Expect(os.WriteFile(filepath.Join(w.Dir, name), []byte(body+"\n"), 0o644)).To(gomega.Succeed())
}

// Lend makes fake answer an ADD with a result.
func (w *World) Lend(result string, id ...string) {
	ginkgo.GinkgoHelper()
	w.On("ADD", "cat >/dev/null; cat <<'E'\n"+result+"\nE", id...)
}

// LendAddrs makes fake lend addresses to a container, as Lease has them.
func (w *World) LendAddrs(id string, addrs ...string) {
	ginkgo.GinkgoHelper()
	w.Lend(Lease(addrs...), id)
}

// Lease is the result of an IPAM plugin, "10.1.0.2/24 10.1.0.1" being an address with its gateway.
func Lease(addrs ...string) string {
	ginkgo.GinkgoHelper()
	var ips []Object
	for _, a := range addrs {
		address, gateway, _ := strings.Cut(a, " ")
		ip := Object{"address": address}
		if gateway != "" {
			ip["gateway"] = gateway
		}
		ips = append(ips, ip)
	}
	return Text(Object{"cniVersion": "1.0.0", "ips": ips})
}

// Calls lists the calls of fake since the last time: "ADD one eth0".
func (w *World) Calls() []string {
	ginkgo.GinkgoHelper()
	file := filepath.Join(w.Dir, "calls")
	data, err := os.ReadFile(file)
	if err == nil {
		err = os.Remove(file)
	}
	if !os.IsNotExist(err) {
		gomega.Expect(err).NotTo(gomega.HaveOccurred())
	}
	return strings.FieldsFunc(string(data), func(r rune) bool { return r == '\n' })
}

// Records lists the files of the records in a directory of the host.
func (w *World) Records(dir string) (names []string) {
	ginkgo.GinkgoHelper()
	w.Do(func() {
		entries, err := os.ReadDir(dir)
		if !os.IsNotExist(err) {
			gomega.Expect(err).NotTo(gomega.HaveOccurred())
		}
		for _, e := range entries {
			if e.Name() != "lock" {
				names = append(names, e.Name())
			}
		}
	})
	return names
}

// Merge is an object with the keys of all; nil takes one away.
func Merge(all ...Object) Object {
	c := Object{}
	for _, o := range all {
		maps.Copy(c, o)
	}
	maps.DeleteFunc(c, func(_ string, v any) bool { return v == nil })
	return c
}

// Text is v as JSON.
func Text(v any) string {
	ginkgo.GinkgoHelper()
	out := nstest.Must(json.Marshal(v))
	return string(out)
}
