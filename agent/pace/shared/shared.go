// SPDX-License-Identifier: Apache-2.0

// Package shared has the map of paced sockets, which belongs to all the parts that pace them, so that
// a socket has the least of the rates that they want.
package shared

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/cilium/ebpf"
)

// The parts that pace sockets.
const (
	ByRules    = "rules"
	ByRequests = "requests"
)

// Directory is that of the map's pins below the agent's directory on a BPF file system.
func Directory(pinPath string) string { return filepath.Join(pinPath, "pacing") }

// mutex keeps two parts from making the map at the same time.
var mutex sync.Mutex

// Hold returns the map for one of the parts. Each has a pin of its own to the same map:
// it is there as long as one of them holds it, also while no agent runs.
func Hold(directory, part string, spec *ebpf.MapSpec) (*ebpf.Map, error) {
	mutex.Lock()
	defer mutex.Unlock()
	if err := os.MkdirAll(directory, 0o700); err != nil {
		return nil, fmt.Errorf("failed to make the directory of the map of paced sockets: %w", err)
	}
	wanted := spec.Copy()
	wanted.Pinning = ebpf.PinNone
	found, err := find(directory, part, wanted)
	if err != nil || found != nil {
		return found, err
	}
	made, err := ebpf.NewMap(wanted)
	if err != nil {
		return nil, fmt.Errorf("failed to make the map of paced sockets: %w", err)
	}
	return pin(made, filepath.Join(directory, part))
}

// find opens the map by whichever pin it has; nil where there is none of this layout.
func find(directory, part string, wanted *ebpf.MapSpec) (*ebpf.Map, error) {
	for _, holder := range []string{part, ByRules, ByRequests} {
		pinned, err := ebpf.LoadPinnedMap(filepath.Join(directory, holder), nil)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("failed to open the map of paced sockets: %w", err)
		}
		if wanted.Compatible(pinned) != nil {
			if err := pinned.Close(); err != nil {
				return nil, fmt.Errorf("failed to close another agent's map of paced sockets: %w", err)
			}
			continue
		}
		if holder == part {
			return pinned, nil
		}
		// A clone, because to pin what has a pin moves it.
		clone, err := pinned.Clone()
		if err := errors.Join(err, pinned.Close()); err != nil {
			return nil, fmt.Errorf("failed to share the map of paced sockets: %w", err)
		}
		return pin(clone, filepath.Join(directory, part))
	}
	return nil, nil
}

// pin puts the map in the place of one of another layout.
func pin(m *ebpf.Map, path string) (*ebpf.Map, error) {
	err := os.Remove(path)
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	if err == nil {
		err = m.Pin(path)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("failed to pin the map of paced sockets: %w", err), m.Close())
	}
	return m, nil
}

// Leave removes a part's pin, and with the last one the map.
func Leave(directory, part string) error {
	mutex.Lock()
	defer mutex.Unlock()
	if err := os.Remove(filepath.Join(directory, part)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("failed to remove the pin of the map of paced sockets: %w", err)
	}
	entries, err := os.ReadDir(directory)
	if errors.Is(err, os.ErrNotExist) || len(entries) > 0 {
		return nil
	}
	if err == nil {
		err = os.Remove(directory)
	}
	if err != nil {
		return fmt.Errorf("failed to remove the directory of the map of paced sockets: %w", err)
	}
	return nil
}
