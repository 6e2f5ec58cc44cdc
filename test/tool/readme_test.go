package tool_test

import (
	"os"
	"regexp"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
)

// The session of docs/troubleshooting.md is one of this node: web-1 wants the host port of web-0, and another program
// flushes the rules.
var _ = It("prints what docs/troubleshooting.md shows", Label("tool-readme"), func() {
	m := newMachine(ours(), usual)
	m.up(newPod("c0ffee01", "web-0", hostPort(8080, 80)))
	late := newPod("c0ffee02", "web-1", hostPort(8080, 80))
	Expect(m.add(late)).To(HaveOccurred())
	Expect(m.del(late)).To(Succeed())
	page := string(nstest.Must(os.ReadFile(nstest.Root() + "/docs/troubleshooting.md")))
	_, session, _ := strings.Cut(page, "```console\n")
	session, _, _ = strings.Cut(session, "```\n")
	var shown strings.Builder
	for _, line := range strings.Split(session, "\n") {
		command, isCommand := strings.CutPrefix(line, "# ")
		if !isCommand {
			continue
		}
		shown.WriteString(line + "\n")
		out := m.Run(nstest.Program{Path: "/bin/sh", Args: []string{"-c", command},
			Env: append(os.Environ(), "PATH="+binDir()+":"+os.Getenv("PATH"))})
		Expect(out.Stderr).To(BeEmpty())
		shown.WriteString(out.Stdout)
	}
	same := func(text string) string {
		text = regexp.MustCompile(`\d{4}-\d\d-\d\d[T ][0-9:.+Z]+`).ReplaceAllString(text, "DATE")
		text = regexp.MustCompile(`veth[0-9a-f]{8}`).ReplaceAllString(text, "VETH")
		return regexp.MustCompile(`[ \t]+`).ReplaceAllString(text, " ")
	}
	Expect(same(shown.String())).To(Equal(same(session)), shown.String())
})

func binDir() string { return strings.TrimSuffix(nstest.Build("hawser"), "/hawser") }
