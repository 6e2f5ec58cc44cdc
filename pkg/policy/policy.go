// Package policy limits the configurations that tenants write. A node where tenants choose network configurations, for
// example by the NetworkAttachmentDefinitions of multus, runs them as root. The administrator's file lists what tenants
// may use. Without the file there is no limit, which costs a call one failed open.
//
// A configuration is trusted if it equals an entry of a file in the administrator's directories. Then the policy does
// not limit it, but still refuses keys that appear twice. Every other configuration is a tenant's. It may use only what
// the policy lists, and none of the keys that reach the host. Everything fails closed: a policy that cannot be read, or
// that a user other than root may write, refuses every call.
package policy

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
)

// File is the path of a node's policy.
const File = "/etc/cni/hawser/policy.json"

// wildcard is the entry of a list that permits every value.
const wildcard = "*"

// Policy is the content of the file. A list that is missing permits nothing.
type Policy struct {
	TrustedDirs   []string `json:"trustedDirs"`   // directories of the administrator's networks; default /etc/cni/net.d
	Types         []string `json:"types"`         // names of plugins, also for ipam.type
	Bridges       []string `json:"bridges"`       // names of bridges
	Masters       []string `json:"masters"`       // interfaces of the host, for the keys master and device
	Subnets       []string `json:"subnets"`       // prefixes that contain all addresses, ranges and gateways
	HostPorts     []string `json:"hostPorts"`     // "8080" or "30000-32767"
	HostAddresses []string `json:"hostAddresses"` // addresses of host ports; "*" also permits ports at all addresses
	VLANs         []string `json:"vlans"`         // "100" or "100-199"
	AllowKeys     []string `json:"allowKeys"`     // keys in refusedKeys that are permitted nevertheless

	path string
}

// refusedKeys are the keys by which a configuration reaches files, sockets, devices or rules of the host, or other
// containers of a shared network.
var refusedKeys = []string{"conditionsV4", "conditionsV6", "configuration_path", "daemonSocketPath", "dataDir",
	"deviceID", "ethtool", "externalSetMarkChain", "firewalldZone", "forceAddress", "hwaddr", "ingressPolicy",
	"iptablesAdminChainName", "kernelpath", "kubeconfig", "kubernetes", "log", "mac", "markAcceptBit", "markMasqBit",
	"pciBusID", "prevResult", "promiscMode", "resolvConf", "useInterfaceNetwork"}

// Call describes a call for Check, in addition to its configuration.
type Call struct {
	Plugin  string // the plugin's own name, which can differ from the type in the configuration
	First   bool   // an ADD of a plugin that is not chained, so that only the author can have written prevResult
	Chained bool   // the plugin works on the addresses of prevResult
	Args    string // CNI_ARGS
}

// Load reads a policy. It returns nil, which permits everything, if the file does not exist. If rootOnly is true, it
// returns an error if a user other than root can write the file. A file or directory that is a symbolic link to nothing
// is an error, not a missing policy.
func Load(path string, rootOnly bool) (*Policy, error) {
	f, err := os.OpenFile(path, unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) && !IsDangling(filepath.Dir(path)) {
		return nil, nil
	}
	if errors.Is(err, unix.ELOOP) {
		f, err = os.Open(path)
	}
	if err != nil {
		return nil, cni.Errorf(cni.CodeIO, "policy: %w", err)
	}
	defer f.Close()
	p := &Policy{path: path}
	d := json.NewDecoder(f)
	d.DisallowUnknownFields()
	var st unix.Stat_t
	if err := cmp.Or(unix.Fstat(int(f.Fd()), &st), d.Decode(p)); err != nil {
		return nil, cni.Errorf(cni.CodeIO, "policy %s: %w", path, err)
	}
	if rootOnly && (st.Uid != 0 || st.Mode&0o022 != 0 || st.Mode&unix.S_IFMT != unix.S_IFREG) {
		return nil, cni.Errorf(cni.CodeIO,
			"policy %s: not a regular file that only root may write; run: chown root %s && chmod 644 %s", path, path,
			path)
	}
	if p.TrustedDirs == nil {
		p.TrustedDirs = defaultDirs()
	}
	return p, p.check()
}

