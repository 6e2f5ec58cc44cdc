package tool

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/cmd/hawser/node"
	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/process"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
)

func diagsCommand(s *session) *cobra.Command {
	var log string
	c := s.command("diags [FILE]", "Collect the state of this node for a bug report, without secrets, in one tar",
		func(name string) error {
			if name == "" {
				name = "hawser-diags-" + time.Now().UTC().Format("20060102T150405Z") + ".tar"
			}
			r := diags(s.ctx, s.Node, log)
			f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
			if err != nil {
				return err
			}
			if _, err := f.Write(r.tar.Bytes()); err != nil {
				return errors.Join(err, f.Close(), os.Remove(name))
			}
			return errors.Join(f.Close(), s.show(map[string]string{"file": name}, func(t table) {
				t.line("%s: read it before you send it: it contains names of pods, addresses and messages", name)
				if len(r.failures) > 0 {
					t.line("Some facts could not be read; errors.json in it has the reasons.")
				}
			}))
		})
	c.Flags().StringVar(&log, "log", "", "a log `path`, as in HAWSER_LOG of the runtime's environment")
	return c
}

// report is a tar of the collected files. failures becomes errors.json.
type report struct {
	tar      bytes.Buffer
	failures []string
}

func diags(ctx context.Context, n *node.Node, log string) *report {
	r := &report{}
	r.add("versions", versions(n), nil)
	all, err := n.Attachments(ctx)
	r.add("ls", all, err)
	records, err := skel.Failures(n.Failures).List()
	for i := range records {
		if f := &records[i].Record; f.Quoted {
			f.Msg = omittedText
		}
		records[i].Record.Details = ""
	}
	r.add("failures", records, err)
	lists, err := n.Lists()
	var shown []any
	for _, l := range lists {
		var entries []any
		for _, e := range l.Plugins {
			data, _ := json.Marshal(e.Raw) // decoded values can be encoded
			var keys any
			_ = json.Unmarshal(data, &keys)
			entries = append(entries, keepKeys(strings.Fields(listKeys), keys))
		}
		shown = append(shown, map[string]any{"file": l.File, "name": l.Name, "cniVersion": l.CNIVersion,
			"plugins": entries})
	}
	r.add("lists", shown, err)
	chains, err := node.BaseChains(ctx)
	for i := range chains {
		if !chains[i].IsOurs() {
			chains[i].Comment = ""
		}
	}
	r.add("chains", chains, err)
	for _, family := range []nft.Family{nft.INet, nft.Bridge} {
		r.add("nft-"+family.String(), tableOf(ctx, family), nil)
	}
	r.addLinks()
	lines, err := lastLines(log)
	r.add("log", lines, err)
	r.add("errors", r.failures, nil)
	r.tar.Write(make([]byte, 2*block))
	return r
}

// addLinks adds the host's interfaces, addresses, routes and rules. It omits aliases that are not marks of Hawser.
func (r *report) addLinks() {
	host := rtnl.Host()
	defer host.Close()
	links, err := host.Links()
	addrs := map[string][]rtnl.Addr{}
	for i, l := range links {
		if _, ok := cni.ParseMark(l.Alias); !ok {
			links[i].Alias = ""
		}
		list, addrErr := host.Addrs(l.Index)
		addrs[l.Name], err = list, errors.Join(err, addrErr)
	}
	r.add("link", links, err)
	r.add("addr", addrs, nil)
	copies, err := host.RouteCopies()
	var routes []rtnl.Route
	for _, c := range copies {
		routes = append(routes, c.Route())
	}
	r.add("route", routes, err)
	rules, err := host.Rules()
	r.add("rule", rules, err)
}

// versions returns the versions of the kernel and of the programs, and the loaded modules.
func versions(n *node.Node) map[string]any {
	var u unix.Utsname
	_ = unix.Uname(&u) // it cannot fail
	var modules []string
	list, _ := os.ReadFile("/proc/modules") // a kernel without modules has none
	for line := range strings.Lines(string(list)) {
		modules = append(modules, node.FirstWord(line))
	}
	plugins := map[string]string{}
	for _, p := range n.Programs {
		if path, err := n.Find(p.Name); err == nil {
			if f, err := inspect(path, p.Name, nil); err == nil {
				plugins[path] = f.String()
			}
		}
	}
	return map[string]any{"hawser": skel.Version(), "kernel": unix.ByteSliceToString(u.Release[:]),
		"machine": unix.ByteSliceToString(u.Machine[:]), "modules": modules, "plugins": plugins}
}

// tableOf returns Hawser's table in the JSON format of the program nft, or null if nft is not installed or fails.
func tableOf(ctx context.Context, family nft.Family) json.RawMessage {
	path, err := process.LookPath("nft")
	var out bytes.Buffer
	list := []string{"-j", "list", "table", family.String(), nft.TableName}
	if err != nil || (process.Command{Path: path, Args: list, Stdout: &out}).Run(ctx) != nil {
		return json.RawMessage("null")
	}
	return out.Bytes()
}

