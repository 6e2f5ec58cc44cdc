package main

import (
	"strings"
	"testing"

	"github.com/google/licenseclassifier/v2/assets"
)

func TestLicenceOf(t *testing.T) {
	r, err := newRecognizer()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		licenses    []string // files of the classifier
		want, fault string
	}{
		{[]string{"MIT/pristine"}, "MIT", ""},
		{[]string{"Apache-2.0/pristine", "BSD-3-Clause/pristine"}, "Apache-2.0 AND BSD-3-Clause", ""},
		{[]string{"AGPL-3.0/license"}, "", "license AGPL-3.0"},
		{[]string{"MIT/pristine", "GPL-2.0/license"}, "", "license GPL-2.0"},
		{nil, "", "no license"},
	} {
		var files []noticeFile
		for _, name := range c.licenses {
			text, err := assets.ReadLicenseFile("License/" + name + ".txt")
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, noticeFile{"LICENSE", "Copyright 2026 Example\n\n" + string(text)})
		}
		files = append(files, noticeFile{"NOTICE", "Made by Example."})
		got, err := r.licenceOf(files)
		if got != c.want || (err == nil) != (c.fault == "") || err != nil && !strings.Contains(err.Error(), c.fault) {
			t.Errorf("%v: got %q and %v, want %q and %q", c.licenses, got, err, c.want, c.fault)
		}
	}
}
