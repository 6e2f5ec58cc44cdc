package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// FuzzConfig looks for configurations that are not refused and yet make a
// range that gives an address outside itself, or the gateway.
func FuzzConfig(f *testing.F) {
	for _, conf := range []string{
		`{"ipam":{"ranges":[[{"subnet":"10.1.2.0/24"}],[{"subnet":"2001:db8::/64","rangeStart":"2001:db8::ffff"}]]}}`,
		`{"ipam":{"subnet":"255.255.255.252/30","rangeEnd":"255.255.255.255","gateway":"255.255.255.255"}}`,
		`{"ipam":{"subnet":"::/0","rangeStart":"::"},` +
			`"runtimeConfig":{"ips":["::1"],"ipRanges":[[{"subnet":"0.0.0.0/0"}]]}}`,
		`{"ipam":{"subnet":"::100:0/112"},"args":{"cni":{"ips":["::100:5/3"]}}}`,
		`{"ipam":{"ranges":[[]],"routes":[{"dst":"x"}]}}`,
	} {
		f.Add([]byte(conf), "IP=10.1.2.3", "10.1.2.3")
	}
	f.Fuzz(func(t *testing.T, conf []byte, args, lastText string) {
		cfg, err := plugin().Parse(&skel.Request{Conf: conf, Args: args, Version: "1.1.0"})
		if err != nil {
			if code := cni.AsError(err).Code; code != cni.CodeConfig && code != cni.CodeDecode &&
				code != cni.CodeEnvironment {
				t.Fatalf("code %d: %v", code, err)
			}
			return
		}
		last, _ := netip.ParseAddr(lastText)
		for _, set := range cfg.sets {
			seen := map[netip.Addr]bool{}
			for a := range set.after(last) {
				if _, ok := set.find(a); !ok || set.isGateway(a) || seen[a] {
					t.Fatalf("%s after %s: %s", set, last, a)
				}
				if seen[a] = true; len(seen) == 1000 {
					break
				}
			}
		}
	})
}

// FuzzCall makes up whole calls.
func FuzzCall(f *testing.F) {
	Fuzz{
		Plugin: Any(plugin()),
		Confs: []string{
			`{"cniVersion":"1.1.0","name":"net","ipam":{"type":"host-local","dataDir":"/run/leases",
				"ranges":[[{"subnet":"10.1.0.0/29"}],[{"subnet":"fd00::/64"}]],
				"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0","mtu":1400,"table":5}],
				"resolvConf":"/etc/resolv.conf","statusOnExhaustion":"fail"},"cni.dev/valid-attachments":[]}`,
			`{"cniVersion":"0.3.1","name":"net","ipam":{"dataDir":"/run/leases","subnet":"10.2.0.0/24",
				"rangeStart":"10.2.0.5","rangeEnd":"10.2.0.9","gateway":"10.2.0.1"},
				"args":{"cni":{"ips":["10.2.0.7"]}},
				"cni.dev/valid-attachments":[{"containerID":"one","ifname":"eth0"}]}`,
			`{"name":"net","ipam":{"dataDir":"/run/leases","ranges":[]},
				"capabilities":{"ipRanges":true},
				"runtimeConfig":{"ipRanges":[[{"subnet":"10.3.0.0/30"}]],"ips":["10.3.0.2/30"]}}`,
			`{"cniVersion":"1.1.0","name":"net","ipam":{"dataDir":"/run/leases","subnet":"10.1.0.0/29"},
				"prevResult":{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.2/29"}]}}`,
			`{"cniVersion":"1.1.0","name":"net","ipam":{"dataDir":"/proc/self/fd","subnet":"10.1.0.0/29"},
				"cni.dev/valid-attachments":null}`,
		},
	}.Run(f)
}

// FuzzFiles makes up what is in the directory of the leases: one entry of
// any kind beside the files that are always there. What has an owner stays as it
// is, and its address is given to nobody.
func FuzzFiles(f *testing.F) {
	f.Add(uint8(0), "10.1.0.2", []byte("other\r\neth0"), []byte("10.1.0.3"), []byte(indexMagic),
		[]byte("nameserver 10.1.0.1\n"))
	f.Add(uint8(0), "10.1.0.2", []byte("one\r\neth0"), []byte("10.1.0.99\n"), []byte(indexMagic),
		[]byte("search\noptions a b"))
	f.Add(uint8(0), "10.1.0.2", []byte(" \x00\r\n"), []byte("::"), bytes.Repeat([]byte{0xff}, 128), []byte("domain"))
	f.Add(uint8(0), "010.1.0.2", []byte("one"), []byte("x"), []byte{0}, []byte("#"))
	for kind := range uint8(4) {
		f.Add(kind, "10.1.0.2", []byte("10.1.0.3"), []byte(""), []byte(""), []byte("; nameserver"))
		f.Add(kind, "lock", []byte("/etc/passwd"), []byte(""), []byte(""), []byte(""))
		f.Add(kind, "last_reserved_ip.0", []byte("10.1.0.3"), []byte(""), []byte(""), []byte(""))
	}
	f.Fuzz(func(t *testing.T, kind uint8, name string, content, last, index, resolv []byte) {
		base := t.TempDir()
		write(t, base+"/net/last_reserved_ip.0", last)
		write(t, base+"/.hawser/net", index)
		write(t, base+"/resolv.conf", resolv)
		if strings.Contains(name, "/") || !plant(kind, base+"/net/"+name, string(content)) {
			t.Skip("a name that no file can have")
		}
		before := others(readLeases(t, base))
		for _, command := range []string{"ADD", "CHECK", "STATUS", "ADD", "DEL", "GC", "DEL"} {
			if owner, taken := before[fuzzCall(t, base, command, "one")]; taken {
				t.Fatalf("gave what %q holds", owner)
			}
		}
		if after := others(readLeases(t, base)); !maps.Equal(before, after) {
			t.Fatalf("the files of others were\n%q and are\n%q", before, after)
		}
	})
}

