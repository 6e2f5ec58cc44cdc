package skel

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

// FailureDir has a record of what failed of late: the runtime deletes the sandbox, and with it all that one could look
// at.
const FailureDir = "/run/hawser/failures"

const (
	// failuresKept is how many records stay, the newest.
	failuresKept = 64
	// failureText is the limit of a message, of its details and of a path in bytes, and failureName the limit of a
	// name. Longer texts are cut.
	failureText, failureName = 4096, 255
)

// TestID begins the container IDs of "hawser test", whose failures are told at once and not recorded.
const TestID = "hawser-test-"

// Failure is an ADD, DEL or CHECK that failed. Network and IfName are empty where they could not be read.
type Failure struct {
	cni.Attachment
	Plugin    string    `json:"plugin"`
	Command   string    `json:"command"`
	Pod       string    `json:"pod,omitempty"` // namespace/name, where CNI_ARGS has them
	NetnsPath string    `json:"netnsPath,omitempty"`
	Time      time.Time `json:"time"`  // of the last one
	First     time.Time `json:"first"` // of the first one
	Count     int       `json:"count"` // how often the call failed
	Code      uint      `json:"code"`
	Msg       string    `json:"msg"`
	Details   string    `json:"details,omitempty"`
	Quoted    bool      `json:"quoted,omitempty"` // Msg has words of another program, such as an IPAM plugin
}

// Hash names the file: calls of one plugin with one command for one attachment have one record.
func (f Failure) Hash() string {
	return cni.Digest(strings.Join([]string{f.Attachment.Hash(), f.Plugin, f.Command}, " "), 16)
}

// UnmarshalJSON also reads the key of earlier versions for the path of the namespace.
func (f *Failure) UnmarshalJSON(data []byte) error {
	type plain Failure
	return json.Unmarshal(ns.CurrentKeys(data), (*plain)(f))
}

// Plausible says whether a call of ours can have written the record.
func (f Failure) Plausible() bool { return f.Plugin != "" && f.Command != "" && f.Count > 0 }

// Failures are the records in dir, which is FailureDir.
func Failures(dir string) *statefile.Store[Failure] {
	return statefile.NewStore[Failure](dir, time.Second)
}

// remember adds a call that failed to the records. It changes nothing about the call when that fails.
func (c *call) remember(failed error) {
	command, id := c.vars["CNI_COMMAND"], c.vars["CNI_CONTAINERID"]
	isKept := cni.ValidName(id) && !strings.HasPrefix(id, TestID)
	if c.env.Failures == "" || !slices.Contains([]string{"ADD", "DEL", "CHECK"}, command) || !isKept {
		return
	}
	e := describe(failed)
	f := Failure{
		Attachment: cni.Attachment{ContainerID: id, IfName: c.vars["CNI_IFNAME"]},
		Plugin:     c.plugin.Name, Command: command, Pod: PodOf(c.vars["CNI_ARGS"]), NetnsPath: c.vars["CNI_NETNS"],
		Time: c.began, First: c.began, Count: 1,
		Code: e.Code, Msg: e.Msg, Details: e.Details, Quoted: e.IsQuoted(),
	}
	if c.req != nil {
		f.Network = c.req.Network
	}
	_ = catch(func() error { return keep(Failures(c.env.Failures), f.bounded()) })
}

// keep puts a record in place of the one of the same calls, and drops the oldest. What a delegate has said in its own
// record needs no second one.
func keep(records *statefile.Store[Failure], f Failure) error {
	ctx := context.Background()
	s, err := records.Open(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }()
	all, err := s.All()
	if err != nil {
		return err
	}
	said := func(of *Failure) bool { // by a delegate, in this call
		return of.Attachment == f.Attachment && of.Command == f.Command && of.Plugin != f.Plugin &&
			!of.Time.Before(f.Time) && strings.Contains(f.Msg, of.Msg)
	}
	if slices.ContainsFunc(all, said) {
		return nil
	}
	if before, ok, _ := s.Get(f.Hash()); ok {
		f.First, f.Count = before.First, before.Count+1
	}
	if err := s.Put(ctx, f); err != nil {
		return err
	}
	if all, err = s.All(); err != nil {
		return err
	}
	slices.SortFunc(all, func(a, b *Failure) int { return b.Time.Compare(a.Time) }) // the newest first
	var old []string
	for i, f := range all {
		if i >= failuresKept || *f != f.bounded() { // an earlier version did not cut all texts
			old = append(old, f.Hash())
		}
	}
	return s.Drop(ctx, old...)
}

// PodOf is the pod that a kubelet's runtime names in CNI_ARGS, namespace/name, or the name of podman's container.
func PodOf(args string) string {
	const namespace, name = "K8S_POD_NAMESPACE", "K8S_POD_NAME"
	pod, err := cni.ParseArgs(args+";IgnoreUnknown=1", namespace, name)
	if err != nil || pod[namespace] == "" || pod[name] == "" {
		return pod[name] // podman's container
	}
	return pod[namespace] + "/" + pod[name]
}

// bounded returns the failure with texts that are cut to the limits, because texts of a tenant's configuration may have
// any length.
func (f Failure) bounded() Failure {
	for text, most := range map[*string]int{&f.Network: failureName, &f.ContainerID: failureName,
		&f.IfName: failureName, &f.Pod: 2 * failureName, &f.NetnsPath: failureText, &f.Msg: failureText,
		&f.Details: failureText} {
		*text = strings.ToValidUTF8((*text)[:min(len(*text), most)], "")
	}
	return f
}
