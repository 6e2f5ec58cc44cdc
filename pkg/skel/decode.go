package skel

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/policy"
)

const (
	confMax    = 4 << 20  // largest size of a configuration, in bytes
	lenientMax = 64 << 20 // limit for DEL and GC, because an earlier release may have accepted a larger configuration
)

// checkEnvironment returns an error (code 4) with all variables that command needs and that are missing or invalid.
func (c *call) checkEnvironment(command string) error {
	var missing, wrong []string
	// ADD and CHECK also refuse names that are too long or not printable (CheckName).
	need := func(name string, isValid func(string) bool) {
		if v := c.vars[name]; v == "" {
			missing = append(missing, name)
		} else if !isValid(v) || !isLenient(command) && cni.CheckName("", v) != nil {
			wrong = append(wrong, name+" "+strconv.Quote(v))
		}
	}
	switch command {
	case "ADD", "CHECK", "DEL":
		need("CNI_CONTAINERID", cni.ValidName)
		if command != "DEL" && c.vars["CNI_NETNS"] == "" {
			missing = append(missing, "CNI_NETNS")
		}
		need("CNI_IFNAME", cni.ValidIfName)
	case "GC", "STATUS":
	case "":
		missing = append(missing, "CNI_COMMAND")
	default:
		wrong = append(wrong, "CNI_COMMAND "+strconv.Quote(command)+" (want ADD, DEL, CHECK, GC, STATUS or VERSION)")
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

// decode reads the configuration and returns the request. If a value is invalid, it returns the request and an error.
func (c *call) decode(command string) (*Request, error) {
	limit := confMax
	if isLenient(command) {
		limit = lenientMax
	}
	data, err := c.readConf(limit)
	if err != nil {
		return nil, err
	}
	conf, err := cni.DecodeConfig(data)
	switch {
	case err == nil:
		if err := c.checkVersion(conf.CNIVersion, command); err != nil {
			return nil, err
		}
	case cni.ProblemsOf(err)[0].Key == "": // not a JSON object
		return nil, err
	case cni.Supports(conf.CNIVersion):
		c.version = conf.CNIVersion // for the error object
	}
	var problems cni.Problems
	problems.Add(err)
	req, err := c.newRequest(data, conf, command)
	problems.Add(err)
	return req, problems.Err()
}

// isLenient reports whether a command must work with a configuration that ADD refuses.
func isLenient(command string) bool { return command == "DEL" || command == "GC" }

// readConf reads standard input, within the time limit of a call. It returns an error for more than limit bytes.
func (c *call) readConf(limit int) ([]byte, error) {
	stdin := c.env.Stdin
	if f, ok := stdin.(*os.File); ok {
		stdin = timedFile{f, c.start.Add(cmp.Or(c.env.Limit, callTime))}
	}
	var buf bytes.Buffer
	buf.Grow(8 << 10) // enough for most configurations, so that one read suffices
	_, err := buf.ReadFrom(io.LimitReader(stdin, int64(limit)+1))
	data := buf.Bytes()
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, cni.Errorf(cni.CodeTryAgain, "network configuration: standard input does not end: %w", err)
	case err != nil:
		return nil, cni.Errorf(cni.CodeIO, "network configuration: read standard input: %w", err)
	case len(data) > limit:
		return nil, cni.Errorf(cni.CodeConfig, "network configuration: longer than %d bytes", limit)
	case len(bytes.TrimSpace(data)) == 0:
		return nil, cni.Errorf(cni.CodeDecode, "network configuration: standard input is empty")
	}
	return data, nil
}

// checkVersion sets c.version to a known version. It returns code 1 if version is unknown or lacks the command.
func (c *call) checkVersion(version, command string) error {
	if !cni.Supports(version) {
		supported := "supported: " + strings.Join(cni.Versions(), ", ")
		err := cni.Refuse("cniVersion", version, "is not supported: incompatible CNI versions").
			WithCode(cni.CodeIncompatibleVersion).Suggest("%s", supported)
		err.Details = supported
		return err
	}
	c.version = version
	since := cni.Since(command)
	if version >= since { // versions can be compared as texts
		return nil
	}
	// Scripts search for this text of the reference plugins.
	return &cni.Error{Code: cni.CodeIncompatibleVersion,
		Msg:     fmt.Sprintf("cniVersion: %q: config version does not allow %s", version, command),
		Details: command + " was introduced in " + since}
}

// newRequest returns the request, and an error with all problems. In DEL and GC, most problems are only warnings.
func (c *call) newRequest(data []byte, conf *cni.Config, command string) (*Request, error) {
	req := &Request{
		Attachment: cni.Attachment{Network: conf.Name},
		Args:       c.vars["CNI_ARGS"],
		Path:       c.vars["CNI_PATH"],
		Conf:       data,
		Version:    conf.CNIVersion,
		IPAM:       conf.IPAM.Type,
		Env:        c.env.Vars,
		Stderr:     c.env.Stderr,
		plugin:     c.plugin.Name,
		env:        c.env,
	}
	var problems cni.Problems
	report := func(err error) {
		if !isLenient(command) {
			problems.Add(err)
		} else if err != nil {
			req.Warn("%v; ignored", err)
		}
	}
	report(cni.CheckName("name", conf.Name))
	if !cni.ValidName(conf.Name) {
		problems.Add(cni.Refuse("name", conf.Name,
			"is not a network name (a letter or digit, then letters, digits, '_', '.', '-')"))
	}
	// A plugin that is its own IPAM plugin would start itself without end.
	if t := req.IPAM; t != "" && !c.plugin.IPAM && (cni.IsPlugin(t, c.plugin.Name) || t == conf.Type) {
		req.IPAM = ""
		report(cni.Refuse("ipam.type", t, "is this plugin itself, which does not provide addresses").
			Suggest("name an IPAM plugin, host-local for example"))
	}
	report(c.readLogKey(conf.RawLog))
	var err error
	switch command {
	case "GC":
		var refs []cni.Attachment
		var hasList bool
		refs, hasList, err = conf.ValidAttachments()
		problems.Add(err)
		req.Valid, c.lacksValidList = cni.NewSet(req.Network, refs), !hasList
	case "ADD", "CHECK", "DEL":
		req.ContainerID, req.IfName, req.Netns = c.vars["CNI_CONTAINERID"], c.vars["CNI_IFNAME"], c.vars["CNI_NETNS"]
		req.PrevResult, err = conf.PrevResult()
		report(err)
	}
	if isLenient(command) {
		return req, problems.Err()
	}
	problems.Add(c.checkPolicy(data, command))
	if c.plugin.Parse != nil {
		c.cfg, err = c.plugin.Parse(req)
		problems.Add(err)
	}
	return req, problems.Err()
}

// checkPolicy returns an error if a tenant's configuration has values that the administrator's policy does not permit.
func (c *call) checkPolicy(conf []byte, command string) error {
	if c.env.Policy == "" {
		return nil
	}
	rules, err := policy.Load(c.env.Policy, c.env.Policy == policy.File) // only root may write the node's policy
	if err != nil {
		return err
	}
	isFirst := command == "ADD" && !c.plugin.Chained && !c.plugin.IPAM
	return rules.Check(conf, policy.Call{Plugin: c.plugin.Name, First: isFirst, Chained: c.plugin.Chained,
		Args: c.vars["CNI_ARGS"]})
}

// openNetns opens the container's namespace, which must not be the plugin's own.
func (c *call) openNetns(command string) error {
	path := c.req.Netns
	if c.plugin.IPAM || path == "" { // GC and STATUS have no path, and DEL may have none
		return nil
	}
	n, err := ns.Open(path)
	if err == nil {
		if err = c.refuseOwnNetns(n); err == nil {
			c.req.NS = n
			return nil
		}
		_ = n.Close()
	}
	isMissing := errors.Is(err, ns.ErrNotExist)
	switch {
	case command == "DEL" && cni.Transient(err): // a repeated DEL can clean up in the container
		return cni.Errorf(cni.CodeTryAgain, "CNI_NETNS: %w", err)
	case command == "DEL" && isMissing:
		return nil
	case command == "DEL": // the path points to another file now
		c.req.Warn("CNI_NETNS: %v; treated as a namespace that no longer exists", err)
		return nil
	case command == "ADD" && isMissing && c.req.PrevResult == nil: // nothing was created, so DEL is not needed
		return cni.Errorf(cni.CodeUnknownContainer, "CNI_NETNS: %w", err)
	}
	return cni.Errorf(cni.CodeEnvironment, "CNI_NETNS: %w", err)
}

func (c *call) refuseOwnNetns(n *ns.NS) error {
	if v := c.vars["CNI_NETNS_OVERRIDE"]; v == "1" || strings.EqualFold(v, "true") {
		return nil
	}
	isOwn, err := n.IsCurrent()
	if err == nil && isOwn {
		err = fmt.Errorf("network namespace %q: is the plugin's own (CNI_NETNS_OVERRIDE=1 allows it)", n.Path())
	}
	return err
}
