// SPDX-License-Identifier: Apache-2.0

package metricsserver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// reviewer is the API server, as far as tokens are reviewed.
type reviewer struct {
	client.Client
	may     map[string]bool // who is known, and may read metrics
	fails   error
	reviews int
	asked   *authorizationv1.SubjectAccessReviewSpec
}

func (r *reviewer) Create(_ context.Context, object client.Object, _ ...client.CreateOption) error {
	if r.fails != nil {
		return r.fails
	}
	switch review := object.(type) {
	case *authenticationv1.TokenReview:
		r.reviews++
		_, known := r.may[review.Spec.Token]
		review.Status.Authenticated = known
		review.Status.User = authenticationv1.UserInfo{
			Username: review.Spec.Token, Groups: []string{"readers"}, Extra: map[string]authenticationv1.ExtraValue{"from": {"here"}},
		}
	case *authorizationv1.SubjectAccessReview:
		r.asked = &review.Spec
		review.Status.Allowed = r.may[review.Spec.User]
	}
	return nil
}

// accessFor has a clock that stands still until it is told.
func accessFor(t *testing.T, r *reviewer) (a *access, pass func(time.Duration)) {
	t.Helper()
	a, err := newAccess(&rest.Config{Host: "http://127.0.0.1:1"}, http.DefaultClient, path, logr.Discard())
	require.NoError(t, err)
	now := time.Unix(1000, 0)
	a.api, a.now = r, func() time.Time { return now }
	return a, func(d time.Duration) { now = now.Add(d) }
}

func TestTheAPIServerIsAskedWhetherTheUserMayGetThePath(t *testing.T) {
	r := &reviewer{may: map[string]bool{"prometheus": true, "pod": false}}
	a, _ := accessFor(t, r)
	require.Equal(t, http.StatusOK, a.decide(t.Context(), "prometheus"))
	require.Equal(t, &authorizationv1.SubjectAccessReviewSpec{
		User: "prometheus", Groups: []string{"readers"}, Extra: map[string]authorizationv1.ExtraValue{"from": {"here"}},
		NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: path, Verb: "get"},
	}, r.asked)
	require.Equal(t, http.StatusForbidden, a.decide(t.Context(), "pod"))
	require.Equal(t, http.StatusUnauthorized, a.decide(t.Context(), "stranger"))
}

func TestATokenIsReviewedAnewOnlyAfterAWhile(t *testing.T) {
	r := &reviewer{may: map[string]bool{"prometheus": true}}
	a, pass := accessFor(t, r)
	for range 3 {
		require.Equal(t, http.StatusOK, a.decide(t.Context(), "prometheus"))
		require.Equal(t, http.StatusUnauthorized, a.decide(t.Context(), "stranger"))
		pass(allowedFor / 4)
	}
	require.Equal(t, 3, r.reviews, "one that was refused is reviewed again first")
	pass(allowedFor / 4)
	require.Equal(t, http.StatusOK, a.decide(t.Context(), "prometheus"))
	require.Equal(t, 4, r.reviews)
}

func TestWhoMayNoMoreIsRefusedWithTheNextReview(t *testing.T) {
	r := &reviewer{may: map[string]bool{"prometheus": true}}
	a, pass := accessFor(t, r)
	require.Equal(t, http.StatusOK, a.decide(t.Context(), "prometheus"))
	r.may["prometheus"] = false
	pass(allowedFor)
	require.Equal(t, http.StatusForbidden, a.decide(t.Context(), "prometheus"))
	r.fails = errors.New("the API server is away")
	pass(refusedFor)
	require.Equal(t, http.StatusServiceUnavailable, a.decide(t.Context(), "prometheus"), "it was allowed once, and that is no more worth anything")
}

// Metrics are what an outage of the API server is looked into with.
func TestWhoWasAllowedStaysSoWhileTheAPIServerIsAway(t *testing.T) {
	r := &reviewer{may: map[string]bool{"prometheus": true}}
	a, pass := accessFor(t, r)
	require.Equal(t, http.StatusOK, a.decide(t.Context(), "prometheus"))
	r.fails = errors.New("the API server is away")
	pass(allowedAlone - time.Second)
	require.Equal(t, http.StatusOK, a.decide(t.Context(), "prometheus"))
	require.Equal(t, http.StatusServiceUnavailable, a.decide(t.Context(), "new"))
	pass(time.Second)
	require.Equal(t, http.StatusServiceUnavailable, a.decide(t.Context(), "prometheus"), "not for ever")
}

func TestTokensThatAreMadeUpPushNoAllowedOneOut(t *testing.T) {
	r := &reviewer{may: map[string]bool{"prometheus": true}}
	a, _ := accessFor(t, r)
	require.Equal(t, http.StatusOK, a.decide(t.Context(), "prometheus"))
	for i := range 2 * mostTokens {
		require.Equal(t, http.StatusUnauthorized, a.decide(t.Context(), fmt.Sprintf("made up %d", i)))
	}
	before := r.reviews
	require.Equal(t, http.StatusOK, a.decide(t.Context(), "prometheus"))
	require.Equal(t, before, r.reviews, "it is still known")
}
