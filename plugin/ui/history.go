// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"encoding/json"
	"fmt"
	"slices"
	"sync"
)

// State is what a page shows of a cluster, in parts of which each is sent where it changed.
type State struct {
	// Head is of the whole cluster, Nodes by their names.
	Head  any
	Nodes map[string]any
}

// changes are what is newer than some version.
type changes struct {
	Version int64           `json:"version"`
	Head    json.RawMessage `json:"head,omitempty"`
	// Nodes are null where one is gone.
	Nodes map[string]json.RawMessage `json:"nodes,omitempty"`
}

// part is as of the version in which it changed last; without text it is gone.
type part struct {
	version int64
	text    json.RawMessage
}

// history knows when each part changed, so that a page gets what it does not have. Of the
// past it keeps nothing but the names of nodes that went.
type history struct {
	mutex   sync.Mutex
	version int64
	head    part
	nodes   map[string]part
	// changed is closed with the next version.
	changed chan struct{}
}

func newHistory() *history {
	return &history{nodes: map[string]part{}, changed: make(chan struct{})}
}

// show takes a new state.
func (h *history) show(state State) error {
	head, err := json.Marshal(state.Head)
	if err != nil {
		return fmt.Errorf("writing the cluster as JSON: %w", err)
	}
	nodes := map[string]json.RawMessage{}
	for name, node := range state.Nodes {
		if nodes[name], err = json.Marshal(node); err != nil {
			return fmt.Errorf("writing node %s as JSON: %w", name, err)
		}
	}
	h.mutex.Lock()
	defer h.mutex.Unlock()
	next := h.version + 1
	if h.take(next, head, nodes) {
		h.version = next
		close(h.changed)
		h.changed = make(chan struct{})
	}
	return nil
}

// take is false where everything is as it was.
func (h *history) take(next int64, head json.RawMessage, nodes map[string]json.RawMessage) (changed bool) {
	if !slices.Equal(h.head.text, head) {
		h.head, changed = part{next, head}, true
	}
	for name, text := range nodes {
		if !slices.Equal(h.nodes[name].text, text) {
			h.nodes[name], changed = part{next, text}, true
		}
	}
	for name, known := range h.nodes {
		if nodes[name] == nil && known.text != nil {
			h.nodes[name], changed = part{version: next}, true
		}
	}
	return changed
}

// since has what changed after a version, and what tells of the next one.
func (h *history) since(version int64) (changes, <-chan struct{}) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	found := changes{Version: h.version}
	if version > h.version {
		version = 0 // of another run
	}
	if h.head.version > version {
		found.Head = h.head.text
	}
	for name, node := range h.nodes {
		if node.version > version && (version > 0 || node.text != nil) {
			if found.Nodes == nil {
				found.Nodes = map[string]json.RawMessage{}
			}
			found.Nodes[name] = node.text
		}
	}
	return found, h.changed
}