// IsDangling reports whether the path is a symbolic link to nothing.
func IsDangling(path string) bool {
	if _, err := os.Readlink(path); err != nil {
		return false // no link
	}
	_, err := os.Stat(path)
	return err != nil
}

// check returns an error for entries that would match nothing.
func (p *Policy) check() error {
	var errs []error
	checkList := func(key string, list []string, isValid func(string) bool, want string) {
		for _, entry := range list {
			if entry != wildcard && !isValid(entry) {
				errs = append(errs, fmt.Errorf("%s: %q is not %s", key, entry, want))
			}
		}
	}
	isPrefix := func(s string) bool { _, err := netip.ParsePrefix(s); return err == nil }
	isAddr := func(s string) bool { _, err := netip.ParseAddr(s); return err == nil }
	isPort := func(s string) bool { _, _, ok := numberRange(s, 65535); return ok }
	isVLAN := func(s string) bool { _, _, ok := numberRange(s, 4094); return ok }
	checkList("subnets", p.Subnets, isPrefix, "a subnet such as 10.1.0.0/16")
	checkList("hostPorts", p.HostPorts, isPort, "a port or a range such as 30000-32767")
	checkList("vlans", p.VLANs, isVLAN, "a VLAN or a range such as 100-199")
	checkList("hostAddresses", p.HostAddresses, isAddr, "an IP address")
	isRefused := func(s string) bool { return slices.Contains(refusedKeys, s) }
	checkList("allowKeys", p.AllowKeys, isRefused, "a key that is refused")
	if err := errors.Join(errs...); err != nil {
		return cni.Errorf(cni.CodeIO, "policy %s: %w", p.path, err)
	}
	return nil
}

// Check refuses (code 7) each value of a tenant's configuration that the policy does not permit.
func (p *Policy) Check(conf []byte, call Call) error {
	if p == nil {
		return nil
	}
	if key := duplicateKey(conf); key != "" {
		return cni.Refuse(key, nil, "appears twice, in the same or another case: which value applies is not defined")
	}
	var values map[string]any
	if err := decodeNumbers(conf, &values); err != nil {
		return nil // the plugin refuses the configuration
	}
	networks, unread := p.networks(values)
	isTrusted := slices.ContainsFunc(networks, func(n Network) bool { return n.IsOwn })
	if isForged := call.First && values["prevResult"] != nil; isTrusted && !isForged {
		return nil
	}
	if _, ok := errors.AsType[*fs.PathError](unread); ok {
		return cni.Errorf(cni.CodeIO, "policy %s: networks of the administrator: %w", p.path, unread)
	}
	t := &tenant{Policy: p, call: call, conf: foldKeys(values).(map[string]any)}
	if name := text(t.conf["name"]); slices.ContainsFunc(networks, func(n Network) bool { return n.Name == name }) {
		t.refuse("name", name, "is the name of one of the administrator's networks")
	}
	t.checkTypes()
	t.checkLinks()
	t.checkKeys(nil, t.conf)
	t.checkAddresses([]string{"ipam"}, "", t.conf["ipam"])
	t.checkAddresses([]string{"runtimeConfig"}, "", t.conf["runtimeconfig"])
	t.checkAddresses([]string{"args"}, "", t.conf["args"])
	if prev, ok := t.conf["prevresult"].(map[string]any); ok && call.Chained {
		for _, key := range []string{"ips", "ip4", "ip6"} { // the last two before version 0.3.0
			t.checkAddresses([]string{"prevResult", key}, key, prev[key])
		}
	}
	t.checkArgs()
	t.checkPorts()
	t.checkVLANs()
	if unread != nil && t.problems.Err() != nil {
		t.problems.Add(cni.Errorf(cni.CodeConfig, "networks of the administrator: %w", unread))
	}
	return t.problems.Err()
}

// tenant is the check of a tenant's configuration. The keys of conf are in lower case, because plugins accept any case.
type tenant struct {
	*Policy
	call     Call
	conf     map[string]any
	problems cni.Problems
	refusals int
}

func (t *tenant) refuse(key string, value any, reason string) {
	t.refusals++
	t.problems.Add(cni.Refuse(key, value, reason).
		Suggest("ask the administrator of the node; the policy is %s", t.path))
}

