package ipam_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ipam"
	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// mainPlugin returns a plugin of the test binary that returns the addresses of its IPAM plugin.
func mainPlugin(limit time.Duration) skel.Plugin[struct{}] {
	return skel.Plugin[struct{}]{Name: "main", Config: skel.Config[struct{}]{Keys: struct{}{}},
		Add: func(ctx context.Context, req *skel.Request, _ struct{}) (*cni.Result, error) {
			ctx, cancel := context.WithTimeout(ctx, limit)
			defer cancel()
			c := &ipam.Client{Req: req}
			adding, err := c.Start(ctx, "ADD")
			if err != nil {
				return nil, err
			}
			req.OnFail("release", func(ctx context.Context) error { return c.Release(ctx, adding) })
			return c.Result(ctx, adding)
		}}
}

var _ = Describe("an IPAM plugin of the running program", Label("ipam-in-process"), func() {
	const conf = `{"cniVersion":"1.0.0", "name":"net", "type":"main", "ipam":{"type":"ipam", "x": 1e3}}`
	var (
		dir   string
		calls []string
		vars  []string // more of them
		add   func(context.Context, *skel.Request) (*cni.Result, error)

		isOver atomic.Bool // whether the time of the call has run out
	)
	hang := make(chan struct{})
	BeforeEach(func() {
		dir, calls, vars = GinkgoT().TempDir(), nil, nil
		isOver.Store(false)
		add = func(context.Context, *skel.Request) (*cni.Result, error) {
			return &cni.Result{IPs: []cni.IP{{Address: netip.MustParsePrefix("10.1.0.2/24")}}}, nil
		}
	})
	plugin := func() skel.Plugin[struct{}] {
		return skel.Plugin[struct{}]{Name: "ipam", IPAM: true, InProcess: true,
			Config: skel.Config[struct{}]{Keys: struct{}{}},
			Add: func(ctx context.Context, req *skel.Request, _ struct{}) (*cni.Result, error) {
				calls = append(calls, "ADD "+string(req.Conf)+" "+req.Args)
				fmt.Fprint(req.Stderr, "progress\n")
				return add(ctx, req)
			},
			Del: func(_ context.Context, req *skel.Request) error {
				calls = append(calls, "DEL "+req.ContainerID)
				return nil
			}}
	}
	inside := func() skel.Program { return skel.ProgramOf("ipam", plugin) }
	runConf := func(conf string, p skel.Plugin[struct{}], programs ...skel.Program) (code int, out, stderr string) {
		var stdout, errs bytes.Buffer
		code = skel.Run(context.Background(), p, skel.Env{
			Vars: append(vars, "CNI_COMMAND=ADD", "CNI_CONTAINERID=one", "CNI_IFNAME=eth0", "CNI_ARGS=A=b",
				"CNI_NETNS="+nstest.NewNetns().Path, "CNI_PATH="+dir, executedEnv+"=1"),
			Stdin: strings.NewReader(conf), Stdout: &stdout, Stderr: &errs, Programs: programs})
		return code, stdout.String(), errs.String()
	}
	runOf := func(p skel.Plugin[struct{}], programs ...skel.Program) (code int, out, stderr string) {
		return runConf(conf, p, programs...)
	}
	run := func(limit time.Duration, programs ...skel.Program) (code int, out, stderr string) {
		return runOf(mainPlugin(limit), programs...)
	}
	link := func(how func(old, name string) error) {
		GinkgoHelper()
		Expect(how(nstest.Must(os.Executable()), filepath.Join(dir, "ipam"))).To(Succeed())
	}

	It("is served in this process, with the same configuration and environment", func() {
		link(os.Symlink)
		code, out, stderr := run(time.Minute, inside())
		Expect(code).To(BeZero(), out)
		Expect(out).To(ContainSubstring("10.1.0.2/24"))
		Expect(stderr).To(Equal("progress\n"))
		Expect(calls).To(Equal([]string{"ADD " + conf + " A=b"}))
	})

	It("is served in this process under another name that ends in the plugin's name", Label("other-name"), func() {
		exe := nstest.Must(os.Executable())
		Expect(os.Symlink(exe, filepath.Join(dir, "x-ipam"))).To(Succeed())
		code, out, _ := runConf(strings.Replace(conf, `"type":"ipam"`, `"type":"x-ipam"`, 1), mainPlugin(time.Minute),
			inside())
		Expect(code).To(BeZero(), out)
		Expect(calls).To(HaveLen(1))
	})

	DescribeTable("and an executed one have the caller's trace", Label("traces"), func(inProcess bool) {
		const id = "0af7651916cd43dd8448eb211c80319c"
		if inProcess {
			link(os.Symlink)
		} else {
			install(dir, "ipam", `sent=$(env | sort | grep '^[TB].*=' | tr '\n' ' ')
				echo "{\"code\":11,\"msg\":\"$sent\"}"; exit 1`)
		}
		add = func(_ context.Context, req *skel.Request) (*cni.Result, error) {
			sent := slices.DeleteFunc(slices.Sorted(slices.Values(req.Env)), func(v string) bool {
				return !strings.HasPrefix(v, "T") && !strings.HasPrefix(v, "B")
			})
			return nil, errors.New(strings.Join(sent, " ") + " ")
		}
		const rest = `-01 TRACESTATE=a=b `
		vars = []string{"TRACEPARENT=00-" + id + "-b7ad6b7169203331-01", "TRACESTATE=a=b", "BAGGAGE=user=x"}
		_, out, _ := run(time.Minute, inside())
		Expect(out).To(ContainSubstring(`"BAGGAGE=user=x TRACEPARENT=00-` + id + `-b7ad6b7169203331` + rest + `"`))
		log := filepath.Join(dir, "log.otlp")
		vars = append(vars, "HAWSER_LOG="+log)
		_, out, _ = run(time.Minute, inside())
		spans := string(nstest.Must(os.ReadFile(log)))
		named := regexp.MustCompile(`"name":"delegate ipam ADD".*?"spanId":"([0-9a-f]{16})"`)
		delegate := named.FindStringSubmatch(spans)
		Expect(delegate).NotTo(BeNil(), spans)
		Expect(out).To(ContainSubstring(`BAGGAGE=user=x TRACEPARENT=00-` + id + `-` + delegate[1] + rest))
		Expect(strings.Contains(spans, `"parentSpanId":"`+delegate[1]+`"`)).To(Equal(inProcess), "its own line")
		Expect(spans).To(ContainSubstring("delegate ipam DEL"), "of the roll-back")
	}, Entry("in process", true), Entry("executed", false))

	It("is served in the host's namespace, even if another goroutine is in the container's namespace", func() {
		link(os.Symlink)
		inContainer, served, left := make(chan string), make(chan string, 1), make(chan struct{})
		add = func(context.Context, *skel.Request) (*cni.Result, error) {
			served <- nstest.Must(os.Readlink("/proc/thread-self/ns/net"))
			close(left)
			return nil, errors.New("enough")
		}
		p := mainPlugin(time.Minute)
		delegate := p.Add
		p.Add = func(ctx context.Context, req *skel.Request, c struct{}) (*cni.Result, error) {
			go func() {
				_ = req.NS.Do(func() error {
					inContainer <- nstest.Must(os.Readlink("/proc/thread-self/ns/net"))
					<-left
					return nil
				})
			}()
			host := nstest.Must(os.Readlink("/proc/thread-self/ns/net"))
			Expect(<-inContainer).NotTo(Equal(host))
			res, err := delegate(ctx, req, c)
			Expect(<-served).To(Equal(host))
			return res, err
		}
		code, out, _ := runOf(p, inside())
		Expect(code).To(Equal(1))
		Expect(out).To(ContainSubstring("enough"))
	})

	DescribeTable("that fails causes the same error, and gets a DEL", func(
		fail func(context.Context, *skel.Request) (*cni.Result, error), says ...string,
	) {
		link(os.Symlink)
		add = fail
		main := mainPlugin(time.Minute)
		delegate := main.Add
		main.Add = func(_ context.Context, req *skel.Request, c struct{}) (*cni.Result, error) {
			return delegate(nstest.DeadlineWhen(isOver.Load), req, c)
		}
		code, out, _ := runOf(main, inside())
		Expect(code).To(Equal(1))
		for _, s := range says {
			Expect(out).To(ContainSubstring(s))
		}
		Expect(calls).To(HaveLen(2))
		Expect(calls[1]).To(Equal("DEL one"))
	},
		Entry("an error with a code", func(context.Context, *skel.Request) (*cni.Result, error) {
			return nil, &cni.Error{Code: cni.CodeTryAgain, Msg: "later", Details: "pool"}
		}, `"code": 11`, `"msg": "later"`, `"details": "pool"`),
		Entry("a panic", func(context.Context, *skel.Request) (*cni.Result, error) { panic("boom") },
			`"code": 999`, "boom"),
		Entry("no time left", func(ctx context.Context, _ *skel.Request) (*cni.Result, error) {
			isOver.Store(true)
			<-ctx.Done()
			return nil, ctx.Err()
		}, `"code": 11`, "no answer within"),
		Entry("a system call that does not end", func(context.Context, *skel.Request) (*cni.Result, error) {
			isOver.Store(true)
			<-hang
			return nil, nil
		}, `"code": 11`, "no answer within"),
		Entry("a result without addresses", func(context.Context, *skel.Request) (*cni.Result, error) {
			return &cni.Result{}, nil
		}, `"code": 102`, "has no addresses"),
		Entry("an answer of more than 16 MiB", func(context.Context, *skel.Request) (*cni.Result, error) {
			return nil, &cni.Error{Code: cni.CodeTryAgain, Msg: strings.Repeat("x", 17<<20)}
		}, "exit status 1"),
	)

	copied := func(old, name string) error {
		from := nstest.Must(os.Open(old))
		defer from.Close()
		to := nstest.Must(os.OpenFile(name, os.O_CREATE|os.O_WRONLY, 0o755))
		_, err := io.Copy(to, from)
		return errors.Join(err, to.Close())
	}
	other := func(change func(*skel.Program)) func() skel.Program {
		return func() skel.Program {
			p := inside()
			change(&p)
			return p
		}
	}
	It("that panics outside of skel fails like a program that crashes, and gets a DEL", func() {
		link(os.Symlink)
		code, out, stderr := run(time.Minute, other(func(p *skel.Program) {
			whole := p.Run
			p.Run = func(ctx context.Context, env skel.Env) int {
				if slices.Contains(env.Vars, "CNI_COMMAND=ADD") {
					panic("boom")
				}
				return whole(ctx, env)
			}
		})())
		Expect(code).To(Equal(1))
		Expect(out).To(And(ContainSubstring(`"code": 999`), ContainSubstring("panic: boom"),
			ContainSubstring(`plugin \"ipam\": failed without an error object: exit status 2`)))
		Expect(stderr).To(ContainSubstring("panic: boom"))
		Expect(calls).To(Equal([]string{"DEL one"}))
	})

	DescribeTable("is executed if", func(how func(old, name string) error, program func() skel.Program) {
		link(how)
		_, out, _ := run(time.Minute, program())
		Expect(calls).To(BeEmpty())
		Expect(out).To(ContainSubstring("executed"))
	},
		Entry("the file is a copy of the program", copied, inside),
		Entry("the file is another program", func(_, name string) error {
			install(dir, "ipam", `echo '{"code":11,"msg":"executed"}'; exit 1`)
			return nil
		}, inside),
		Entry("the plugin needs a process of its own", os.Symlink,
			func() skel.Program {
				return skel.ProgramOf("ipam", func() skel.Plugin[struct{}] {
					p := plugin()
					p.InProcess = false
					return p
				})
			}),
		Entry("the program does not have the plugin", os.Symlink, other(func(p *skel.Program) { p.Name = "another" })),
	)
})
