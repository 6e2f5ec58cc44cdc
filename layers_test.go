// The tests of this directory check the rules that docs/design.md has for the source: which package imports which,
// which packages use the process's streams, and how long a function may be. They need only git and go, and no download.
package plugins_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

const module = "github.com/hawser-cni/plugins"

// floors contains the floor of each package. A package imports only packages on lower floors.
var floors = map[string]int{
	"pkg/cni": 0, "pkg/nlattr": 0, "pkg/ns": 0, "pkg/sysctl": 0, "pkg/statefile": 0, "pkg/process": 0,
	"pkg/rtnl": 1, "pkg/nft": 1, "pkg/policy": 1, "pkg/ranges": 1, "pkg/tun": 1,
	"pkg/iface": 2, "pkg/ipt": 2, "pkg/masq": 3,
	"pkg/skel": 3, "pkg/skel/start": 0, "pkg/ipam": 4, "pkg/netplugin": 4, "pkg/attach": 5,
	"cmd/hawser/node":                 5,
	"plugins/ipam/cluster-local/kube": 1, // for this plugin only
}

const (
	pluginFloor = 6
	harness     = "pkg/nstest" // imported only by tests
	conformance = "cmd/cni-conformance/conformance"
	maxLines    = 60
	maxParams   = 4
	maxColumns  = 120 // a tab has four
)

// homes maps each library, and the packages below it without an entry of their own, to the packages that may import it.
var homes = map[string][]string{
	"github.com/vishvananda/netlink":    {"pkg/rtnl"},
	"github.com/vishvananda/netlink/nl": {"pkg/rtnl", "pkg/nft"},
	"github.com/vishvananda/netns":      {"pkg/ns"},
	"github.com/godbus/dbus":            {"plugins/meta/firewall/firewall", "cmd/hawser/tool"},
	"github.com/insomniacslk/dhcp":      {"plugins/ipam/dhcp/dhcp"},
	"log/slog":                          {"plugins/ipam/dhcp/dhcp"},
	"github.com/google/nftables":        {},
	"github.com/mdlayher":               {},
	"github.com/mdlayher/packet":        {"plugins/ipam/dhcp/dhcp"},
	"github.com/coreos/go-iptables":     {"pkg/ipt"},
	"github.com/containernetworking":    {},
	"github.com/spf13":                  {"cmd/hawser/tool"},
	"golang.org/x/mod":                  {"cmd/hawser/tool"},
	"github.com/onsi":                   {harness, harness + "/plugintest"},
	"os/exec":                           {"pkg/process", conformance, harness, harness + "/plugintest"},
	"log":                               {},
	"net/http":                          {"plugins/ipam/cluster-local/kube"},
	"crypto/tls":                        {"plugins/ipam/cluster-local/kube"},
	"go.yaml.in/yaml":                   {"plugins/ipam/cluster-local/kube"},
}

// outward lists the names through which a program communicates with its caller.
var outward = map[string][]string{
	"os":  {"Stdin", "Stdout", "Stderr", "Exit", "Args", "Getenv", "LookupEnv", "Environ", "ExpandEnv"},
	"fmt": {"Print", "Printf", "Println", "Scan", "Scanf", "Scanln"},
}

// source is one parsed Go file.
type source struct {
	path  string // from the root
	dir   string
	text  string
	fset  *token.FileSet
	file  *ast.File
	names map[string]string // of the imported packages -> their paths
}

// isTest reports whether the file is not part of the plugins: it is a test, or a script.
func (s source) isTest() bool {
	return strings.HasSuffix(s.path, "_test.go") || within(s.dir, "test") || within(s.dir, "scripts")
}

func (s source) at(n ast.Node) string { return s.fset.Position(n.Pos()).String() + ": " }

func within(dir, top string) bool { return dir == top || strings.HasPrefix(dir, top+"/") }

func parse(name, content string) (source, error) {
	s := source{path: name, dir: path.Dir(name), text: content, fset: token.NewFileSet(), names: map[string]string{}}
	var err error
	s.file, err = parser.ParseFile(s.fset, name, content, parser.SkipObjectResolution)
	if err != nil {
		return s, err
	}
	for _, i := range s.file.Imports {
		imported := strings.Trim(i.Path.Value, `"`)
		local := path.Base(imported)
		if i.Name != nil {
			local = i.Name.Name
		}
		s.names[local] = imported
	}
	return s, nil
}

// rules check one file and return its faults.
var rules = map[string]func(s source) []string{
	"floors":      checkFloors,
	"homes":       checkHomes,
	"one printer": checkPrinter,
	"no state":    checkState,
	"no sleep":    checkSleep,
	"size":        checkSize,
	"width":       checkWidth,
}

func TestSource(t *testing.T) {
	var sources []source
	for _, name := range tracked(t) {
		if strings.HasSuffix(name, ".go") && !strings.Contains(name, "testdata/") {
			content, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			s, err := parse(name, string(content))
			if err != nil {
				t.Fatal(err)
			}
			sources = append(sources, s)
		}
	}
	for name, rule := range rules {
		t.Run(name, func(t *testing.T) {
			for _, s := range sources {
				for _, fault := range rule(s) {
					t.Error(fault)
				}
			}
		})
	}
}

