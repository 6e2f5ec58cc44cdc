package plugins_test

import (
	"strings"
	"testing"
)

// TestRules shows that each rule sees what it is there for, and only that.
func TestRules(t *testing.T) {
	for _, c := range []struct {
		rule, path, body string
		faults           int
	}{
		{"floors", "pkg/rtnl/x.go", `import _ "` + module + `/pkg/ns"`, 0},
		{"floors", "pkg/ns/x.go", `import _ "` + module + `/pkg/rtnl"`, 1},
		{"floors", "pkg/nft/x.go", `import _ "` + module + `/pkg/rtnl"`, 1},
		{"floors", "pkg/masq/x.go", `import _ "` + module + `/pkg/skel"`, 1},
		{"floors", "pkg/new/x.go", ``, 1},
		{"floors", "pkg/ns/x.go", `import _ "` + module + `/pkg/nstest"`, 1},
		{"floors", "pkg/ns/x_test.go", `import _ "` + module + `/pkg/nstest"`, 0},
		{"floors", "pkg/nstest/x.go", `import _ "` + module + `/pkg/ns"`, 1},
		{"floors", "plugins/main/a/x.go", `import _ "` + module + `/pkg/skel"`, 0},
		{"floors", "plugins/main/a/x.go", `import _ "` + module + `/plugins/main/b"`, 1},
		{"homes", "pkg/masq/x.go", `import _ "github.com/vishvananda/netlink/nl"`, 1},
		{"homes", "pkg/nft/x.go", `import _ "github.com/vishvananda/netlink/nl"`, 0},
		{"homes", "pkg/nft/x.go", `import _ "github.com/vishvananda/netlink"`, 1},
		{"homes", "pkg/iface/x_test.go", `import _ "github.com/onsi/gomega"`, 0},
		{"homes", "plugins/main/a/x.go", `import _ "os/exec"`, 1},
		{"homes", "pkg/nstest/x.go", `import _ "os/exec"`, 0},
		{"homes", "plugins/main/a/x.go", `import _ "log"`, 1},
		{"one printer", "pkg/ns/x.go", `import "os"; func f() { os.Exit(1) }`, 1},
		{"one printer", "pkg/ns/x.go", `import o "os"; func f() string { return o.Getenv("A") }`, 1},
		{"one printer", "pkg/ns/x.go", `import "fmt"; func f() { fmt.Println(); println() }`, 2},
		{"one printer", "pkg/ns/x.go", `import "fmt"; func f() string { return fmt.Sprint() }`, 0},
		{"one printer", "pkg/skel/x.go", `import "os"; func f() { os.Exit(1) }`, 0},
		{"one printer", "scripts/x/x.go", `import "os"; func f() { os.Exit(1) }`, 0},
		{"no state", "pkg/ns/x.go", `func init() {}`, 1},
		{"no state", "pkg/ns/x.go", `type t struct{}; func (t) init() {}`, 0},
		{"no state", "pkg/ns/x.go", `var n int`, 1},
		{"no state", "pkg/ns/x.go", `var n = 1`, 1},
		{"no state", "pkg/ns/x.go", `import "sync"; var n sync.Mutex`, 1},
		{"no state", "pkg/ns/x.go", `import "errors"; var errX = errors.New("x")`, 0},
		{"no state", "pkg/ns/x.go", `var _ = f(); func f() int { return 1 }`, 1},
		{"no state", "pkg/ns/x.go", `import "sync"; var once = sync.OnceFunc(func() {})`, 0},
		{"no state", "pkg/ns/x.go", `var table = map[string]int{"a": 1}`, 0},
		{"no sleep", "pkg/ns/x_test.go", `import "time"; func f() { time.Sleep(1) }`, 1},
		{"no sleep", "pkg/ns/x.go", `import "time"; func f() { <-time.NewTicker(1).C; <-time.Tick(1) }`, 2},
		{"no sleep", "pkg/ns/x_test.go", `import "time"; func f() { <-time.NewTicker(1).C }`, 0},
		{"no sleep", "test/x.go", `import tm "time"; func f() { tm.Sleep(1) }`, 1},
		{"size", "pkg/ns/x.go", `func f(a, b, c, d int) {}`, 0},
		{"size", "pkg/ns/x.go", `func f(a, b, c, d, e int) {}`, 1},
		{"size", "pkg/ns/x.go", "func f() {" + newlines(60) + "}", 1},
		{"size", "pkg/ns/x.go", "func f() {" + newlines(59) + "}", 0},
		{"width", "pkg/nstest/x.go", "//" + strings.Repeat("ä", 118), 0},
		{"width", "pkg/nstest/x_test.go", "//\t" + strings.Repeat("x", 115), 1},
		{"width", "pkg/nstest/x.go", "type t struct {\n\ta int `json:\"" + strings.Repeat("x", 120) + "\"`\n}", 0},
	} {
		s, err := parse(c.path, "package x\n"+c.body)
		if err != nil {
			t.Fatal(c.body, err)
		}
		if got := rules[c.rule](s); len(got) != c.faults {
			t.Errorf("%s: %s: %q: got %d faults %q, want %d", c.rule, c.path, c.body, len(got), got, c.faults)
		}
	}
}

func newlines(n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = '\n'
	}
	return string(b)
}

func TestForeignWords(t *testing.T) {
	for content, faults := range map[string]int{
		"cd /" + "work/main":                    1,
		"workdir=/top/work overlay":             0,
		"see https://" + "registry.internal/x":  1,
		"see https://github.com/hawser-cni/x":   0,
		"/opt/cni/bin, /var/lib/cni, /run/work": 0,
		"/" + "root/go/pkg":                     1,
	} {
		if got := foreignWords(content); len(got) != faults {
			t.Errorf("%q: got %q, want %d faults", content, got, faults)
		}
	}
}
