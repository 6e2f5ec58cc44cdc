package kube_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
)

// proxied is a node between which and the API server something goes wrong with each request.
func proxied(name string, fault func(w http.ResponseWriter, r *http.Request, serve http.Handler)) node {
	GinkgoHelper()
	proxy := httputil.NewSingleHostReverseProxy(nstest.Must(url.Parse(there.url)))
	proxy.Transport = &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	proxy.ErrorLog = nil
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fault(w, r, proxy) }))
	DeferCleanup(s.CloseClientConnections)
	n := newNode(name, object{"ranges": json.RawMessage(dual)})
	text := string(nstest.Must(os.ReadFile(n.kubeconfig)))
	text = strings.ReplaceAll(text, there.url, s.URL)
	text = strings.ReplaceAll(text, fmt.Sprintf("certificate-authority: %q", there.dir+"/certs/apiserver.crt"),
		"insecure-skip-tls-verify: true")
	Expect(os.WriteFile(n.kubeconfig, []byte(text), 0o600)).To(Succeed())
	return n
}

var _ = Describe("a proxy before the API server", Ordered, Label("cluster-proxy"), func() {
	BeforeAll(start)

	It("that swallows every third answer neither gives an address twice nor leaves one", func() {
		var count atomic.Int64
		swallow := func(_ http.ResponseWriter, r *http.Request, serve http.Handler) {
			serve.ServeHTTP(httptest.NewRecorder(), r) // carried out, and nobody hears of it
			panic(http.ErrAbortHandler)
		}
		fault := func(w http.ResponseWriter, r *http.Request, serve http.Handler) {
			if count.Add(1)%3 == 0 {
				swallow(w, r, serve)
			}
			serve.ServeHTTP(w, r)
		}
		nodes := [2]node{proxied("node-a", fault), proxied("node-b", fault)}
		seen := map[string]bool{}
		for _, a := range all(nodes, "ADD", 30) {
			Expect(a.IPs).To(HaveLen(2), a.Text)
			for _, ip := range a.IPs {
				Expect(seen).NotTo(HaveKey(ip.Address))
				seen[ip.Address] = true
			}
		}
		Expect(there.leases()).To(HaveLen(60))
		for _, a := range all(nodes, "DEL", 30) {
			Expect(a.Text).To(BeEmpty())
		}
		Expect(there.leases()).To(BeEmpty())
	})

	It("that carries a POST out seconds after DEL leaves nothing once the node has made another call", func() {
		held, released, late := make(chan struct{}), make(chan struct{}), make(chan struct{})
		var isFirst atomic.Bool
		n := proxied("node-c", func(w http.ResponseWriter, r *http.Request, serve http.Handler) {
			if r.Method == "POST" && isFirst.CompareAndSwap(false, true) {
				body := nstest.Must(io.ReadAll(r.Body)) // now: the connection ends
				again := r.Clone(context.WithoutCancel(r.Context()))
				again.Body = io.NopCloser(bytes.NewReader(body))
				close(held)
				<-released
				serve.ServeHTTP(httptest.NewRecorder(), again)
				close(late)
				return
			}
			serve.ServeHTTP(w, r)
		})
		cmd, wait := n.start("ADD", "one", nil)
		Eventually(held).WithTimeout(nstest.Patience(time.Minute)).Should(BeClosed())
		Expect(cmd.Process.Kill()).To(Succeed())
		wait()
		n.succeeds("DEL", "one", nil)
		Expect(there.leases()).To(BeEmpty())
		close(released)
		Eventually(late).WithTimeout(nstest.Patience(time.Minute)).Should(BeClosed())
		Expect(there.leases()).To(HaveLen(1), "the request was carried out after DEL")
		n.succeeds("DEL", "other", nil)
		Expect(there.leases()).To(BeEmpty())
	})
})
