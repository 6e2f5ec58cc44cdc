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

// Call is a call of one plugin of a list as runtimes make it (specification, sections 2 and 3). prevResult is the
// result that the attachment has by then.
type Call struct {
	Command string
	*Attachment
	List  List
	Entry int
}

// Calls are those of all plugins of a list, in its order.
func (l List) Calls(command string, a *Attachment) (calls []Call) {
	for i := range l.Plugins {
		calls = append(calls, Call{command, a, l, i})
	}
	return calls
}

// Plugin is the one that is called.
func (c Call) Plugin() string { return c.List.Plugins[c.Entry].Type }

// Is reports whether the called plugin is one of the plugins, by cni.IsPlugin.
func (c Call) Is(plugins ...string) bool {
	return slices.ContainsFunc(plugins, c.List.Plugins[c.Entry].Is)
}

// Run calls the plugin that CNI_PATH has, which no signal of a terminal reaches, and returns its standard output. The
// error is the plugin's error object as a *cni.Error, with its name before the message, or says why there is none.
func (n Node) Run(ctx context.Context, c Call) (json.RawMessage, error) {
	file, err := n.Find(c.Plugin())
	if err != nil {
		return nil, err
	}
	var stdout, stderr bytes.Buffer
	err = process.Command{
		Path: file, Env: c.environment(n), Stdin: c.conf(), Stdout: &stdout, Stderr: &stderr, Apart: true,
	}.Run(ctx)
	if err == nil {
		return stdout.Bytes(), nil
	}
	if e, ok := cni.DecodeError(stdout.Bytes()); ok {
		return nil, &cni.Error{Code: e.Code, Msg: c.Plugin() + ": " + e.Msg, Details: e.Details}
	}
	return nil, fmt.Errorf("%s: %w: %s", file, err, strings.TrimSpace(stderr.String()+stdout.String()))
}

// finished is a context for a repair, which goes on when ctx ends, but not for ever.
func finished(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
}

// Reapply restores what Look finds missing of one plugin of an attachment: from the plugin's record, under the lock
// under which DEL removes that record. The end of ctx does not interrupt it.
func (n Node) Reapply(ctx context.Context, c Call) error {
	if c.Reference {
		return fmt.Errorf("%s: made by the reference plugin, which leaves no record of it; restart the container",
			c.Plugin())
	}
	ctx, cancel := finished(ctx)
	defer cancel()
	return n.runHere(ctx, c, skel.Env{Reapply: true})
}

// Misleads returns why a chained plugin must not be restored now; empty if it may be. The reason is that the
// container's interface is not whole, and the host reaches the container by no link of the container. CHECK would
// mistake another link, the uplink, for the container's.
func (n Node) Misleads(ctx context.Context, c Call) error {
	first := Call{"CHECK", c.Attachment, c.List, 0}
	end := FirstWord(c.HostEnd())
	if c.Entry == 0 || end == "" || !n.Has(first.Plugin()) || isReached(c.Attachment, end) {
		return nil
	}
	return n.Look(ctx, first)
}

// isReached says whether the host has routes to the attachment's addresses by its host end or what that is a port of.
func isReached(a *Attachment, end string) bool {
	host := rtnl.Host()
	defer host.Close()
	link, err := host.Link(end)
	return err == nil && !slices.ContainsFunc(a.Addresses(), func(text string) bool {
		addr, err := netip.ParseAddr(text)
		if err != nil {
			return false
		}
		by, err := host.RouteTo(addr)
		return err != nil || by != link.Index && by != link.Master
	})
}

// Restore makes again what somebody flushed of live attachments, for all these CHECKs of one of our plugins at once. It
// returns what was missing, by the mark.
func (n Node) Restore(ctx context.Context, plugin string, calls []Call) map[string]error {
	ctx, cancel := finished(ctx)
	defer cancel()
	var envs []skel.Env
	for _, c := range calls {
		envs = append(envs, n.here(c, skel.Env{Stdout: io.Discard, Stderr: io.Discard}))
	}
	p, _ := n.Own(plugin)
	return p.Restore(ctx, envs)
}

// Looks are the calls of Look for an attachment that a runtime remembers: of plugins that are ours or the reference's,
// since nobody knows what the CHECK of others does.
func (n Node) Looks(a *Attachment) ([]Call, error) {
	list, err := ParseList(a.Config)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", a.File, err)
	}
	calls := list.Called(a.ContainerID).Calls("CHECK", a)
	return slices.DeleteFunc(calls, func(c Call) bool { return !n.Has(c.Plugin()) }), nil
}

// Look is CHECK of one plugin by ours, which knows what the reference's makes, too. It runs no plugin of the node's and
// asks no IPAM plugin, and so changes nothing (the reference's CHECK of firewall and dhcp does). It leaves no record.
func (n Node) Look(ctx context.Context, c Call) error { return n.runHere(ctx, c, skel.Env{Look: true}) }

