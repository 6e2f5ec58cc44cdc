package tuning

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/sysctl"
)

const placeholder = "IFNAME" // stands for the name of the interface in the key of a sysctl

// setting is a sysctl with its configured value.
type setting struct {
	Source string // "sysctl" or "args.cni.sysctl"
	Raw    string // the key as written, which the allow-list matches
	Key    sysctl.Key
	Value  string
}

func (s setting) name() string { return fmt.Sprintf("%s[%q]", s.Source, s.Raw) }

// failure wraps an error of reading or writing the sysctl.
func (s setting) failure(err error) error {
	return cni.Errorf(codeOf(err, cni.CodeIO), "%s: %w", s.name(), err)
}

// parseSysctls returns the sysctls of both lists in the order of writing. args.cni.sysctl replaces keys of sysctl.
func parseSysctls(w wireConfig, ifName string, problems *cni.Problems) []setting {
	settings := parseSettings("sysctl", w.Sysctl, ifName, problems)
	for _, s := range parseSettings("args.cni.sysctl", w.Args.CNI.Sysctl, ifName, problems) {
		if i := indexOf(settings, s.Key); i >= 0 {
			settings[i] = s
		} else {
			settings = append(settings, s)
		}
	}
	return settings
}

// parseSettings parses a JSON object in its order, which a map would lose.
func parseSettings(source string, raw json.RawMessage, ifName string, problems *cni.Problems) (settings []setting) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	start, _ := dec.Token()
	switch start {
	case nil: // no key, or null
		return nil
	case json.Delim('{'):
	default:
		problems.Add(cni.Refuse(source, nil, "is not an object of strings"))
		return nil
	}
	for dec.More() {
		var text json.RawMessage
		name, _ := dec.Token() // raw is valid JSON
		_ = dec.Decode(&text)
		s := setting{Source: source, Raw: name.(string)}
		if text[0] != '"' || json.Unmarshal(text, &s.Value) != nil {
			problems.Add(refuseType(s, text))
			continue
		}
		var err error
		s.Key, err = sysctl.Parse(s.Raw)
		if err == nil && ifName != "" {
			s.Key, err = s.Key.Replace(placeholder, ifName)
		}
		if err != nil {
			problems.Add(cni.Refuse(s.name(), s.Value, "cannot be set: "+err.Error()))
			continue
		}
		if i := indexOf(settings, s.Key); i >= 0 {
			problems.Add(cni.Refuse(s.name(), s.Value, fmt.Sprintf("is a duplicated value of %q", settings[i].Raw)))
		}
		settings = append(settings, s)
	}
	return settings
}

func refuseType(s setting, value json.RawMessage) error {
	e := cni.Refuse(s.name(), value, "is not a string")
	if strings.ContainsRune("-0123456789", rune(value[0])) {
		e.Suggest("write %q", value)
	}
	return e
}

// indexOf returns the index of the setting with this key, in any spelling, or -1.
func indexOf(settings []setting, key sysctl.Key) int {
	return slices.IndexFunc(settings, func(s setting) bool { return s.Key.Path() == key.Path() })
}

// attributes lists an interface's attributes in the order in which the reference changes and saves them.
var attributes = []string{"mac", "promisc", "mtu", "allmulti", "txQLen"}

// value is the value of a sysctl, an attribute or an ethtool setting, as text.
type value struct {
	Key      string `json:"key"`
	Value    string `json:"value"`          // in a record: the original value
	Link     int    `json:"link,omitempty"` // index of the interface; 0: a value of the namespace, or unknown
	NewValue string `json:"set,omitempty"`  // value that ADD wrote; empty: written by 0.1.0 or by the reference
}

// String formats the new value like sysctl(8) or ip(8), followed by the original value.
func (v value) String() string {
	separator := " = "
	if v.isAttribute() || v.isEthtool() {
		separator = " "
	}
	return v.Key + separator + cmp.Or(v.NewValue, "?") + " (was " + v.Value + ")"
}

func (v value) isAttribute() bool { return slices.Contains(attributes, v.Key) }

func attributeOf(l rtnl.Link, name string) string {
	switch name {
	case "mac":
		return l.MAC.String()
	case "promisc":
		return strconv.FormatBool(l.Promisc)
	case "mtu":
		return strconv.Itoa(l.MTU)
	case "allmulti":
		return strconv.FormatBool(l.AllMulti)
	}
	return strconv.Itoa(l.TxQLen)
}

// matches reports whether a link has the value.
func (v value) matches(l rtnl.Link) bool { return strings.EqualFold(attributeOf(l, v.Key), v.Value) }

// linkChange returns the change of a link that sets the attribute.
func (v value) linkChange() (ch rtnl.LinkChange, err error) {
	on, boolErr := strconv.ParseBool(v.Value)
	n, numberErr := strconv.ParseUint(v.Value, 10, 31)
	number := int(n)
	switch v.Key {
	case "mac":
		ch.MAC, err = net.ParseMAC(v.Value)
	case "promisc":
		ch.Promisc, err = &on, boolErr
	case "mtu":
		ch.MTU, err = number, numberErr
	case "allmulti":
		ch.AllMulti, err = &on, boolErr
	default:
		ch.TxQLen, err = &number, numberErr
	}
	return ch, err
}
