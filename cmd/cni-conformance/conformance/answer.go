package conformance

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"strings"
)

// object is a JSON object.
type object = map[string]any

// decodeOne decodes text that is exactly one JSON object.
func decodeOne(text string) (object, error) {
	d := json.NewDecoder(strings.NewReader(text))
	var o object
	switch err := d.Decode(&o); {
	case errors.Is(err, io.EOF):
		return nil, errors.New("standard output is empty, not a JSON object")
	case err != nil || o == nil:
		return nil, errors.New("standard output is not a JSON object; logs belong on standard error")
	}
	if err := d.Decode(new(any)); !errors.Is(err, io.EOF) {
		return nil, errors.New("standard output has more than one JSON object; logs belong on standard error")
	}
	return o, nil
}

// CheckOutput checks the standard output of a command. With exit status 0 it must be one result object after ADD and
// VERSION, and empty after other commands. Otherwise it must be one error object, whose cniVersion may be missing.
func CheckOutput(command string, exit int, stdout string) error {
	if exit == 0 && command != "ADD" && command != "VERSION" && stdout != "" {
		return fmt.Errorf("a successful %s must print nothing on standard output", command)
	} else if exit == 0 && command != "ADD" && command != "VERSION" {
		return nil
	}
	o, err := decodeOne(stdout)
	switch {
	case err != nil:
		return err
	case exit == 0 && command == "ADD" && o["code"] != nil:
		return errors.New("exit status 0 with an error object, which needs another status")
	case exit == 0:
		return nil
	}
	var form struct {
		Code         uint
		Msg, Details string
	}
	if err := decodeForm(o, &form); err != nil {
		return fmt.Errorf("the error object: %w", err)
	}
	if form.Code == 0 || form.Msg == "" {
		return fmt.Errorf("the error object has code %d and msg %q; both are required", form.Code, form.Msg)
	}
	return nil
}

// CheckResult checks the cniVersion of an ADD result, and the types and values of its keys in the form of that version.
func CheckResult(version string, result map[string]any) error {
	var r resultForm
	if err := errors.Join(sameVersion(version, result), decodeForm(result, &r)); err != nil {
		return err
	}
	if version < "0.3.0" {
		if r.IPs != nil {
			return fmt.Errorf("a result of version %s has the keys ip4 and ip6, not ips", version)
		}
		for _, key := range []string{"ip4", "ip6"} {
			if o, isThere := result[key].(object); isThere && text(o, "ip") == "" {
				return fmt.Errorf("the key %s has no ip", key)
			}
		}
		return nil
	}
	for i, l := range r.Interfaces {
		if _, err := net.ParseMAC(l.Mac); l.Name == "" || l.Mac != "" && err != nil {
			return fmt.Errorf("interfaces[%d] has name %q and mac %q: missing name or wrong mac", i, l.Name, l.Mac)
		}
	}
	for key, name := range map[string]string{"ips": "address", "routes": "dst"} {
		for i, o := range list(result, key) {
			if _, err := netip.ParsePrefix(text(o, name)); err != nil {
				const message = "%s[%d].%s is %v, not an address with a prefix length, such as 10.1.0.2/24"
				return fmt.Errorf(message, key, i, name, o[name])
			}
		}
	}
	for i, ip := range r.IPs {
		if ip.Interface != nil && *ip.Interface >= uint(len(r.Interfaces)) {
			return fmt.Errorf("ips[%d].interface is %d, but interfaces has %d", i, *ip.Interface, len(r.Interfaces))
		}
		want := map[bool]string{true: "4", false: "6"}[strings.Contains(ip.Address, ".")]
		if version < "1.0.0" && ip.Version != want {
			return fmt.Errorf("ips[%d].version of %s is %q, not %q", i, ip.Address, ip.Version, want)
		}
	}
	return nil
}

// resultForm is the form of an ADD result. Decoding into it checks the types and values of the keys that are present.
type resultForm struct {
	Interfaces []struct {
		Name, Mac, Sandbox, SocketPath string
		MTU                            uint
	}
	IPs []struct {
		Address, Version string // the version only before 1.0.0
		Gateway          netip.Addr
		Interface        *uint
	}
	Routes []struct {
		GW                   netip.Addr
		MTU, Priority, Table uint
	}
	DNS struct {
		Nameservers, Search, Options []string
		Domain                       string
	}
	IP4, IP6 struct { // before 0.3.0
		IP      netip.Prefix
		Gateway netip.Addr
	}
}

// decodeForm decodes an object into a form. Its error names a key of a wrong type, or the value of a wrong address.
func decodeForm(o object, form any) error {
	err := json.Unmarshal(encode(o), form)
	var wrong *json.UnmarshalTypeError
	switch {
	case errors.As(err, &wrong):
		return fmt.Errorf("%s has the wrong type: a JSON %s", wrong.Field, wrong.Value)
	case err != nil:
		return fmt.Errorf("an ip, gateway or gw is wrong: %w", err)
	}
	return nil
}

// list returns the objects of the list at key, or nil if the key is absent or has another type.
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

// canonical returns an address or prefix as the kernel's tools print it.
func canonical(s string) string {
	if p, err := netip.ParsePrefix(s); err == nil {
		return p.String()
	} else if a, err := netip.ParseAddr(s); err == nil {
		return a.String()
	}
	return s
}

// encode returns the JSON text of a value, which must have one.
func encode(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return data
}

// clone returns a deep copy with additional keys; the value nil removes a key.
func clone(o object, more object) object {
	out := object{}
	if err := json.Unmarshal(encode(o), &out); err != nil {
		panic(err)
	}
	maps.Copy(out, more)
	maps.DeleteFunc(out, func(_ string, v any) bool { return v == nil })
	return out
}
