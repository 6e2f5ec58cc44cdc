package hostdevice

import (
	"path/filepath"
	"regexp"
	"strings"

	"github.com/hawser-cni/plugins/pkg/attach"
	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/skel"
)

type wireConfig struct {
	skel.LogKey
	Device     string `json:"device" help:"name or alternative name of the interface" schema:"format=link empty"`
	HWAddr     string `json:"hwaddr" help:"MAC address of the interface" schema:"format=hwaddr empty"`
	KernelPath string `json:"kernelpath" help:"directory of the interface's device below /sys/devices" schema:"format=sysdevice empty"`
	PCIBusID   string `json:"pciBusID" help:"PCI address of the interface's device" schema:"format=pci empty"`
	EnableDAD  bool   `json:"enabledad" help:"detect duplicate IPv6 addresses, and wait for the result (true)"`
	UseNetwork bool   `json:"useInterfaceNetwork" help:"configure the device in the container with its addresses, routes and rules of the host; DEL restores them on the host" default:"false"`
	attach.IPAMKeys
	DNS          cni.DNS `json:"dns" help:"resolver settings for the result, instead of IPAM's"`
	Capabilities struct {
		DeviceID bool `json:"deviceID" help:"the runtime selects the device, so no other key is required" default:"false"`
	} `json:"capabilities"`
	RuntimeConfig struct {
		DeviceID string `json:"deviceID" help:"PCI address or auxiliary device (capability deviceID); overrides pciBusID" schema:"format=device empty"`
	} `json:"runtimeConfig"`
}

type config struct {
	Device     selector
	UnusedID   string // runtimeConfig.deviceID, if another key names the device
	UseNetwork bool
	Link       attach.LinkConfig
	DAD        bool
}

// selector is the key that names the device, with its value. It is empty if the runtime will name the device in ADD.
type selector struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

const (
	byName, byMAC, byPath, byPCI = "device", "hwaddr", "kernelpath", "pciBusID"
	byID                         = "runtimeConfig.deviceID"

	devicesDir = "/sys/devices/"
)

// pciAddress returns id if it is a PCI address as the kernel writes it, and an empty string otherwise. The domain has
// 32 bits and at least four digits.
func pciAddress(id string) string {
	return regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`).FindString(id)
}

func isAuxiliary(id string) bool { return regexp.MustCompile(`^\w[\w.-]*$`).MatchString(id) }

func parseConfig(_ *skel.Request, w wireConfig, problems *cni.Problems) config {
	device, err := w.device()
	problems.Add(err)
	problems.Add(w.IPAM.Check())
	cfg := config{Device: device, UseNetwork: w.UseNetwork, Link: attach.LinkConfig{DNS: w.DNS}, DAD: w.EnableDAD}
	if device.Key != byID {
		cfg.UnusedID = w.RuntimeConfig.DeviceID
	}
	return cfg
}

// device returns the configured selector. It returns code 7 if there are several, or none and the runtime will not name
// the device. runtimeConfig.deviceID takes precedence over pciBusID, but not over the other keys.
func (w wireConfig) device() (d selector, err error) {
	var problems cni.Problems
	for _, key := range []selector{{byName, w.Device}, {byMAC, w.HWAddr}, {byPath, w.KernelPath}, {byPCI, w.PCIBusID}} {
		if key.Value == "" {
			continue
		}
		problems.Add(key.check())
		if d.Key == "" {
			d = key
			continue
		}
		problems.Add(cni.Refuse(key.Key, key.Value, "cannot be combined with "+d.Key+", because there is one device"))
	}
	if id := (selector{byID, w.RuntimeConfig.DeviceID}); id.Value != "" {
		problems.Add(id.check())
		if d.Key == "" || d.Key == byPCI {
			d = id
		}
	}
	if d.Key == "" && !w.Capabilities.DeviceID {
		problems.Add(missingSelector())
	}
	return d, problems.Err()
}

func missingSelector() error {
	return cni.Refuse(byName, nil, `missing; specify either "device", "hwaddr", "kernelpath" or "pciBusID"`)
}

func (d selector) check() error {
	switch {
	case d.Key == byName:
		return cni.CheckName(d.Key, d.Value)
	case d.Key == byMAC:
		_, err := cni.ParseMAC(cni.CodeConfig, d.Key, d.Value)
		return err
	case d.Key == byPath && !strings.HasPrefix(filepath.Clean(d.Value), devicesDir):
		return cni.Refuse(d.Key, d.Value, "is not below "+devicesDir)
	case d.Key == byPCI && pciAddress(d.Value) == "":
		return cni.Refuse(d.Key, d.Value, "is not a PCI address").Suggest("write it like 0000:03:00.1")
	case d.Key == byID && pciAddress(d.Value) == "" && !isAuxiliary(d.Value):
		return cni.Refuse(d.Key, d.Value, "is neither a PCI address nor an auxiliary device")
	}
	return nil
}
