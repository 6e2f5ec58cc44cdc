// Command bom lists the Go modules that are linked into the plugins' binaries, with their licenses: as a table, as the
// notices that these licenses require, or as a bill of materials in CycloneDX or SPDX format. It fails if a license is
// not permitted.
//
//	bom [-version V -notices FILE -cyclonedx FILE -spdx FILE] BINARY...
//
// It must run in the directory of the plugins' module, whose go.sum verifies the sources of the other modules.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "bom:", err)
		os.Exit(1)
	}
}

func run(args []string, stdout io.Writer) error {
	flags := flag.NewFlagSet("bom", flag.ContinueOnError)
	version := flags.String("version", "", "version of the plugins for the bills of materials")
	notices := flags.String("notices", "", "`file` for the texts of the licenses")
	cyclonedx := flags.String("cyclonedx", "", "`file` for the bill of materials as CycloneDX")
	spdx := flags.String("spdx", "", "`file` for the bill of materials as SPDX")
	if err := flags.Parse(args); err != nil {
		return err
	}
	binaries, err := readBinaries(flags.Args())
	if err != nil {
		return err
	}
	modules, err := findModules(binaries)
	if err != nil {
		return err
	}
	if *notices == "" && *cyclonedx == "" && *spdx == "" {
		return list(stdout, modules)
	}
	if *notices != "" {
		if err := os.WriteFile(*notices, []byte(noticesOf(modules)), 0o644); err != nil {
			return err
		}
	}
	for file, write := range map[string]func(bill, io.Writer) error{*cyclonedx: bill.cycloneDX, *spdx: bill.spdx} {
		if file == "" {
			continue
		}
		b, err := newBill(*version, binaries, modules)
		if err != nil {
			return err
		}
		var out bytes.Buffer
		if err := write(b, &out); err != nil {
			return err
		}
		if err := os.WriteFile(file, out.Bytes(), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func list(out io.Writer, modules []module) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, m := range modules {
		fmt.Fprintf(w, "%s\t%s\t%s\n", m.path, m.version, m.licence)
	}
	return w.Flush()
}

func noticesOf(modules []module) string {
	var b strings.Builder
	b.WriteString("# Third-party software\n\nThe plugins are under the Apache License 2.0 (LICENSE). " +
		"They contain the following, under these licenses.\n\n")
	for _, m := range modules {
		fmt.Fprintf(&b, "- %s %s (%s)\n", m.path, m.version, m.licence)
	}
	for _, m := range modules {
		for _, f := range m.files {
			fmt.Fprintf(&b, "\n## %s: %s\n\n```\n%s\n```\n", m.path, f.name, strings.Trim(f.text, "\n"))
		}
	}
	return b.String()
}
