package node

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/process"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// Call is a call of one plugin of a list, as runtimes make it (specification, sections 2 and 3). Its prevResult is the
// current result of the attachment.
type Call struct {
	Command    string
	Attachment *Attachment
	List       List
	Entry      int // index of the called plugin in List
}

// Calls returns a call of each plugin of the list, in the order of the list.
func (l List) Calls(command string, a *Attachment) (calls []Call) {
	for i := range l.Plugins {
		calls = append(calls, Call{command, a, l, i})
	}
	return calls
}

// Plugin returns the type of the called plugin.
func (c Call) Plugin() string { return c.List.Plugins[c.Entry].Type }

// Is reports whether the called plugin is one of the plugins, by cni.IsPlugin.
func (c Call) Is(plugins ...string) bool {
	return slices.ContainsFunc(plugins, c.List.Plugins[c.Entry].Is)
}

// Run executes the plugin in CNI_PATH and returns its standard output. Signals of the terminal do not reach the plugin.
// If the plugin wrote an error object, Run returns it as a *cni.Error, with the plugin's name before the message.
func (n *Node) Run(ctx context.Context, c Call) (json.RawMessage, error) {
	file, err := n.Find(c.Plugin())
	if err != nil {
		return nil, err
	}
	var stdout, stderr bytes.Buffer
	err = process.Command{
		Path: file, Env: c.environment(n), Stdin: c.conf(), Stdout: &stdout, Stderr: &stderr, OwnGroup: true,
	}.Run(ctx)
	if err == nil {
		return stdout.Bytes(), nil
	}
	if e, ok := cni.DecodeError(stdout.Bytes()); ok {
		return nil, &cni.Error{Code: e.Code, Msg: c.Plugin() + ": " + e.Msg, Details: e.Details}
	}
	return nil, fmt.Errorf("%s: %w: %s", file, err, strings.TrimSpace(stderr.String()+stdout.String()))
}

// repairContext returns a context for a repair that must not be interrupted when ctx ends. It expires after a minute.
func repairContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
}

// Reapply restores the objects of one plugin that Check finds missing. The plugin restores them from its record, and
// holds the lock under which DEL removes that record. The end of ctx does not interrupt it.
func (n *Node) Reapply(ctx context.Context, c Call) error {
	if c.Attachment.Reference {
		return fmt.Errorf("%s: cannot be restored: the reference plugin, which keeps no record, created the "+
			"attachment, or a DEL is in progress; restart the container if this persists", c.Plugin())
	}
	ctx, cancel := repairContext(ctx)
	defer cancel()
	return n.runInProcess(ctx, c, skel.Env{Reapply: true})
}

// FirstDrift returns the error of CHECK of the list's first plugin if c must wait until that error is repaired, and nil
// otherwise. Only calls of chained plugins wait, and only while the host's routes to the container bypass its host end
// and the host end's master. CHECK of c would then mistake the uplink for the container's link.
func (n *Node) FirstDrift(ctx context.Context, c Call) error {
	first := Call{"CHECK", c.Attachment, c.List, 0}
	end := FirstWord(c.Attachment.HostEnd())
	if c.Entry == 0 || end == "" || !n.HasPlugin(first.Plugin()) || hasHostRoutes(c.Attachment, end) {
		return nil
	}
	return n.Check(ctx, first)
}

// hasHostRoutes reports whether the host routes to all addresses of the attachment go through its host end or the
// master of the host end.
func hasHostRoutes(a *Attachment, end string) bool {
	host := rtnl.Host()
	defer host.Close()
	link, err := host.Link(end)
	return err == nil && !slices.ContainsFunc(a.Addrs(), func(addr netip.Addr) bool {
		index, err := host.RouteTo(addr)
		return err != nil || index != link.Index && index != link.Master
	})
}

