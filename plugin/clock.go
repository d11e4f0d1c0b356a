// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"net/http"
	"sync"
	"time"
)

// serverClock is the API server's, by the dates of its answers: that of the machine
// which the plugin runs on may be wrong, and Leases are judged by their age.
type serverClock struct {
	mutex sync.Mutex
	ahead time.Duration
}

// now is the time at the API server, as exact as its dates are: a second.
func (c *serverClock) now() time.Time {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return time.Now().Add(c.ahead)
}

// read takes the dates of all answers that a transport gets.
func (c *serverClock) read(from http.RoundTripper) http.RoundTripper {
	return datedTransport{c, from}
}

type datedTransport struct {
	clock *serverClock
	http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (t datedTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := t.RoundTripper.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	if date, err := http.ParseTime(response.Header.Get("Date")); err == nil {
		t.clock.mutex.Lock()
		t.clock.ahead = time.Until(date)
		t.clock.mutex.Unlock()
	}
	return response, nil
}
