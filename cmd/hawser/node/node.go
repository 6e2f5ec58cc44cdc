// Package node is what the tool knows of a node: the network lists, the plugins, what runtimes remember of their
// attachments, and what plugins keep for them.
package node

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/process"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// Node is where the tool looks.
type Node struct {
	ConfDir  string   // the directory of the network lists
	Path     string   // the directories of the plugins, as in CNI_PATH
	CacheDir string   // libcni's: its folder "results" has a file for each attachment
	Failures string   // the directory of the calls that failed
	Env      []string // KEY=value, of the programs that the tool runs
	Programs []skel.Program
	// IsReference and IsOurs report whether a file is a plugin of the reference, or a program of Hawser.
	IsReference, IsOurs func(file string) bool
}

// Default is the node as runtimes find it where nobody configured them otherwise; that of k3s where the usual directory
// has no list and k3s's has one.
func Default(programs []skel.Program, env []string) Node {
	n := Node{
		ConfDir: "/etc/cni/net.d", Path: configuredPath(),
		CacheDir: "/var/lib/cni", Failures: skel.FailureDir, Env: env, Programs: programs,
	}
	const k3s = "/var/lib/rancher/k3s/"
	usual, _ := ListFiles(n.ConfDir)
	if lists, _ := ListFiles(k3s + "agent/etc/cni/net.d"); len(usual) == 0 && len(lists) > 0 {
		n.ConfDir, n.Path = k3s+"agent/etc/cni/net.d", k3s+"data/cni:"+k3s+"data/current/bin:"+usualPath
	}
	return n
}

// Find returns the file of a plugin: the first one in Path, as runtimes look for it. An empty directory in Path is not
// the working one.
func (n Node) Find(plugin string) (string, error) {
	if !cni.ValidType(plugin) {
		return "", fmt.Errorf("type %q is no plugin's name", plugin)
	}
	for _, dir := range filepath.SplitList(n.Path) {
		file := filepath.Join(dir, plugin)
		info, err := os.Stat(file)
		if dir != "" && err == nil && info.Mode().IsRegular() { // runtimes take no other one then
			if info.Mode()&0o111 == 0 {
				return "", fmt.Errorf("plugin %q: %s is not executable", plugin, file)
			}
			return file, nil
		}
	}
	return "", fmt.Errorf("plugin %q is in none of %s", plugin, n.Path)
}

// Attachment is what is known of an attachment.
type Attachment struct {
	cni.Attachment
	Pod      string `json:"pod,omitempty"` // namespace/name
	Netns    string `json:"netns,omitempty"`
	Cached   `json:"-"`
	Holdings []cni.Holding `json:"holdings"`
	// Reference says that its interface is not one that our plugins made. Of loopback, which leaves nothing, nobody
	// knows.
	Reference bool      `json:"reference,omitempty"`
	Since     time.Time `json:"since,omitzero"`
	// Damaged is its file in libcni's cache, which cannot be read; empty = it can, or there is none.
	Damaged string `json:"-"`
	// Orphan says why nobody needs what is held; empty where somebody may.
	Orphan string `json:"orphan,omitempty"`
	// Shown and ShownEnd are the addresses and the host end in JSON.
	Shown    []string `json:"addresses,omitempty"`
	ShownEnd string   `json:"hostEnd,omitempty"`
}

// MarshalJSON adds what takes a look at the result.
func (a *Attachment) MarshalJSON() ([]byte, error) {
	type plain Attachment
	shown := plain(*a)
	shown.Shown, shown.ShownEnd = a.Addresses(), FirstWord(a.HostEnd())
	return json.Marshal(shown)
}

// Attachments are those that a runtime remembers or a plugin keeps anything for, in the order of network, container and
// interface. What could be read comes beside an error.
func (n Node) Attachments(ctx context.Context) ([]*Attachment, error) {
	all, damaged, err := n.Read(ctx)
	return all, errors.Join(damaged, err)
}

// Read is Attachments with the errors of single files apart: of the node's lists, and of libcni's cache.
func (n Node) Read(ctx context.Context) (out []*Attachment, damaged, err error) {
	cached, damaged, err := n.Cached()
	lists, bad := n.Lists()
	held, failed := n.Holdings(ctx, append(lists, ListsOf(cached)...))
	all, runs := map[cni.Attachment]*Attachment{}, map[string]bool{}
	for _, a := range cached {
		all[a.Attachment], runs[a.ContainerID] = a, true
	}
	of := func(key cni.Attachment) *Attachment {
		if all[key] == nil {
			all[key] = &Attachment{Attachment: key, Reference: true}
		}
		return all[key]
	}
	var partly []cni.Holding
	for _, h := range held {
		if h.ContainerID == "" && !n.usesReference(h.Plugin) {
			continue // ours lends what nobody owns
		}
		if h.IfName == "" || h.Network == "" {
			partly = append(partly, h)
			continue
		}
		of(h.Attachment).add(h)
	}
	for _, h := range partly {
		of(whole(h, all)).add(h)
	}
	for _, a := range all {
		a.Damaged = n.damagedFile(a)
		a.judge(runs[a.ContainerID])
		a.Reference = a.Reference && (len(a.Holdings) > 0 || !n.isOfOthers(a.Config))
		out = append(out, a)
	}
	slices.SortFunc(out, func(a, b *Attachment) int {
		return strings.Compare(a.Network+" "+a.ContainerID+" "+a.IfName, b.Network+" "+b.ContainerID+" "+b.IfName)
	})
	replaced(out)
	return out, errors.Join(damaged, bad), errors.Join(err, failed)
}

