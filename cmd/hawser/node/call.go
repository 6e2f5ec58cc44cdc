package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/process"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// Container is what a runtime says of a container in a call.
type Container struct {
	ID, Netns, IfName string
	Args              [][2]string    // of CNI_ARGS
	Capabilities      map[string]any // what the entries that declare them get as runtimeConfig
}

// Container is that of the attachment.
func (c Cached) Container() Container {
	return Container{ID: c.ContainerID, Netns: c.Netns, IfName: c.IfName, Args: c.Args, Capabilities: c.Capabilities}
}

// Call is a call of one plugin as runtimes make it (specification, sections 2 and 3).
type Call struct {
	Command string
	Container
	List  List
	Entry int
	// PrevResult is the result of the plugin before (ADD) or of the list (CHECK, DEL); nil = none.
	PrevResult json.RawMessage
}

// Run calls the plugin that CNI_PATH has and returns its standard output. The error is the plugin's error object as a
// *cni.Error, with its name before the message, or says why there is none.
func (n Node) Run(ctx context.Context, c Call) (json.RawMessage, error) {
	plugin := c.List.Plugins[c.Entry].Type
	file, err := n.Find(plugin)
	if err != nil {
		return nil, err
	}
	if n.Limit > 0 {
		over := fmt.Errorf("no answer within %s", n.Limit)
		limited, cancel := context.WithTimeoutCause(ctx, n.Limit, over)
		defer cancel()
		ctx = limited
	}
	var stdout, stderr bytes.Buffer
	err = process.Command{
		Path: file, Env: c.environment(n), Stdin: c.conf(), Stdout: &stdout, Stderr: &stderr, Apart: n.apart,
	}.Run(ctx)
	if err == nil {
		return stdout.Bytes(), nil
	}
	if e, ok := cni.DecodeError(stdout.Bytes()); ok {
		return nil, &cni.Error{Code: e.Code, Msg: plugin + ": " + e.Msg, Details: e.Details}
	}
	return nil, fmt.Errorf("%s: %w: %s", file, err, strings.TrimSpace(stderr.String()+stdout.String()))
}

// repairTime is how long the repair of one plugin may take.
const repairTime = time.Minute

// Reapply makes again what Look finds missing of one plugin of a live attachment. A repair that began is finished: ctx
// only keeps it from beginning.
func (n Node) Reapply(ctx context.Context, c Call, a *Attachment) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), repairTime)
	defer cancel()
	run := func(command string) error { return n.runApart(ctx, command, c) }
	plugin := c.List.Plugins[c.Entry].Type
	switch {
	case plugin == "tuning" || plugin == "bandwidth": // they take a second ADD
		return run("ADD")
	case plugin == "portmap" || plugin == "firewall": // they have rules alone
		return errors.Join(run("DEL"), run("ADD"))
	case a.Reference:
		return fmt.Errorf("the reference's %s cannot make it again: restart the container", plugin)
	}
	c.Command = "CHECK"
	return n.runHere(ctx, c, skel.Env{Reapply: true})
}

// Restore makes again what somebody flushed of live attachments, for all these calls of one of our plugins at once. It
// returns what was missing, by the mark.
func (n *Node) Restore(ctx context.Context, plugin string, calls []*Call) map[string]error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), repairTime)
	defer cancel()
	var envs []skel.Env
	for _, c := range calls {
		check := *c
		check.Command = "CHECK"
		envs = append(envs, n.here(check, skel.Env{Stdout: io.Discard, Stderr: io.Discard}))
	}
	return n.Programs[n.own(plugin)].Restore(ctx, envs)
}

// runApart is Run where no signal for the tool reaches the plugin: in this process, where its file is the running
// program, and else beside it.
func (n Node) runApart(ctx context.Context, command string, c Call) error {
	c.Command, n.apart = command, true
	plugin := c.List.Plugins[c.Entry].Type
	if file, err := n.Find(plugin); err == nil && n.Looks(plugin) && isRunning(file) {
		return n.runHere(ctx, c, skel.Env{Failures: n.Failures})
	}
	_, err := n.Run(ctx, c)
	return err
}

