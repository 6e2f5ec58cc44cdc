package skel

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

// FailureDir contains records of recent failures. They are kept because the runtime deletes the sandbox after a
// failure, and with it everything that an administrator could examine.
const FailureDir = "/run/hawser/failures"

const (
	failuresMax    = 64   // number of records; the oldest are removed
	failureTextMax = 4096 // maximum length of a message, its details and a path, in bytes; longer texts are truncated
	failureNameMax = 255  // maximum length of a name, in bytes
)

// TestIDPrefix begins the container IDs of "hawser test", which reports failures itself. They are not recorded.
const TestIDPrefix = "hawser-test-"

// Failure is the record of an ADD, DEL or CHECK that failed. Network and IfName are empty if they are not known.
type Failure struct {
	Network     string    `json:"network"`
	ContainerID string    `json:"containerID"`
	IfName      string    `json:"ifname"`
	Plugin      string    `json:"plugin"`
	Command     string    `json:"command"`
	Pod         string    `json:"pod,omitempty"` // namespace/name, if CNI_ARGS contains them
	NetnsPath   string    `json:"netnsPath,omitempty"`
	Time        time.Time `json:"time"`  // of the last failure
	First       time.Time `json:"first"` // of the first failure
	Count       int       `json:"count"` // number of failures of this call
	Code        uint      `json:"code"`
	Msg         string    `json:"msg"`
	Details     string    `json:"details,omitempty"`
	Quoted      bool      `json:"quoted,omitempty"` // Msg contains text of another program, such as an IPAM plugin
}

// Attachment returns the attachment of the call.
func (f Failure) Attachment() cni.Attachment {
	return cni.Attachment{Network: f.Network, ContainerID: f.ContainerID, IfName: f.IfName}
}

// Hash returns the name of the file. There is one record for each combination of attachment, plugin and command.
func (f Failure) Hash() string {
	return cni.Digest(strings.Join([]string{f.Attachment().Hash(), f.Plugin, f.Command}, " "), 16)
}

// Plausible implements statefile.Record.
func (f Failure) Plausible() bool { return f.Plugin != "" && f.Command != "" && f.Count > 0 }

// Failures returns the store of the records in dir, usually FailureDir.
func Failures(dir string) *statefile.Store[Failure] {
	return statefile.NewStore[Failure](dir, time.Second)
}

// recordFailure writes the record of a call that failed with this error. It is best effort: its own errors are ignored.
func (c *call) recordFailure(err error) {
	command, id := c.vars["CNI_COMMAND"], c.vars["CNI_CONTAINERID"]
	isRecorded := cni.ValidName(id) && !strings.HasPrefix(id, TestIDPrefix)
	if c.env.Failures == "" || !slices.Contains([]string{"ADD", "DEL", "CHECK"}, command) || !isRecorded {
		return
	}
	e := errorObject(err)
	f := Failure{
		ContainerID: id, IfName: c.vars["CNI_IFNAME"], Plugin: c.plugin.Name, Command: command,
		Pod: PodOf(c.vars["CNI_ARGS"]), NetnsPath: c.vars["CNI_NETNS"],
		Time: c.start, First: c.start, Count: 1,
		Code: e.Code, Msg: e.Msg, Details: e.Details, Quoted: e.IsQuoted(),
	}
	if c.req != nil {
		f.Network = c.req.Network
	}
	_ = recoverPanic(func() error { return putFailure(Failures(c.env.Failures), f.truncated()) })
}

// putFailure writes a record, which replaces the record of an earlier failure of the same call, and removes the oldest
// records. It does nothing if a delegate has already recorded the same failure.
func putFailure(records *statefile.Store[Failure], f Failure) error {
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
	isFromDelegate := func(r *Failure) bool {
		return r.Attachment() == f.Attachment() && r.Command == f.Command && r.Plugin != f.Plugin &&
			!r.Time.Before(f.Time) && strings.Contains(f.Msg, r.Msg)
	}
	if slices.ContainsFunc(all, isFromDelegate) {
		return nil
	}
	if previous, ok, _ := s.Get(f.Hash()); ok {
		f.First, f.Count = previous.First, previous.Count+1
	}
	if err := s.Put(ctx, f); err != nil {
		return err
	}
	if all, err = s.All(); err != nil {
		return err
	}
	slices.SortFunc(all, NewestFirst)
	var old []string
	for i, f := range all {
		if i >= failuresMax || *f != f.truncated() { // an earlier version did not truncate all texts
			old = append(old, f.Hash())
		}
	}
	return s.Drop(ctx, old...)
}

// NewestFirst compares failures by time. Failures in the future, from before the clock was set back, are the oldest.
func NewestFirst(a, b *Failure) int {
	return cmp.Compare(uint64(time.Since(a.Time)), uint64(time.Since(b.Time))) // a negative duration becomes a long one
}

// PodOf returns the pod in CNI_ARGS as namespace/name, or only a name for podman.
func PodOf(args string) string {
	const namespace, name = "K8S_POD_NAMESPACE", "K8S_POD_NAME"
	pod, err := cni.ParseArgs(args+";IgnoreUnknown=1", namespace, name)
	if err != nil || pod[namespace] == "" || pod[name] == "" {
		return pod[name] // podman's container
	}
	return pod[namespace] + "/" + pod[name]
}

// truncated returns the failure with truncated texts. Texts of a tenant's configuration can have any length.
func (f Failure) truncated() Failure {
	for text, limit := range map[*string]int{&f.Network: failureNameMax, &f.ContainerID: failureNameMax,
		&f.IfName: failureNameMax, &f.Pod: 2 * failureNameMax, &f.NetnsPath: failureTextMax, &f.Msg: failureTextMax,
		&f.Details: failureTextMax} {
		*text = strings.ToValidUTF8((*text)[:min(len(*text), limit)], "")
	}
	return f
}
