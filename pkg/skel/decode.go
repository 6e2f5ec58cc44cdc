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
	confMax   = 4 << 20  // limit of a configuration, in bytes
	formerMax = 64 << 20 // limit in DEL and GC, whose attachments may be from a release without confMax
)

// checkEnvironment names every variable that command needs and that is missing or
// invalid (code 4).
func (c *call) checkEnvironment(command string) error {
	var missing, wrong []string
	need := func(name string, valid func(string) bool) {
		if v := c.vars[name]; v == "" {
			missing = append(missing, name)
		} else if !valid(v) {
			wrong = append(wrong, name+" "+strconv.Quote(v))
		}
	}
	switch command {
	case "ADD", "CHECK", "DEL":
		need("CNI_CONTAINERID", func(id string) bool {
			return cni.ValidName(id) && (command == "DEL" || cni.CheckName("", id) == nil)
		})
		if command != "DEL" {
			need("CNI_NETNS", func(string) bool { return true })
		}
		need("CNI_IFNAME", func(name string) bool {
			return cni.ValidIfName(name) && (command == "DEL" || cni.CheckName("", name) == nil)
		})
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

func (c *call) decode(command string) (*Request, error) {
	most := confMax
	if lenient(command) {
		most = formerMax
	}
	data, err := c.readConf(most)
	if err != nil {
		return nil, err
	}
	conf, err := cni.DecodeConfig(data)
	switch {
	case err == nil:
		if err := c.checkVersion(conf.CNIVersion, command); err != nil {
			return nil, err
		}
	case cni.ProblemsOf(err)[0].Key == "": // no JSON, or no object
		return nil, err
	case cni.Supports(conf.CNIVersion):
		c.version = conf.CNIVersion
	}
	var problems cni.Problems
	problems.Add(err)
	req, err := c.request(data, conf, command)
	problems.Add(err)
	return req, problems.Err()
}

// lenient reports whether a command works with a configuration that ADD refuses.
func lenient(command string) bool { return command == "DEL" || command == "GC" }

// readConf reads standard input: at most most bytes, and at most for the time of a call.
func (c *call) readConf(most int) ([]byte, error) {
	stdin := c.env.Stdin
	if f, ok := stdin.(*os.File); ok {
		stdin = timedFile{f, c.began.Add(cmp.Or(c.env.Limit, callTime))}
	}
	var buf bytes.Buffer
	buf.Grow(8 << 10) // most are shorter, and read at once
	_, err := buf.ReadFrom(io.LimitReader(stdin, int64(most)+1))
	data := buf.Bytes()
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, cni.Errorf(cni.CodeTryAgain, "network configuration: standard input does not end: %w", err)
	case err != nil:
		return nil, cni.Errorf(cni.CodeIO, "network configuration: read standard input: %w", err)
	case len(data) > most:
		return nil, cni.Errorf(cni.CodeConfig, "network configuration: longer than %d bytes", most)
	case len(bytes.TrimSpace(data)) == 0:
		return nil, cni.Errorf(cni.CodeDecode, "network configuration: standard input is empty")
	}
	return data, nil
}

// checkVersion refuses a version that we do not speak, or that lacks the command (code 1).
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
	if version >= since {
		return nil
	}
	// Scripts know the reference's words.
	return &cni.Error{Code: cni.CodeIncompatibleVersion,
		Msg:     fmt.Sprintf("cniVersion: %q: config version does not allow %s", version, command),
		Details: command + " came with " + since}
}

