// Package node collects the facts about a node that the commands of hawser evaluate, and calls plugins for them.
//
// An Attachment joins two sources: libcni's cache, in which runtimes keep the list and the result of each ADD (Cached),
// and the holdings that each plugin lists, for example leases and rules. A List is a network list as runtimes read it.
// A Survey additionally has the evidence about live containers: the answers of the runtimes and the network namespaces
// in use. BaseChains are the chains of all programs that packets of containers pass.
//
// Reading changes nothing on the node, and executes only the runtimes' own programs, cluster-local and iptables-legacy.
// Check, Status, Reapply, Restore and DetachRest call Hawser's plugins in this process, so that they also work on a
// node with the reference plugins. Only Run and Detach execute plugins as a runtime does.
//
// With an error, most functions also return the facts that could be read, because one damaged file must not hide
// the rest of the node.
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

// Node has the directories of a node and the plugins of this program.
type Node struct {
	ConfDir  string   // directory of the network lists
	Path     string   // directories of the plugins, as in CNI_PATH
	CacheDir string   // libcni's directory; its subdirectory "results" has a file for each attachment
	Failures string   // directory of the records of failed calls
	Env      []string // environment of the programs that the tool executes, as KEY=value
	Programs []skel.Program
	// IsReference and IsOurs report whether a file is a plugin of the reference, or a program of Hawser.
	IsReference, IsOurs func(file string) bool
}

// Default returns the node with the directories that runtimes use by default. If the usual directory has no list, the
// node has the directory of lists that a CRI runtime's configuration names, or otherwise the directories of k3s.
func Default(programs []skel.Program, env []string) *Node {
	n := &Node{
		ConfDir: "/etc/cni/net.d", Path: configuredPath(),
		CacheDir: "/var/lib/cni", Failures: skel.FailureDir, Env: env, Programs: programs,
	}
	const k3s = "/var/lib/rancher/k3s/"
	if lists, _ := ListFiles(n.ConfDir); len(lists) > 0 {
		return n
	}
	for _, dir := range ConfiguredLists() {
		if lists, _ := ListFiles(dir); len(lists) > 0 {
			n.ConfDir = dir
			return n
		}
	}
	if lists, _ := ListFiles(k3s + "agent/etc/cni/net.d"); len(lists) > 0 {
		n.ConfDir, n.Path = k3s+"agent/etc/cni/net.d", k3s+"data/cni:"+k3s+"data/current/bin:"+usualPath
	}
	return n
}

// Find returns the first file of a plugin in Path, as runtimes do. An empty directory in Path is ignored.
func (n *Node) Find(plugin string) (string, error) {
	if !cni.ValidType(plugin) {
		return "", fmt.Errorf("type %q is not a valid plugin name", plugin)
	}
	for _, dir := range filepath.SplitList(n.Path) {
		file := filepath.Join(dir, plugin)
		info, err := os.Stat(file)
		if dir != "" && err == nil && info.Mode().IsRegular() { // runtimes do not search any further
			if info.Mode()&0o111 == 0 {
				return "", fmt.Errorf("plugin %q: %s is not executable", plugin, file)
			}
			return file, nil
		}
	}
	return "", fmt.Errorf("plugin %q is not in %s", plugin, n.Path)
}

// Attachment has all known facts about an attachment.
type Attachment struct {
	cni.Attachment
	Pod      string `json:"pod,omitempty"` // namespace/name
	Netns    string `json:"netnsPath,omitempty"`
	Cached   `json:"-"`
	Holdings []cni.Holding `json:"holdings"`
	// Reference is true if reference plugins created the interface, as far as the holdings and the list show. It is
	// false for loopback, which leaves no trace of its plugin, and for interfaces of other projects' plugins.
	Reference bool      `json:"reference,omitempty"`
	Since     time.Time `json:"since,omitzero"`
	// isUnpinned is true if the path of the namespace no longer exists, but processes still use the namespace.
	isUnpinned bool
	// Damaged is the attachment's file in libcni's cache if that cannot be read; otherwise empty.
	Damaged string `json:"-"`
	// Orphan is the reason why no container needs the holdings; empty if a container may need them.
	Orphan string `json:"orphan,omitempty"`
	// JSONAddresses and JSONHostEnd are the addresses and the host end in JSON. Only MarshalJSON sets them.
	JSONAddresses []string `json:"addresses,omitempty"`
	JSONHostEnd   string   `json:"hostEnd,omitempty"`
}

// MarshalJSON adds the addresses and the host end, which are computed from the holdings and the result.
func (a *Attachment) MarshalJSON() ([]byte, error) {
	type plain Attachment
	out := plain(*a)
	out.JSONAddresses, out.JSONHostEnd = a.Addresses(), FirstWord(a.HostEnd())
	return json.Marshal(out)
}

