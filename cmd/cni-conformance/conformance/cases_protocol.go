package conformance

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// version calls VERSION and returns the object.
func (w *world) version(changes ...func(*call)) object {
	ans := w.call("VERSION", nil, append([]func(*call){input(object{"cniVersion": w.Spec})}, changes...)...)
	w.expect(ans.exit == 0, "VERSION failed: %v", ans)
	o, err := decodeOne(ans.stdout)
	w.noError(err)
	return o
}

// input returns a change of the whole configuration.
func input(o object) func(*call) { return func(c *call) { c.conf = o } }

func raw(text string) func(*call) { return func(c *call) { c.raw, c.conf = text, nil } }

func versionSupported(w *world) {
	o := w.version()
	supported, ok := o["supportedVersions"].([]any)
	w.expect(ok && len(supported) > 0, "supportedVersions is %v, not a list of versions", o["supportedVersions"])
	w.expect(slices.Contains(supported, any(w.Spec)), "supportedVersions %v has no %s, the version of the call",
		supported, w.Spec)
	w.expect(text(o, "cniVersion") != "", "cniVersion is %v, not a version", o["cniVersion"])
}

func versionEcho(w *world) {
	for _, v := range w.Info.Supported {
		got := w.version(input(object{"cniVersion": v}))["cniVersion"]
		w.expect(got == v, "VERSION with cniVersion %q answers with cniVersion %q", v, got)
	}
}

func versionEnvironment(w *world) {
	w.version(func(c *call) { c.vars, c.bare = map[string]string{"CNI_COMMAND": "VERSION"}, true })
}

func versionWithoutInput(w *world) { w.version(raw("")) }

// eachVersion attaches a container with each version that the plugin supports, and checks the result.
func (w *world) eachVersion(check func(version string, result object) error) {
	for _, v := range w.Info.Supported {
		if v < "0.3.0" && w.Info.Kind&Chained != 0 {
			continue // no version without prevResult has chains
		}
		w.Spec = v
		a := w.attach("v" + strings.ReplaceAll(v, ".", "-"))
		if err := check(v, a.result); err != nil {
			w.fail("the result for version %s: %v", v, err)
		}
		w.finish(a)
	}
}

// sameVersion checks the version of a result. Results before 0.3.0 did not need it.
func sameVersion(version string, result object) error {
	if got := result["cniVersion"]; got != version && (version >= "0.3.0" || got != nil) {
		return fmt.Errorf("cniVersion is %v, not %q", got, version)
	}
	return nil
}

func versionUnsupported(w *world) {
	o := w.failsWith("ADD", w.container("one"), keys(object{"cniVersion": "99.0.0"}))
	w.expect(o["code"] == 1.0, "cniVersion 99.0.0 is code %v, not 1", o["code"])
}

func errorStatus(w *world) {
	for _, text := range []string{"{", `"text"`, ""} {
		w.fails("ADD", w.container(fmt.Sprintf("c%d", len(text))), raw(text))
	}
}

func errorObjectOf(w *world) {
	w.failsWith("ADD", w.container("one"), raw("{"))
	w.failsWith("ADD", w.container("two"), set("CNI_CONTAINERID", "-"))
}

func errorVersion(w *world) {
	o := w.failsWith("ADD", w.container("one"), set("CNI_IFNAME", "-"))
	got := text(o, "cniVersion") // any version in 0.4.0
	w.expect(got == w.Spec || got != "" && w.Spec < "1.0.0", "the error's cniVersion is %q, not %s", got, w.Spec)
}

func errorUndecodable(w *world) {
	o := w.failsWith("ADD", w.container("one"), raw("{"))
	w.expect(o["code"] == 6.0, "the code is %v, not 6", o["code"])
}

// reserved are the codes below 100 that the specification defines.
var reserved = []float64{1, 2, 3, 4, 5, 6, 7, 11, 50, 51}

