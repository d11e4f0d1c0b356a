// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/cookiejar"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"braid.dev/braid/internal/testutil"
)

// made is a source that counts who asks it.
type made struct{ following, looking, followed atomic.Int32 }

func (m *made) Follow(ctx context.Context, show func(State)) error {
	m.following.Add(1)
	m.followed.Add(1)
	defer m.following.Add(-1)
	show(State{Head: "second", Nodes: map[string]any{"node1": 1, "node3": 3}})
	<-ctx.Done()
	return nil
}

func (m *made) NICs(ctx context.Context, nodes []string, show func(any)) error {
	m.looking.Add(1)
	defer m.looking.Add(-1)
	show(nodes)
	<-ctx.Done()
	return nil
}

func (m *made) Subflows(context.Context, string, string, string, func(any)) error {
	return errors.New("the agent has a headache")
}

func (m *made) Node(_ context.Context, name string) (any, error) { return "node " + name, nil }

func (m *made) Pod(context.Context, string, string) (any, error) {
	return nil, apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "web", errors.New("it is not yours"))
}

func (m *made) Find(context.Context, string) (any, error) { return nil, errors.New("no answer") }

// serve serves a source until the test ends or end is called.
func serve(t *testing.T, m *made) (s *Server, end func()) {
	t.Helper()
	s, err := Listen(m, 0)
	require.NoError(t, err)
	s.linger = 50 * time.Millisecond
	require.NoError(t, s.Show(State{Head: "first", Nodes: map[string]any{"node1": 1, "node2": 2}}))
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx) }()
	var ended atomic.Bool
	end = func() {
		if !ended.Swap(true) {
			stop()
			require.NoError(t, <-done)
		}
	}
	t.Cleanup(end)
	return s, end
}

// visitor is a browser that came by the address.
func visitor(t *testing.T, s *Server) *http.Client {
	t.Helper()
	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	c := &http.Client{Jar: jar, Transport: &http.Transport{}}
	t.Cleanup(c.CloseIdleConnections)
	response, err := c.Get(s.Address())
	require.NoError(t, err)
	response.Body.Close()
	require.Equal(t, http.StatusOK, response.StatusCode)
	return c
}

func at(s *Server, path string) string { return "http://" + s.listener.Addr().String() + path }

// A tenant's text must not end the element in which the page has it.
func TestThePageHasWhatIsKnownInIt(t *testing.T) {
	s, _ := serve(t, &made{})
	const hostile = "</script><!-- <script>alert(1)</script>"
	require.NoError(t, s.Show(State{Head: hostile, Nodes: map[string]any{"node1": hostile}}))
	response, err := http.Get(s.Address())
	require.NoError(t, err)
	defer response.Body.Close()
	require.Contains(t, response.Header.Get("Content-Type"), "text/html")
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.NotContains(t, string(text), "alert(1)</script>")
	_, after, found := strings.Cut(string(text), `id="state">`)
	require.True(t, found)
	inside, _, _ := strings.Cut(after, "</script>")
	var known struct {
		Version int
		Head    string
		Nodes   map[string]string
	}
	require.NoError(t, json.Unmarshal([]byte(inside), &known))
	require.Equal(t, 2, known.Version)
	require.Equal(t, hostile, known.Head)
	require.Equal(t, map[string]string{"node1": hostile}, known.Nodes)
}

