package kube_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/plugins/ipam/cluster-local/kube"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func TestKube(t *testing.T) { nstest.RunSpecs(t, "plugins/ipam/cluster-local/kube") }

const good = `apiVersion: v1
kind: Config
current-context: here
clusters:
- name: c
  cluster: {server: "https://api.example:6443/", tls-server-name: api}
users:
- name: u
  user: {token: abc}
contexts:
- name: here
  context: {cluster: c, user: u, namespace: default}
`

// pair returns a self-signed certificate with this common name, followed by its key, in PEM.
func pair(name string) string {
	GinkgoHelper()
	key := nstest.Must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}}
	cert := nstest.Must(x509.CreateCertificate(rand.Reader, template, template, key.Public(), key))
	der := nstest.Must(x509.MarshalPKCS8PrivateKey(key))
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert})) +
		string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
}

func open(text string) (*kube.Client, error) {
	GinkgoHelper()
	file := filepath.Join(GinkgoT().TempDir(), "kubeconfig")
	kubelet := filepath.Join(filepath.Dir(file), "kubelet.pem")
	Expect(os.WriteFile(kubelet, []byte(pair("system:node:node-a")), 0o600)).To(Succeed())
	Expect(os.WriteFile(file, []byte(text), 0o600)).To(Succeed())
	return kube.OpenOnce(file)
}

func replaced(old, new string) string { return strings.Replace(good, old, new, 1) }

var _ = DescribeTable("a kubeconfig that cannot be used", Label("cluster-kubeconfig"),
	func(code uint, old, new, want string) {
		_, err := open(replaced(old, new))
		Expect(err).To(MatchError(And(HavePrefix("kubeconfig /"), ContainSubstring(want),
			Not(ContainSubstring("$y$")))))
		Expect(cni.AsError(err).Code).To(Equal(code))
	},
	Entry("exec", cni.CodeUnsupportedField, "token: abc", "exec: {command: aws}", "exec is not supported"),
	Entry("auth-provider", cni.CodeUnsupportedField, "token: abc", "auth-provider: {name: oidc}", "auth-provider"),
	Entry("a name with a password", cni.CodeUnsupportedField, "token: abc", "username: me", "username"),
	Entry("another user", cni.CodeUnsupportedField, "token: abc", "token: abc, as: you", "as is not"),
	Entry("proxy-url", cni.CodeUnsupportedField, "server:", `proxy-url: "https://proxy.example", server:`, "proxy-url"),
	Entry("plain HTTP", cni.CodeIO, "https://", "http://", "not a URL that begins with https://"),
	Entry("no such context", cni.CodeIO, "current-context: here", "current-context: there",
		`"there" is not in contexts`),
	Entry("no such cluster", cni.CodeIO, "cluster: c", "cluster: d", `the cluster "d"`),
	Entry("no such user", cni.CodeIO, "user: u", "user: v", `the user "v"`),
	Entry("no credentials", cni.CodeIO, "token: abc", "namespace: x", "neither a token nor a client certificate"),
	Entry("invalid YAML", cni.CodeIO, "apiVersion", "\t{", "is not a kubeconfig in YAML"),
	Entry("a file with a secret, which the error does not quote", cni.CodeIO, good, "root:$y$secret:1\n",
		"is not a kubeconfig in YAML"),
	Entry("a token file without end", cni.CodeIO, "token: abc", "tokenFile: /dev/zero", "not a regular file"),
	Entry("a token with a line break", cni.CodeIO, "token: abc", `token: "a\nb: c"`, "token: contains spaces"),
	Entry("a missing file", cni.CodeIO, "token: abc", "tokenFile: token", "no such file"),
	Entry("a certificate without key", cni.CodeIO, "token: abc", "client-certificate: kubeconfig",
		"client-certificate"),
	Entry("invalid base64", cni.CodeIO, "token: abc", `client-key-data: "%"`, "client-key-data"),
	Entry("a CA file without a certificate", cni.CodeIO, "tls-server-name: api", "certificate-authority: kubeconfig",
		"no certificate"))

var _ = Describe("a kubeconfig", Label("cluster-kubeconfig"), func() {
	It("may name a file with a kubelet's certificate, which contains the node's name", func() {
		Expect(nstest.Must(open(good)).Node()).To(BeEmpty())
		text := replaced("token: abc", "client-certificate: kubelet.pem, client-key: kubelet.pem")
		Expect(nstest.Must(open(text)).Node()).To(Equal("node-a"))
	})

	It("may contain the certificate of a user that is not a node", func() {
		data := base64.StdEncoding.EncodeToString([]byte(pair("admin")))
		text := replaced("token: abc", "client-certificate-data: "+data+", client-key-data: "+data)
		Expect(nstest.Must(open(text)).Node()).To(BeEmpty())
	})
})

// FuzzKubeconfig checks that arbitrary text is accepted as a kubeconfig or refused with code 2 or 5.
func FuzzKubeconfig(f *testing.F) {
	f.Add([]byte(good))
	f.Add([]byte("current-context: here\ncontexts: [{name: here, context: {cluster: c, user: u}}]\n"))
	f.Add([]byte("a: &a [*a, *a]\nclusters: *a\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		file := filepath.Join(t.TempDir(), "kubeconfig")
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := kube.OpenOnce(file); err != nil {
			if code := cni.AsError(err).Code; code != cni.CodeIO && code != cni.CodeUnsupportedField {
				t.Fatalf("code %d: %v", code, err)
			}
		}
	})
}