// Attachments returns the attachments in libcni's cache and attachments for which a plugin has a holding, sorted by
// network, container and interface. With an error it returns the attachments that could be read.
func (n *Node) Attachments(ctx context.Context) ([]*Attachment, error) {
	all, damaged, err := n.Read(ctx)
	return all, errors.Join(damaged, err)
}

// Read returns the same attachments as Attachments. It returns the errors of single files (lists and libcni's records)
// separately, as damaged.
func (n *Node) Read(ctx context.Context) (out []*Attachment, damaged, err error) {
	cached, damaged, err := n.readCache()
	lists, listErr := n.Lists()
	holdings, holdingsErr := n.Holdings(ctx, append(lists, CachedLists(cached)...))
	all, isCached := map[cni.Attachment]*Attachment{}, map[string]bool{}
	for _, a := range cached {
		all[a.Attachment], isCached[a.ContainerID] = a, true
	}
	get := func(key cni.Attachment) *Attachment {
		if all[key] == nil {
			all[key] = &Attachment{Attachment: key, Reference: true}
		}
		return all[key]
	}
	full := map[string]cni.Attachment{} // by the hash in their marks, in which names can be shortened
	for _, a := range cached {
		full[a.Hash()] = a.Attachment
	}
	for _, h := range holdings {
		if h.MarkHash == "" { // the names are from a record
			full[h.Hash()] = h.Attachment
		}
	}
	var incomplete []cni.Holding
	for _, h := range holdings {
		if a, ok := full[h.MarkHash]; ok {
			h.Attachment = a
		}
		if h.ContainerID == "" && !n.usesReference(h.Plugin) {
			continue // Hawser's host-local leases an unowned address again
		}
		if h.IfName == "" || h.Network == "" {
			incomplete = append(incomplete, h)
			continue
		}
		get(h.Attachment).add(h)
	}
	for _, h := range incomplete {
		get(findOwner(h, all)).add(h)
	}
	for _, a := range all {
		a.Damaged = n.damagedFile(a)
		a.findOrphan(isCached[a.ContainerID] || err != nil)
		a.Reference = a.Reference && (len(a.Holdings) > 0 || !n.isForeign(a.Config))
		out = append(out, a)
	}
	slices.SortFunc(out, func(a, b *Attachment) int {
		return strings.Compare(a.Network+" "+a.ContainerID+" "+a.IfName, b.Network+" "+b.ContainerID+" "+b.IfName)
	})
	markReplaced(out)
	markUnpinned(out)
	return out, errors.Join(damaged, listErr), errors.Join(err, holdingsErr)
}

// markReplaced marks an attachment as an orphan if its namespace path now belongs to another container, which attached
// an interface of the same name later. It also clears the attachment's path.
func markReplaced(all []*Attachment) {
	last := map[[2]string]*Attachment{}
	for _, a := range all {
		key := [2]string{a.Netns, a.IfName}
		if other := last[key]; other == nil || a.attachedAt().After(other.attachedAt()) {
			last[key] = a
		}
	}
	for _, a := range all {
		latest := last[[2]string{a.Netns, a.IfName}]
		if a.Netns != "" && a.ContainerID != latest.ContainerID && a.Damaged == "" && a.Orphan == "" {
			a.Orphan = fmt.Sprintf("its namespace %s now belongs to container %.13s", a.Netns, latest.ContainerID)
			a.Netns = ""
		}
	}
}

// attachedAt returns the time at which ADD ended, or, if libcni has no record, the time of the latest holding.
func (a *Attachment) attachedAt() time.Time {
	if a.File != "" {
		return a.Written
	}
	return a.lastWritten()
}

func (n *Node) usesReference(plugin string) bool {
	file, err := n.Find(plugin)
	return err == nil && n.IsReference(file)
}

// isForeign reports whether the plugins of a list, apart from loopback, are all from other projects than Hawser and the
// reference.
func (n *Node) isForeign(config []byte) bool {
	list, err := ParseList(config)
	isKnown := func(e Entry) bool { return n.HasPlugin(e.Type) && !e.Is("loopback") }
	return err == nil && !slices.ContainsFunc(list.ResolveFlannel("").Plugins, isKnown)
}

// Matches reports whether query names the pod (namespace/name or name) or the container (its ID, or a prefix of at
// least four characters).
func Matches(query, pod, container string) bool {
	_, name, _ := strings.Cut(pod, "/")
	return query == pod || query == name || query == container ||
		len(query) >= 4 && strings.HasPrefix(container, query)
}

