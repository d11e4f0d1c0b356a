// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/go-logr/logr"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
)

// tokens has the token of one account, and renews it.
type tokens struct {
	request func(context.Context) (*authenticationv1.TokenRequest, error)
	log     logr.Logger
	refused chan struct{} // the API server refuses the token

	mu      sync.Mutex
	token   string        // empty where there is none
	err     error         // of the last request, if there is no token
	changed chan struct{} // closed when the above change
}

func newTokens(request func(context.Context) (*authenticationv1.TokenRequest, error), log logr.Logger) *tokens {
	return &tokens{request: request, log: log, refused: make(chan struct{}, 1), changed: make(chan struct{})}
}

// refusedPause is the least time from one token to the next, should the API server
// refuse all of them.
const refusedPause = time.Second

// accountPatience is how long one request waits for the account.
const accountPatience = 30 * time.Second

// retry is how requests of tokens that failed are repeated.
var retry = wait.Backoff{Duration: 250 * time.Millisecond, Factor: 1.5, Jitter: 0.5, Steps: 20, Cap: 10 * time.Second}

// run requests tokens until the context ends: when four fifths of the last one's time
// are over, at once when it is refused, and again where that failed.
func (t *tokens) run(ctx context.Context) {
	backoff := retry
	for ctx.Err() == nil {
		answer, err := t.request(ctx)
		if err == nil {
			t.set(answer.Status.Token, nil)
			backoff = retry
			sleep(ctx, refusedPause, nil)
			sleep(ctx, time.Duration(*answer.Spec.ExpirationSeconds)*time.Second*4/5, t.refused)
			continue
		}
		if ctx.Err() != nil {
			return
		}
		t.fail(err)
		pause := backoff.Step()
		if apierrors.IsNotFound(err) {
			t.log.Info("the controller has not made the ServiceAccount of the agent's node yet; waiting for it", "checkAgain", pause.String())
		} else {
			t.log.Error(err, "failed to request a token of the ServiceAccount of the agent's node; trying again", "after", pause.String())
		}
		sleep(ctx, pause, t.refused)
	}
}

func sleep(ctx context.Context, pause time.Duration, wake <-chan struct{}) {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-wake:
	}
}

// fail keeps a token that there is: it may be good for some time yet.
func (t *tokens) fail(err error) {
	t.mu.Lock()
	token := t.token
	t.mu.Unlock()
	t.set(token, err)
}

func (t *tokens) set(token string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.token, t.err = token, err
	close(t.changed)
	t.changed = make(chan struct{})
}

// get waits for a token, also for the account: the controller may be about to make it.
// Other errors it leaves to the caller.
func (t *tokens) get(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, accountPatience)
	defer cancel()
	for {
		t.mu.Lock()
		token, err, changed := t.token, t.err, t.changed
		t.mu.Unlock()
		switch {
		case token != "":
			return token, nil
		case err != nil && !apierrors.IsNotFound(err):
			return "", fmt.Errorf("failed to request a token: %w", err)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			// Not with the error itself: of what the caller asks for nothing is known.
			return "", fmt.Errorf("waiting for a token: %w", ctx.Err())
		}
	}
}

// refuse forgets a token that the API server does not take, and has it renewed.
func (t *tokens) refuse(token string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.token != token {
		return
	}
	t.token, t.err = "", nil
	select {
	case t.refused <- struct{}{}:
	default:
	}
}

// wrap makes requests carry the token.
func (t *tokens) wrap(next http.RoundTripper) http.RoundTripper {
	return &transport{tokens: t, next: next}
}

type transport struct {
	tokens *tokens
	next   http.RoundTripper
}

// RoundTrip sends a request once more with the next token where the API server refuses
// the first one: it may have expired, or the account was made anew.
func (t *transport) RoundTrip(request *http.Request) (*http.Response, error) {
	response, token, err := t.send(request)
	if err != nil || response.StatusCode != http.StatusUnauthorized {
		return response, err
	}
	t.tokens.refuse(token)
	if request.Body != nil {
		if request.GetBody == nil {
			return response, nil
		}
		request = request.Clone(request.Context())
		if request.Body, err = request.GetBody(); err != nil {
			return response, nil //nolint:nilerr // the caller is to see the refusal
		}
	}
	_ = response.Body.Close() // the answer to the next one counts
	response, _, err = t.send(request)
	return response, err
}

func (t *transport) send(request *http.Request) (*http.Response, string, error) {
	token, err := t.tokens.get(request.Context())
	if err != nil {
		if request.Body != nil {
			_ = request.Body.Close() // as a RoundTripper has to
		}
		return nil, "", err
	}
	request = request.Clone(request.Context())
	request.Header.Set("Authorization", "Bearer "+token)
	response, err := t.next.RoundTrip(request)
	return response, token, err
}

// WrappedRoundTripper lets client-go find the transport below.
func (t *transport) WrappedRoundTripper() http.RoundTripper { return t.next }
