// SPDX-License-Identifier: Apache-2.0

// Package events receives what the packet programs report of rules, and keeps the latest
// of it for those who ask.
package events

import (
	"sync"
	"time"

	"braid.dev/braid/internal/agentapi"
)

// DefaultSize is the number of events that are kept.
const DefaultSize = 1024

// Log keeps the latest events. Any number of readers follow it, each at its own
// pace and with no memory of its own: one that is too slow learns how many events
// it missed. It is safe for concurrent use.
type Log struct {
	mutex   sync.Mutex
	size    int
	kept    []agentapi.Event // grows up to the size, and then is written round and round
	added   uint64           // events so far
	changed chan struct{}    // closed with the next event
}

// NewLog keeps this many events; 0 for DefaultSize.
func NewLog(size int) *Log {
	if size <= 0 {
		size = DefaultSize
	}
	return &Log{size: size, changed: make(chan struct{})}
}

// Add takes an event in; it may push the oldest one out.
func (l *Log) Add(event agentapi.Event) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if len(l.kept) < l.size {
		l.kept = append(l.kept, event)
	} else {
		l.kept[l.added%uint64(l.size)] = event
	}
	l.added++
	close(l.changed)
	l.changed = make(chan struct{})
}

// Batch is what a reader gets.
type Batch struct {
	Events []agentapi.Event
	// Next is where to go on reading.
	Next uint64
	// Changed is closed when there is more.
	Changed <-chan struct{}
}

// Read returns the events from a position on, the oldest first; 0 is the oldest
// one kept. Where events after an earlier position were pushed out, the first is
// of EventLost.
func (l *Log) Read(from uint64) Batch {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	size := uint64(l.size)
	oldest := l.added - min(l.added, size)
	batch := Batch{Next: l.added, Changed: l.changed}
	if from > 0 && from < oldest {
		batch.Events = append(batch.Events, agentapi.Event{Time: time.Now(), Type: agentapi.EventLost, Count: oldest - from})
	}
	for at := max(from, oldest); at < l.added; at++ {
		batch.Events = append(batch.Events, l.kept[at%size])
	}
	return batch
}
