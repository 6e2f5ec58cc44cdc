package cni

import "net"

// ParseMAC reads the MAC address that a configuration key asks for; an empty
// text is none. What no interface can have is refused. A longer address than
// Ethernet's six bytes is InfiniBand's, with rules of its own.
func ParseMAC(code uint, key, text string) (net.HardwareAddr, error) {
	if text == "" {
		return nil, nil
	}
	mac, err := net.ParseMAC(text)
	if err != nil || len(mac) == 6 && (mac[0]&1 != 0 || mac.String() == "00:00:00:00:00:00") {
		return nil, Refuse(key, text,
			"is no MAC address of an interface (six bytes, not multicast, not zero)").WithCode(code).
			Suggest("write it like 02:00:00:00:00:01, the second digit even")
	}
	return mac, nil
}
