// SPDX-License-Identifier: Apache-2.0

// Package relayed is what an agent tells the proxy of its node: whose connections to relay.
// It is a file on the node, so that the proxy needs nothing of the cluster, and goes on while
// agents are replaced.
package relayed

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/wholefile"
)

// FileName is the file's name in the agent's directory of states.
const FileName = "relayed.json"

// Endpoint is a pod or guest whose connections are to be relayed.
type Endpoint struct {
	// Interface is the index of the node's end of its interface, and Name what it is called.
	Interface int    `json:"interface"`
	Name      string `json:"name"`
	// Addresses of the endpoint.
	Addresses []netip.Addr `json:"addresses"`
	// Subflows of its connections to servers.
	Subflows v1alpha1.PlanSubflows `json:"subflows"`
}

// Write replaces the file in one step, where it says something else. One that says nothing
// is removed.
func Write(directory string, endpoints []Endpoint) error {
	path := filepath.Join(directory, FileName)
	if len(endpoints) == 0 {
		if err := wholefile.Remove(path); err != nil {
			return fmt.Errorf("removing the list for the proxy: %w", err)
		}
		return nil
	}
	data, err := json.Marshal(endpoints)
	if err != nil {
		return fmt.Errorf("encoding the list for the proxy: %w", err)
	}
	if before, err := os.ReadFile(path); err == nil && bytes.Equal(before, data) {
		return nil
	}
	if err := wholefile.Replace(path, data); err != nil {
		return fmt.Errorf("replacing the list for the proxy: %w", err)
	}
	return nil
}

// Read is what an agent wrote last; nobody where there is no file.
func Read(directory string) (endpoints []Endpoint, err error) {
	data, err := os.ReadFile(filepath.Join(directory, FileName))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the list for the proxy: %w", err)
	}
	if err := json.Unmarshal(data, &endpoints); err != nil {
		return nil, fmt.Errorf("decoding the list for the proxy: %w", err)
	}
	return endpoints, nil
}
