package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	classifier "github.com/google/licenseclassifier/v2"
	"github.com/google/licenseclassifier/v2/assets"
)

// permitted lists the licenses that a linked module of an Apache-2.0 program may have, if its notices are shipped too.
var permitted = []string{"0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT"}

// recognizer identifies licenses by their texts.
type recognizer struct{ classifier *classifier.Classifier }

func newRecognizer() (recognizer, error) {
	c, err := assets.DefaultClassifier()
	return recognizer{c}, err
}

// licenceOf returns the licenses in the files, joined by AND, or an error if one is not permitted.
func (r recognizer) licenceOf(files []noticeFile) (string, error) {
	var names []string
	for _, f := range files {
		for _, m := range r.classifier.Match([]byte(f.text)).Matches {
			if m.MatchType == "License" && !slices.Contains(names, m.Name) {
				names = append(names, m.Name)
			}
		}
	}
	if names == nil {
		return "", errors.New("no license recognized")
	}
	for _, name := range names {
		if !slices.Contains(permitted, name) {
			return "", fmt.Errorf("license %s is not permitted; permitted are %s", name, strings.Join(permitted, ", "))
		}
	}
	return strings.Join(names, " AND "), nil
}