func TestNobodyElseGetsIn(t *testing.T) {
	s, _ := serve(t, &made{})
	require.True(t, strings.HasPrefix(s.listener.Addr().String(), "127.0.0.1:"))
	friend := visitor(t, s)
	tests := map[string]struct {
		method, path string
		change       func(*http.Request)
		friend       bool
		want         int
	}{
		"the page with its cookie":          {path: "/", friend: true, want: http.StatusOK},
		"without a token":                   {path: "/", want: http.StatusForbidden},
		"with another token":                {path: "/?token=guessed", want: http.StatusForbidden},
		"with an empty token":               {path: "/?token=", want: http.StatusForbidden},
		"a script without a cookie":         {path: "/app.js", want: http.StatusForbidden},
		"what a token is not for":           {path: "/api/find?token=" + s.guard.token, want: http.StatusForbidden},
		"a cookie that is guessed":          {path: "/", change: func(r *http.Request) { r.AddCookie(&http.Cookie{Name: s.guard.cookie, Value: "guessed"}) }, want: http.StatusForbidden},
		"a name that was made to lead here": {path: "/", friend: true, change: func(r *http.Request) { r.Host = "evil.example" }, want: http.StatusMisdirectedRequest},
		"such a name with the port":         {path: "/api/stream", friend: true, change: func(r *http.Request) { r.Host = "evil.example:80" }, want: http.StatusMisdirectedRequest},
		"localhost, and another port, by a tunnel": {path: "/", change: func(r *http.Request) {
			r.Host = "localhost:1"
			r.AddCookie(&http.Cookie{Name: s.guard.cookie, Value: s.guard.secret})
		}, want: http.StatusOK},
		"a page of another server of this machine": {path: "/api/find", friend: true, change: func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "same-site") }, want: http.StatusForbidden},
		"a link of another site": {path: "/", friend: true, change: func(r *http.Request) {
			r.Header.Set("Sec-Fetch-Site", "cross-site")
			r.Header.Set("Sec-Fetch-Mode", "navigate")
		}, want: http.StatusOK},
		"a POST":                       {method: http.MethodPost, path: "/", friend: true, want: http.StatusMethodNotAllowed},
		"a DELETE of what is asked":    {method: http.MethodDelete, path: "/api/node", friend: true, want: http.StatusMethodNotAllowed},
		"a list of files":              {path: "/vendor/", friend: true, want: http.StatusNotFound},
		"a file that is none":          {path: "/../server.go", friend: true, want: http.StatusNotFound},
		"an answer":                    {path: "/api/node?name=node1", friend: true, want: http.StatusOK},
		"what the user may not read":   {path: "/api/pod", friend: true, want: http.StatusForbidden},
		"what could not be read":       {path: "/api/find", friend: true, want: http.StatusBadGateway},
		"more nodes than a screen has": {path: "/api/stream?" + strings.Repeat("node=n&", maxNodes+1), friend: true, want: http.StatusBadRequest},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			request, err := http.NewRequestWithContext(t.Context(), test.method, at(s, test.path), nil)
			require.NoError(t, err)
			if test.change != nil {
				test.change(request)
			}
			c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
			if test.friend {
				c.Jar = friend.Jar
			}
			response, err := c.Do(request)
			require.NoError(t, err)
			defer response.Body.Close()
			require.Equal(t, test.want, response.StatusCode)
			require.Equal(t, s.guard.policy, response.Header.Get("Content-Security-Policy"))
			require.Equal(t, "nosniff", response.Header.Get("X-Content-Type-Options"))
			require.Empty(t, response.Header.Get("Access-Control-Allow-Origin"))
		})
	}
}

func TestTheCookieIsForThisPageAlone(t *testing.T) {
	s, _ := serve(t, &made{})
	once := s.AddressOnce()
	for visit, want := range []int{http.StatusOK, http.StatusForbidden} {
		response, err := http.Get(once)
		require.NoError(t, err)
		response.Body.Close()
		require.Equal(t, want, response.StatusCode, "visit %d of an address for one", visit+1)
		if visit == 0 {
			cookie := response.Cookies()[0]
			require.True(t, cookie.HttpOnly)
			require.Equal(t, http.SameSiteStrictMode, cookie.SameSite)
			require.NotContains(t, cookie.Value, s.guard.token)
		}
	}
	require.NotContains(t, s.guard.policy, "unsafe")
}

// events reads so many of a stream.
func events(t *testing.T, body io.Reader, count int) (all []string) {
	t.Helper()
	lines := bufio.NewScanner(body)
	for len(all) < count && lines.Scan() {
		if name, found := strings.CutPrefix(lines.Text(), "event: "); found {
			require.True(t, lines.Scan())
			all = append(all, name+" "+strings.TrimPrefix(lines.Text(), "data: "))
		}
	}
	require.NoError(t, lines.Err())
	return all
}