// refuseUnlisted refuses a value that a list of the policy does not have.
func (t *tenant) refuseUnlisted(key string, value any, list string) {
	t.refuse(key, value, "is not permitted by "+list+" of the policy")
}

const refusalsMax = 64 // after more refusals, the rest of a configuration is not checked

func permits(list []string, value string) bool {
	return slices.Contains(list, value) || slices.Contains(list, wildcard)
}

func (t *tenant) checkTypes() {
	if name := text(t.conf["type"]); !permits(t.Types, name) {
		t.refuseUnlisted("type", name, "types")
	}
	ipam, _ := t.conf["ipam"].(map[string]any)
	if name := text(ipam["type"]); name != "" && !permits(t.Types, name) {
		t.refuseUnlisted("ipam.type", name, "types")
	}
}

// checkLinks checks the interfaces of the host that the configuration names, or that the plugin uses by default.
func (t *tenant) checkLinks() {
	if bridge := bridgeOf(t.conf, t.call.Plugin); bridge != "" && !permits(t.Bridges, bridge) {
		t.refuseUnlisted("bridge", bridge, "bridges")
	}
	if device := text(t.conf["device"]); device != "" && !permits(t.Masters, device) {
		t.refuseUnlisted("device", device, "masters")
	}
	if t.conf["linkincontainer"] == true {
		return
	}
	master := text(t.conf["master"])
	isChild := slices.Contains([]string{"macvlan", "ipvlan", "vlan"}, t.call.Plugin)
	switch {
	case master == "" && isChild && !permits(t.Masters, master):
		t.refuse("master", nil, "is missing, and the policy permits only the interfaces in masters")
	case master != "" && !permits(t.Masters, master):
		t.refuseUnlisted("master", master, "masters")
	}
}

// checkKeys refuses the keys that reach the host, in every object. It refuses the configuration's own prevResult only
// if call.First is set. path is for cni.JoinKeys, and becomes text only in refusals, because a tenant can make it long.
func (t *tenant) checkKeys(path []string, value any) {
	if t.refusals > refusalsMax {
		return
	}
	switch value := value.(type) {
	case []any:
		for i, v := range value {
			t.checkKeys(append(path, fmt.Sprintf("[%d]", i)), v)
		}
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(value)) {
			i := slices.IndexFunc(refusedKeys, func(k string) bool { return strings.EqualFold(k, key) })
			isResult := len(path) == 0 && key == "prevresult"
			switch {
			case isResult && !t.call.First, value[key] == nil:
			case i >= 0 && !slices.Contains(t.AllowKeys, refusedKeys[i]):
				t.refuse(cni.JoinKeys(append(path, refusedKeys[i])), nil,
					"is a key that reaches the host, and allowKeys of the policy does not have it")
			case !isResult:
				t.checkKeys(append(path, cni.KeyIn("", key)), value[key])
			}
		}
	}
}

// checkAddresses checks every address, range and gateway below a path. key is the last key of the path.
func (t *tenant) checkAddresses(path []string, key string, value any) {
	if t.refusals > refusalsMax {
		return
	}
	switch value := value.(type) {
	case []any:
		for i, v := range value {
			t.checkAddresses(append(path, fmt.Sprintf("[%d]", i)), key, v)
		}
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(value)) {
			if key != "portmappings" && key != "routes" && key != "dns" && key != "exclude" {
				t.checkAddresses(append(path, cni.KeyIn("", key)), key, value[key])
			}
		}
	case string:
		isAddress := slices.Contains([]string{"address", "addresses", "gateway", "ip", "ips", "range", "rangeend",
			"rangestart", "subnet"}, key)
		if isAddress && !t.isInSubnets(value) {
			t.refuseUnlisted(cni.JoinKeys(path), value, "subnets")
		}
	}
}

func (t *tenant) checkArgs() {
	for pair := range strings.SplitSeq(t.call.Args, ";") {
		key, value, _ := strings.Cut(pair, "=")
		key = strings.ToUpper(strings.TrimSpace(key))
		if (key == "IP" || key == "GATEWAY") && !t.isInSubnets(value) {
			t.refuseUnlisted("CNI_ARGS "+key, value, "subnets")
		}
		if key == "MAC" && !slices.Contains(t.AllowKeys, "mac") {
			t.refuseUnlisted("CNI_ARGS MAC", value, "allowKeys")
		}
	}
}