// Restore restores flushed rules of live attachments, in one step for all calls of one of Hawser's plugins. It returns
// what was missing, by the attachment's mark.
func (n *Node) Restore(ctx context.Context, plugin string, calls []Call) map[string]error {
	ctx, cancel := repairContext(ctx)
	defer cancel()
	var envs []skel.Env
	for _, c := range calls {
		envs = append(envs, n.inProcessEnv(c, skel.Env{Stdout: io.Discard, Stderr: io.Discard}))
	}
	p, _ := n.Plugin(plugin)
	return p.Restore(ctx, envs)
}

// Checks returns the calls of Check for an attachment in libcni's cache. Only plugins that Hawser or the reference has
// are included, because the effects of other plugins' CHECK are unknown.
func (n *Node) Checks(a *Attachment) ([]Call, error) {
	list, err := ParseList(a.Config)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", a.File, err)
	}
	calls := list.ResolveFlannel(a.ContainerID).Calls("CHECK", a)
	return slices.DeleteFunc(calls, func(c Call) bool { return !n.HasPlugin(c.Plugin()) }), nil
}

// Check runs Hawser's CHECK of one plugin in this process. It also knows the objects of the reference plugins. It
// executes no program and calls no IPAM plugin, so it changes nothing, unlike the reference's CHECK of firewall and
// dhcp. A failure is not recorded for "hawser why".
func (n *Node) Check(ctx context.Context, c Call) error {
	return n.runInProcess(ctx, c, skel.Env{ReadOnly: true})
}

// Status runs Hawser's STATUS of the first plugin of a list in this process. It changes nothing and leaves no record.
func (n *Node) Status(ctx context.Context, list List) error {
	return n.runInProcess(ctx, Call{"STATUS", &Attachment{}, list, 0}, skel.Env{ReadOnly: true})
}

// IsDrift reports whether an error of Check means that objects of the attachment are missing or changed.
func IsDrift(err error) bool {
	e, ok := errors.AsType[*cni.Error](err)
	return ok && e.Code == cni.CodeDrift
}

// Verify runs Check, unless the list disables CHECK. It returns nil for a drift of a chained plugin that FirstDrift
// explains.
func (n *Node) Verify(ctx context.Context, c Call) error {
	if c.List.NoCheck {
		return nil
	}
	err := n.Check(ctx, c)
	if IsDrift(err) && n.FirstDrift(ctx, c) != nil {
		return nil
	}
	return err
}

// Plugin returns Hawser's plugin of a type. If the type only ends in the plugin's name, CNI_PATH must have Hawser's
// program of that name, because other projects also have such names (accelerated-bridge).
func (n *Node) Plugin(plugin string) (p skel.Program, ok bool) {
	p, ok = skel.FindProgram(n.Programs, plugin)
	if !ok || p.Name == plugin {
		return p, ok
	}
	if file, err := n.Find(plugin); err == nil && n.IsOurs(file) {
		return p, true
	}
	return skel.Program{}, false
}

// HasPlugin reports whether a type is one of Hawser's plugins.
func (n *Node) HasPlugin(plugin string) bool {
	_, ok := n.Plugin(plugin)
	return ok
}

// inProcessEnv completes env for a call in this process. The list's version is raised to the first one that has the
// command, because CHECK is also needed for older lists.
func (n *Node) inProcessEnv(c Call, env skel.Env) skel.Env {
	c.Attachment = c.Attachment.withInterfaces(c.List)
	c.List.CNIVersion = max(c.List.CNIVersion, cni.Since(c.Command))
	env.Vars, env.Stdin, env.Programs = c.environment(n), bytes.NewReader(c.conf()), n.Programs
	return env
}

