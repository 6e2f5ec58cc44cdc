// Package tuning is the plugin tuning: it sets sysctls of the container's network namespace, and attributes and ethtool
// settings of the interface that another plugin of the chain has created.
//
// ADD reads the present values, records them, and then writes the configured ones in their order. DEL, GC and the
// rollback of an ADD restore the recorded values. One record in /run/hawser/tuning covers all attachments of a
// container, because several of them may change the same value. Only the first ADD has read the original value, and
// only the DEL of the last attachment restores it. The reference plugin keeps a backup file in dataDir instead. For
// compatibility, ADD also writes this file and DEL also reads it. Attributes of virtual links end with the namespace,
// but ethtool settings of hardware do not. Therefore, the record identifies the device, so that DEL and GC also find it
// after it has returned to the host.
//
// An administrator's allow-list can limit the sysctls that configurations may set.
//
// README.md describes every key of the configuration.
package tuning

import "github.com/hawser-cni/plugins/pkg/skel"

// Plugin returns the plugin: its name, configuration and handlers.
func Plugin() skel.Plugin[config] { return plugin("/etc/cni/tuning/allowlist.conf") }

func plugin(allowed allowList) skel.Plugin[config] {
	return skel.Plugin[config]{
		Name:    "tuning",
		About:   "sets sysctls of the container's namespace and attributes of its interface",
		Config:  skel.ConfigOf(wireConfig{}, parseConfig),
		Chained: true,
		Add:     allowed.add,
		Del:     del,
		Check:   check,
		Reapply: reapply,
		GC:      gc,
		Status:  allowed.status,
		List:    list,
	}
}