// IsDrift says whether the error of Look is about what is there.
func IsDrift(err error) bool {
	e, ok := errors.AsType[*cni.Error](err)
	return ok && e.Code == cni.CodeDrift
}

// LookAll is Look at each plugin of a live attachment that can be looked at; at none where the list wants no CHECK.
func (n Node) LookAll(ctx context.Context, a *Attachment) (found []error, err error) {
	calls, err := n.Looks(a)
	for _, c := range calls {
		if !c.List.NoCheck {
			found = append(found, n.Look(ctx, c))
		}
	}
	return found, err
}

// Own returns Hawser's plugin of a type. If the type only ends in the plugin's name, CNI_PATH must have Hawser's
// program of that name, because other projects also have such names (accelerated-bridge).
func (n Node) Own(plugin string) (p skel.Program, ok bool) {
	p, ok = skel.Find(n.Programs, plugin)
	if !ok || p.Name == plugin {
		return p, ok
	}
	if file, err := n.Find(plugin); err == nil && n.IsOurs(file) {
		return p, true
	}
	return skel.Program{}, false
}

// Has reports whether a type is one of Hawser's plugins.
func (n Node) Has(plugin string) bool {
	_, ok := n.Own(plugin)
	return ok
}

// here is env for a call of one of ours in this process. For it lists without CHECK have one.
func (n Node) here(c Call, env skel.Env) skel.Env {
	c.List.CNIVersion = max(c.List.CNIVersion, cni.Since(c.Command))
	env.Vars, env.Stdin, env.Programs = c.environment(n), bytes.NewReader(c.conf()), n.Programs
	return env
}

// runHere calls one of ours in this process.
func (n Node) runHere(ctx context.Context, c Call, env skel.Env) error {
	var stdout, stderr bytes.Buffer
	env.Stdout, env.Stderr = &stdout, &stderr
	if p, _ := n.Own(c.Plugin()); p.Run(ctx, n.here(c, env)) == 0 {
		return nil
	}
	if e, ok := cni.DecodeError(stdout.Bytes()); ok {
		return fmt.Errorf("%s: %w", c.Plugin(), e)
	}
	return fmt.Errorf("%s: %s", c.Plugin(), stderr.String())
}

func (c Call) environment(n Node) []string {
	env := slices.DeleteFunc(slices.Clone(n.Env), func(kv string) bool { return strings.HasPrefix(kv, "CNI_") })
	return append(env, "CNI_COMMAND="+c.Command, "CNI_CONTAINERID="+c.ContainerID, "CNI_NETNS="+c.Netns,
		"CNI_IFNAME="+c.IfName, "CNI_ARGS="+c.args(), "CNI_PATH="+n.Path)
}

func (c Call) conf() []byte {
	more, config := map[string]any{}, map[string]any{}
	if c.RawResult != nil {
		more["prevResult"] = c.RawResult
	}
	for capability, declared := range c.List.Plugins[c.Entry].Capabilities {
		if value, ok := c.Capabilities[capability]; declared && ok {
			config[capability] = value
		}
	}
	if len(config) > 0 {
		more["runtimeConfig"] = config
	}
	return c.List.Conf(c.Entry, more)
}

// Detach removes what is kept for an attachment by the programs of a list, all by DEL, which reaches no other one. What
// they leave is for DetachLeft, so only a plugin that is not one of ours has to succeed.
func (n Node) Detach(ctx context.Context, a *Attachment, list List) (err error) {
	for i, c := range slices.Backward(list.Calls("DEL", a)) {
		_, failed := n.Run(ctx, c)
		if ipam := list.Plugins[i].IPAM.Type; !n.Has(c.Plugin()) || ipam != "" && !n.Has(ipam) {
			err = errors.Join(err, failed)
		}
	}
	return err
}

// DetachLeft removes what the list has left, or does not know of, by DEL of this program's own plugins, with IPAM last.
func (n Node) DetachLeft(ctx context.Context, a *Attachment, list List, left []cni.Holding) (err error) {
	for _, p := range slices.Backward(n.Programs) {
		if !slices.ContainsFunc(left, func(h cni.Holding) bool { return h.Plugin == p.Name }) {
			continue
		}
		entry := Entry{Type: p.Name, Raw: map[string]json.RawMessage{}}
		for _, e := range list.Plugins { // its keys say where it keeps things
			switch {
			case e.HasIPAM(p.Name):
				entry.Raw = e.Raw
			case e.Is(p.Name):
				entry.Raw = maps.Clone(e.Raw)
				delete(entry.Raw, "ipam")
			}
		}
		alone := List{Name: list.Name, CNIVersion: cmp.Or(list.CNIVersion, cni.Newest), Plugins: []Entry{entry}}
		err = errors.Join(err, n.runHere(ctx, Call{"DEL", a, alone, 0}, skel.Env{}))
	}
	return err
}
