package tool

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/cmd/hawser/node"
	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

func metricsCommand(s *session) *cobra.Command {
	var file, log string
	var check bool
	c := s.command("metrics", "Write addresses, host ports, failures and durations for Prometheus", func(string) error {
		if err := checkMetricsFile(file); err != nil {
			return err
		}
		m, err := measure(s.ctx, s.Node, check, log)
		switch {
		case s.json:
			return errors.Join(s.show(m, nil), err)
		case file == "":
			_, writeErr := s.out.Write(m.text())
			return errors.Join(err, writeErr)
		}
		return errors.Join(err, m.write(file))
	})
	c.Flags().StringVar(&file, "file", "", "a `path` in node_exporter's textfile directory (standard output)")
	c.Flags().StringVar(&log, "log", "", "a log `path`, as in HAWSER_LOG of the runtime's environment")
	c.Flags().BoolVar(&check, "check", false, "run CHECK for each attachment, for hawser_check_drift")
	return c
}

// checkMetricsFile returns an error if node_exporter would not read the file.
func checkMetricsFile(file string) error {
	if file != "" && (!filepath.IsAbs(file) || filepath.Ext(file) != ".prom") {
		return fmt.Errorf("--file %q: node_exporter needs an absolute path that ends in .prom", file)
	}
	return nil
}

// metrics are samples by the metric's name and the labels.
type metrics map[string]map[string]float64

func measure(ctx context.Context, n *node.Node, check bool, log string) (metrics, error) {
	m := metrics{}
	all, damaged, readErr := n.Read(ctx)
	errs := []error{damaged, readErr}
	m.add("hawser_leases_without_container", 0)
	m.add("hawser_host_ports", 0)
	for _, a := range all {
		m.add("hawser_attachments", 1, "network", a.Network)
		m.add("hawser_host_ports", float64(len(a.Held(cni.HeldPort))))
		if a.Orphan != "" {
			m.add("hawser_leases_without_container", float64(len(a.Held(cni.HeldAddress))))
		}
		if check && a.IsLive() {
			calls, err := n.Checks(a)
			errs = append(errs, err)
			drifts := 0.0
			for _, c := range calls {
				if !c.List.NoCheck && drifts == 0 && node.IsDrift(n.Check(ctx, c)) {
					drifts = 1
				}
			}
			if len(calls) > 0 && !calls[0].List.NoCheck {
				m.add("hawser_check_drift", drifts, "network", a.Network)
			}
		}
	}
	lists, err := n.Lists()
	errs = append(errs, err)
	if readErr != nil {
		lists = nil // unread leases are not free addresses
	}
	for _, l := range lists {
		for i, u := range l.ResolveFlannel("").Usage(all) {
			labels := []string{"network", l.Name, "set", strconv.Itoa(i)}
			m.add("hawser_addresses_used", u.Used, labels...)
			m.add("hawser_addresses_free", u.Size-u.Used, labels...)
		}
	}
	records, err := skel.Failures(n.Failures).List()
	errs = append(errs, err)
	const last = "hawser_failure_last_timestamp_seconds"
	for _, r := range records {
		f := r.Record
		labels := []string{"plugin", f.Plugin, "command", f.Command, "code", fmt.Sprint(f.Code)}
		m.add("hawser_failures_total", float64(f.Count), labels...)
		m.add(last, 0, labels...)
		m[last][formatLabels(labels)] = max(m[last][formatLabels(labels)], float64(f.Time.Unix()))
	}
	return m, errors.Join(append(errs, eachLogLine(log, m.duration))...)
}

