package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

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
	// More are keys of the call: cni.dev/valid-attachments of GC.
	More map[string]any
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
		Path: file, Env: c.environment(n), Stdin: c.conf(), Stdout: &stdout, Stderr: &stderr,
	}.Run(ctx)
	if err == nil {
		return stdout.Bytes(), nil
	}
	if e, ok := cni.DecodeError(stdout.Bytes()); ok {
		return nil, &cni.Error{Code: e.Code, Msg: plugin + ": " + e.Msg, Details: e.Details}
	}
	return nil, fmt.Errorf("%s: %w: %s", file, err, strings.TrimSpace(stderr.String()+stdout.String()))
}

// Reapply makes again what the CHECK of one plugin of a live attachment finds missing.
func (n Node) Reapply(ctx context.Context, c Call, a *Attachment) error {
	run := func(command string) error {
		c.Command = command
		_, err := n.Run(ctx, c)
		return err
	}
	plugin := c.List.Plugins[c.Entry].Type
	switch {
	case plugin == "tuning" || plugin == "bandwidth": // they take a second ADD
		return run("ADD")
	case plugin == "portmap" || plugin == "firewall": // they have rules alone
		if err := errors.Join(run("DEL"), run("ADD")); err != nil {
			return err
		}
		if _, err := os.Stat(a.Cached.File); err != nil { // it was detached meanwhile
			return run("DEL")
		}
		return nil
	}
	if n.own(plugin) < 0 || a.Reference {
		return fmt.Errorf("%s has no call that makes it again, and is not ours: restart the container", plugin)
	}
	return n.checkHere(ctx, c, true)
}

func (n Node) own(plugin string) int {
	return slices.IndexFunc(n.Programs, func(p skel.Program) bool { return p.Name == plugin })
}

// Look is CHECK of one plugin, which leaves no record: ours runs in this process.
func (n Node) Look(ctx context.Context, c Call, a *Attachment) error {
	c.Command = "CHECK"
	if a.Reference || n.own(c.List.Plugins[c.Entry].Type) < 0 {
		_, err := n.Run(ctx, c)
		return err
	}
	return n.checkHere(ctx, c, false)
}

func (n Node) checkHere(ctx context.Context, c Call, reapply bool) error {
	c.Command = "CHECK"
	plugin := c.List.Plugins[c.Entry].Type
	var stdout, stderr bytes.Buffer
	if n.Programs[n.own(plugin)].Run(ctx, skel.Env{Vars: c.environment(n), Stdin: bytes.NewReader(c.conf()),
		Stdout: &stdout, Stderr: &stderr, Reapply: reapply, Programs: n.Programs}) == 0 {
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
	for key, value := range c.More {
		more[key] = value
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
		if _, err := n.Run(ctx, Call{"CHECK", c, list, i, result, nil}); err != nil {
			return err
		}
	}
	return nil
}

// Del detaches a container, with the last plugin first, and goes on after an error.
func (n Node) Del(ctx context.Context, list List, c Container, result json.RawMessage) error {
	var errs []error
	for i := range slices.Backward(list.Plugins) {
		_, err := n.Run(ctx, Call{"DEL", c, list, i, result, nil})
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
