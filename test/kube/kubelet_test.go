package kube_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
)

// authority signs the certificates of kubelets.
type authority struct {
	file string // has its own certificate
	cert *x509.Certificate
	key  crypto.Signer
}

func newAuthority(file string) authority {
	GinkgoHelper()
	a := authority{file: file, key: nstest.Must(ecdsaKey())}
	a.cert = &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "kubelets"}, IsCA: true,
		BasicConstraintsValid: true, NotAfter: time.Now().Add(time.Hour)}
	Expect(os.WriteFile(file, a.sign(a.cert, a.key), 0o600)).To(Succeed())
	return a
}

func (a authority) sign(cert *x509.Certificate, key crypto.Signer) []byte {
	GinkgoHelper()
	der := nstest.Must(x509.CreateCertificate(rand.Reader, cert, a.cert, key.Public(), a.key))
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// certify makes what a kubeconfig says of the user who is this node's kubelet.
func (a authority) certify(node string, key crypto.Signer) string {
	GinkgoHelper()
	cert := a.sign(&x509.Certificate{SerialNumber: big.NewInt(2), NotAfter: a.cert.NotAfter,
		Subject:     pkix.Name{CommonName: "system:node:" + node, Organization: []string{"system:nodes"}},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, key)
	secret := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: nstest.Must(x509.MarshalPKCS8PrivateKey(key))})
	text := base64.StdEncoding.EncodeToString
	return fmt.Sprintf("client-certificate-data: %s, client-key-data: %s", text(cert), text(secret))
}

func ecdsaKey() (crypto.Signer, error) { return ecdsa.GenerateKey(elliptic.P256(), rand.Reader) }
func rsaKey() (crypto.Signer, error)   { return rsa.GenerateKey(rand.Reader, 2048) }