func checkFloors(s source) (faults []string) {
	own, known := floors[s.dir]
	isPlugin := within(s.dir, "plugins")
	if !known && (isPlugin || within(s.dir, "cmd")) {
		own, known = pluginFloor, true
	}
	// A program imports its plugin's package, and the list of plugins imports all of them.
	program := path.Base(s.path) == "main.go" && (isPlugin || within(s.dir, "cmd")) || s.dir == "plugins"
	if within(s.dir, "pkg") && !known && !within(s.dir, harness) {
		faults = append(faults, s.path+": package "+s.dir+" has no floor")
	}
	for _, i := range s.file.Imports {
		imported, ours := strings.CutPrefix(strings.Trim(i.Path.Value, `"`), module+"/")
		if !ours {
			continue
		}
		floor, isPkg := floors[imported]
		switch {
		case (s.isTest() || s.dir == harness+"/plugintest") &&
			(isPkg || !within(imported, "plugins") || imported == s.dir):
		case s.dir == harness && imported == "pkg/skel": // for skel.Reference
		case imported == "plugins" && (within(s.dir, "cmd") || within(s.dir, "test")):
		case program && within(imported, s.dir):
		case isPkg && floor < own && within(s.dir, path.Dir(imported)): // a package of the plugin's own
		case within(imported, "plugins"):
			faults = append(faults, s.at(i)+"a package must not import a plugin")
		case within(imported, harness):
			faults = append(faults, s.at(i)+harness+" must only be imported by tests")
		case !isPkg || floor >= own:
			faults = append(faults, s.at(i)+s.dir+" imports "+imported+", which is not below it")
		}
	}
	return faults
}

func checkHomes(s source) (faults []string) {
	if s.isTest() {
		return nil
	}
	for _, i := range s.file.Imports {
		imported := strings.Trim(i.Path.Value, `"`)
		for library := imported; library != "."; library = path.Dir(library) {
			home, known := homes[library]
			if known && !slices.Contains(home, s.dir) {
				faults = append(faults, s.at(i)+imported+" is imported only in "+strings.Join(home, ", "))
			}
			if known {
				break
			}
		}
	}
	return faults
}

func checkPrinter(s source) (faults []string) {
	// In main.go, the tool uses the streams and the exit status itself.
	isTool := within(s.dir, "cmd") && path.Base(s.path) == "main.go"
	if s.isTest() || s.dir == "pkg/skel" || within(s.dir, harness) || isTool {
		return nil
	}
	ast.Inspect(s.file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok && slices.Contains(outward[s.names[x.Name]], n.Sel.Name) {
				faults = append(faults, s.at(n)+x.Name+"."+n.Sel.Name+" belongs to pkg/skel")
			}
		case *ast.CallExpr:
			if f, ok := n.Fun.(*ast.Ident); ok && (f.Name == "print" || f.Name == "println") {
				faults = append(faults, s.at(n)+f.Name+" belongs to pkg/skel")
			}
		}
		return true
	})
	return faults
}

func checkState(s source) (faults []string) {
	if s.isTest() || within(s.dir, harness) || s.dir == "pkg/skel/start" {
		return nil
	}
	for _, decl := range s.file.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			if d.Recv == nil && d.Name.Name == "init" {
				faults = append(faults, s.at(d)+"no init functions")
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				if v, ok := spec.(*ast.ValueSpec); ok && d.Tok == token.VAR && !isConstant(s, v) {
					faults = append(faults, s.at(v)+"variable "+v.Names[0].Name+" is neither an error nor a table")
				}
			}
		}
	}
	return faults
}

// isConstant reports whether a package variable is used like a constant, of a type that has no constants: an error, a
// table, a compiled expression, a function that runs once, the version that the linker sets, or an embedded file.
func isConstant(s source, v *ast.ValueSpec) bool {
	if s.dir == "pkg/skel" && v.Names[0].Name == "stamp" || s.dir == conformance && v.Names[0].Name == "data" {
		return true
	}
	if len(v.Values) == 0 {
		return false
	}
	for _, value := range v.Values {
		if u, ok := value.(*ast.UnaryExpr); ok && u.Op == token.AND {
			value = u.X
		}
		switch value := value.(type) {
		case *ast.CompositeLit:
		case *ast.CallExpr:
			f, ok := value.Fun.(*ast.SelectorExpr)
			if !ok {
				return false
			}
			x, ok := f.X.(*ast.Ident)
			once := ok && x.Name == "sync" && f.Sel.Name == "OnceFunc"
			if !ok || x.Name != "errors" && x.Name != "netip" && !strings.HasPrefix(f.Sel.Name, "Must") && !once {
				return false
			}
		default:
			return false
		}
	}
	return true
}