func errorReserved(w *world) {
	a := w.container("one")
	for name, change := range map[string]func(*call){"undecodable configuration": raw("{"), "no CNI_CONTAINERID": set(
		"CNI_CONTAINERID", "-"), "cniVersion 99.0.0": keys(object{"cniVersion": "99.0.0"}),
		"CNI_NETNS of no namespace": set("CNI_NETNS", "/run/netns/none")} {
		ans := w.call("ADD", a, change)
		if ans.exit == 0 { // another case's fault
			w.succeeds("DEL", a)
			continue
		}
		o, err := decodeOne(ans.stdout)
		w.noError(err)
		code, _ := o["code"].(float64)
		w.expect(code >= 100 || slices.Contains(reserved, code), "%s: code %v is reserved, and not defined", name, code)
	}
}

// required are the variables that ADD needs.
var required = []string{"CNI_CONTAINERID", "CNI_IFNAME", "CNI_NETNS"}

func environmentRequired(w *world) {
	for _, name := range required {
		w.fails("ADD", w.container(strings.ToLower(strings.TrimPrefix(name, "CNI_"))), set(name, "-"))
	}
}

func environmentNames(w *world) {
	for i, name := range required {
		ans := w.call("ADD", w.container(fmt.Sprintf("c%d", i)), set(name, "-"))
		o, err := decodeOne(ans.stdout)
		if ans.exit == 0 || err != nil || o["code"] != 4.0 {
			continue
		}
		isNamed := strings.Contains(text(o, "msg")+text(o, "details"), name)
		w.expect(isNamed, "the error of code 4 does not name %s", name)
	}
}

func environmentCommand(w *world) { w.fails("FROBNICATE", w.container("one")) }

func environmentContainerID(w *world) {
	before := w.files()
	for i, id := range []string{"", "../../escaped", "-minus", "with space"} {
		a := w.container(fmt.Sprintf("c%d", i))
		w.fails("ADD", a, set("CNI_CONTAINERID", id))
	}
	for _, line := range before.diff(w.files()) {
		w.expect(!strings.Contains(line, "escaped"), "%s", line)
	}
}

func environmentInterfaceName(w *world) {
	if w.Info.Present {
		w.skip("the plugin does not create an interface")
	}
	for i, name := range []string{"an-interface-name-that-is-too-long", "sla/sh", "with space"} {
		a := w.container(fmt.Sprintf("c%d", i))
		a.ifName = name
		w.fails("ADD", a)
	}
}

// withArgs attaches and detaches a container with CNI_ARGS.
func (w *world) withArgs(args string) { w.finish(w.attach("one", set("CNI_ARGS", args))) }

func configName(w *world) {
	for i, name := range []string{"../escaped", "sla/sh", "-minus"} {
		w.fails("ADD", w.container(fmt.Sprintf("c%d", i)), keys(object{"name": name}))
	}
}

func configUnknownKeys(w *world) {
	w.finish(w.attach("one", keys(object{"conformanceUnknownKey": object{"a": []any{1, "b", nil}}})))
}

func configReservedKeys(w *world) {
	more := object{"args": object{"labels": object{"app": "conformance"}}}
	if w.Spec >= "1.0.0" {
		more["runtimeConfig"] = object{}
		more["cni.dev/conformance"] = []any{"a"}
	}
	w.finish(w.attach("one", keys(more)))
}

// configBadValues gives each key of the author's configuration a value of another type. The plugin may ignore the key,
// so ADD may succeed; it must not crash, mix results and errors, or leave something that DEL does not remove.
func configBadValues(w *world) {
	before := w.warmHost()
	conf := w.Subject.Plugins[0]
	for i, key := range slices.Sorted(maps.Keys(conf)) {
		if slices.Contains([]string{"cniVersion", "name", "type", "capabilities"}, key) {
			continue
		}
		var bad any = object{"conformance": []any{"bad"}}
		if _, isObject := conf[key].(object); isObject {
			bad = "conformance bad"
		}
		a := w.container(fmt.Sprintf("c%d", i))
		ans := w.call("ADD", a, keys(object{key: bad}))
		w.expect(ans.exit < 100, "with a bad value of %s: %v", key, ans)
		if err := Verdict("ADD", ans.exit, ans.stdout); err != nil {
			w.fail("with a bad value of %s: %v", key, err)
		}
		if ans.exit == 0 {
			a.result, _ = decodeOne(ans.stdout)
		}
		w.finish(a)
	}
	w.settles(before, "after bad values and DEL")
}