// request makes a request, and returns all that is wrong with the configuration. DEL and GC do without bad values.
func (c *call) request(data []byte, conf *cni.Config, command string) (*Request, error) {
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
		programs:   c.env.Programs,
		failures:   c.env.Failures,
		looks:      c.env.Look,
	}
	var problems cni.Problems
	refuse := func(err error) {
		if !lenient(command) {
			problems.Add(err)
		} else if err != nil {
			req.Warn("%v; taken for none", err)
		}
	}
	refuse(cni.CheckName("name", conf.Name))
	if !cni.ValidName(conf.Name) {
		problems.Add(cni.Refuse("name", conf.Name,
			"is no network name (a letter or digit, then letters, digits, '_', '.', '-')"))
	}
	// A plugin that is its own IPAM plugin would start itself without end.
	if t := req.IPAM; t != "" && !c.plugin.IPAM && (cni.IsPlugin(t, c.plugin.Name) || t == conf.Type) {
		req.IPAM = ""
		refuse(cni.Refuse("ipam.type", t, "is this plugin itself, which gives no addresses").
			Suggest("name an IPAM plugin, host-local for example"))
	}
	refuse(c.readLogKey(conf.RawLog))
	var err error
	switch command {
	case "GC":
		var refs []cni.Attachment
		var listed bool
		refs, listed, err = conf.ValidAttachments()
		problems.Add(err)
		req.Valid, c.noValid = cni.NewSet(req.Network, refs), !listed
	case "ADD", "CHECK", "DEL":
		req.ContainerID, req.IfName, req.Netns = c.vars["CNI_CONTAINERID"], c.vars["CNI_IFNAME"], c.vars["CNI_NETNS"]
		req.PrevResult, err = conf.PrevResult()
		refuse(err)
	}
	if !lenient(command) {
		problems.Add(c.checkPolicy(data, command))
	}
	if c.plugin.Parse != nil && !lenient(command) {
		c.cfg, err = c.plugin.Parse(req)
		problems.Add(err)
	}
	return req, problems.Err()
}

// checkPolicy refuses a tenant's configuration that has values which the administrator's policy does not permit.
func (c *call) checkPolicy(conf []byte, command string) error {
	if c.env.Policy == "" {
		return nil
	}
	rules, err := policy.Load(c.env.Policy, c.env.Policy == policy.File)
	if err != nil {
		return err
	}
	isFirst := command == "ADD" && !c.plugin.Chained && !c.plugin.IPAM
	return rules.Check(conf, policy.Call{Plugin: c.plugin.Name, First: isFirst, Chained: c.plugin.Chained,
		Args: c.vars["CNI_ARGS"]})
}

// openNetns opens the container's namespace and refuses our own.
func (c *call) openNetns(command string) error {
	path := c.req.Netns
	if c.plugin.IPAM || path == "" { // GC and STATUS have none, DEL may lack it
		return nil
	}
	opened, err := ns.Open(path)
	if err == nil {
		if err = c.refuseOwn(opened); err == nil {
			c.req.NS = opened
			return nil
		}
		_ = opened.Close()
	}
	gone := errors.Is(err, ns.ErrNotExist)
	switch {
	case command == "DEL" && cni.Transient(err): // a later DEL can remove what is in the container
		return cni.Errorf(cni.CodeTryAgain, "CNI_NETNS: %w", err)
	case command == "DEL" && gone:
		return nil
	case command == "DEL": // the path leads elsewhere by now
		c.req.Warn("CNI_NETNS: %v; taken for gone", err)
		return nil
	case command == "ADD" && gone && c.req.PrevResult == nil: // nothing was made, so no DEL is needed
		return cni.Errorf(cni.CodeUnknownContainer, "CNI_NETNS: %w", err)
	}
	return cni.Errorf(cni.CodeEnvironment, "CNI_NETNS: %w", err)
}

func (c *call) refuseOwn(n *ns.NS) error {
	if v := c.vars["CNI_NETNS_OVERRIDE"]; v == "1" || strings.EqualFold(v, "true") {
		return nil
	}
	own, err := n.IsCurrent()
	if err == nil && own {
		err = fmt.Errorf("network namespace %q: is the plugin's own (CNI_NETNS_OVERRIDE=1 allows it)", n.Path())
	}
	return err
}
