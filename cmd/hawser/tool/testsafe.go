package tool

import (
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/cmd/hawser/node"
	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// safety finds values of a list that a test must not give to its containers, because a live container, the host or
// another machine of the network may have them: fixed addresses, fixed MAC addresses, and devices of the host. It reads
// the list as written, including nested lists (multus) and other projects' entries. It ignores the case of keys, as the
// reference does.
type safety struct {
	*node.Node
	host *rtnl.Conn
	seen []string // networks whose lists were read
}

// checkSafety returns the reason why a test must not attach a container with the list, or nil if the test may do so.
func checkSafety(n *node.Node, list node.List) error {
	s := safety{Node: n, host: rtnl.Host()}
	defer s.host.Close()
	return s.checkList(list)
}

func (s *safety) checkList(list node.List) error {
	s.seen = append(s.seen, list.Name)
	for _, e := range list.Plugins {
		data, _ := json.Marshal(e.Raw) // decoded values can be encoded
		var entry map[string]any
		_ = json.Unmarshal(data, &entry)
		if err := s.checkObject(e.Key, entry); err != nil {
			return fmt.Errorf("%s: %w", e.File, err)
		}
	}
	return nil
}

// checkObject checks an object at a path of the list, and all values in the object.
func (s *safety) checkObject(path string, o map[string]any) error {
	if err := s.checkDevices(path, o); err != nil {
		return err
	}
	for _, key := range slices.Sorted(maps.Keys(o)) {
		if err := s.checkValue(cni.KeyIn(path, key), strings.ToLower(key), o[key]); err != nil {
			return err
		}
	}
	return nil
}

// checkValue checks the value of a key, which is in lower case.
func (s *safety) checkValue(path, key string, value any) error {
	switch v := value.(type) {
	case string:
		switch {
		case key == "mac" && v != "":
			return fmt.Errorf("%s %q: a fixed MAC address, which may be in use, is not given to a test's container; "+
				"test a copy of the list without it", path, v)
		case key == "clusternetwork" || key == "defaultnetworks":
			return s.checkNetwork(v)
		}
	case map[string]any:
		return s.checkObject(path, v)
	case []any:
		if len(v) > 0 && (key == "addresses" || key == "ips") {
			return fmt.Errorf("%s: fixed addresses, which may be in use, are not given to a test's container; test a "+
				"copy of the list with host-local", path)
		}
		for i, element := range v {
			elementPath := fmt.Sprintf("%s[%d]", path, i)
			if o, ok := element.(map[string]any); ok && key == "provide" && isIdentity(o) {
				return fmt.Errorf("%s: a fixed client identifier, whose lease may be in use, is not given to a test's "+
					"container; test a copy of the list without it", elementPath)
			}
			if err := s.checkValue(elementPath, key, element); err != nil {
				return err
			}
		}
	}
	return nil
}

// isIdentity reports whether an element of dhcp's provide is a client identifier, by which servers know clients.
func isIdentity(o map[string]any) bool {
	option := fmt.Sprint(o["option"])
	return text(o, "value") != "" && (option == "61" || option == "dhcp-client-identifier")
}

// checkNetwork checks a list that multus reads, given by the name of its network or file.
func (s *safety) checkNetwork(name string) error {
	if slices.Contains(s.seen, name) {
		return nil
	}
	s.seen = append(s.seen, name)
	list, err := chooseList(s.Node, strings.TrimPrefix(name, "/host")) // multus mounts the host at /host
	if err != nil {
		return nil //nolint:nilerr // a resource of the cluster, which only multus can read
	}
	return s.checkList(list)
}

// checkDevices checks the devices that an entry names. Other projects' plugins use the same keys.
func (s *safety) checkDevices(path string, o map[string]any) error {
	plugin := text(o, "type")
	runtime, _ := o["runtimeConfig"].(map[string]any)
	values := map[string]string{"runtimeConfig.deviceID": text(runtime, "deviceID")}
	for _, key := range []string{"device", "hwaddr", "kernelpath", "pciBusID", "deviceID"} {
		values[key] = text(o, key)
	}
	switch {
	case plugin == "":
		return nil
	case cni.IsPlugin(plugin, "macvlan") && text(o, "mode") == "passthru": // changes its master's address and mode
		values = map[string]string{"master": text(o, "master")}
	case s.HasPlugin(plugin) && !cni.IsPlugin(plugin, "host-device"):
		return nil
	}
	for _, key := range slices.Sorted(maps.Keys(values)) {
		if values[key] == "" && key != "master" {
			continue
		}
		if reason := s.useOf(key, values[key]); reason != "" {
			return fmt.Errorf("%s %q: the device is not given to a test's container: %s; test a copy of the list with "+
				"an idle device", cni.KeyIn(path, key), values[key], reason)
		}
	}
	return nil
}

// useOf returns why a device is or may be in use; empty if it is idle.
func (s *safety) useOf(key, value string) string {
	l, err := s.find(key, value)
	if err != nil {
		return err.Error()
	}
	addrs, addrErr := s.host.Addrs(l.Index)
	routes, routeErr := s.host.Routes(l.Index, unix.AF_UNSPEC)
	links, linkErr := s.host.Links()
	switch upper := slices.IndexFunc(links, func(other rtnl.Link) bool {
		return other.Peer == l.Index && other.PeerNS < 0 && other.Kind != "veth" || other.Master == l.Index
	}); {
	case addrErr != nil || routeErr != nil || linkErr != nil:
		return "it is unknown whether it is in use"
	case len(addrs) > 0:
		return fmt.Sprintf("%s has address %s", l.Name, addrs[0].Prefix)
	case len(routes) > 0:
		return fmt.Sprintf("%s has route %s", l.Name, routes[0])
	case l.Master != 0:
		return l.Name + " is a port of another interface"
	case upper >= 0:
		return links[upper].Name + " is on " + l.Name
	case l.Up:
		return l.Name + " is up"
	}
	return ""
}

// find returns the link of a device, by the key that names it. Without a name it returns the link of the default route.
func (s *safety) find(key, value string) (rtnl.Link, error) {
	dir := value
	switch key {
	case "master", "device":
		if value == "" {
			l, _ := uplink()
			value = l.Name
		}
		if l, err := s.host.LinkByAnyName(value); err == nil {
			return l, nil
		}
	case "hwaddr":
		mac, _ := net.ParseMAC(value)
		links, _ := s.host.Links()
		i := slices.IndexFunc(links, func(l rtnl.Link) bool { return mac != nil && slices.Equal(l.MAC, mac) })
		if i >= 0 {
			return links[i], nil
		}
	case "pciBusID", "deviceID", "runtimeConfig.deviceID":
		dir, _ = filepath.EvalSymlinks("/sys/bus/pci/devices/" + filepath.Base(value))
		if dir == "" {
			dir, _ = filepath.EvalSymlinks("/sys/bus/auxiliary/devices/" + filepath.Base(value))
		}
		fallthrough
	default: // dir is the device's directory in sysfs
		virtio, _ := filepath.Glob(dir + "/virtio*")
		for _, dir := range append([]string{dir}, virtio...) {
			entries, _ := os.ReadDir(filepath.Join(dir, "net"))
			for _, e := range entries {
				if l, err := s.host.Link(e.Name()); err == nil {
					return l, nil
				}
			}
		}
	}
	return rtnl.Link{}, fmt.Errorf("the host has no interface of this device, which may be in use elsewhere")
}

// text returns the string value of a key, ignoring the key's case; empty if there is no such value.
func text(o map[string]any, key string) string {
	for name, value := range o {
		if v, ok := value.(string); ok && strings.EqualFold(name, key) {
			return v
		}
	}
	return ""
}