// withInterfaces returns the attachment with the interfaces in its result. Versions 0.1.0 and 0.2.0 of the
// specification have no interfaces in a result, but CHECK needs them.
func (a *Attachment) withInterfaces(list List) *Attachment {
	result, isOld := a.decodeResult()
	if !isOld {
		return a
	}
	names := []string{FirstWord(a.HostEnd())}
	if len(list.Plugins) > 0 && list.Plugins[0].Is("bridge") {
		bridge, _ := list.Bridge()
		names = append(names, bridge)
	}
	for _, name := range names {
		if name != "" {
			result.Interfaces = append(result.Interfaces, cni.Interface{Name: name})
		}
	}
	index := len(result.Interfaces)
	result.Interfaces = append(result.Interfaces, cni.Interface{Name: a.IfName, Sandbox: a.Netns})
	for i := range result.IPs {
		result.IPs[i].Interface = &index
	}
	clone := *a
	clone.RawResult, _ = result.Encode(cni.Newest) // a decoded result can be encoded
	return &clone
}

func (n *Node) runInProcess(ctx context.Context, c Call, env skel.Env) error {
	var stdout, stderr bytes.Buffer
	env.Stdout, env.Stderr = &stdout, &stderr
	if p, _ := n.Plugin(c.Plugin()); p.Run(ctx, n.inProcessEnv(c, env)) == 0 {
		return nil
	}
	if e, ok := cni.DecodeError(stdout.Bytes()); ok {
		return fmt.Errorf("%s: %w", c.Plugin(), e)
	}
	return fmt.Errorf("%s: %s", c.Plugin(), stderr.String())
}

func (c Call) environment(n *Node) []string {
	env := slices.DeleteFunc(slices.Clone(n.Env), func(kv string) bool { return strings.HasPrefix(kv, "CNI_") })
	a := c.Attachment
	return append(env, "CNI_COMMAND="+c.Command, "CNI_CONTAINERID="+a.ContainerID, "CNI_NETNS="+a.Netns,
		"CNI_IFNAME="+a.IfName, "CNI_ARGS="+a.args(), "CNI_PATH="+n.Path)
}

func (c Call) conf() []byte {
	more, config := map[string]any{}, map[string]any{}
	if c.Attachment.RawResult != nil {
		more["prevResult"] = c.Attachment.RawResult
	}
	for capability, declared := range c.List.Plugins[c.Entry].Capabilities {
		if value, ok := c.Attachment.Capabilities[capability]; declared && ok {
			config[capability] = value
		}
	}
	if len(config) > 0 {
		more["runtimeConfig"] = config
	}
	return c.List.Conf(c.Entry, more)
}

// Detach executes the plugins of a list for the DEL of an attachment. DEL affects no other attachment. DetachRest
// removes what they leave, so Detach returns only the errors of plugins that are not Hawser's.
func (n *Node) Detach(ctx context.Context, a *Attachment, list List) (err error) {
	for i, c := range slices.Backward(list.Calls("DEL", a)) {
		_, callErr := n.Run(ctx, c)
		if ipam := list.Plugins[i].IPAM.Type; !n.HasPlugin(c.Plugin()) || ipam != "" && !n.HasPlugin(ipam) {
			err = errors.Join(err, callErr)
		}
	}
	return err
}

// DetachRest removes the holdings that are left after Detach, or that belong to no plugin of the list, by DEL of
// Hawser's own plugins, with IPAM last.
func (n *Node) DetachRest(ctx context.Context, a *Attachment, list List, rest []cni.Holding) (err error) {
	for _, p := range slices.Backward(n.Programs) {
		if !slices.ContainsFunc(rest, func(h cni.Holding) bool { return h.Plugin == p.Name }) {
			continue
		}
		entry := Entry{Type: p.Name, Raw: map[string]json.RawMessage{}}
		for _, e := range list.Plugins { // its keys choose the directories
			switch {
			case e.HasIPAM(p.Name):
				entry.Raw = e.Raw
			case e.Is(p.Name):
				entry.Raw = maps.Clone(e.Raw)
				delete(entry.Raw, "ipam")
			}
		}
		single := List{Name: list.Name, CNIVersion: cmp.Or(list.CNIVersion, cni.Newest), Plugins: []Entry{entry}}
		err = errors.Join(err, n.runInProcess(ctx, Call{"DEL", a, single, 0}, skel.Env{}))
	}
	return err
}
