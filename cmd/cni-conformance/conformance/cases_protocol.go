package conformance

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// version calls VERSION, which must succeed, and returns the answer.
func (w *world) version(changes ...change) object {
	changes = append([]change{input(object{"cniVersion": w.Spec})}, changes...)
	return w.decode(w.succeeds("VERSION", nil, changes...))
}

func versionSupported(w *world) {
	o := w.version()
	supported, ok := o["supportedVersions"].([]any)
	w.expect(ok && len(supported) > 0, "supportedVersions is %v, not a list of versions", o["supportedVersions"])
	w.expect(slices.Contains(supported, any(w.Spec)), "supportedVersions %v lacks cniVersion %s", supported, w.Spec)
	w.expect(text(o, "cniVersion") != "", "cniVersion is %v, not a version", o["cniVersion"])
}

func versionEcho(w *world) {
	for _, v := range w.Info.Supported {
		got := w.version(input(object{"cniVersion": v}))["cniVersion"]
		w.expect(got == v, "VERSION with cniVersion %q answers with cniVersion %q", v, got)
	}
}

// eachVersion returns a case that checks the result of ADD with each version that the plugin supports.
func eachVersion(check func(version string, result object) error) func(*world) {
	return func(w *world) {
		for _, v := range w.Info.Supported {
			if v < "0.3.0" && w.Info.Kind&Chained != 0 {
				continue // a chain needs prevResult, which versions before 0.3.0 do not have
			}
			w.Spec = v
			a := w.attach()
			err := check(v, a.result)
			w.expect(err == nil, "the result for version %s: %v", v, err)
			w.finish(a)
		}
	}
}

// sameVersion checks the cniVersion of a result. It may be absent before 0.3.0.
func sameVersion(version string, result object) error {
	if got := result["cniVersion"]; got != version && (version >= "0.3.0" || got != nil) {
		return fmt.Errorf("cniVersion is %v, not %s", got, version)
	}
	return nil
}

// succeeds returns a case in which a command succeeds.
func succeeds(command string) func(*world) {
	return func(w *world) {
		a, changes := w.prepare(command)
		w.succeeds(command, a, changes...)
	}
}

// output returns a case in which a command succeeds and its standard output has the right form.
func output(command string) func(*world) {
	return func(w *world) {
		a, changes := w.prepare(command)
		ans := w.succeeds(command, a, changes...)
		w.noError(CheckOutput(command, ans.exit, ans.stdout))
	}
}

// accepts returns a case in which ADD and DEL succeed with a change.
func accepts(c change) func(*world) {
	return func(w *world) { w.finish(w.attach(c), c) }
}

// refuses returns a case in which ADD fails with each change, and "../escaped" in a change does not become a file.
func refuses(changes ...change) func(*world) {
	return func(w *world) {
		for _, c := range changes {
			w.fails("ADD", w.container(), c)
		}
		i := slices.IndexFunc(w.files(), func(line string) bool { return strings.Contains(line, "escaped") })
		w.expect(i < 0, "a failed ADD created a file outside of the plugin's directory")
	}
}

// refusesWith returns a case in which ADD with a change fails, and its error has this code.
func refusesWith(code float64, c change) func(*world) {
	return func(w *world) {
		o := w.decode(w.fails("ADD", w.container(), c))
		w.expect(o["code"] == code, "the error %q has code %v, not %v", text(o, "msg"), o["code"], code)
	}
}

func errorObject(w *world) {
	for _, c := range []change{raw("{"), unset("CNI_CONTAINERID"), unset("CNI_NETNS")} {
		if ans := w.call("ADD", w.container(), c); ans.exit != 0 { // the plugin may not need it
			w.noError(CheckOutput("ADD", ans.exit, ans.stdout))
		}
	}
}

func errorVersion(w *world) {
	ans := w.call("ADD", w.container(), unset("CNI_IFNAME"))
	if ans.exit == 0 {
		w.skip("ADD does not need CNI_IFNAME")
	}
	got := text(w.decode(ans), "cniVersion") // 0.4.0 allows any version
	w.expect(got == w.Spec || got != "" && w.Spec < "1.0.0", "the error's cniVersion is %q, not %s", got, w.Spec)
}

func errorReserved(w *world) {
	defined := []float64{1, 2, 3, 4, 5, 6, 7, 11, 50, 51}
	for _, c := range []change{raw("{"), unset("CNI_CONTAINERID"), keys(object{"cniVersion": "99.0.0"}),
		set("CNI_NETNS", "/run/netns/none")} {
		ans := w.call("ADD", w.container(), c)
		o, _ := decodeOne(ans.stdout)
		code, ok := o["code"].(float64) // otherwise other cases report this
		w.expect(ans.exit == 0 || !ok || code >= 100 || slices.Contains(defined, code), "code %v is reserved", code)
	}
}

func environmentNames(w *world) {
	for _, name := range []string{"CNI_CONTAINERID", "CNI_IFNAME", "CNI_NETNS"} {
		ans := w.call("ADD", w.container(), unset(name))
		if o, _ := decodeOne(ans.stdout); ans.exit != 0 && o["code"] == 4.0 {
			w.expect(strings.Contains(ans.stdout, name), "%s is missing; the error with code 4 does not name it", name)
		}
	}
}

func configReservedKeys(w *world) {
	more := object{"args": object{"labels": object{"app": "conformance"}}}
	if w.Spec >= "1.0.0" {
		more["runtimeConfig"] = object{}
		more["cni.dev/conformance"] = []any{"a"}
	}
	accepts(keys(more))(w)
}

// configBadValues replaces the value of each key of the configuration with one of another type. The plugin may ignore a
// key, so ADD may succeed. It must not crash or print a wrong form of output, and DEL must remove what it leaves.
func configBadValues(w *world) {
	before := w.warmHost()
	conf := w.Subject.Plugins[0]
	for _, key := range slices.Sorted(maps.Keys(conf)) {
		if slices.Contains([]string{"cniVersion", "name", "type", "capabilities"}, key) {
			continue
		}
		var bad any = object{"conformance": []any{"bad"}}
		if _, isObject := conf[key].(object); isObject {
			bad = "conformance bad"
		}
		a := w.container()
		ans := w.call("ADD", a, keys(object{key: bad}))
		w.expect(ans.exit >= 0, "expected success or a failure: %v", ans)
		w.noError(CheckOutput("ADD", ans.exit, ans.stdout))
		if ans.exit == 0 {
			a.result, _ = decodeOne(ans.stdout)
			a.plugin = clone(conf, object{key: bad}) // also for DEL
		}
		w.finish(a)
	}
	w.settles(before, "after bad values and DEL")
}