func write(t *testing.T, file string, content []byte) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, content, 0o600)); err != nil {
		t.Fatal(err)
	}
}

// plant makes a file, a symbolic link, a directory or a FIFO.
func plant(kind uint8, path, content string) bool {
	_ = os.Remove(path)
	switch kind {
	case 0:
		return os.WriteFile(path, []byte(content), 0o600) == nil
	case 1:
		return os.Symlink(content, path) == nil
	case 2:
		return os.Mkdir(path, 0o755) == nil
	case 3:
		return syscall.Mkfifo(path, 0o600) == nil
	}
	return false
}

// FuzzIndex damages an index that is up to date.
func FuzzIndex(f *testing.F) {
	header := len(indexMagic) + 37 + 34 // without stamp and count
	f.Add(uint16(header), []byte{0xff})
	f.Add(uint16(header+8), []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
	f.Add(uint16(header+8), []byte{0})
	f.Add(uint16(header+16), make([]byte, entrySize))
	f.Add(uint16(header+16), bytes.Repeat([]byte{1}, 2*entrySize))
	f.Fuzz(func(t *testing.T, at uint16, damage []byte) {
		base := t.TempDir()
		fuzzCall(t, base, "ADD", "a")
		fuzzCall(t, base, "ADD", "b")
		file := base + "/.hawser/net"
		index, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if int(at) < len(index) {
			copy(index[at:], damage)
		}
		given := readLeases(t, base)
		write(t, file, index)
		for _, id := range []string{"c", "d", "e", "f"} { // one more than are free
			if owner, taken := given[fuzzCall(t, base, "ADD", id)]; taken {
				t.Fatalf("gave what %q holds", owner)
			}
			given = readLeases(t, base)
		}
		for _, command := range []string{"CHECK", "STATUS", "DEL", "GC"} {
			fuzzCall(t, base, command, "b")
		}
	})
}

// fuzzCall serves a call, which must be answered as the contract says, and
// returns the address that it gave.
func fuzzCall(t *testing.T, base, command, id string) string {
	t.Helper()
	conf := `{"cniVersion":"1.1.0","name":"net","ipam":{"subnet":"10.1.0.0/29","dataDir":"` + base +
		`","resolvConf":"` + base + `/resolv.conf"},` +
		`"cni.dev/valid-attachments":[{"containerID":"other","ifname":"eth0"}]}`
	if _, err := os.Stat(base + "/resolv.conf"); err != nil {
		conf = strings.Replace(conf, `"resolvConf"`, `"-"`, 1)
	}
	var out, errs bytes.Buffer
	hang := time.AfterFunc(nstest.Patience(time.Minute), func() { panic("hangs") })
	defer hang.Stop()
	code := skel.Run(context.Background(), plugin(), skel.Env{
		Stdin: strings.NewReader(conf), Stdout: &out, Stderr: &errs,
		Vars: []string{"CNI_COMMAND=" + command, "CNI_CONTAINERID=" + id, "CNI_NETNS=/x", "CNI_IFNAME=eth0"}})
	a := Answer{Code: code, Stdout: out.String(), Stderr: errs.String()}
	if err := a.Verdict(command); err != nil {
		t.Fatalf("%s: %v\n%s\n%s", command, err, a.Stdout, a.Stderr)
	}
	if command != "ADD" || code != 0 {
		return ""
	}
	var r Result
	if err := json.Unmarshal(out.Bytes(), &r); err != nil || len(r.IPs) != 1 {
		t.Fatal(err, a.Stdout)
	}
	return r.IPs[0].Address
}

// readLeases are the addresses that have an owner, as results spell them.
func readLeases(t *testing.T, base string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(base, "net"))
	if err != nil {
		t.Fatal(err)
	}
	held := map[string]string{}
	for _, e := range entries {
		owner := e.Type().String() // nothing that is no file is anybody's to take
		if e.Type().IsRegular() {
			data, err := os.ReadFile(filepath.Join(base, "net", e.Name()))
			if err != nil {
				t.Fatal(err)
			}
			owner = ownerOf(data)
		}
		if addr, err := netip.ParseAddr(e.Name()); err == nil && addr.String() == e.Name() && owner != "" {
			held[addr.String()+"/29"] = owner
		}
	}
	return held
}

// others are the leases of whom neither DEL of "one" nor GC may touch.
func others(leases map[string]string) map[string]string {
	maps.DeleteFunc(leases, func(_, owner string) bool {
		id, ifName, exact := parseOwner(owner)
		return owner == "one" || exact && cni.ValidName(id) && cni.ValidIfName(ifName) &&
			(id != "other" || ifName != "eth0")
	})
	return leases
}