// replaced finds those whose namespace's path has another container by now: it made the interface of that name later.
// The path is nothing of theirs then.
func replaced(all []*Attachment) {
	last := map[[2]string]*Attachment{}
	for _, a := range all {
		key := [2]string{a.Netns, a.IfName}
		if b := last[key]; b == nil || a.made().After(b.made()) {
			last[key] = a
		}
	}
	for _, a := range all {
		b := last[[2]string{a.Netns, a.IfName}]
		if a.Netns != "" && a.ContainerID != b.ContainerID && a.Damaged == "" && a.Orphan == "" {
			a.Orphan = fmt.Sprintf("its namespace %s is that of container %.13s by now", a.Netns, b.ContainerID)
			a.Netns = ""
		}
	}
}

// made is when its ADD ended, or else when something of it was written last.
func (a *Attachment) made() time.Time {
	if a.File != "" {
		return a.Written
	}
	return a.youngest()
}

func (n Node) usesReference(plugin string) bool {
	file, err := n.Find(plugin)
	return err == nil && n.IsReference(file)
}

// isOfOthers says that a list is of plugins that neither we have nor the reference, or of loopback.
func (n Node) isOfOthers(config []byte) bool {
	list, err := ParseList(config)
	isKnown := func(e Entry) bool { return n.Has(e.Type) && !e.Is("loopback") }
	return err == nil && !slices.ContainsFunc(list.Called("").Plugins, isKnown)
}

// IsMeant says whether somebody who names a pod or a container so means this one: namespace/name or name, the ID or
// four characters or more of its beginning.
func IsMeant(of, pod, container string) bool {
	_, name, _ := strings.Cut(pod, "/")
	return of == pod || of == name || of == container || len(of) >= 4 && strings.HasPrefix(container, of)
}

// whole is the attachment whose a holding is that does not say all of it: the reference writes no interface down, and
// all of a container on that network share the thing.
func whole(h cni.Holding, all map[cni.Attachment]*Attachment) cni.Attachment {
	found := h.Attachment
	for key := range all {
		isOf := key.ContainerID == h.ContainerID && h.IsOf(key.Network) && (h.IfName == "" || h.IfName == key.IfName)
		if isOf && (found == h.Attachment || key.Network+key.IfName < found.Network+found.IfName) {
			found = key
		}
	}
	return found
}

func (a *Attachment) add(h cni.Holding) {
	a.Holdings = append(a.Holdings, h)
	if a.Netns == "" {
		a.Netns = h.Netns
	}
	if !h.Since.IsZero() && (a.Since.IsZero() || h.Since.Before(a.Since)) {
		a.Since = h.Since
	}
	if h.Kind != cni.HeldAddress && !h.Reference { // leases are the same files with both
		a.Reference = false
	}
}

// judge says whether the attachment is one of a container that is gone, of which a runtime remembers no network. Those
// that multus attaches are remembered by multus.
func (a *Attachment) judge(isRemembered bool) {
	switch {
	case a.Damaged != "": // who knows
	case a.ContainerID == "":
		a.Orphan = "its file names no container, and the reference's host-local does not lend it again"
	case a.Netns != "" && isGone(a.Netns):
		a.Orphan = fmt.Sprintf("its namespace %s is gone", a.Netns)
	case a.Netns == "" && !isRemembered:
		a.Orphan = "no runtime remembers it"
	}
}

func isGone(netns string) bool {
	opened, err := ns.Open(netns)
	if err == nil {
		_ = opened.Close()
	}
	return errors.Is(err, ns.ErrNotExist) || errors.Is(err, ns.ErrNotNetns)
}

// IsSame reports whether a runtime still remembers the attachment as it was read, and its namespace exists.
func (a *Attachment) IsSame() bool {
	info, err := os.Stat(a.File)
	return err == nil && info.ModTime().Equal(a.Written) && !isGone(a.Netns)
}

