package skel

import (
	"errors"
	"io"
	"slices"
	"strings"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ns"
)

// confMax bounds the configuration that we read, in bytes.
const confMax = 64 << 20

// checkEnvironment looks at all the variables that command needs and names
// every one that is missing or invalid (code 4).
func (c *call) checkEnvironment(command string) error {
	var missing, wrong []string
	check := func(name string, valid func(string) bool) {
		switch v := c.vars[name]; {
		case v == "":
			missing = append(missing, name)
		case !valid(v):
			wrong = append(wrong, name+" "+quote(v))
		}
	}
	any := func(string) bool { return true }
	switch command {
	case "ADD", "CHECK":
		check("CNI_CONTAINERID", cni.ValidName)
		check("CNI_NETNS", any)
		check("CNI_IFNAME", cni.ValidIfName)
	case "DEL":
		check("CNI_CONTAINERID", cni.ValidName)
		check("CNI_IFNAME", cni.ValidIfName)
	case "GC", "STATUS":
	case "":
		missing = append(missing, "CNI_COMMAND")
	default:
		wrong = append(wrong, "CNI_COMMAND "+quote(command)+" (want ADD, DEL, CHECK, GC, STATUS or VERSION)")
	}
	var parts []string
	if missing != nil {
		parts = append(parts, "missing: "+strings.Join(missing, ", "))
	}
	if wrong != nil {
		parts = append(parts, "invalid: "+strings.Join(wrong, ", "))
	}
	if parts == nil {
		return nil
	}
	return cni.Errorf(cni.CodeEnvironment, "environment variables %s", strings.Join(parts, "; "))
}

// decode reads and checks the configuration.
func (c *call) decode(command string) (*Request, error) {
	data, err := io.ReadAll(io.LimitReader(c.env.Stdin, confMax+1))
	if err != nil {
		return nil, cni.Errorf(cni.CodeIO, "network configuration: read standard input: %w", err)
	}
	if len(data) > confMax {
		return nil, cni.Errorf(cni.CodeDecode, "network configuration: longer than %d bytes", confMax)
	}
	if len(strings.TrimSpace(string(data))) == 0 {
		return nil, cni.Errorf(cni.CodeDecode, "network configuration: standard input is empty")
	}
	conf, err := cni.DecodeConfig(data)
	if err != nil {
		return nil, err
	}
	if err := c.checkVersion(conf.CNIVersion, command); err != nil {
		return nil, err
	}
	if !cni.ValidName(conf.Name) {
		return nil, cni.Errorf(cni.CodeConfig, "name: %q is no network name (a letter or digit, then letters, digits, '_', '.', '-')", conf.Name)
	}
	req := &Request{
		Attachment: cni.Attachment{Network: conf.Name, ContainerID: c.vars["CNI_CONTAINERID"], IfName: c.vars["CNI_IFNAME"]},
		Netns:      c.vars["CNI_NETNS"],
		Args:       c.vars["CNI_ARGS"],
		Path:       c.vars["CNI_PATH"],
		Conf:       data,
		Version:    conf.CNIVersion,
		IPAM:       conf.IPAM.Type,
		Env:        c.env.Vars,
		Stderr:     c.env.Stderr,
		plugin:     c.plugin.Name,
	}
	return req, decodeRest(req, conf, command)
}

// decodeRest reads the parts of the configuration that only some commands
// look at.
func decodeRest(req *Request, conf *cni.Config, command string) error {
	switch command {
	case "GC":
		refs, err := conf.ValidAttachments()
		if err != nil {
			return err
		}
		req.Valid = cni.NewSet(req.Network, refs)
	case "ADD", "CHECK", "DEL":
		prev, err := conf.PrevResult()
		if err != nil && command == "DEL" { // DEL must not need it
			req.Warn("%v", err)
			return nil
		}
		req.PrevResult = prev
		return err
	}
	return nil
}

// checkVersion negotiates: the version must be one that we speak, and have
// the command (code 1).
func (c *call) checkVersion(version, command string) error {
	if !cni.Supports(version) {
		return &cni.Error{Code: cni.CodeIncompatibleVersion,
			Msg:     "cniVersion: " + quote(version) + " is not supported",
			Details: "supported: " + strings.Join(cni.Versions(), ", ")}
	}
	c.version = version
	if cni.Allows(version, command) {
		return nil
	}
	first := slices.IndexFunc(cni.Versions(), func(v string) bool { return cni.Allows(v, command) })
	return &cni.Error{Code: cni.CodeIncompatibleVersion,
		Msg:     "cniVersion: " + quote(version) + " has no " + command,
		Details: command + " came with " + cni.Versions()[first]}
}

// openNetns opens the container's namespace and refuses our own, before any
// work is done.
func (c *call) openNetns(command string) error {
	if c.plugin.IPAM || command == "GC" || command == "STATUS" {
		return nil
	}
	path := c.req.Netns
	if command == "DEL" && path == "" {
		return nil
	}
	code := cni.CodeEnvironment
	opened, err := ns.Open(path)
	if err == nil {
		err = c.refuseOwn(opened)
	} else if errors.Is(err, ns.ErrNotExist) && command == "ADD" && c.req.PrevResult == nil {
		// Nothing was ever made in it, so there is nothing to clean up.
		code = cni.CodeUnknownContainer
	}
	switch {
	case err == nil:
		c.req.NS = opened
		return nil
	case command != "DEL":
		return cni.Errorf(code, "CNI_NETNS %q: %w", path, err)
	case !errors.Is(err, ns.ErrNotExist):
		// The path leads elsewhere by now. What was in the container went with
		// its namespace.
		c.req.Warn("CNI_NETNS %q: %v; taken for gone", path, err)
	}
	return nil
}

// refuseOwn returns an error, and closes n, if n is the namespace that we run
// in ourselves.
func (c *call) refuseOwn(n *ns.NS) error {
	if v := c.vars["CNI_NETNS_OVERRIDE"]; v == "1" || strings.EqualFold(v, "true") {
		return nil
	}
	own, err := ns.Current()
	if err != nil {
		return err
	}
	defer own.Close()
	same, err := own.Same(n)
	if err == nil && same {
		err = errors.New("is the plugin's own network namespace (CNI_NETNS_OVERRIDE=1 allows it)")
	}
	if err != nil {
		_ = n.Close()
	}
	return err
}