// checkSleep forbids Sleep, and in product code also tickers, because they are for polling.
func checkSleep(s source) (faults []string) {
	forbidden := []string{"Sleep"}
	if !s.isTest() && !within(s.dir, harness) {
		forbidden = append(forbidden, "NewTicker", "Tick")
	}
	ast.Inspect(s.file, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok && slices.Contains(forbidden, sel.Sel.Name) {
			if x, ok := sel.X.(*ast.Ident); ok && s.names[x.Name] == "time" {
				faults = append(faults, s.at(n)+"waits with time."+sel.Sel.Name)
			}
		}
		return true
	})
	return faults
}

func checkSize(s source) (faults []string) {
	for _, decl := range s.file.Decls {
		d, ok := decl.(*ast.FuncDecl)
		if !ok || s.isTest() {
			continue
		}
		if d.Type.Params.NumFields() > maxParams {
			faults = append(faults, s.at(d)+d.Name.Name+" has more than 4 parameters")
		}
		if s.fset.Position(d.End()).Line-s.fset.Position(d.Pos()).Line+1 > maxLines {
			faults = append(faults, s.at(d)+d.Name.Name+" is longer than 60 lines")
		}
	}
	return faults
}

// checkWidth does not check field tags, because Go cannot break them.
func checkWidth(s source) (faults []string) {
	tags := map[int]bool{}
	ast.Inspect(s.file, func(n ast.Node) bool {
		if field, ok := n.(*ast.Field); ok && field.Tag != nil {
			tags[s.fset.Position(field.Tag.Pos()).Line] = true
		}
		return true
	})
	for i, line := range strings.Split(s.text, "\n") {
		columns := utf8.RuneCountInString(strings.ReplaceAll(line, "\t", "    "))
		if columns > maxColumns && !tags[i+1] {
			faults = append(faults, fmt.Sprintf("%s:%d: %d columns", s.path, i+1, columns))
		}
	}
	return faults
}

// TestRules verifies that each rule reports the faults it is for, and no others.
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
		{"floors", "pkg/nstest/x.go", `import _ "` + module + `/pkg/skel"`, 0},
		{"floors", "plugins/main/a/a/x.go", `import _ "` + module + `/pkg/skel"`, 0},
		{"floors", "plugins/main/a/a/x.go", `import _ "` + module + `/plugins/main/b/b"`, 1},
		{"floors", "plugins/main/a/main.go", `import _ "` + module + `/plugins/main/a/a"`, 0},
		{"floors", "plugins/main/a/main.go", `import _ "` + module + `/plugins/main/b/b"`, 1},
		{"floors", "plugins/ipam/cluster-local/a/x.go", `import _ "` + module + `/plugins/ipam/cluster-local/kube"`, 0},
		{"floors", "plugins/main/a/a/x.go", `import _ "` + module + `/plugins/ipam/cluster-local/kube"`, 1},
		{"floors", "pkg/skel/x.go", `import _ "` + module + `/plugins/ipam/cluster-local/kube"`, 1},
		{"floors", "plugins/plugins.go", `import _ "` + module + `/plugins/main/b/b"`, 0},
		{"floors", "cmd/x/main.go", `import _ "` + module + `/plugins"`, 0},
		{"floors", "test/x/x_test.go", `import _ "` + module + `/plugins"`, 0},
		{"floors", "cmd/x/main.go", `import _ "` + module + `/plugins/main/b/b"`, 1},
		{"floors", "cmd/x/main.go", `import _ "` + module + `/cmd/x/tool"`, 0},
		{"floors", "cmd/x/main.go", `import _ "` + module + `/cmd/y/tool"`, 1},
		{"homes", "pkg/masq/x.go", `import _ "github.com/vishvananda/netlink/nl"`, 1},
		{"homes", "pkg/nft/x.go", `import _ "github.com/vishvananda/netlink/nl"`, 0},
		{"homes", "pkg/nft/x.go", `import _ "github.com/vishvananda/netlink"`, 1},
		{"homes", "pkg/iface/x_test.go", `import _ "github.com/onsi/gomega"`, 0},
		{"homes", "plugins/main/a/a/x.go", `import _ "os/exec"`, 1},
		{"homes", "pkg/nstest/x.go", `import _ "os/exec"`, 0},
		{"homes", "plugins/main/a/a/x.go", `import _ "log"`, 1},
		{"one printer", "pkg/ns/x.go", `import "os"; func f() { os.Exit(1) }`, 1},
		{"one printer", "pkg/ns/x.go", `import o "os"; func f() string { return o.Getenv("A") }`, 1},
		{"one printer", "pkg/ns/x.go", `import "fmt"; func f() { fmt.Println(); println() }`, 2},
		{"one printer", "pkg/ns/x.go", `import "fmt"; func f() string { return fmt.Sprint() }`, 0},
		{"one printer", "pkg/skel/x.go", `import "os"; func f() { os.Exit(1) }`, 0},
		{"one printer", "cmd/x/main.go", `import "os"; func f() { os.Exit(1) }`, 0},
		{"one printer", "cmd/x/x.go", `import "os"; func f() { os.Exit(1) }`, 1},
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
