// Vex completes the OpenVEX document that govulncheck writes: who says so, of which product and which
// packages of its SBOM, and what its user can do.
//
//	govulncheck -format openvex ... | vex -product PURL -author NAME -database ADDRESS
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/openvex/go-vex/pkg/vex"
)

// action is what OpenVEX wants to be said when a product is affected.
const action = "Update to a newer release; SECURITY.md says when there is one."

// asInSBOM makes govulncheck's package URLs of modules those of the SBOM.
var asInSBOM = strings.NewReplacer("%2F", "/", "pkg:golang/stdlib@v", "pkg:golang/std@", "+", "%2B")

func main() {
	if err := run(os.Args[1:], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "vex:", err)
		os.Exit(1)
	}
}

func run(args []string, stdin io.Reader, stdout io.Writer) error {
	flags := flag.NewFlagSet("vex", flag.ContinueOnError)
	product := flags.String("product", "", "package URL of what was looked at")
	author := flags.String("author", "", "of the document")
	database := flags.String("database", "", "that was used")
	if err := flags.Parse(args); err != nil {
		return err
	}
	data, err := io.ReadAll(stdin)
	if err != nil {
		return err
	}
	doc, err := vex.Parse(data)
	if err != nil {
		return err
	}
	doc.Author = *author
	doc.Tooling += " with " + *database
	if doc.Statements == nil {
		doc.Statements = []vex.Statement{}
	}
	for i := range doc.Statements {
		s := &doc.Statements[i]
		for p := range s.Products {
			s.Products[p].ID = *product
			for c := range s.Products[p].Subcomponents {
				sub := &s.Products[p].Subcomponents[c]
				sub.ID = asInSBOM.Replace(sub.ID)
			}
		}
		if s.Status == vex.StatusAffected {
			s.ActionStatement = action
		}
		if err := s.Validate(); err != nil {
			return fmt.Errorf("%s: %w", s.Vulnerability.Name, err)
		}
	}
	doc.ID = "" // of govulncheck, which is the sum of what it wrote
	if _, err := doc.GenerateCanonicalID(); err != nil {
		return err
	}
	return doc.ToJSON(stdout)
}
