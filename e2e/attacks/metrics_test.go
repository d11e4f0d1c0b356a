// SPDX-License-Identifier: Apache-2.0

package attacks_test

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"braid.dev/braid/hack/lab"
	"braid.dev/braid/internal/lab/network"
)

// floodMetrics asks for metrics with a new connection and a new token each time, and then
// holds as many connections as it gets, while somebody asks who may.
func floodMetrics(t *testing.T, s *scene) {
	address := net.JoinHostPort(s.mallory.Node.Address(0, 4), fmt.Sprint(lab.MetricsPort))
	answers := map[int]int{}
	for time.Until(s.until) > attacking/2 {
		status, _, err := askMetrics(t, s.mallory, address, rand.Text())
		if err == nil {
			answers[status]++
		}
		time.Sleep(5 * time.Millisecond)
	}
	if answers[http.StatusOK] > 0 || answers[http.StatusUnauthorized] == 0 {
		s.escaped("made-up tokens are answered with %v", answers)
	}
	for s.going() {
		if connection, err := s.mallory.Dial(t.Context(), "tcp", address); err == nil {
			t.Cleanup(func() { _ = connection.Close() })
		}
		time.Sleep(time.Millisecond)
	}
	status, metrics, err := askMetrics(t, s.accomplice, address, s.Server.Config().BearerToken)
	if err != nil || status != http.StatusOK || !strings.Contains(metrics, "braid_") {
		s.escaped("who may get metrics gets the status %d and %d bytes (%v)", status, len(metrics), err)
	}
}

// askMetrics does so from a pod, by a connection of its own.
func askMetrics(t *testing.T, from *network.Pod, address, token string) (status int, body string, err error) {
	t.Helper()
	transport := &http.Transport{
		DisableKeepAlives: true,
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, // the agent's own certificate
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return from.Dial(ctx, "tcp", address) },
	}
	client := &http.Client{Transport: transport, Timeout: 5 * time.Second}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+address+"/metrics", nil)
	if err != nil {
		return 0, "", err
	}
	request.Header.Set("Authorization", "Bearer "+token)
	response, err := client.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return response.StatusCode, string(text), err
}