func TestAPageGetsTheStateAndThenItsChanges(t *testing.T) {
	m := &made{}
	s, _ := serve(t, m)
	require.Zero(t, m.following.Load(), "nothing is asked while no page is open")
	response, err := visitor(t, s).Get(at(s, "/api/stream?node=node1&of=node1"))
	require.NoError(t, err)
	defer response.Body.Close()
	got := events(t, response.Body, 4)
	require.Equal(t, `state {"version":1,"head":"first","nodes":{"node1":1,"node2":2}}`, got[0])
	require.Contains(t, got, `state {"version":2,"head":"second","nodes":{"node2":null,"node3":3}}`)
	require.Contains(t, got, `nics ["node1"]`)
	require.Contains(t, got, `problem {"error":"the agent has a headache","of":"subflows"}`)

	again, err := visitor(t, s).Get(at(s, "/api/stream?since=1"))
	require.NoError(t, err)
	defer again.Body.Close()
	require.Equal(t, `state {"version":2,"head":"second","nodes":{"node2":null,"node3":3}}`, events(t, again.Body, 1)[0], "what it does not have")
	require.EqualValues(t, 1, m.followed.Load(), "two pages follow one cluster once")

	response.Body.Close()
	testutil.Eventually(t, 10*time.Second, "nobody looks at NICs", func() bool { return m.looking.Load() == 0 })
	require.EqualValues(t, 1, m.following.Load())
	again.Body.Close()
	testutil.Eventually(t, 10*time.Second, "nobody follows the cluster", func() bool { return m.following.Load() == 0 })
}

func TestPagesAreBounded(t *testing.T) {
	s, _ := serve(t, &made{})
	c := visitor(t, s)
	for i := range maxPages + 1 {
		response, err := c.Get(at(s, "/api/stream"))
		require.NoError(t, err)
		defer response.Body.Close()
		want := http.StatusOK
		if i == maxPages {
			want = http.StatusServiceUnavailable
		}
		require.Equal(t, want, response.StatusCode, "page %d", i+1)
	}
}

func TestTheEndLeavesNothingBehind(t *testing.T) {
	before := runtime.NumGoroutine()
	m := &made{}
	s, end := serve(t, m)
	c := visitor(t, s)
	var closers []io.Closer
	for range 3 {
		response, err := c.Get(at(s, "/api/stream?node=node1"))
		require.NoError(t, err)
		events(t, response.Body, 1)
		defer response.Body.Close()
		closers = append(closers, response.Body)
	}
	end()
	for _, body := range closers {
		body.Close()
	}
	c.CloseIdleConnections()
	require.Zero(t, m.following.Load()+m.looking.Load())
	_, err := net.Dial("tcp", s.listener.Addr().String())
	require.Error(t, err, "nobody listens any more")
	testutil.Eventually(t, 10*time.Second, "no goroutine is left", func() bool { return runtime.NumGoroutine() <= before })
}

func TestHistoryTellsOfNodesThatWent(t *testing.T) {
	h := newHistory()
	for _, nodes := range []map[string]any{{"a": 1}, {"a": 1, "b": 1}, {"b": 1}, {"b": 1}} {
		require.NoError(t, h.show(State{Head: "head", Nodes: nodes}))
	}
	found, _ := h.since(1)
	text, err := json.Marshal(found)
	require.NoError(t, err)
	require.JSONEq(t, `{"version":3,"nodes":{"a":null,"b":1}}`, string(text), "what stays as it is makes no version")
	for _, since := range []int64{0, 99} {
		found, _ = h.since(since)
		require.Equal(t, `"head"`, string(found.Head))
		require.Len(t, found.Nodes, 1, "from %d on", since)
	}
}

// vendored are the sums of what others made, as it is in uplot 1.6.32 of the npm registry.
var vendored = map[string]string{
	"assets/vendor/uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
	"assets/vendor/uPlot.min.css":     "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
	"assets/vendor/uPlot.LICENSE":     "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
}

func TestWhatOthersMadeIsUnchangedAndAllOfItIsSmall(t *testing.T) {
	total := 0
	require.NoError(t, fs.WalkDir(assets, "assets", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := fs.ReadFile(assets, name)
		total += len(content)
		if sum := sha256.Sum256(content); strings.Contains(name, "/vendor/") {
			require.Equal(t, vendored[name], hex.EncodeToString(sum[:]), name)
		} else if !strings.Contains(string(content[:min(len(content), 200)]), "SPDX-License-Identifier: Apache-2.0") {
			require.Equal(t, "assets/icon.svg", name, "each file of ours says its licence")
		}
		for _, risky := range []string{"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("} {
			require.NotContains(t, string(content), risky, name)
		}
		return err
	}))
	require.Less(t, total, 300_000, fmt.Sprintf("%d bytes are embedded", total))
}
