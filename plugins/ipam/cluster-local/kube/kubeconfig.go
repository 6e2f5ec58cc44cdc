package kube

import (
	"cmp"
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

// kubeconfig is the part of a kubeconfig that the package reads.
type kubeconfig struct {
	CurrentContext string           `yaml:"current-context"`
	Clusters       []entry[cluster] `yaml:"clusters"`
	Users          []entry[user]    `yaml:"users"`
	Contexts       []entry[struct {
		Cluster string `yaml:"cluster"`
		User    string `yaml:"user"`
	}] `yaml:"contexts"`
}

// entry is an element of one of the lists. Its value is below the list's name in the singular, for example "cluster".
type entry[T any] struct {
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

// Client sends requests to one API server as one user.
type Client struct {
	path  string // kubeconfig
	base  string // URL of the server, without a final slash
	token string // empty: the client certificate authenticates
	name  string // user's name in the kubeconfig
	node  string // see Node
	http  *http.Transport
}

// openTime is how long Open retries an invalid kubeconfig, because some programs rewrite it in place.
const openTime = time.Second

// Open returns a client for the current context of a kubeconfig. It reads the files that the kubeconfig names. Errors
// have code 2 for a key that is not supported, and code 5 for a missing or invalid file.
func Open(ctx context.Context, path string) (c *Client, err error) {
	timed, cancel := context.WithTimeout(ctx, openTime)
	defer cancel()
	for {
		c, err = newClient(path)
		if err == nil || errors.Is(err, fs.ErrNotExist) || cni.AsError(err).Code == cni.CodeUnsupportedField ||
			!wait(timed, firstWait) {
			return c, err
		}
	}
}

func newClient(path string) (*Client, error) {
	broken := func(format string, args ...any) error {
		return cni.Errorf(cni.CodeIO, "kubeconfig %s: %w", path, fmt.Errorf(format, args...))
	}
	data, err := statefile.ReadRegular(path)
	if err != nil {
		return nil, broken("%w", err)
	}
	var f kubeconfig
	if yaml.Unmarshal(data, &f) != nil { // its error would quote the file, which may be a secret
		return nil, broken("is not a kubeconfig in YAML")
	}
	userContext, ok := findEntry(f.Contexts, f.CurrentContext, "context")
	if !ok {
		return nil, broken("current-context: %q is not in contexts", f.CurrentContext)
	}
	cl, ok := findEntry(f.Clusters, userContext.Cluster, "cluster")
	if !ok {
		return nil, broken("contexts: the cluster %q is not in clusters", userContext.Cluster)
	}
	u, ok := findEntry(f.Users, userContext.User, "user")
	if !ok {
		return nil, broken("contexts: the user %q is not in users", userContext.User)
	}
	if err := checkSupported(path, cl, u); err != nil {
		return nil, err
	}
	server, err := url.Parse(cl.Server)
	if err != nil || server.Scheme != "https" || server.Host == "" {
		return nil, broken("server: %q is not a URL that begins with https://", cl.Server)
	}
	c := &Client{path: path, base: strings.TrimSuffix(cl.Server, "/"), name: userContext.User}
	conf, err := c.credentials(cl, u)
	if err != nil {
		return nil, broken("%w", err)
	}
	c.http = &http.Transport{TLSClientConfig: conf, DisableCompression: true}
	return c, nil
}

// findEntry returns the value of the entry with this name. kind is the list's name in the singular.
func findEntry[T any](list []entry[T], name, kind string) (found T, ok bool) {
	i := slices.IndexFunc(list, func(n entry[T]) bool { return n.Name == name })
	if i < 0 {
		return found, false
	}
	found, ok = list[i].Value[kind]
	return found, ok
}

// checkSupported returns an error for keys that need another program or that the package does not implement.
func checkSupported(path string, cl cluster, u user) error {
	for key, isSet := range map[string]bool{
		"exec": u.Exec != nil, "auth-provider": u.Provider != nil, "username": u.Username != "", "as": u.As != "",
		"proxy-url": cl.Proxy != "",
	} {
		if isSet {
			return cni.Errorf(cni.CodeUnsupportedField, "kubeconfig %s: %s is not supported; write a kubeconfig with "+
				"a token, a tokenFile or a client certificate", path, key)
		}
	}
	return nil
}

// credentials reads the token into c and returns the TLS configuration with the certificates.
func (c *Client) credentials(cl cluster, u user) (*tls.Config, error) {
	conf := &tls.Config{InsecureSkipVerify: cl.IsInsecure, ServerName: cl.ServerName}
	ca, err := c.readPEM("certificate-authority", cl.CAData, cl.CA)
	if err != nil {
		return nil, err
	}
	if ca != nil {
		conf.RootCAs = x509.NewCertPool()
		if !conf.RootCAs.AppendCertsFromPEM(ca) {
			return nil, errors.New("certificate-authority: contains no certificate")
		}
	}
	cert, err1 := c.readPEM("client-certificate", u.CertData, u.Cert)
	key, err2 := c.readPEM("client-key", u.KeyData, u.Key)
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	if cert != nil {
		pair, err := tls.X509KeyPair(cert, key)
		if err != nil {
			return nil, fmt.Errorf("client-certificate: %w", err)
		}
		conf.Certificates = []tls.Certificate{pair}
		if node, isNode := strings.CutPrefix(pair.Leaf.Subject.CommonName, nodeUserPrefix); isNode {
			c.node = node
		}
	}
	c.token = u.Token
	if u.TokenFile != "" { // takes precedence if it can be read, as in client-go, because it may be newer
		text, err := statefile.ReadRegular(c.absolutePath(u.TokenFile))
		if err != nil && c.token == "" {
			return nil, err
		}
		c.token = cmp.Or(strings.TrimSpace(string(text)), c.token)
	}
	if strings.ContainsFunc(c.token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return nil, errors.New("token: contains spaces or characters outside printable ASCII")
	}
	if cert == nil && c.token == "" {
		return nil, fmt.Errorf("the user %q has neither a token nor a client certificate", c.name)
	}
	return conf, nil
}

const nodeUserPrefix = "system:node:" // precedes the node's name in the user name of a kubelet

// readPEM returns the value that the kubeconfig contains in base64, or the content of file, or nil if both are empty.
func (c *Client) readPEM(key, data, file string) ([]byte, error) {
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
	return statefile.ReadRegular(c.absolutePath(file))
}

// absolutePath resolves a path relative to the directory of the kubeconfig.
func (c *Client) absolutePath(file string) string {
	if filepath.IsAbs(file) {
		return file
	}
	return filepath.Join(filepath.Dir(c.path), file)
}

// Node returns the name of the node whose kubelet owns the client certificate. It returns "" if no kubelet owns it.
func (c *Client) Node() string { return c.node }
