// SPDX-License-Identifier: Apache-2.0

// Package identity has an agent speak to the API server as the agent of its node: the
// account that all agents share may do no more than request the tokens for that.
package identity

import (
	"context"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"

	"braid.dev/braid/api/v1alpha1"
)

// lifetime of a token: what one that was stolen is good for at most. The admission
// policy braid-agent-token allows no longer one.
const lifetime = time.Hour

// requestTimeout bounds one request of a token.
const requestTimeout = 10 * time.Second

// Config returns how the agent of a node reaches the API server with the identity of
// its node, whose ServiceAccount the controller makes in the namespace of agents that
// belongs to Braid's own. shared is with the account of all agents. Tokens are requested and renewed until the context ends;
// what is to be sent before there is one waits for it, but fails at once where the API
// server does not answer or refuses.
func Config(ctx context.Context, shared *rest.Config, namespace, node string, log logr.Logger) (*rest.Config, error) {
	namespace, account := namespace+v1alpha1.AgentsNamespaceSuffix, v1alpha1.AgentAccountPrefix+node
	request, err := requester(shared, namespace, account)
	if err != nil {
		return nil, fmt.Errorf("failed to prepare requests of tokens: %w", err)
	}
	tokens := newTokens(request, log.WithValues("namespace", namespace, "serviceAccount", account))
	go tokens.run(ctx)
	own := rest.AnonymousClientConfig(shared)
	own.Wrap(tokens.wrap)
	return own, nil
}

// requester requests tokens of an account by hand: a client for all kinds would take
// megabytes on each node.
func requester(shared *rest.Config, namespace, account string) (func(context.Context) (*authenticationv1.TokenRequest, error), error) {
	scheme := runtime.NewScheme()
	if err := authenticationv1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	config := rest.CopyConfig(shared)
	config.APIPath, config.GroupVersion = "/api", &corev1.SchemeGroupVersion
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	config.Timeout = requestTimeout
	client, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) (*authenticationv1.TokenRequest, error) {
		seconds := int64(lifetime.Seconds())
		body := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}}
		answer := &authenticationv1.TokenRequest{}
		err := client.Post().Namespace(namespace).Resource("serviceaccounts").Name(account).SubResource("token").Body(body).Do(ctx).Into(answer)
		return answer, err
	}, nil
}