func isRunning(file string) bool {
	own, err := os.Stat("/proc/self/exe")
	info, absent := os.Stat(file)
	return err == nil && absent == nil && os.SameFile(own, info)
}

// TakeBack takes away what Reapply made for an attachment that ended meanwhile: the runtime's DEL of this plugin may
// have been before it.
func (n Node) TakeBack(ctx context.Context, c Call) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), repairTime)
	defer cancel()
	return n.runApart(ctx, "DEL", c)
}

// Looks says whether Look can look at a plugin: nobody knows what the CHECK of others' plugins does.
func (n Node) Looks(plugin string) bool { return n.own(plugin) >= 0 }

// Look is CHECK of one plugin by ours, which knows what the reference's makes, too. It runs no plugin of the node's and
// asks no IPAM plugin, and so changes nothing (the reference's CHECK of firewall and dhcp does). It leaves no record.
func (n Node) Look(ctx context.Context, c Call) error {
	c.Command = "CHECK"
	return n.runHere(ctx, c, skel.Env{Look: true})
}

func (n Node) own(plugin string) int {
	return slices.IndexFunc(n.Programs, func(p skel.Program) bool { return p.Name == plugin })
}

// here is env for a call of one of ours in this process. For it lists without CHECK have one.
func (n Node) here(c Call, env skel.Env) skel.Env {
	if since := cni.Since(c.Command); c.List.CNIVersion < since {
		c.List.CNIVersion = since
	}
	env.Vars, env.Stdin, env.Programs = c.environment(n), bytes.NewReader(c.conf()), n.Programs
	return env
}

// runHere calls one of ours in this process.
func (n Node) runHere(ctx context.Context, c Call, env skel.Env) error {
	plugin := c.List.Plugins[c.Entry].Type
	var stdout, stderr bytes.Buffer
	env.Stdout, env.Stderr = &stdout, &stderr
	if n.Programs[n.own(plugin)].Run(ctx, n.here(c, env)) == 0 {
		return nil
	}
	if e, ok := cni.DecodeError(stdout.Bytes()); ok {
		return fmt.Errorf("%s: %w", plugin, e)
	}
	return fmt.Errorf("%s: %s", plugin, stderr.String())
}

func (c Call) environment(n Node) []string {
	var args []string
	for _, arg := range c.Args {
		args = append(args, arg[0]+"="+arg[1])
	}
	env := slices.DeleteFunc(slices.Clone(n.Env), func(kv string) bool { return strings.HasPrefix(kv, "CNI_") })
	return append(env, "CNI_COMMAND="+c.Command, "CNI_CONTAINERID="+c.ID, "CNI_NETNS="+c.Netns, "CNI_IFNAME="+c.IfName,
		"CNI_ARGS="+strings.Join(args, ";"), "CNI_PATH="+n.Path)
}

func (c Call) conf() []byte {
	more := map[string]any{}
	if c.PrevResult != nil {
		more["prevResult"] = c.PrevResult
	}
	config := map[string]any{}
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

// Add attaches a container by a list, and returns the result of the last plugin. A plugin that fails ends it; what
// those before made stays until Del.
func (n Node) Add(ctx context.Context, list List, c Container) (result json.RawMessage, err error) {
	for i := range list.Plugins {
		result, err = n.Run(ctx, Call{Command: "ADD", Container: c, List: list, Entry: i, PrevResult: result})
		if err != nil {
			return nil, err
		}
	}
	return result, nil
}

// Check has each plugin of a list compare what is there with the result of ADD.
func (n Node) Check(ctx context.Context, list List, c Container, result json.RawMessage) error {
	for i := range list.Plugins {
		if _, err := n.Run(ctx, Call{"CHECK", c, list, i, result}); err != nil {
			return err
		}
	}
	return nil
}

// Del detaches a container, with the last plugin first, and goes on after an error.
func (n Node) Del(ctx context.Context, list List, c Container, result json.RawMessage) error {
	var errs []error
	for i := range slices.Backward(list.Plugins) {
		_, err := n.Run(ctx, Call{"DEL", c, list, i, result})
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
