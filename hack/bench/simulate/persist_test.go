// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestARequestIsMadeAgainUntilItIsAnswered(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	for _, test := range []struct {
		name     string
		err      error
		requests int
	}{
		{"success", nil, 1},
		{"a connection that breaks", errors.New("stream error"), 2},
		{"a server that has no time", apierrors.NewTimeoutError("busy", 1), 2},
		{"a server that has no time for us", apierrors.NewTooManyRequests("busy", 1), 2},
		{"a refusal", apierrors.NewNotFound(pods, "p"), 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			requests := 0
			err := Persist(t.Context(), t.Logf, func(again bool) error {
				if again != (requests > 0) {
					t.Errorf("request %d: again is %v", requests, again)
				}
				if requests++; requests == 2 {
					return nil
				}
				return test.err
			})
			if requests != test.requests || (err != nil) != (test.err != nil && test.requests == 1) {
				t.Errorf("%d requests, want %d; the error is %v", requests, test.requests, err)
			}
		})
	}
}

func TestNoMoreThanSomeRequestsAreUnderWayAtATime(t *testing.T) {
	var now, most atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		count := now.Add(1)
		for seen := most.Load(); count > seen && !most.CompareAndSwap(seen, count); seen = most.Load() {
		}
		now.Add(-1)
		w.WriteHeader(http.StatusOK)
	}))
	defer server.Close()
	client := &http.Client{Transport: &atATime{slots: make(chan struct{}, 2), next: http.DefaultTransport}}
	var wait sync.WaitGroup
	for range 50 {
		wait.Go(func() {
			answer, err := client.Get(server.URL)
			if err != nil {
				t.Error(err)
				return
			}
			answer.Body.Close()
		})
	}
	wait.Wait()
	if most.Load() > 2 {
		t.Errorf("%d requests were under way at a time", most.Load())
	}
}
