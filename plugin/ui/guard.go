// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"crypto/rand"
	"crypto/subtle"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
)

// policyFormat lets a page load what this server has, and nothing else: in the page itself the
// one script and the one style that have these sums, nothing of another origin, no text that
// becomes markup.
const policyFormat = "default-src 'none'; script-src 'self' %s; style-src 'self' %s; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// guard lets nobody in but a browser that was given the address.
type guard struct {
	next   http.Handler
	policy string
	// token is in the address that the user is shown, secret in the cookie of a browser
	// that came by it. Others may see an address on a command line; once is good for a
	// single visit.
	token, secret string
	once          atomic.Pointer[string]
	cookie        string
}

func newGuard(port, policy string, next http.Handler) *guard {
	return &guard{next: next, policy: policy, token: rand.Text(), secret: rand.Text(), cookie: "braid-ui-" + port}
}

// ServeHTTP implements http.Handler.
func (g *guard) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	header := w.Header()
	header.Set("Content-Security-Policy", g.policy)
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("Cross-Origin-Opener-Policy", "same-origin")
	header.Set("Cross-Origin-Resource-Policy", "same-origin")
	header.Set("Cache-Control", "no-store")
	switch {
	case !isLoopback(request.Host):
		http.Error(w, "this page is at 127.0.0.1 alone", http.StatusMisdirectedRequest)
	case request.Method != http.MethodGet:
		header.Set("Allow", http.MethodGet)
		http.Error(w, "this server only shows: GET alone", http.StatusMethodNotAllowed)
	case !g.sameOrigin(request):
		http.Error(w, "another site asks", http.StatusForbidden)
	case !g.lets(w, request):
		http.Error(w, "take the address that kubectl braid ui printed: it has a token", http.StatusForbidden)
	default:
		g.next.ServeHTTP(w, request)
	}
}

// isLoopback is false of the name of another site that was made to lead here. The port may
// be another one, as of a tunnel.
func isLoopback(hostPort string) bool {
	host, _, err := net.SplitHostPort(hostPort)
	if err != nil {
		host = hostPort
	}
	return host == "localhost" || host == "127.0.0.1"
}

// sameOrigin is false of what a page of another server has a browser load. The page itself
// may be a link's target.
func (g *guard) sameOrigin(request *http.Request) bool {
	switch request.Header.Get("Sec-Fetch-Site") {
	case "", "none", "same-origin":
		return true
	}
	return request.URL.Path == "/" && request.Header.Get("Sec-Fetch-Mode") == "navigate"
}

// lets is true with the cookie or with the token, for which the browser gets the cookie.
func (g *guard) lets(w http.ResponseWriter, request *http.Request) bool {
	if cookie, err := request.Cookie(g.cookie); err == nil && equal(cookie.Value, g.secret) {
		return true
	}
	if token := request.URL.Query().Get("token"); request.URL.Path != "/" || !equal(token, g.token) && !g.isOnce(token) {
		return false
	}
	http.SetCookie(w, &http.Cookie{Name: g.cookie, Value: g.secret, Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode})
	return true
}

// isOnce is true the first time.
func (g *guard) isOnce(token string) bool {
	once := g.once.Load()
	return once != nil && equal(token, *once) && g.once.CompareAndSwap(once, nil)
}

func equal(a, b string) bool {
	return strings.TrimSpace(a) != "" && subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1
}
