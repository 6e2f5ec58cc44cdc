package main

import (
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// attributes of an interface are in the order in which the reference changes them and writes its backup file.
var attributes = []string{"mac", "promisc", "mtu", "allmulti", "txQLen"}

// value is what an attribute or a sysctl has, as text.
type value struct {
	Key   string `json:"key"`
	Value string `json:"value"`
	Link  int    `json:"link,omitempty"` // index of the interface that it belongs to; 0 = the namespace, or not said
}

func (v value) isAttribute() bool { return slices.Contains(attributes, v.Key) }

// attributeOf reads an attribute of a link.
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

// isOf says whether a link has the value.
func (v value) isOf(l rtnl.Link) bool { return strings.EqualFold(attributeOf(l, v.Key), v.Value) }

// change is the change of a link that gives an attribute this value.
func (v value) change() (ch rtnl.LinkChange, err error) {
	on, notBool := strconv.ParseBool(v.Value)
	n, notNumber := strconv.ParseUint(v.Value, 10, 31)
	number := int(n)
	switch v.Key {
	case "mac":
		ch.MAC, err = net.ParseMAC(v.Value)
	case "promisc":
		ch.Promisc, err = &on, notBool
	case "mtu":
		ch.MTU, err = number, notNumber
	case "allmulti":
		ch.AllMulti, err = &on, notBool
	default:
		ch.TxQLen, err = &number, notNumber
	}
	return ch, err
}
