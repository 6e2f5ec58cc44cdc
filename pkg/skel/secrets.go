package skel

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// hidden stands in the log for what is not to be there.
const hidden = "[hidden]"

// secrets are texts that may be secret: the values of CNI_ARGS, and those of
// keys that the plugin does not know. Error messages have none of ours, but
// those of a delegate may have any.
type secrets struct {
	texts []string // longest first
	left  int      // how many more values are looked at
}

// secretsMax bounds how many values of a configuration are looked at.
const secretsMax = 10000

// plainArgs are keys of CNI_ARGS whose values are no secrets: what Kubernetes
// calls the pod. A namespace may be called "default", as routes are.
var plainArgs = []string{"IgnoreUnknown", "K8S_POD_NAMESPACE", "K8S_POD_NAME", "K8S_POD_UID", "K8S_POD_INFRA_CONTAINER_ID"}

// secrets collects those of the call.
func (c *call) secrets() *secrets {
	s := &secrets{left: secretsMax}
	for _, pair := range strings.Split(c.vars["CNI_ARGS"], ";") {
		name, value, ok := strings.Cut(pair, "=")
		switch {
		case !ok:
			s.add(pair)
		case !slices.Contains(plainArgs, strings.TrimSpace(name)):
			s.add(value)
		}
	}
	if c.req != nil {
		var known []key
		if c.plugin.Config != nil {
			known = keyTree(reflect.TypeOf(c.plugin.Config), "")
		}
		for _, name := range protocolKeys {
			if !slices.Contains([]string{"args", "runtimeConfig", "ipam"}, name) {
				known = append(known, key{name: name})
			}
		}
		d := json.NewDecoder(bytes.NewReader(c.req.Conf))
		d.UseNumber()
		var conf map[string]any
		_ = d.Decode(&conf) // what cannot be read was handed to nobody
		s.object(conf, known)
	}
	s.texts = slices.DeleteFunc(s.texts, func(text string) bool { // the line has them
		return text == c.vars["CNI_CONTAINERID"] || text == c.vars["CNI_IFNAME"] || c.req != nil && text == c.req.Network
	})
	slices.SortStableFunc(s.texts, func(a, b string) int { return len(b) - len(a) })
	return s
}

func (s *secrets) object(o map[string]any, known []key) {
	for name, value := range o {
		i := slices.IndexFunc(known, func(k key) bool { return strings.EqualFold(k.name, name) })
		switch {
		case strings.HasPrefix(name, "cni.dev/"):
		case i < 0:
			s.value(value, nil)
		case known[i].inner != nil:
			s.value(value, known[i].inner)
		}
	}
}

// value takes all that is in a value and is not known.
func (s *secrets) value(v any, known []key) {
	if s.left--; s.left < 0 {
		return
	}
	switch v := v.(type) {
	case map[string]any:
		s.object(v, known)
	case []any:
		for _, elem := range v {
			s.value(elem, known)
		}
	case json.Number:
		s.add(v.String())
	case string:
		if !isAddress(v) { // a delegate's message is worth little without
			s.add(v)
		}
	}
}

func isAddress(text string) bool {
	_, err := netip.ParsePrefix(text)
	if err != nil {
		_, err = netip.ParseAddr(text)
	}
	return err == nil
}

// add takes a text, and the parts of it that are the same inside of quotes of any
// kind. Short numbers and truth values tell nothing.
func (s *secrets) add(text string) {
	text = strings.TrimSpace(text)
	parts := strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune("\"'\\<>&", r) || r < ' ' || r > '~' })
	for i, part := range append(parts, text) {
		_, err := strconv.Atoi(part)
		if part == "true" || part == "false" || part == "null" {
			continue
		}
		if len(part) >= wordMin || part != "" && i == len(parts) && err != nil {
			s.texts = append(s.texts, part)
		}
	}
}

// wordMin is how long a text is that is looked for inside of words, in bytes.
const wordMin = 4

// in is a text without the secrets. Short ones, which are in many words, count
// only where they stand alone.
func (s *secrets) in(text string) string {
	if s.left < 0 && text != "" {
		return hidden
	}
	for _, secret := range s.texts {
		if len(secret) >= wordMin {
			text = strings.ReplaceAll(text, secret, hidden)
		} else {
			text = replaceWord(text, secret)
		}
	}
	return text
}

func replaceWord(text, word string) string {
	var b strings.Builder
	for before := byte(' '); ; {
		i := strings.Index(text, word)
		if i < 0 {
			return b.String() + text
		}
		if i > 0 {
			before = text[i-1]
		}
		end := i + len(word)
		b.WriteString(text[:i])
		if isLetter(before) || end < len(text) && isLetter(text[end]) {
			b.WriteString(word)
		} else {
			b.WriteString(hidden)
		}
		before, text = text[end-1], text[end:]
	}
}

func isLetter(c byte) bool {
	return c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'z'
}
