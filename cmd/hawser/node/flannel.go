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

// ResolveFlannel replaces each flannel entry of the list, in place, by the plugin entry that flannel delegates to. For
// a container it is the entry that flannel saved for DEL, otherwise the entry of the next ADD.
func (l List) ResolveFlannel(containerID string) List {
	for i := range l.Plugins {
		l.Plugins[i].ResolveFlannel(containerID)
	}
	return l
}

// ResolveFlannel replaces a flannel entry by the plugin entry that flannel delegates to.
func (e *Entry) ResolveFlannel(containerID string) {
	if e.Type != "flannel" {
		return
	}
	text := func(key, otherwise string) (value string) {
		_ = json.Unmarshal(e.Raw[key], &value) // flannel refuses other types
		return cmp.Or(value, otherwise)
	}
	called := Entry{SubnetFile: text("subnetFile", "/run/flannel/subnet.env"), File: e.File,
		Key: strings.TrimPrefix(e.Key+".delegate", ".")}
	kept, err := os.ReadFile(filepath.Join(text("dataDir", "/var/lib/cni/flannel"), containerID))
	if err != nil {
		kept = e.delegate(called.SubnetFile)
	}
	_ = called.parse(kept) // after an error the entry has no type
	*e = called
}

// delegate returns the configuration that flannel builds from its delegate and the node's subnet, without keys that the
// tool does not read. If the subnet is unknown, the configuration declares that the runtime sends the ranges.
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
	data, _ := json.Marshal(conf) // decoded values can be encoded
	return data
}
