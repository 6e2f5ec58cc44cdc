package main

import (
	"os"
	"path/filepath"
	"testing"
)

func TestDatabase(t *testing.T) {
	source, dir := t.TempDir(), t.TempDir()
	reports := map[string]string{
		"GO-2026-0001": `{"id": "GO-2026-0001", "modified": "2026-01-02T00:00:00Z", "affected": [
			{"package": {"name": "example.org/b"}}, {"package": {"name": "example.org/a"}},
			{"package": {"name": "example.org/a"}}]}`,
		"GO-2026-0002": `{"id": "GO-2026-0002", "modified": "2026-01-01T00:00:00Z", "affected": [
			{"package": {"name": "example.org/a"}}]}`,
		"GO-2026-0003": `{"id": "GO-2026-0003", "modified": "2026-01-03T00:00:00Z", "withdrawn": "2026-01-03T00:00:00Z",
			"affected": [{"package": {"name": "example.org/a"}}]}`,
	}
	if err := os.MkdirAll(filepath.Join(source, "data", "osv"), 0o755); err != nil {
		t.Fatal(err)
	}
	for id, report := range reports {
		if err := os.WriteFile(filepath.Join(source, "data", "osv", id+".json"), []byte(report), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := run(source, dir); err != nil {
		t.Fatal(err)
	}
	first, second := `{"id":"GO-2026-0001","modified":"2026-01-02T00:00:00Z"}`,
		`{"id":"GO-2026-0002","modified":"2026-01-01T00:00:00Z"}`
	for file, want := range map[string]string{
		"index/modules.json": `[{"path":"example.org/a","vulns":[` + first + `,` + second + `]},` +
			`{"path":"example.org/b","vulns":[` + first + `]}]`,
		"index/db.json": `{"modified":"2026-01-03T00:00:00Z"}`,
	} {
		if got, err := os.ReadFile(filepath.Join(dir, file)); err != nil || string(got) != want {
			t.Errorf("%s: %s, %v; want %s", file, got, err, want)
		}
	}
	entries, err := os.ReadDir(filepath.Join(dir, "ID"))
	if err != nil || len(entries) != 2 {
		t.Errorf("reports: %v, %v", entries, err)
	}
	if err := run(t.TempDir(), dir); err == nil {
		t.Error("a directory without reports is accepted")
	}
}
