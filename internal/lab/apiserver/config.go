// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"fmt"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// tokenLifetime is long enough for a lab that is left up for some days.
const tokenLifetime int64 = 7 * 24 * 3600

// Dir is the directory that holds data, certificates, logs and the kubeconfig.
func (s *Server) Dir() string { return s.options.Dir }

// Config returns a client's configuration for a cluster admin.
func (s *Server) Config() *rest.Config { return rest.CopyConfig(s.config) }

// UserConfig returns a client's configuration for any user and groups: the
// admin impersonates them, so that RBAC decides as for the user.
func (s *Server) UserConfig(name string, groups ...string) *rest.Config {
	config := s.Config()
	config.Impersonate = rest.ImpersonationConfig{UserName: name, Groups: groups}
	return config
}

// ServiceAccountConfig returns a client's configuration with a real token of an
// existing service account. With the name of an existing node the token is bound
// to it, so that admission sees the node's name as it does with a pod's token.
func (s *Server) ServiceAccountConfig(ctx context.Context, namespace, name, node string) (*rest.Config, error) {
	config, err := s.serviceAccountConfig(ctx, namespace, name, node)
	if err != nil {
		return nil, fmt.Errorf("making a token of service account %s/%s: %w", namespace, name, err)
	}
	return config, nil
}

func (s *Server) serviceAccountConfig(ctx context.Context, namespace, name, node string) (*rest.Config, error) {
	c, err := client.New(s.config, client.Options{})
	if err != nil {
		return nil, err
	}
	lifetime := tokenLifetime
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &lifetime}}
	if node != "" {
		if request.Spec.BoundObjectRef, err = nodeReference(ctx, c, node); err != nil {
			return nil, err
		}
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	if err := c.SubResource("token").Create(ctx, account, request); err != nil {
		return nil, err
	}
	config := s.Config()
	config.BearerToken = request.Status.Token
	return config, nil
}

func nodeReference(ctx context.Context, c client.Client, name string) (*authenticationv1.BoundObjectReference, error) {
	node := &corev1.Node{}
	if err := c.Get(ctx, client.ObjectKey{Name: name}, node); err != nil {
		return nil, err
	}
	return &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Node", Name: name, UID: node.UID}, nil
}

// ServiceAccountKeyPath is the key that signs the tokens of service accounts.
func (s *Server) ServiceAccountKeyPath() string { return s.path(serviceAccountKey) }

// CertificatePath is the certificate that the server shows, and its own authority.
func (s *Server) CertificatePath() string { return s.path(servingCertFile) }

// KubeconfigPath is where the cluster admin's kubeconfig lies.
func (s *Server) KubeconfigPath() string { return s.path("kubeconfig") }

// KubeconfigBytes returns the cluster admin's kubeconfig.
func (s *Server) KubeconfigBytes() ([]byte, error) { return Kubeconfig(s.config) }

// Kubeconfig returns a kubeconfig that says the same as the configuration,
// which must come from a Server.
func Kubeconfig(config *rest.Config) ([]byte, error) {
	const name = "braid"
	kubeconfig := clientcmdapi.NewConfig()
	kubeconfig.CurrentContext = name
	kubeconfig.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	kubeconfig.Clusters[name] = &clientcmdapi.Cluster{
		Server:                   config.Host,
		CertificateAuthorityData: config.CAData,
	}
	kubeconfig.AuthInfos[name] = &clientcmdapi.AuthInfo{
		Token:             config.BearerToken,
		Impersonate:       config.Impersonate.UserName,
		ImpersonateGroups: config.Impersonate.Groups,
	}
	data, err := clientcmd.Write(*kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("writing a kubeconfig: %w", err)
	}
	return data, nil
}
