package kube

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

// file is a kubeconfig, as far as it is read.
type file struct {
	CurrentContext string           `yaml:"current-context"`
	Clusters       []named[cluster] `yaml:"clusters"`
	Users          []named[user]    `yaml:"users"`
	Contexts       []named[struct {
		Cluster string `yaml:"cluster"`
		User    string `yaml:"user"`
	}] `yaml:"contexts"`
}

// named is an entry of one of the lists, whose value stands under the key that the list is called by.
type named[T any] struct {
	Name  string       `yaml:"name"`
	Value map[string]T `yaml:",inline"`
}

type cluster struct {
	Server     string `yaml:"server"`
	CA         string `yaml:"certificate-authority"`
	CAData     string `yaml:"certificate-authority-data"`
	IsInsecure bool   `yaml:"insecure-skip-tls-verify"`
	ServerName string `yaml:"tls-server-name"`
	Proxy      string `yaml:"proxy-url"`
}

type user struct {
	Token     string `yaml:"token"`
	TokenFile string `yaml:"tokenFile"`
	Cert      string `yaml:"client-certificate"`
	CertData  string `yaml:"client-certificate-data"`
	Key       string `yaml:"client-key"`
	KeyData   string `yaml:"client-key-data"`

	Exec     any    `yaml:"exec"`
	Provider any    `yaml:"auth-provider"`
	Username string `yaml:"username"`
	As       string `yaml:"as"`
}

// Client speaks to one API server, as one user.
type Client struct {
	path  string // of the kubeconfig
	base  string // URL of the server
	token string
	name  string // of the user in the kubeconfig
	node  string
	http  *http.Transport
}

// rewritten is how long a kubeconfig that is there and cannot be read is tried again: some programs write it in place.
const rewritten = time.Second

// Open reads a kubeconfig, and the files that it names. What it can never read is code 2, with the key; what is not
// there or damaged is code 5.
func Open(ctx context.Context, path string) (c *Client, err error) {
	timed, cancel := context.WithTimeout(ctx, rewritten)
	defer cancel()
	for {
		c, err = open(path)
		if err == nil || errors.Is(err, fs.ErrNotExist) || cni.AsError(err).Code == cni.CodeUnsupportedField ||
			!wait(timed, firstWait) {
			return c, err
		}
	}
}

func open(path string) (*Client, error) {
	broken := func(format string, args ...any) error {
		return cni.Errorf(cni.CodeIO, "kubeconfig %s: %w", path, fmt.Errorf(format, args...))
	}
	data, err := statefile.ReadRegular(path)
	if err != nil {
		return nil, broken("%w", err)
	}
	var f file
	if yaml.Unmarshal(data, &f) != nil { // whose error quotes the file, which may be a secret
		return nil, broken("is no YAML of a kubeconfig")
	}
	at, ok := find(f.Contexts, f.CurrentContext, "context")
	if !ok {
		return nil, broken("current-context: %q is none of contexts", f.CurrentContext)
	}
	cl, ok := find(f.Clusters, at.Cluster, "cluster")
	if !ok {
		return nil, broken("contexts: the cluster %q is none of clusters", at.Cluster)
	}
	u, ok := find(f.Users, at.User, "user")
	if !ok {
		return nil, broken("contexts: the user %q is none of users", at.User)
	}
	if err := supported(path, cl, u); err != nil {
		return nil, err
	}
	server, err := url.Parse(cl.Server)
	if err != nil || server.Scheme != "https" || server.Host == "" {
		return nil, broken("server: %q is no URL that begins with https://", cl.Server)
	}
	c := &Client{path: path, base: strings.TrimSuffix(cl.Server, "/"), name: at.User}
	conf, err := c.credentials(cl, u)
	if err != nil {
		return nil, broken("%w", err)
	}
	c.http = &http.Transport{TLSClientConfig: conf, DisableCompression: true}
	return c, nil
}

func find[T any](list []named[T], name, kind string) (found T, ok bool) {
	i := slices.IndexFunc(list, func(n named[T]) bool { return n.Name == name })
	if i < 0 {
		return found, false
	}
	found, ok = list[i].Value[kind]
	return found, ok
}

// supported refuses what needs another program or is not known here.
func supported(path string, cl cluster, u user) error {
	for key, isThere := range map[string]bool{
		"exec": u.Exec != nil, "auth-provider": u.Provider != nil, "username": u.Username != "", "as": u.As != "",
		"proxy-url": cl.Proxy != "",
	} {
		if isThere {
			return cni.Errorf(cni.CodeUnsupportedField, "kubeconfig %s: %s is not supported: write a kubeconfig with "+
				"a token, a tokenFile or a client certificate", path, key)
		}
	}
	return nil
}

// credentials reads the certificates and the token. Relative paths begin where the kubeconfig is.
func (c *Client) credentials(cl cluster, u user) (*tls.Config, error) {
	conf := &tls.Config{InsecureSkipVerify: cl.IsInsecure, ServerName: cl.ServerName}
	ca, err := c.material("certificate-authority", cl.CAData, cl.CA)
	if err != nil {
		return nil, err
	}
	if ca != nil {
		conf.RootCAs = x509.NewCertPool()
		if !conf.RootCAs.AppendCertsFromPEM(ca) {
			return nil, errors.New("certificate-authority: no certificate in it")
		}
	}
	cert, err1 := c.material("client-certificate", u.CertData, u.Cert)
	key, err2 := c.material("client-key", u.KeyData, u.Key)
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	if cert != nil {
		pair, err := tls.X509KeyPair(cert, key)
		if err != nil {
			return nil, fmt.Errorf("client-certificate: %w", err)
		}
		conf.Certificates = []tls.Certificate{pair}
		if node, isKubelets := strings.CutPrefix(pair.Leaf.Subject.CommonName, nodeUser); isKubelets {
			c.node = node
		}
	}
	c.token = u.Token
	if u.TokenFile != "" && c.token == "" {
		text, err := statefile.ReadRegular(c.beside(u.TokenFile))
		if err != nil {
			return nil, err
		}
		c.token = strings.TrimSpace(string(text))
	}
	if strings.ContainsFunc(c.token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return nil, errors.New("token: not one word of printable letters")
	}
	if cert == nil && c.token == "" {
		return nil, fmt.Errorf("the user %q has neither a token nor a client certificate", c.name)
	}
	return conf, nil
}

// nodeUser stands before a node's name in the name of its kubelet.
const nodeUser = "system:node:"

// material is what stands in the kubeconfig, or else in a file; nil where there is neither.
func (c *Client) material(key, data, file string) ([]byte, error) {
	if data != "" {
		out, err := base64.StdEncoding.DecodeString(data)
		if err != nil {
			err = fmt.Errorf("%s-data: %w", key, err)
		}
		return out, err
	}
	if file == "" {
		return nil, nil
	}
	return statefile.ReadRegular(c.beside(file))
}

func (c *Client) beside(file string) string {
	if filepath.IsAbs(file) {
		return file
	}
	return filepath.Join(filepath.Dir(c.path), file)
}

// Node is the node whose kubelet the client certificate is of; empty where it is of none.
func (c *Client) Node() string { return c.node }
