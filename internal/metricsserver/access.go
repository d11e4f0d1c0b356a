// SPDX-License-Identifier: Apache-2.0

package metricsserver

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/time/rate"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/utils/lru"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// An allowed token need not be reviewed again for allowedFor, and is still good for
	// allowedAlone where the API server does not answer; a refused one stays so for
	// refusedFor.
	allowedFor   = time.Minute
	allowedAlone = 10 * time.Minute
	refusedFor   = 30 * time.Second
	// mostTokens are remembered of each kind.
	mostTokens = 256
	// reviewPatience is how long the API server may take.
	reviewPatience = 10 * time.Second
	// The API server is asked for so many reviews a second, whoever sends tokens.
	reviewsPerSecond, reviewsBurst = 10, 20
)

// access asks the API server who may get a path. controller-runtime's filter does the same
// with 30 MB more of program, and 19 MiB more of resident memory on each node.
type access struct {
	api  client.Client
	path string
	log  logr.Logger
	// seldom lets through one error of many.
	seldom rate.Sometimes
	now    func() time.Time
	// allowed and refused have the time of the review by a token's hash. They are two so
	// that made-up tokens push no allowed one out.
	allowed, refused *lru.Cache
}

// tokenHash stands for a token, which is kept nowhere.
type tokenHash [sha256.Size]byte

// refusal is a refused token: when it was reviewed, and the answer.
type refusal struct {
	at     time.Time
	status int
}

func newAccess(config *rest.Config, httpClient *http.Client, path string, log logr.Logger) (*access, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{authenticationv1.AddToScheme, authorizationv1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("failed to register types: %w", err)
		}
	}
	config = rest.CopyConfig(config)
	config.QPS, config.Burst = reviewsPerSecond, reviewsBurst
	mapper := meta.NewDefaultRESTMapper(nil) // nothing is to be discovered
	mapper.Add(authenticationv1.SchemeGroupVersion.WithKind("TokenReview"), meta.RESTScopeRoot)
	mapper.Add(authorizationv1.SchemeGroupVersion.WithKind("SubjectAccessReview"), meta.RESTScopeRoot)
	api, err := client.New(config, client.Options{HTTPClient: httpClient, Scheme: scheme, Mapper: mapper})
	if err != nil {
		return nil, fmt.Errorf("failed to make a client for reviews of tokens: %w", err)
	}
	return &access{api: api, path: path, log: log, now: time.Now, seldom: rate.Sometimes{Interval: time.Minute}, allowed: lru.New(mostTokens), refused: lru.New(mostTokens)}, nil
}

// protect lets those through whom the API server allows to get the path.
func (a *access) protect(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		token, given := strings.CutPrefix(request.Header.Get("Authorization"), "Bearer ")
		status := http.StatusUnauthorized
		if given && token != "" {
			status = a.decide(request.Context(), token)
		}
		if status != http.StatusOK {
			w.Header().Set("Connection", "close")
			http.Error(w, http.StatusText(status), status)
			return
		}
		next.ServeHTTP(w, request)
	})
}

// decide returns StatusOK for a token that may get the path, and otherwise what to answer.
func (a *access) decide(ctx context.Context, token string) int {
	hash := tokenHash(sha256.Sum256([]byte(token)))
	allowed, known := a.allowed.Get(hash)
	if known && a.now().Sub(allowed.(time.Time)) < allowedFor {
		return http.StatusOK
	}
	if refused, ok := a.refused.Get(hash); ok && a.now().Sub(refused.(refusal).at) < refusedFor {
		return refused.(refusal).status
	}
	status, err := a.review(ctx, token)
	switch {
	case err != nil && known && a.now().Sub(allowed.(time.Time)) < allowedAlone:
		return http.StatusOK
	case err != nil:
		a.seldom.Do(func() { a.log.Error(err, "failed to have the API server authorize requests for metrics") })
		return http.StatusServiceUnavailable
	case status == http.StatusOK:
		a.allowed.Add(hash, a.now())
	default:
		a.allowed.Remove(hash)
		a.refused.Add(hash, refusal{a.now(), status})
	}
	return status
}

// review asks who has the token, and whether that one may get the path.
func (a *access) review(ctx context.Context, token string) (status int, err error) {
	ctx, cancel := context.WithTimeout(ctx, reviewPatience)
	defer cancel()
	who := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}
	if err := a.api.Create(ctx, who); err != nil {
		return 0, fmt.Errorf("failed to review a token: %w", err)
	}
	if !who.Status.Authenticated {
		return http.StatusUnauthorized, nil
	}
	user := who.Status.User
	may := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: user.Username, UID: user.UID, Groups: user.Groups, Extra: extraOf(user.Extra),
		NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: a.path, Verb: "get"},
	}}
	if err := a.api.Create(ctx, may); err != nil {
		return 0, fmt.Errorf("failed to review the access of %s: %w", user.Username, err)
	}
	if !may.Status.Allowed {
		return http.StatusForbidden, nil
	}
	return http.StatusOK, nil
}

func extraOf(extra map[string]authenticationv1.ExtraValue) map[string]authorizationv1.ExtraValue {
	same := make(map[string]authorizationv1.ExtraValue, len(extra))
	for key, value := range extra {
		same[key] = authorizationv1.ExtraValue(value)
	}
	return same
}
