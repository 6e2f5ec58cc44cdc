package conformance

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
)

// object is a JSON object.
type object = map[string]any

// decodeOne decodes text that is exactly one JSON object.
func decodeOne(text string) (object, error) {
	d := json.NewDecoder(strings.NewReader(text))
	var o object
	if err := d.Decode(&o); err != nil {
		return nil, fmt.Errorf("standard output is not a JSON object: %w", err)
	}
	if o == nil {
		return nil, errors.New("standard output is null")
	}
	if err := d.Decode(new(any)); !errors.Is(err, io.EOF) {
		return nil, errors.New("standard output has more than one JSON document")
	}
	return o, nil
}

// Verdict checks the form of an answer to a command: with exit status 0 one result object (ADD, VERSION) or nothing,
// otherwise one error object, whose cniVersion may be missing.
func Verdict(command string, exit int, stdout string) error {
	if exit == 0 && command != "ADD" && command != "VERSION" {
		if stdout != "" {
			return errors.New("a successful " + command + " has something on standard output")
		}
		return nil
	}
	o, err := decodeOne(stdout)
	if err != nil {
		return err
	}
	if exit != 0 {
		return errorForm.check("error", o)
	}
	if _, ok := o["code"]; ok && command == "ADD" {
		return errors.New("exit status 0 with an error object")
	}
	return nil
}

// FormatError checks the types and values of the keys of an ADD result that has the form of a version.
func FormatError(version string, result map[string]any) error {
	if err := sameVersion(version, result); err != nil {
		return err
	}
	if version < "0.3.0" {
		return oldForm.check("result", result)
	}
	if err := resultForm.check("result", result); err != nil {
		return err
	}
	interfaces := len(list(result, "interfaces"))
	for _, ip := range list(result, "ips") {
		if index, ok := ip["interface"].(float64); ok && int(index) >= interfaces {
			return fmt.Errorf("ips: interface %v is not an index into the %d interfaces", index, interfaces)
		}
		want := "6"
		if strings.Contains(text(ip, "address"), ".") {
			want = "4"
		}
		if version < "1.0.0" && ip["version"] != want {
			return fmt.Errorf("ips: version of %v is %v, not %q", ip["address"], ip["version"], want)
		}
	}
	return nil
}

// form describes an object: its keys, and for each key a kind that scalarFits knows, another form, or a list of a form.
// A key that ends in "!" is required.
type form map[string]any

// forms is a list of objects of a form.
type forms form

// The forms of the specification.
var (
	errorForm  = form{"code!": "code", "msg!": "name", "details": "text"}
	dnsForm    = form{"nameservers": "texts", "domain": "text", "search": "texts", "options": "texts"}
	oldIPForm  = form{"ip!": "prefix", "gateway": "address"}
	oldForm    = form{"ip4": oldIPForm, "ip6": oldIPForm, "dns": dnsForm, "ips": "absent"}
	ipForm     = forms{"address!": "prefix", "gateway": "address", "interface": "number"}
	routeForm  = forms{"dst!": "prefix", "gw": "address", "mtu": "number", "priority": "number", "table": "number"}
	linkForm   = forms{"name!": "name", "mac": "MAC address", "mtu": "number", "sandbox": "text", "socketPath": "text"}
	resultForm = form{"interfaces": linkForm, "ips": ipForm, "routes": routeForm, "dns": dnsForm}
)

func (f form) check(name string, v any) error {
	o, ok := v.(object)
	if !ok {
		return fmt.Errorf("%s is %v, not an object", name, v)
	}
	for _, key := range slices.Sorted(maps.Keys(f)) {
		bare, required := strings.CutSuffix(key, "!")
		if o[bare] == nil && !required {
			continue
		}
		if err := fits(f[key], name+"."+bare, o[bare]); err != nil {
			return err
		}
	}
	return nil
}

// fits checks a value of a form.
func fits(kind any, name string, v any) error {
	switch kind := kind.(type) {
	case form:
		return kind.check(name, v)
	case forms:
		all, ok := v.([]any)
		if !ok {
			return fmt.Errorf("%s is %v, not a list", name, v)
		}
		for i, e := range all {
			if err := form(kind).check(fmt.Sprintf("%s[%d]", name, i), e); err != nil {
				return err
			}
		}
	case string:
		if !scalarFits(kind, v) {
			return fmt.Errorf("%s is %v, not of the kind %q", name, v, kind)
		}
	}
	return nil
}

// scalarFits reports whether a value has a kind. Addresses may be empty, except for a prefix.
func scalarFits(kind string, v any) bool {
	s, isText := v.(string)
	n, isNumber := v.(float64)
	var err error
	switch kind {
	case "text":
		return isText
	case "name":
		return s != ""
	case "number", "code":
		return isNumber && n >= 0 && n == float64(uint64(n)) && (n > 0 || kind == "number")
	case "prefix":
		_, err = netip.ParsePrefix(s)
		return err == nil
	case "texts":
		all, ok := v.([]any)
		return ok && !slices.ContainsFunc(all, func(e any) bool { return !scalarFits("text", e) })
	case "address":
		_, err = netip.ParseAddr(s)
	case "MAC address":
		_, err = net.ParseMAC(s)
	default: // "absent": this version has no such key
		return false
	}
	return isText && (s == "" || err == nil)
}

// list returns the objects of a list; it is empty if the key is absent or has another type.
func list(o object, key string) (found []object) {
	for _, v := range anyList(o[key]) {
		if e, ok := v.(object); ok {
			found = append(found, e)
		}
	}
	return found
}

func anyList(v any) []any {
	list, _ := v.([]any)
	return list
}

func text(o object, key string) string {
	s, _ := o[key].(string)
	return s
}

// clone returns a deep copy with additional keys; the value nil removes a key.
func clone(o object, more object) object {
	data, err := json.Marshal(o)
	out := object{}
	if err == nil {
		err = json.Unmarshal(data, &out)
	}
	if err != nil { // not reached: o comes from JSON
		panic(err)
	}
	maps.Copy(out, more)
	maps.DeleteFunc(out, func(_ string, v any) bool { return v == nil })
	return out
}
