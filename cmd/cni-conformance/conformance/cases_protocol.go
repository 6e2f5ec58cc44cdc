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
	o := w.decode(w.succeeds("VERSION", nil, changes...))
	supported := o["supportedVersions"]
	w.expect(len(anyList(supported)) > 0, "supportedVersions is %v, not a list of versions", supported)
	return o
}

func versionSupported(w *world) {
	o := w.version()
	supported := anyList(o["supportedVersions"])
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
		versions := slices.DeleteFunc(slices.Clone(w.Info.Supported), func(v string) bool {
			return v < "0.3.0" && w.Info.Kind&Chained != 0 // these have no prevResult, which a chain needs
		})
		w.need(len(versions) > 0, "the plugin supports no version with prevResult")
		for _, v := range versions {
			w.Spec = v
			a := w.attach()
			err := check(v, a.result)
			w.expect(err == nil, "the result for version %s: %v", v, err)
			w.detach(a)
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
	return func(w *world) { w.detach(w.attach(c), c) }
}

// refuses returns a case in which ADD succeeds without a change and fails with each of the changes. "../escaped" in a
// change must not become a file.
func refuses(changes ...change) func(*world) {
	return func(w *world) {
		w.detach(w.attach())
		for _, c := range changes {
			w.fails("ADD", w.newContainer(), c)
		}
		i := slices.IndexFunc(w.files(), func(line string) bool { return strings.Contains(line, "escaped") })
		w.expect(i < 0, "a failed ADD created a file outside of the plugin's directory")
	}
}

// refusesWith returns a case in which ADD succeeds without a change and fails with it, with this error code.
func refusesWith(code float64, c change) func(*world) {
	return func(w *world) {
		w.detach(w.attach())
		ans := w.fails("ADD", w.newContainer(), c)
		w.expect(ans.code() == code, "expected code %v: %v", code, ans)
	}
}

// errors calls ADD with each change, and returns the answers that are errors. It skips the case if no call fails.
func (w *world) errors(changes ...change) (all []answer) {
	for _, c := range changes {
		if ans := w.call("ADD", w.newContainer(), c); ans.exit != 0 {
			all = append(all, ans)
		}
	}
	w.need(len(all) > 0, "ADD succeeds with each bad input of this case")
	return all
}

func errorObject(w *world) {
	for _, ans := range w.errors(raw("{"), unset("CNI_CONTAINERID"), unset("CNI_NETNS")) {
		w.noError(CheckOutput("ADD", ans.exit, ans.stdout))
	}
}

func errorVersion(w *world) {
	got := text(w.decode(w.errors(unset("CNI_IFNAME"))[0]), "cniVersion") // 0.4.0 allows any version
	w.expect(got == w.Spec || got != "" && w.Spec < "1.0.0", "the error's cniVersion is %q, not %s", got, w.Spec)
}

func errorReserved(w *world) {
	defined := []float64{0, 1, 2, 3, 4, 5, 6, 7, 11, 50, 51} // 0: no code, which the case error/object reports
	last := 0.0
	for _, ans := range w.errors(raw("{"), unset("CNI_CONTAINERID"), keys(object{"cniVersion": "99.0.0"}),
		set("CNI_NETNS", "/run/netns/none")) {
		code := ans.code()
		w.expect(code >= 100 || slices.Contains(defined, code), "code %v is reserved", code)
		last = max(last, code)
	}
	w.need(last > 0, "no error has a code")
}

func environmentNames(w *world) {
	errs := 0
	for _, name := range []string{"CNI_CONTAINERID", "CNI_IFNAME", "CNI_NETNS"} {
		if ans := w.call("ADD", w.newContainer(), unset(name)); ans.code() == 4 {
			w.expect(strings.Contains(ans.stdout, name), "%s is missing; the error with code 4 does not name it", name)
			errs++
		}
	}
	w.need(errs > 0, "without CNI_CONTAINERID, CNI_IFNAME or CNI_NETNS, no error has code 4")
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
	conf, general := w.Subject.Plugins[0], object{"cniVersion": nil, "name": nil, "type": nil, "capabilities": nil}
	own := slices.Sorted(maps.Keys(clone(conf, general)))
	w.need(len(own) > 0, "the configuration has no key of the plugin")
	before := w.warmHost()
	for _, key := range own {
		var bad any = object{"conformance": []any{"bad"}}
		if _, isObject := conf[key].(object); isObject {
			bad = "conformance bad"
		}
		a := w.newContainer()
		ans := w.call("ADD", a, keys(object{key: bad}))
		w.expect(ans.exit >= 0, "expected success or a failure: %v", ans)
		w.noError(CheckOutput("ADD", ans.exit, ans.stdout))
		if ans.exit == 0 {
			a.result, _ = decodeOne(ans.stdout)
			a.plugin = clone(conf, object{key: bad}) // also for DEL
		}
		w.detach(a)
	}
	w.settles(before, "after bad values and DEL")
}