// Holdings are what the plugins keep: at their usual places, and where these lists say. All are asked at once.
func (n Node) Holdings(ctx context.Context, lists []List) ([]cni.Holding, error) {
	type answer struct {
		held []cni.Holding
		err  error
	}
	var answers []*answer
	var wg sync.WaitGroup
	ask := func(p skel.Program, conf []byte) {
		a := &answer{}
		answers = append(answers, a)
		wg.Go(func() {
			if a.held, a.err = p.List(ctx, conf); a.err != nil {
				a.err = fmt.Errorf("%s: %w", p.Name, a.err)
			}
		})
	}
	for _, p := range append(slices.Clip(n.Programs), skel.Program{Name: separate, List: n.listSeparate}) {
		ask(p, nil)
		asked := map[string]bool{}
		for _, list := range lists {
			for i, e := range list.Plugins {
				if !e.Is(p.Name) && !e.HasIPAM(p.Name) {
					continue
				}
				conf := list.Conf(i, nil)
				if choosesPlace(conf) && !asked[string(conf)] {
					asked[string(conf)] = true
					ask(p, conf)
				}
			}
		}
	}
	wg.Wait()
	var errs []error
	var all []cni.Holding
	seen := map[cni.Holding]bool{}
	for _, a := range answers {
		errs = append(errs, a.err)
		for _, h := range a.held {
			key := cni.Holding{Attachment: h.Attachment, Plugin: h.Plugin, Kind: h.Kind, Value: h.Value, Kept: h.Kept}
			if !seen[key] {
				seen[key] = true
				all = append(all, h)
			}
		}
	}
	return all, errors.Join(errs...)
}

// separate is the plugin of ours that is a program of its own everywhere: it speaks TLS. Its records are usually here.
const separate, separateDir = "cluster-local", "/var/lib/cni/cluster-local"

// listSeparate is its List: it reads its records, and asks no server. Most nodes have neither the program nor records.
func (n Node) listSeparate(ctx context.Context, conf []byte) (held []cni.Holding, err error) {
	_, absent := os.Stat(separateDir)
	file, err := n.Find(separate)
	if err != nil || conf == nil && absent != nil {
		return nil, nil //nolint:nilerr // see above
	}
	var stdout, stderr bytes.Buffer
	err = process.Command{Path: file, Args: []string{"list"}, Stdin: conf, Stdout: &stdout, Stderr: &stderr}.Run(ctx)
	if err != nil {
		return nil, &cni.Error{Msg: fmt.Sprintf("%s list: %v", file, err), Details: strings.TrimSpace(stderr.String())}
	}
	if json.Unmarshal(stdout.Bytes(), &held) != nil {
		return nil, &cni.Error{Msg: file + " list: no JSON", Details: fmt.Sprintf("%.200q", stdout.String())}
	}
	return held, nil
}

// choosesPlace says whether a configuration may say where a plugin keeps things.
func choosesPlace(conf []byte) bool { return bytes.Contains(bytes.ToLower(conf), []byte(`"datadir"`)) }

// Held are the values of the holdings of a kind.
func (a *Attachment) Held(kind cni.HoldingKind) (values []string) {
	for _, h := range a.Holdings {
		if h.Kind == kind {
			values = append(values, h.Value)
		}
	}
	return values
}

// Ports are the host ports that a plugin keeps, or else those that the runtime asked for: rules may have been flushed.
func (a *Attachment) Ports() []string {
	values := a.Held(cni.HeldPort)
	if len(values) > 0 {
		return values
	}
	var asked []struct {
		HostPort, ContainerPort uint16
		Protocol                string
		HostIP                  netip.Addr
	}
	raw, _ := json.Marshal(a.Capabilities["portMappings"]) // what was decoded can be encoded
	_ = json.Unmarshal(raw, &asked)                        // what is no mapping is none
	for _, m := range asked {
		for _, text := range a.Addresses() {
			to, err := netip.ParseAddr(text)
			at := netip.IPv4Unspecified()
			if to.Is6() {
				at = netip.IPv6Unspecified()
			}
			if m.HostIP.IsValid() {
				at = m.HostIP
			}
			if err == nil && at.Is4() == to.Is4() {
				values = append(values, fmt.Sprintf("%s/%s to %s", netip.AddrPortFrom(at, m.HostPort),
					cmp.Or(m.Protocol, "tcp"), netip.AddrPortFrom(to, m.ContainerPort)))
			}
		}
	}
	return values
}

// Addresses are those that IPAM lent, or else those of the result that the runtime remembers.
func (a *Attachment) Addresses() (addrs []string) {
	for _, value := range a.Held(cni.HeldAddress) {
		addrs = append(addrs, FirstWord(value))
	}
	if len(addrs) > 0 {
		return addrs
	}
	for _, ip := range a.Result().IPs {
		addrs = append(addrs, ip.Address.Addr().String())
	}
	return addrs
}

// IsLive says whether a runtime remembers the attachment, and its namespace is there.
func (a *Attachment) IsLive() bool { return a.File != "" && a.Netns != "" && a.Orphan == "" }

// HostEnd is the other end of the container's interface; empty where there is none, or where it is not known.
func (a *Attachment) HostEnd() string {
	if ends := a.Held(cni.HeldHostEnd); len(ends) > 0 {
		return ends[0]
	}
	for _, i := range a.Result().Interfaces { // the reference's names
		if i.Sandbox == "" && strings.HasPrefix(i.Name, "veth") {
			return i.Name
		}
	}
	return ""
}
