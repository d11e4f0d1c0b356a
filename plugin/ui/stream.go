// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"
)

const (
	// maxPages bounds how many streams there are at once.
	maxPages = 16
	// maxNodes bounds whose NICs a page may ask for: no screen shows more.
	maxNodes = 64
	// beat is how often a stream says that it lives.
	beat = 15 * time.Second
)

// event is what a page gets: state, nics, subflows or problem.
type event struct {
	name  string
	value any
}

// stream sends the cluster's changes from `since` on, and what the page looks at: the NICs of
// `node`, or the subflows `of` a node or of `namespace` and `pod`.
func (s *Server) stream(w http.ResponseWriter, request *http.Request) {
	query := request.URL.Query()
	if len(query["node"]) > maxNodes {
		http.Error(w, fmt.Sprintf("more than %d nodes", maxNodes), http.StatusBadRequest)
		return
	}
	since, _ := strconv.ParseInt(query.Get("since"), 10, 64) // 0 is from the beginning
	if !s.enter() {
		http.Error(w, fmt.Sprintf("%d pages are open: close one", maxPages), http.StatusServiceUnavailable)
		return
	}
	defer s.leave()
	ctx, cancel := context.WithCancel(request.Context())
	events := make(chan event)
	var looking sync.WaitGroup
	defer looking.Wait()
	defer cancel()
	look := func(name string, follow func(show func(any)) error) {
		looking.Go(func() {
			err := follow(func(found any) { send(ctx, events, event{name, found}) })
			if err != nil && ctx.Err() == nil {
				send(ctx, events, event{"problem", map[string]string{"of": name, "error": err.Error()}})
			}
		})
	}
	if nodes := query["node"]; len(nodes) > 0 {
		look("nics", func(show func(any)) error { return s.source.NICs(ctx, nodes, show) })
	}
	if of, pod := query.Get("of"), query.Get("pod"); of != "" || pod != "" {
		look("subflows", func(show func(any)) error {
			return s.source.Subflows(ctx, of, query.Get("namespace"), pod, show)
		})
	}
	w.Header().Set("Content-Type", "text/event-stream")
	_ = s.write(ctx, w, since, events) // a page that is gone
}

func send(ctx context.Context, events chan<- event, one event) {
	select {
	case events <- one:
	case <-ctx.Done():
	}
}

// write sends until the page or the context is gone.
func (s *Server) write(ctx context.Context, w http.ResponseWriter, since int64, events <-chan event) error {
	flush, ticker := http.NewResponseController(w), time.NewTicker(beat)
	defer ticker.Stop()
	for {
		found, changed := s.history.since(since)
		if found.Version != since {
			since = found.Version
			if err := writeEvent(w, event{"state", found}); err != nil {
				return err
			}
		}
		if err := flush.Flush(); err != nil {
			return err
		}
		var err error
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		case one := <-events:
			err = writeEvent(w, one)
		case <-ticker.C:
			_, err = fmt.Fprint(w, ":\n\n")
		}
		if err != nil {
			return err
		}
	}
}

// writeEvent writes one of JSON, which has no line ends.
func writeEvent(w http.ResponseWriter, one event) error {
	text, err := json.Marshal(one.value)
	if err == nil {
		_, err = fmt.Fprintf(w, "event: %s\ndata: %s\n\n", one.name, text)
	}
	return err
}
