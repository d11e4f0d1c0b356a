// SPDX-License-Identifier: Apache-2.0

package identity_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/agent/identity"
	"braid.dev/braid/internal/lab/apiserver"
	"braid.dev/braid/internal/testutil"
)

const (
	agents = "system-agents"
	user   = "system:serviceaccount:" + agents + ":braid-agent-node1"
)

// log keeps what is logged.
type log struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *log) write(prefix, arguments string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	fmt.Fprintln(&l.text, prefix, arguments)
}

// start returns a client with the identity of node1, and what is logged.
func start(t *testing.T, shared *rest.Config) (client.Client, *log) {
	t.Helper()
	logged := &log{}
	config, err := identity.Config(t.Context(), shared, "system", "node1", funcr.New(logged.write, funcr.Options{Verbosity: 9}))
	if err != nil {
		t.Fatal(err)
	}
	mapper := meta.NewDefaultRESTMapper(nil) // discovery heeds no context
	mapper.Add(authenticationv1.SchemeGroupVersion.WithKind("SelfSubjectReview"), meta.RESTScopeRoot)
	c, err := client.New(config, client.Options{Mapper: mapper})
	if err != nil {
		t.Fatal(err)
	}
	return c, logged
}

func makeAccount(t *testing.T, server *apiserver.Server) *corev1.ServiceAccount {
	t.Helper()
	admin, err := client.New(server.Config(), client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: agents}}
	if err := admin.Create(t.Context(), namespace); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: agents, Name: "braid-agent-node1"}}
	if err := client.IgnoreNotFound(admin.Delete(t.Context(), account.DeepCopy())); err != nil {
		t.Fatal(err)
	}
	if err := admin.Create(t.Context(), account); err != nil {
		t.Fatal(err)
	}
	return account
}

// whoAmI returns the UID of the account that the API server takes the client for.
func whoAmI(ctx context.Context, c client.Client) (string, error) {
	review := &authenticationv1.SelfSubjectReview{}
	if err := c.Create(ctx, review); err != nil {
		return "", err
	}
	if review.Status.UserInfo.Username != user {
		return "", fmt.Errorf("the API server takes the agent for %s", review.Status.UserInfo.Username)
	}
	return review.Status.UserInfo.UID, nil
}

func try(ctx context.Context, c client.Client) error {
	_, err := whoAmI(ctx, c)
	return err
}

func TestRequestsWaitForTheAccountAndOutliveIt(t *testing.T) {
	server := apiserver.ForTest(t)
	c, logged := start(t, server.Config())

	early := make(chan error, 1)
	go func() { early <- try(t.Context(), c) }()
	impatient, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := try(impatient, c); err == nil || !strings.Contains(err.Error(), "waiting for a token") {
		t.Errorf("without an account: %v, want that a token is waited for", err)
	}
	makeAccount(t, server)
	if err := <-early; err != nil {
		t.Fatal(err)
	}
	// Tokens of an account that is gone are refused, some seconds later.
	next := makeAccount(t, server)
	testutil.Eventually(t, 30*time.Second, "the agent has a token of the next account", func() bool {
		uid, err := whoAmI(t.Context(), c)
		if err != nil {
			t.Errorf("after the account was made anew: %v", err)
		}
		return uid == string(next.UID) || t.Failed()
	})
	logged.mu.Lock()
	defer logged.mu.Unlock()
	if text := logged.text.String(); !strings.Contains(text, "braid-agent-node1") || strings.Contains(text, "eyJ") {
		t.Errorf("the log does not name the account, or has a token: %s", text)
	}
}

func TestRequestsFailAtOnceWhileTheAPIServerIsAway(t *testing.T) {
	server := apiserver.ForTest(t)
	makeAccount(t, server)
	if err := server.StopServer(); err != nil {
		t.Fatal(err)
	}
	c, _ := start(t, server.Config())
	began := time.Now()
	if err := try(t.Context(), c); err == nil {
		t.Fatal("a stopped server answered")
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("a request failed after %v only", took)
	}
	if err := server.StartServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	testutil.Retry(t, 30*time.Second, func() error { return try(t.Context(), c) })
}
