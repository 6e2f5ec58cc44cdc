package node

import (
	"cmp"
	"encoding/json"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
)

// Called is the list, which is changed, with the plugin that flannel calls in the place of flannel: for a container by
// what flannel keeps for its DEL, else as the next ADD calls it.
func (l List) Called(containerID string) List {
	for i := range l.Plugins {
		l.Plugins[i].Call(containerID)
	}
	return l
}

// Call makes of an entry of flannel what that calls.
func (e *Entry) Call(containerID string) {
	if e.Type != "flannel" {
		return
	}
	text := func(key, otherwise string) (value string) {
		_ = json.Unmarshal(e.Raw[key], &value) // what is no text is flannel's to refuse
		return cmp.Or(value, otherwise)
	}
	called := Entry{SubnetFile: text("subnetFile", "/run/flannel/subnet.env"), File: e.File,
		Key: strings.TrimPrefix(e.Key+".delegate", ".")}
	kept, err := os.ReadFile(filepath.Join(text("dataDir", "/var/lib/cni/flannel"), containerID))
	if err != nil {
		kept = e.delegate(called.SubnetFile)
	}
	_ = called.parse(kept) // it has no type then
	*e = called
}

// delegate is what flannel makes of its delegate and the node's subnet, but for keys that nobody here asks for. While
// the subnet is not known the ranges are said to come with the call.
func (e *Entry) delegate(subnetFile string) []byte {
	conf, given := map[string]any{"type": "bridge"}, map[string]any{}
	_ = json.Unmarshal(e.Raw["delegate"], &given)
	maps.Copy(conf, given)
	env, _ := os.ReadFile(subnetFile)
	var ranges []any
	for _, word := range strings.Fields(string(env)) {
		key, value, _ := strings.Cut(word, "=")
		subnet, err := netip.ParsePrefix(value)
		if err == nil && (key == "FLANNEL_SUBNET" || key == "FLANNEL_IPV6_SUBNET") {
			ranges = append(ranges, []any{map[string]any{"subnet": subnet.Masked()}})
		}
	}
	conf["ipam"] = map[string]any{"type": "host-local", "ranges": ranges}
	if ranges == nil {
		conf["capabilities"] = map[string]any{"ipRanges": true}
	}
	data, _ := json.Marshal(conf) // what was decoded can be encoded
	return data
}