// findOwner returns the attachment to which an incomplete holding belongs. The reference plugins do not record the
// interface, so the container's first attachment to the network gets the holding.
func findOwner(h cni.Holding, all map[cni.Attachment]*Attachment) cni.Attachment {
	found := h.Attachment
	for key := range all {
		isMatch := key.ContainerID == h.ContainerID && h.BelongsTo(key.Network) &&
			(h.IfName == "" || h.IfName == key.IfName)
		if isMatch && (found == h.Attachment || key.Network+key.IfName < found.Network+found.IfName) {
			found = key
		}
	}
	return found
}

func (a *Attachment) add(h cni.Holding) {
	a.Holdings = append(a.Holdings, h)
	if a.Netns == "" {
		a.Netns = h.NetnsPath
	}
	if !h.Since.IsZero() && (a.Since.IsZero() || h.Since.Before(a.Since)) {
		a.Since = h.Since
	}
	if h.Kind != cni.HeldAddress && !h.Reference { // both projects' leases are the same files
		a.Reference = false
	}
}

// addTime is longer than an ADD usually takes. A runtime writes its record after ADD.
const addTime = time.Minute

// findOrphan sets Orphan if the attachment's container no longer exists. isRemembered is true if a runtime may have a
// record of the attachment: libcni's cache cannot be read, or has any attachment of the container. In the latter case,
// multus may keep this one in a cache of its own.
func (a *Attachment) findOrphan(isRemembered bool) {
	switch {
	case a.Damaged != "": // unknown
	case a.ContainerID == "":
		a.Orphan = "its file names no container, and the reference's host-local does not lease it again"
	case a.Netns != "" && isGone(a.Netns):
		a.Orphan = fmt.Sprintf("its namespace %s no longer exists", a.Netns)
	case a.Netns == "" && !isRemembered && time.Since(a.lastWritten()) > addTime:
		a.Orphan = "no runtime has a record of it"
	}
}

// openNetns opens a container's namespace. The error also matches ns.ErrNotExist if a path in /proc points to the
// host's namespace, because the container's process has ended and its ID now belongs to a process of the host.
func openNetns(path string) (*ns.NS, error) {
	netns, err := ns.Open(path)
	if err != nil || !strings.HasPrefix(path, "/proc/") {
		return netns, err
	}
	if isHost, _ := netns.IsCurrent(); isHost {
		return nil, errors.Join(ns.ErrNotExist, netns.Close())
	}
	return netns, nil
}

func isGone(path string) bool {
	netns, err := openNetns(path)
	if err == nil {
		_ = netns.Close()
	}
	return errors.Is(err, ns.ErrNotExist) || errors.Is(err, ns.ErrNotNetns)
}

// IsUnchanged reports whether the namespace still exists, and whether libcni's record of the attachment has not been
// written since it was read.
func (a *Attachment) IsUnchanged() bool {
	info, err := os.Stat(a.File)
	return err == nil && info.ModTime().Equal(a.Written) && !isGone(a.Netns)
}

