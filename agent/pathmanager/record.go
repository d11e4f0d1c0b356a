// SPDX-License-Identifier: Apache-2.0

package pathmanager

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"braid.dev/braid/agent/endpoints/namespace"
	"braid.dev/braid/internal/mptcpnl"
	"braid.dev/braid/internal/wholefile"
)

// record is what must be known to put a namespace back as it was. It is written
// before the first change, so that it survives the agent.
type record struct {
	Identity namespace.Identity `json:"identity"`
	// Limits and Sysctls are those from before.
	Limits  mptcpnl.Limits    `json:"limits"`
	Sysctls map[string]string `json:"sysctls"`
	// Endpoints may have been added, the IDs aside.
	Endpoints []mptcpnl.Endpoint `json:"endpoints,omitempty"`
	// Listening is true once an MPTCP socket listened in the namespace.
	Listening bool `json:"listening,omitempty"`
}

func recordPath(directory string, identity namespace.Identity) string {
	return filepath.Join(directory, strconv.FormatUint(identity.Inode, 10)+".json")
}

// readRecord returns nil where there is none, or one of a namespace that had the
// same inode number before.
func readRecord(directory string, identity namespace.Identity) (*record, error) {
	r, err := readRecordFile(recordPath(directory, identity))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil || r.Identity != identity {
		return nil, err
	}
	return r, nil
}

func readRecordFile(path string) (*record, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading what a network namespace was like: %w", err)
	}
	r := &record{}
	if err := json.Unmarshal(data, r); err != nil {
		return nil, fmt.Errorf("reading what a network namespace was like: %s: %w", path, err)
	}
	return r, nil
}

// write replaces the record's file at once, so that a crash leaves a whole one.
func (r *record) write(directory string) error {
	data, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("recording what %s was like: %w", r.Identity, err)
	}
	path := recordPath(directory, r.Identity)
	if err := wholefile.Replace(path, data); err != nil {
		return fmt.Errorf("recording what %s was like: %w", r.Identity, err)
	}
	return nil
}

// Recorded lists the namespaces that were configured and not restored, by this
// agent or one before it, but for those with these inode numbers.
func Recorded(statePath string, without map[uint64]bool) ([]namespace.Identity, error) {
	paths, err := filepath.Glob(filepath.Join(statePath, "*.json"))
	if err != nil {
		return nil, fmt.Errorf("listing records in %s: %w", statePath, err)
	}
	var identities []namespace.Identity
	var failed error
	for _, path := range paths {
		inode, err := strconv.ParseUint(strings.TrimSuffix(filepath.Base(path), ".json"), 10, 64)
		if err == nil && without[inode] {
			continue
		}
		r, err := readRecordFile(path)
		if err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		identities = append(identities, r.Identity)
	}
	return identities, failed
}

// Forget drops the record of a namespace that is gone.
func Forget(statePath string, identity namespace.Identity) error {
	if err := wholefile.Remove(recordPath(statePath, identity)); err != nil {
		return fmt.Errorf("forgetting what %s was like: %w", identity, err)
	}
	return nil
}