// eachLogLine calls do for each line of the logs in /var/log/hawser and of one more log.
func eachLogLine(log string, do func(line []byte)) error {
	files, _ := filepath.Glob(filepath.Join(skel.LogDir, "*")) // the only error is an invalid pattern
	if log != "" && !slices.Contains(files, log) {
		files = append(files, log)
	}
	var errs []error
	for _, file := range files {
		f, err := os.OpenFile(file, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		lines := bufio.NewReaderSize(f, 1<<20)
		for isRest := false; err == nil; { // a line that is longer than the buffer is ignored
			line, isPart, readErr := lines.ReadLine()
			if readErr == nil && !isPart && !isRest {
				do(line)
			}
			isRest, err = isPart, readErr
		}
		if err == io.EOF {
			err = nil
		}
		errs = append(errs, err, f.Close())
	}
	return errors.Join(errs...)
}

// duration counts the call of a log line. Lines of other programs are ignored.
func (m metrics) duration(line []byte) {
	var call struct {
		Plugin, Verb string
		MS           *float64
	}
	if json.Unmarshal(line, &call) != nil || call.Plugin == "" || call.Verb == "" || call.MS == nil {
		return
	}
	const name = "hawser_call_duration_seconds"
	seconds, labels := *call.MS/1000, []string{"plugin", call.Plugin, "verb", call.Verb}
	m.add(name+"_sum", seconds, labels...)
	m.add(name+"_count", 1, labels...)
	for _, limit := range strings.Fields("0.005 0.01 0.025 0.05 0.1 0.25 0.5 1 2.5 5 10 +Inf") {
		below := 0.0
		if bound, _ := strconv.ParseFloat(limit, 64); seconds <= bound {
			below = 1
		}
		m.add(name+"_bucket", below, append(labels, "le", limit)...)
	}
}

// add adds value to a sample, and creates it if necessary. Labels are alternating names and values.
func (m metrics) add(name string, value float64, labels ...string) {
	if m[name] == nil {
		m[name] = map[string]float64{}
	}
	m[name][formatLabels(labels)] += value
}

func formatLabels(labels []string) string {
	escape := strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)
	var words []string
	for pair := range slices.Chunk(labels, 2) {
		words = append(words, pair[0]+`="`+escape.Replace(quote(pair[1]))+`"`)
	}
	if len(words) == 0 {
		return ""
	}
	return "{" + strings.Join(words, ",") + "}"
}

func (m metrics) write(file string) error {
	dir, err := statefile.Open(filepath.Dir(file), 0)
	if err != nil {
		return err
	}
	return errors.Join(dir.Replace(filepath.Base(file), m.text(), 0o644), dir.Close())
}

// metric is a metric that the tool can write.
type metric struct{ name, kind, help string }

var allMetrics = []metric{
	{"hawser_addresses_used", "gauge", "Addresses that host-local leased from a range set."},
	{"hawser_addresses_free", "gauge", "Free addresses of a range set."},
	{"hawser_leases_without_container", "gauge", "Addresses leased to containers that no longer exist."},
	{"hawser_attachments", "gauge", "Attachments of containers to a network."},
	{"hawser_host_ports", "gauge", "Host ports that are forwarded to containers."},
	{"hawser_failures_total", "counter", "Failed calls that are on record."},
	{"hawser_failure_last_timestamp_seconds", "gauge", "Time of the last such failure."},
	{"hawser_check_drift", "gauge", "Attachments for which CHECK finds something missing or changed."},
	{"hawser_call_duration_seconds", "histogram", "Durations of the calls in the logs."},
}

// text returns the metrics in the exposition format, version 0.0.4.
func (m metrics) text() []byte {
	var b bytes.Buffer
	for _, metric := range allMetrics {
		hasHelp := false
		for _, suffix := range []string{"", "_bucket", "_sum", "_count"} {
			var lines []string
			for labels, value := range m[metric.name+suffix] {
				lines = append(lines, metric.name+suffix+labels+" "+strconv.FormatFloat(value, 'g', -1, 64)+"\n")
			}
			slices.Sort(lines)
			if len(lines) > 0 && !hasHelp {
				hasHelp = true
				fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %[1]s %[3]s\n", metric.name, metric.help, metric.kind)
			}
			b.WriteString(strings.Join(lines, ""))
		}
	}
	return b.Bytes()
}
