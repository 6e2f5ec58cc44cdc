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
	// Versions before 0.3.0 did not have the key in results.
	if got := result["cniVersion"]; got != version && (version >= "0.3.0" || got != nil) {
		return fmt.Errorf("cniVersion is %v, not %q", got, version)
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

// form describes an object: its keys, and the checks of their values. A key that ends in "!" is required.
type form map[string]func(v any) error

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
		if err := f[key](o[bare]); err != nil {
			return fmt.Errorf("%s: %s is %v: %w", name, bare, o[bare], err)
		}
	}
	return nil
}

// The forms of the specification.
var (
	errorForm  = form{"code!": isCode, "msg!": isFilled, "details": isText}
	dnsForm    = form{"nameservers": isTexts, "domain": isText, "search": isTexts, "options": isTexts}
	oldIPForm  = form{"ip!": isPrefix, "gateway": isAddress}
	oldForm    = form{"ip4": oldIPForm.is, "ip6": oldIPForm.is, "dns": dnsForm.is, "ips": isAbsent}
	ipForm     = form{"address!": isPrefix, "gateway": isAddress, "interface": isNumber}
	routeForm  = form{"dst!": isPrefix, "gw": isAddress, "mtu": isNumber, "priority": isNumber, "table": isNumber}
	linkForm   = form{"name!": isFilled, "mac": isMAC, "mtu": isNumber, "sandbox": isText, "socketPath": isText}
	resultForm = form{"interfaces": linkForm.each, "ips": ipForm.each, "routes": routeForm.each, "dns": dnsForm.is}
)

func (f form) is(v any) error { return f.check("it", v) }

func (f form) each(v any) error {
	all, ok := v.([]any)
	if !ok {
		return errors.New("it is not a list")
	}
	for i, e := range all {
		if err := f.check(fmt.Sprintf("element %d", i), e); err != nil {
			return err
		}
	}
	return nil
}

func isAbsent(any) error { return errors.New("this version has no such key") }

func isText(v any) error {
	if _, ok := v.(string); !ok {
		return errors.New("it is not a text")
	}
	return nil
}

func isFilled(v any) error {
	if v == "" {
		return errors.New("it is empty")
	}
	return isText(v)
}

func isTexts(v any) error {
	all, ok := v.([]any)
	if !ok {
		return errors.New("it is not a list")
	}
	for _, e := range all {
		if err := isText(e); err != nil {
			return err
		}
	}
	return nil
}

func isNumber(v any) error {
	if n, ok := v.(float64); !ok || n < 0 || n != float64(uint64(n)) {
		return errors.New("it is not a number from 0")
	}
	return nil
}

func isCode(v any) error {
	if v == 0.0 {
		return errors.New("0 is not an error")
	}
	return isNumber(v)
}

func isPrefix(v any) error {
	s, _ := v.(string)
	_, err := netip.ParsePrefix(s)
	return err
}

func isAddress(v any) error {
	if v == "" {
		return nil
	}
	s, _ := v.(string)
	_, err := netip.ParseAddr(s)
	return err
}

func isMAC(v any) error {
	if v == "" {
		return nil
	}
	s, _ := v.(string)
	_, err := net.ParseMAC(s)
	return err
}

// objects returns a list of objects, or nil if the key is absent.
func objects(o object, key string) (list []object, err error) {
	values, ok := o[key].([]any)
	if o[key] != nil && !ok {
		return nil, fmt.Errorf("%s is not a list", key)
	}
	for _, v := range values {
		e, ok := v.(object)
		if !ok {
			return nil, fmt.Errorf("%s has %v, which is not an object", key, v)
		}
		list = append(list, e)
	}
	return list, nil
}

// list is objects for a result whose format is known to be right.
func list(o object, key string) []object {
	found, _ := objects(o, key)
	return found
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
