// SPDX-License-Identifier: Apache-2.0

package guestagent

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"

	"k8s.io/apimachinery/pkg/types"

	"braid.dev/braid/internal/wholefile"
)

// target is a guest whose limits are to be raised.
type target struct {
	UID types.UID `json:"uid"`
	// Name is told in logs.
	Name string `json:"name"`
	place
}

// record is what must be known to put a guest's limits back. It is written before these are
// changed, so that it survives the agent.
type record struct {
	target
	change
}

// change is what was made of a guest's limits.
type change struct {
	Before limits `json:"before"`
	Set    limits `json:"set"`
}

func (p *Part) recordPath(uid types.UID) string {
	return filepath.Join(p.options.Records, url.PathEscape(string(uid))+".json")
}

// read fails with os.ErrNotExist where there is none.
func (p *Part) read(uid types.UID) (*record, error) { return readFile(p.recordPath(uid)) }

func readFile(path string) (*record, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading what a guest's limits were: %w", err)
	}
	r := &record{}
	if err := json.Unmarshal(data, r); err != nil {
		return nil, fmt.Errorf("reading what a guest's limits were: %s: %w", path, err)
	}
	return r, nil
}

// write replaces the record's file at once, so that a crash leaves a whole one.
func (p *Part) write(r *record) error {
	data, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("recording the limits of %s: %w", r.Name, err)
	}
	path := p.recordPath(r.UID)
	if err := wholefile.Replace(path, data); err != nil {
		return fmt.Errorf("recording the limits of %s: %w", r.Name, err)
	}
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if p.records != nil {
		p.records[r.UID] = r
	}
	return nil
}

func (p *Part) forget(uid types.UID) error {
	if err := wholefile.Remove(p.recordPath(uid)); err != nil {
		return fmt.Errorf("forgetting a guest's limits: %w", err)
	}
	p.mutex.Lock()
	defer p.mutex.Unlock()
	delete(p.records, uid)
	return nil
}

// recorded are the guests whose limits this agent or an earlier one has changed.
func (p *Part) recorded() (all []*record, failed error) {
	paths, err := filepath.Glob(filepath.Join(p.options.Records, "*.json"))
	if err != nil {
		return nil, fmt.Errorf("listing records of guests' limits: %w", err)
	}
	for _, path := range paths {
		r, err := readFile(path)
		if err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		all = append(all, r)
	}
	return all, failed
}
