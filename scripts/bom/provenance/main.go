// Command provenance writes an in-toto statement with the SLSA provenance of a release. Each file in DIR is a subject.
// The statement does not depend on place or time.
//
//	provenance -version V [-revision COMMIT] -archs "A B" -go VERSION -source FILE -sums FILE DIR
package main

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	slsa "github.com/in-toto/attestation/go/predicates/provenance/v1"
	intoto "github.com/in-toto/attestation/go/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"
)

const (
	predicateType = "https://slsa.dev/provenance/v1"
	repository    = "https://github.com/hawser-cni/plugins"
	buildType     = repository + "/blob/main/docs/releasing.md"
	builder       = repository + "/blob/main/scripts/release.sh"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "provenance:", err)
		os.Exit(1)
	}
}

// build contains the inputs of a release.
type build struct{ version, revision, archs, toolchain, source, sums string }

func run(args []string, stdout io.Writer) error {
	var b build
	flags := flag.NewFlagSet("provenance", flag.ContinueOnError)
	flags.StringVar(&b.version, "version", "", "version of the plugins")
	flags.StringVar(&b.revision, "revision", "", "commit, empty without git history")
	flags.StringVar(&b.archs, "archs", "", "architectures, separated by blanks")
	flags.StringVar(&b.toolchain, "go", "", "version of the Go toolchain")
	flags.StringVar(&b.source, "source", "", "`file` with the sources")
	flags.StringVar(&b.sums, "sums", "", "the go.sum `file`")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() != 1 {
		return fmt.Errorf("need one directory with the files of a release, got %q", flags.Args())
	}
	files, err := os.ReadDir(flags.Arg(0))
	if err != nil {
		return err
	}
	statement := &intoto.Statement{Type: intoto.StatementTypeUri, PredicateType: predicateType}
	for _, f := range files {
		subject, err := describe(filepath.Join(flags.Arg(0), f.Name()))
		if err != nil {
			return err
		}
		statement.Subject = append(statement.Subject, subject)
	}
	if statement.Predicate, err = b.predicate(); err != nil {
		return err
	}
	if err := statement.Validate(); err != nil {
		return err
	}
	data, err := protojson.Marshal(statement)
	if err != nil {
		return err
	}
	// protojson varies the white space of its output.
	var out bytes.Buffer
	if err := json.Indent(&out, data, "", "  "); err != nil {
		return err
	}
	_, err = fmt.Fprintln(stdout, out.String())
	return err
}

func (b build) predicate() (*structpb.Struct, error) {
	archs := []any{}
	for _, arch := range strings.Fields(b.archs) {
		archs = append(archs, arch)
	}
	parameters, err := structpb.NewStruct(map[string]any{
		"version": b.version, "revision": b.revision, "archs": archs, "sourceDateEpoch": os.Getenv("SOURCE_DATE_EPOCH"),
	})
	if err != nil {
		return nil, err
	}
	source, err := describe(b.source)
	if err != nil {
		return nil, err
	}
	sums, err := describe(b.sums)
	if err != nil {
		return nil, err
	}
	goVersion := strings.TrimPrefix(b.toolchain, "go")
	from := []*intoto.ResourceDescriptor{source, sums, {Name: "go", Uri: "pkg:golang/std@" + goVersion}}
	if b.revision != "" {
		from = append(from, &intoto.ResourceDescriptor{
			Uri: "git+" + repository, Digest: map[string]string{"gitCommit": b.revision}})
	}
	provenance := &slsa.Provenance{
		BuildDefinition: &slsa.BuildDefinition{
			BuildType: buildType, ExternalParameters: parameters, ResolvedDependencies: from},
		RunDetails: &slsa.RunDetails{Builder: &slsa.Builder{Id: builder, Version: map[string]string{"go": goVersion}}},
	}
	data, err := protojson.Marshal(provenance)
	predicate := &structpb.Struct{}
	return predicate, cmp.Or(provenance.Validate(), err, protojson.Unmarshal(data, predicate))
}

// describe returns the name and the checksum of a file.
func describe(path string) (*intoto.ResourceDescriptor, error) {
	data, err := os.ReadFile(path)
	sum := sha256.Sum256(data)
	return &intoto.ResourceDescriptor{
		Name: filepath.Base(path), Digest: map[string]string{"sha256": hex.EncodeToString(sum[:])}}, err
}
