//go:build apiserver

// Command apiserver is the part of a Kubernetes API server that serves custom resources, for tests. Its objects are in
// an etcd. The token "admin" may do all; "node-NAME" is the kubelet of that node, as is a client certificate of its
// name. The tag keeps what compiles for minutes out of the module's checks.
package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"

	noop "go.opentelemetry.io/otel/trace/noop"
	"k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apiextensions-apiserver/pkg/cmd/server/options"
	"k8s.io/apiextensions-apiserver/pkg/generated/openapi"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	"k8s.io/apiserver/pkg/authentication/request/union"
	"k8s.io/apiserver/pkg/authentication/request/x509"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	genericfilters "k8s.io/apiserver/pkg/server/filters"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/kubernetes/scheme"
)

func main() {
	etcd := flag.String("etcd", "", "URL of etcd")
	port := flag.Int("port", 0, "of the loopback address")
	certs := flag.String("certs", "", "directory for the certificate")
	clients := flag.String("clients", "", "file with the certificate that signs the clients'")
	flag.Parse()
	config, err := configure(*etcd, *port, *certs)
	if err == nil && *clients != "" {
		err = trust(&config.GenericConfig.Config, *clients)
	}
	if err == nil {
		var server *apiserver.CustomResourceDefinitions
		if server, err = config.Complete().New(genericapiserver.NewEmptyDelegate()); err == nil {
			err = server.GenericAPIServer.PrepareRun().RunWithContext(genericapiserver.SetupSignalContext())
		}
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func configure(etcd string, port int, certs string) (*apiserver.Config, error) {
	o := options.NewCustomResourceDefinitionsServerOptions(os.Stdout, os.Stderr)
	r := o.RecommendedOptions
	r.Etcd.StorageConfig.Transport.ServerList = []string{etcd}
	loopback := net.ParseIP("127.0.0.1")
	r.SecureServing.BindPort, r.SecureServing.BindAddress = port, loopback
	r.SecureServing.ServerCert.CertDirectory = certs
	if err := o.Complete(); err != nil {
		return nil, err
	}
	c := genericapiserver.NewRecommendedConfig(apiserver.Codecs)
	c.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(openapi.GetOpenAPIDefinitions,
		openapinamer.NewDefinitionNamer(apiserver.Scheme, scheme.Scheme))
	for _, step := range []func() error{
		func() error {
			return r.SecureServing.MaybeDefaultWithSelfSignedCerts("localhost", nil, []net.IP{loopback})
		},
		func() error { return o.ServerRunOptions.ApplyTo(&c.Config) },
		func() error { return r.Etcd.ApplyTo(&c.Config) },
		func() error { return r.SecureServing.ApplyTo(&c.SecureServing, &c.LoopbackClientConfig) },
		func() error {
			return o.APIEnablement.ApplyTo(&c.Config, apiserver.DefaultAPIResourceConfigSource(), apiserver.Scheme)
		},
	} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	c.Authentication.Authenticator = bearertoken.New(authenticator.TokenFunc(whose))
	c.Authorization.Authorizer = authorizer.AuthorizerFunc(allow)
	c.LongRunningFunc = genericfilters.BasicLongRunningRequestCheck(sets.NewString("watch"), sets.NewString())
	return &apiserver.Config{GenericConfig: c, ExtraConfig: apiserver.ExtraConfig{
		CRDRESTOptionsGetter: options.NewCRDRESTOptionsGetter(*r.Etcd, c.ResourceTransformers,
			c.StorageObjectCountTracker),
		ServiceResolver: noServices{},
		AuthResolverWrapper: webhook.NewDefaultAuthenticationInfoResolverWrapper(nil, nil, c.LoopbackClientConfig,
			noop.NewTracerProvider()),
	}}, nil
}

// trust has clients say who they are by certificates, too.
func trust(c *genericapiserver.Config, file string) error {
	ca, err := dynamiccertificates.NewDynamicCAContentFromFile("clients", file)
	if err != nil {
		return err
	}
	c.SecureServing.ClientCA = ca
	c.Authentication.Authenticator = union.New(c.Authentication.Authenticator,
		x509.NewDynamic(ca.VerifyOptions, x509.CommonNameUserConversion))
	return nil
}

func whose(_ context.Context, token string) (*authenticator.Response, bool, error) {
	who := &user.DefaultInfo{Name: token, Groups: []string{"system:masters"}}
	node, isNode := strings.CutPrefix(token, "node-")
	if isNode {
		who = &user.DefaultInfo{Name: "system:node:" + node, Groups: []string{"system:nodes"}}
	}
	return &authenticator.Response{User: who}, isNode || token == "admin", nil
}

// allow has nodes do what deploy/cluster-local/rbac.yaml gives them.
func allow(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	isNode := strings.HasPrefix(a.GetUser().GetName(), "system:node:")
	if isNode && (a.GetResource() != "addresses" || !strings.Contains("create get list delete", a.GetVerb())) {
		return authorizer.DecisionDeny, "not in deploy/cluster-local/rbac.yaml", nil
	}
	return authorizer.DecisionAllow, "", nil
}

type noServices struct{}

func (noServices) ResolveEndpoint(_, name string, _ int32) (*url.URL, error) {
	return nil, fmt.Errorf("no service %q here", name)
}
