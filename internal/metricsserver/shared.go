// SPDX-License-Identifier: Apache-2.0

package metricsserver

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// fresh is for how long what was gathered is given to others who ask.
const fresh = time.Second

// shared gathers once for all who ask at about the same time.
type shared struct {
	gatherer prometheus.Gatherer

	mutex    sync.Mutex
	valid    bool
	families []*dto.MetricFamily
	err      error
}

// Gather implements prometheus.Gatherer. What it returns must not be changed.
func (s *shared) Gather() ([]*dto.MetricFamily, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if !s.valid {
		s.families, s.err = s.gatherer.Gather()
		s.valid = true
		time.AfterFunc(fresh, s.forget)
	}
	return s.families, s.err
}

func (s *shared) forget() {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.valid, s.families, s.err = false, nil, nil
}
