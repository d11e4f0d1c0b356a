// SPDX-License-Identifier: Apache-2.0

package metricsserver

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/internal/lab/apiserver"
	"braid.dev/braid/internal/testutil"
)

// counting is a gatherer that counts how often it gathers, which takes a while.
type counting struct {
	gathered atomic.Int64
	takes    time.Duration
}

func (c *counting) Gather() ([]*dto.MetricFamily, error) {
	c.gathered.Add(1)
	time.Sleep(c.takes)
	registry := prometheus.NewRegistry()
	gauge := prometheus.NewGauge(prometheus.GaugeOpts{Name: "team_secret", Help: "What nobody else may know."})
	registry.MustRegister(gauge)
	return registry.Gather()
}

// start runs a server until the test ends, and returns its port.
func start(t *testing.T, server *Server) string {
	t.Helper()
	server.options.Address, server.options.Log = "127.0.0.1:0", testr.New(t)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- server.Start(ctx) }()
	t.Cleanup(func() { cancel(); require.NoError(t, <-ended) })
	_, port, err := net.SplitHostPort((<-server.listening).String())
	require.NoError(t, err)
	return port
}

// from is a client with an address of its own.
func from(t *testing.T, address string) *http.Client {
	t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
	transport := &http.Transport{DialContext: dialer.DialContext, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: 20 * time.Second}
}

func get(t *testing.T, c *http.Client, url, token string) (status int, body string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := c.Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return response.StatusCode, string(text)
}

// tokenOf makes a service account with a token.
func tokenOf(t *testing.T, c client.Client, name string) string {
	t.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	require.NoError(t, c.Create(t.Context(), account))
	request := &authenticationv1.TokenRequest{}
	require.NoError(t, c.SubResource("token").Create(t.Context(), account, request))
	return request.Status.Token
}

// letRead lets a service account get /metrics.
func letRead(t *testing.T, c client.Client, name string) {
	t.Helper()
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "reader"}, Rules: []rbacv1.PolicyRule{{NonResourceURLs: []string{path}, Verbs: []string{"get"}}}}
	require.NoError(t, c.Create(t.Context(), role))
	require.NoError(t, c.Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "reader"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "reader"},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "default", Name: name}},
	}))
}

func TestMetricsAreForThoseWhomTheAPIServerAllows(t *testing.T) {
	api := apiserver.ForTest(t)
	c, err := client.New(api.Config(), client.Options{})
	require.NoError(t, err)
	httpClient, err := rest.HTTPClientFor(api.Config())
	require.NoError(t, err)
	server, err := New(api.Config(), httpClient, &counting{}, Options{Log: testr.New(t)})
	require.NoError(t, err)
	url := "127.0.0.1:" + start(t, server) + path
	reader, stranger, late := tokenOf(t, c, "prometheus"), tokenOf(t, c, "tenant"), tokenOf(t, c, "late")
	letRead(t, c, "prometheus")

	expect := func(address, token string, want int) {
		t.Helper()
		status, body := get(t, from(t, address), "https://"+url, token)
		require.Equal(t, want, status, body)
		require.Equal(t, want == http.StatusOK, strings.Contains(body, "team_secret"))
	}
	expect("127.0.0.2", "", http.StatusUnauthorized)
	expect("127.0.0.2", "made-up", http.StatusUnauthorized)
	expect("127.0.0.2", stranger, http.StatusForbidden)
	expect("127.0.0.3", reader, http.StatusOK)
	if plain, err := from(t, "127.0.0.4").Get("http://" + url); err == nil { // it may be reset
		require.Equal(t, http.StatusBadRequest, plain.StatusCode)
		require.NoError(t, plain.Body.Close())
	}
	for _, other := range []string{"/", "/debug/pprof/", "/healthz"} {
		status, _ := get(t, from(t, "127.0.0.4"), "https://"+strings.TrimSuffix(url, path)+other, reader)
		require.Equal(t, http.StatusNotFound, status, other)
	}

	require.NoError(t, api.StopServer())
	expect("127.0.0.3", reader, http.StatusOK)
	expect("127.0.0.2", late, http.StatusServiceUnavailable)
}

func TestScrapesAtTheSameTimeShareOneLook(t *testing.T) {
	gatherer := &counting{takes: 50 * time.Millisecond}
	s := &shared{gatherer: gatherer}
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			families, err := s.Gather()
			if err != nil || len(families) != 1 {
				t.Errorf("%d families, %v", len(families), err)
			}
		})
	}
	all.Wait()
	require.EqualValues(t, 1, gatherer.gathered.Load())
	testutil.Eventually(t, 20*time.Second, "nothing is kept", func() bool {
		s.mutex.Lock()
		defer s.mutex.Unlock()
		return s.families == nil
	})
	_, err := s.Gather()
	require.NoError(t, err)
	require.EqualValues(t, 2, gatherer.gathered.Load(), "what was gathered gets old")
}

// allowing is a server that lets everybody in who comes through to authorization.
func allowing(t *testing.T) *Server {
	t.Helper()
	serve := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "served") })
	return &Server{handler: newSources().limit(serve), listening: make(chan net.Addr, 1)}
}

func TestConnectionsOfOneAddressLeaveRoomToOthers(t *testing.T) {
	port := start(t, allowing(t))
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP("127.0.0.5")}}
	var all []net.Conn
	for range 3 * mostConnections {
		connection, err := dialer.DialContext(t.Context(), "tcp", "127.0.0.1:"+port)
		require.NoError(t, err)
		t.Cleanup(func() { connection.Close() })
		all = append(all, connection)
	}
	time.Sleep(time.Second) // in which those beyond are closed
	open := 0
	for _, connection := range all {
		require.NoError(t, connection.SetReadDeadline(time.Now().Add(time.Millisecond)))
		if _, err := connection.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
			open++
		}
	}
	require.LessOrEqual(t, open, mostConnections/2)
	status, body := get(t, from(t, "127.0.0.6"), "https://127.0.0.1:"+port+path, "")
	require.Equal(t, http.StatusOK, status, body)
}

func TestWhoIsOnTheNodeGetsThemByTheSocket(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "not-there-yet", "metrics.sock")
	for range 2 { // the second takes it over
		server := allowing(t)
		server.local, server.options.Socket = server.handler, socket
		start(t, server)
		var got strings.Builder
		require.NoError(t, Fetch(t.Context(), socket, &got))
		require.Equal(t, "served\n", got.String())
		about, err := os.Stat(socket)
		require.NoError(t, err)
		require.Zero(t, about.Mode().Perm()&0o077)
	}
	require.Error(t, Fetch(t.Context(), socket+"x", io.Discard))
}

func TestWhoAsksTooOftenKeepsNobodyElseFromAsking(t *testing.T) {
	port := start(t, allowing(t))
	ask := func(c *http.Client) int {
		status, _ := get(t, c, "https://127.0.0.1:"+port+path, "")
		return status
	}
	flooding, refused := from(t, "127.0.0.7"), 0
	for range 50 {
		if ask(flooding) == http.StatusTooManyRequests {
			refused++
		}
	}
	require.GreaterOrEqual(t, refused, 50-asksBurst-10*asksPerSecond)
	require.Equal(t, http.StatusOK, ask(from(t, "127.0.0.8")))
}