// Holdings calls all plugins in parallel for their holdings, in the default and the configured directories.
func (n *Node) Holdings(ctx context.Context, lists []List) ([]cni.Holding, error) {
	type answer struct {
		holdings []cni.Holding
		err      error
	}
	var answers []*answer
	var wg sync.WaitGroup
	query := func(p skel.Program, conf []byte) {
		a := &answer{}
		answers = append(answers, a)
		wg.Go(func() {
			if a.holdings, a.err = p.List(ctx, conf); a.err != nil {
				a.err = fmt.Errorf("%s: %w", p.Name, a.err)
			}
		})
	}
	for _, p := range append(slices.Clip(n.Programs), n.separateProgram(lists)) {
		query(p, nil)
		isQueried := map[string]bool{}
		for _, list := range lists {
			for i, e := range list.Plugins {
				if !e.Is(p.Name) && !e.HasIPAM(p.Name) {
					continue
				}
				conf := list.Conf(i, nil)
				hasDataDir := bytes.Contains(bytes.ToLower(conf), []byte(`"datadir"`)) // of the plugin's records
				if hasDataDir && !isQueried[string(conf)] {
					isQueried[string(conf)] = true
					query(p, conf)
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
		for _, h := range a.holdings {
			key := cni.Holding{Attachment: h.Attachment, Plugin: h.Plugin, Kind: h.Kind, Value: h.Value, Kept: h.Kept,
				MarkHash: h.MarkHash}
			if !seen[key] {
				seen[key] = true
				all = append(all, h)
			}
		}
	}
	return all, errors.Join(errs...)
}

// Separate is the plugin that is not part of this program, because it needs TLS. Its records are in separateDir.
const Separate, separateDir = "cluster-local", "/var/lib/cni/cluster-local"

// separateProgram returns the separate plugin. Its file has the plugin's name or a name that a list uses for it.
func (n *Node) separateProgram(lists []List) skel.Program {
	names := []string{Separate}
	for _, list := range lists {
		for _, e := range list.Plugins {
			if e.HasIPAM(Separate) {
				names = append(names, e.IPAM.Type)
			}
		}
	}
	file := ""
	for _, name := range names {
		if found, err := n.Find(name); err == nil && file == "" {
			file = found
		}
	}
	list := func(ctx context.Context, req *skel.Request) ([]cni.Holding, error) {
		return n.listSeparate(ctx, file, req)
	}
	return skel.ProgramOf(Separate, func() skel.Plugin[any] { return skel.Plugin[any]{Name: Separate, List: list} })
}

// listSeparate executes the separate plugin, which lists its records without a query to the API server. It returns
// nothing if the node has no such program, or no records in the default directory.
func (n *Node) listSeparate(ctx context.Context, file string, req *skel.Request) (held []cni.Holding, err error) {
	if _, statErr := os.Stat(separateDir); file == "" || req.Network == "" && statErr != nil {
		return nil, nil // most nodes do not have it
	}
	var stdout, stderr bytes.Buffer
	err = process.Command{
		Path: file, Args: []string{"list"}, Stdin: req.Conf, Stdout: &stdout, Stderr: &stderr,
	}.Run(ctx)
	if err != nil {
		return nil, &cni.Error{Msg: fmt.Sprintf("%s list: %v", file, err), Details: strings.TrimSpace(stderr.String())}
	}
	if json.Unmarshal(stdout.Bytes(), &held) != nil {
		return nil, &cni.Error{Msg: file + " list: no JSON", Details: fmt.Sprintf("%.200q", stdout.String())}
	}
	return held, nil
}

// Held returns the values of the holdings of a kind.
func (a *Attachment) Held(kind cni.HoldingKind) (values []string) {
	for _, h := range a.Holdings {
		if h.Kind == kind {
			values = append(values, h.Value)
		}
	}
	return values
}

// Ports returns the host ports that a plugin holds or, if there are none, the ports that the runtime requested, because
// rules may have been flushed.
func (a *Attachment) Ports() []string {
	values := a.Held(cni.HeldPort)
	if len(values) > 0 {
		return values
	}
	var mappings []struct {
		HostPort, ContainerPort uint16
		Protocol                string
		HostIP                  netip.Addr
	}
	raw, _ := json.Marshal(a.Capabilities["portMappings"]) // decoded values can be encoded
	_ = json.Unmarshal(raw, &mappings)                     // other values are not mappings
	for _, m := range mappings {
		for _, contIP := range a.Addrs() {
			hostIP := netip.IPv4Unspecified()
			if contIP.Is6() {
				hostIP = netip.IPv6Unspecified()
			}
			if m.HostIP.IsValid() {
				hostIP = m.HostIP
			}
			if hostIP.Is4() == contIP.Is4() {
				values = append(values, fmt.Sprintf("%s/%s to %s", netip.AddrPortFrom(hostIP, m.HostPort),
					cmp.Or(m.Protocol, "tcp"), netip.AddrPortFrom(contIP, m.ContainerPort)))
			}
		}
	}
	return values
}

// Addresses returns the leased addresses or, if there are none, the addresses of the cached result.
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

// Addrs returns the valid ones of Addresses.
func (a *Attachment) Addrs() (addrs []netip.Addr) {
	for _, text := range a.Addresses() {
		if addr, err := netip.ParseAddr(text); err == nil {
			addrs = append(addrs, addr)
		}
	}
	return addrs
}

// IsLive reports whether libcni has a record of the attachment and its namespace exists at its path.
func (a *Attachment) IsLive() bool {
	return a.File != "" && a.Netns != "" && a.Orphan == "" && !a.isUnpinned
}

// IsLoopback reports whether the attachment is a loopback interface, which runtimes attach to every container.
func (a *Attachment) IsLoopback() bool { return a.IfName == "lo" }

// HostEnd returns the name of the host end of the container's pair, which a space and details may follow. It returns ""
// if there is no host end or if it is unknown.
func (a *Attachment) HostEnd() string {
	if ends := a.Held(cni.HeldHostEnd); len(ends) > 0 {
		return ends[0]
	}
	for _, i := range a.Result().Interfaces { // names that the reference plugins choose
		if i.Sandbox == "" && strings.HasPrefix(i.Name, "veth") {
			return i.Name
		}
	}
	return ""
}