// The keys whose values diags includes: listKeys in network lists, and logKeys in log lines.
const (
	listKeys = "type bridge isGateway isDefaultGateway ipMasq ipMasqBackend hairpinMode promiscMode forceAddress " +
		"masqExclude masqPorts masqRandomFully mtuFrom exclude sticky exempt queue sysctlMode " +
		"tap_name uid gid vm_ips " +
		"mtu vlan vlanTrunk id minID maxID preserveDefaultVlan macspoofchk disableContainerInterface portIsolation " +
		"master mode linkInContainer linkContNs backend ingressPolicy iptablesAdminChainName snat masqAll " +
		"markMasqBit externalSetMarkChain ingressRate ingressBurst egressRate egressBurst vrfname table log ipam " +
		"subnet rangeStart rangeEnd gateway ranges routes dst gw dataDir addresses address daemonSocketPath " +
		"capabilities portMappings bandwidth ipRanges ips mac dns aliases"
	logKeys = "time pid plugin version verb cniVersion network containerID ifname ms result interfaces ips " +
		"error code msg quoted traceparent"
)

// keepKeys removes all other keys from the objects in a JSON value, and adds the number of removed keys to each object.
func keepKeys(keys []string, value any) any {
	switch v := value.(type) {
	case []any:
		for i := range v {
			v[i] = keepKeys(keys, v[i])
		}
	case map[string]any:
		others := 0
		for key := range v {
			if !slices.Contains(keys, key) {
				delete(v, key)
				others++
				continue
			}
			v[key] = keepKeys(keys, v[key])
		}
		if others > 0 {
			v["other keys"] = others
		}
	}
	return value
}

// lastLines returns the newest lines of all logs, sorted by time.
func lastLines(log string) (lines []any, err error) {
	const limit = 200
	trim := func() {
		timeOf := func(i int) string { return fmt.Sprint(lines[i].(map[string]any)["time"]) }
		sort.SliceStable(lines, func(i, j int) bool { return timeOf(i) < timeOf(j) })
		lines = slices.Delete(lines, 0, max(0, len(lines)-limit))
	}
	err = eachLogLine(log, func(line []byte) {
		var call map[string]any
		if json.Unmarshal(line, &call) == nil && call["plugin"] != nil && call["verb"] != nil {
			if e, ok := call["error"].(map[string]any); ok && e["quoted"] == true {
				e["msg"] = omittedText
			}
			lines = append(lines, keepKeys(strings.Fields(logKeys), call))
		}
		if len(lines) > 10*limit { // a log may not fit into memory
			trim()
		}
	})
	trim()
	return lines, err
}

func (r *report) add(name string, v any, err error) {
	data, jsonErr := json.MarshalIndent(v, "", "  ")
	r.pack(name+".json", redactURLs(data))
	if err = errors.Join(err, jsonErr); err != nil {
		r.failures = append(r.failures, name+": "+redactError(err))
	}
}

const omittedText = "(left out)"

// redactURLs returns the JSON with only the scheme, host and path of each URL. It treats an @ in a path as the
// end of a password, because a password may contain a slash.
func redactURLs(data []byte) []byte {
	const text = `(?:[^\s"\\]|\\.)*` // part of a JSON string, up to a space
	password := regexp.MustCompile(`([A-Za-z][-+.0-9A-Za-z]*://)` + text + `@`)
	query := regexp.MustCompile(`([A-Za-z][-+.0-9A-Za-z]*://[^\s"\\?#]*[?#])` + text)
	return query.ReplaceAll(password.ReplaceAll(data, []byte("${1}"+omittedText+"@")), []byte("${1}"+omittedText))
}

// redactError returns the text of an error without text from other programs, which may contain secrets.
func redactError(err error) string {
	text := err.Error()
	var redact func(error)
	redact = func(err error) {
		switch e := err.(type) {
		case *cni.Error:
			if e.Details != "" {
				text = strings.ReplaceAll(text, e.Details, omittedText)
			}
			if e.IsQuoted() {
				text = strings.ReplaceAll(text, e.Msg, omittedText)
			}
			redact(e.Unwrap())
		case interface{ Unwrap() error }:
			redact(e.Unwrap())
		case interface{ Unwrap() []error }:
			for _, err := range e.Unwrap() {
				redact(err)
			}
		}
	}
	redact(err)
	return text
}

// block is the size of a tar's blocks. Two empty blocks end a tar.
const block = 512

// pack adds a file to the tar (ustar). The standard library's writer would add 65 kB to the program.
func (r *report) pack(name string, data []byte) {
	header := make([]byte, block)
	copy(header, "hawser-diags/"+name)
	copy(header[100:], fmt.Sprintf("%07o\x00%07o\x00%07o\x00%011o\x00%011o\x00        0", 0o600, 0, 0, len(data),
		time.Now().Unix()))
	copy(header[257:], "ustar\x0000")
	sum := 0
	for _, b := range header {
		sum += int(b)
	}
	copy(header[148:], fmt.Sprintf("%06o\x00 ", sum))
	r.tar.Write(header)
	r.tar.Write(data)
	r.tar.Write(make([]byte, -len(data)&(block-1)))
}