// isInSubnets reports whether all addresses of a text are in subnets of the policy. The text is "10.1.0.2",
// "10.1.0.0/24", "10.1.0.2-10.1.0.9/24" or several of these, separated by commas.
func (t *tenant) isInSubnets(text string) bool {
	for part := range strings.FieldsFuncSeq(text, func(r rune) bool { return r == ',' || r == '-' }) {
		part = strings.TrimSpace(part)
		if !strings.Contains(part, "/") {
			part += "/128" // also for IPv4, where any length from 32 on is a single address
		}
		addr, length, _ := strings.Cut(part, "/")
		ip, err := netip.ParseAddr(addr)
		bits, err2 := strconv.Atoi(length)
		if ip.Is4In6() {
			ip, bits = ip.Unmap(), bits-96
		}
		isIn := func(s string) bool {
			subnet, _ := netip.ParsePrefix(s) // verified by check
			return subnet.Contains(ip) && subnet.Bits() <= bits
		}
		if err != nil || err2 != nil || !slices.ContainsFunc(t.Subnets, isIn) {
			return false
		}
	}
	return true
}

func (t *tenant) checkPorts() {
	rc, _ := t.conf["runtimeconfig"].(map[string]any)
	list, _ := rc["portmappings"].([]any)
	for i, entry := range list {
		path := fmt.Sprintf("runtimeConfig.portMappings[%d]", i)
		m, _ := entry.(map[string]any)
		port := text(m["hostport"])
		number, err := strconv.Atoi(port)
		if err != nil || !permitsRange(t.HostPorts, number, number) {
			t.refuseUnlisted(path+".hostPort", json.RawMessage(strconv.Quote(port)), "hostPorts")
		}
		if ip := text(m["hostip"]); !permits(t.HostAddresses, ip) {
			t.refuseUnlisted(path+".hostIP", ip, "hostAddresses")
		}
	}
}

// checkVLANs checks the VLANs of a port or of an interface. 0 means no VLAN.
func (t *tenant) checkVLANs() {
	check := func(path string, minID, maxID any) { // the plugin refuses invalid numbers
		first, last, ok := numberRange(text(minID)+"-"+text(maxID), 4094)
		if ok && !permitsRange(t.VLANs, first, last) {
			t.refuseUnlisted(path, first, "vlans")
		}
	}
	check("vlan", t.conf["vlan"], t.conf["vlan"])
	check("vlanId", t.conf["vlanid"], t.conf["vlanid"])
	trunk, _ := t.conf["vlantrunk"].([]any)
	if len(trunk) > 0 && cmp.Or(text(t.conf["vlan"]), "0") == "0" && !permitsRange(t.VLANs, 1, 1) {
		t.refuseUnlisted("vlan", 1, "vlans") // a trunk without vlan has VLAN 1
	}
	for i, entry := range trunk {
		m, _ := entry.(map[string]any)
		check(fmt.Sprintf("vlanTrunk[%d].id", i), m["id"], m["id"])
		check(fmt.Sprintf("vlanTrunk[%d].minID", i), m["minid"], m["maxid"])
	}
}

// permitsRange reports whether one entry of the list contains all numbers from first to last.
func permitsRange(list []string, first, last int) bool {
	return slices.ContainsFunc(list, func(entry string) bool {
		start, end, ok := numberRange(entry, 65535)
		return entry == wildcard || ok && start <= first && last <= end
	})
}

// numberRange parses "8080" or "30000-32767", with numbers from 1 to limit.
func numberRange(text string, limit int) (first, last int, ok bool) {
	start, end, isRange := strings.Cut(text, "-")
	if !isRange {
		end = start
	}
	first, startErr := strconv.Atoi(start)
	last, endErr := strconv.Atoi(end)
	return first, last, startErr == nil && endErr == nil && 0 < first && first <= last && last <= limit
}

// text returns a JSON text or number as it is written, and an empty text for other values.
func text(value any) string {
	s, _ := value.(string)
	number, _ := value.(json.Number)
	return s + number.String()
}

func decodeNumbers(data []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	return d.Decode(v)
}
