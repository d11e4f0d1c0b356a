// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// A server with more to do than it can cut requests off. They are made again after
// retryPause, and given up after retryPatience.
const (
	retryPause    = time.Second
	retryPatience = 2 * time.Minute
)

// Persist makes a request until it is answered, and tells by say when it has to be
// made again: again is true then, and what it asks for may have been done already.
// An answer that refuses the request is returned.
func Persist(ctx context.Context, say func(format string, args ...any), request func(again bool) error) error {
	begin, again := time.Now(), false
	for {
		err := request(again)
		if err == nil || refuses(err) || ctx.Err() != nil {
			return err
		}
		if time.Since(begin) > retryPatience {
			return fmt.Errorf("given up after %s: %w", retryPatience, err)
		}
		say("a request is made again: %v", err)
		again = true
		select {
		case <-ctx.Done():
		case <-time.After(retryPause):
		}
	}
}

// refuses says whether an error is the server's answer to what was asked.
func refuses(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	code := status.Status().Code
	return code >= http.StatusBadRequest && code < http.StatusInternalServerError && code != http.StatusTooManyRequests
}

// atATime lets a number of requests be under way at a time, watches apart: a server
// with more than it can do in time does nothing in time.
type atATime struct {
	slots chan struct{}
	next  http.RoundTripper
}

func (a *atATime) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.URL.Query().Get("watch") == "" {
		select {
		case a.slots <- struct{}{}:
			defer func() { <-a.slots }()
		case <-request.Context().Done():
			return nil, request.Context().Err()
		}
	}
	return a.next.RoundTrip(request)
}
