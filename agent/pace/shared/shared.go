// SPDX-License-Identifier: Apache-2.0

// Package shared has the maps that the parts have in common that govern sockets: that of paced
// sockets, so that a socket has the least of the rates that they want, and that of what rules
// ask of peers.
package shared

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/cilium/ebpf"
)

// The parts that govern sockets.
const (
	ByRules    = "rules"
	ByRequests = "requests"
)

// pacedSockets is the map whose pins have the names of the parts alone.
const pacedSockets = "paced_sockets"

// Directory is that of the maps' pins below the agent's directory on a BPF file system.
func Directory(pinPath string) string { return filepath.Join(pinPath, "pacing") }

// pinOf is where a part has its pin of a map.
func pinOf(directory, part, name string) string {
	if name != pacedSockets {
		part += "-" + name
	}
	return filepath.Join(directory, part)
}

// mutex keeps two parts from making a map at the same time.
var mutex sync.Mutex

// Hold returns the map of this name for one of the parts. Each has a pin of its own to the same map:
// it is there as long as one of them holds it, also while no agent runs.
func Hold(directory, part string, spec *ebpf.MapSpec) (*ebpf.Map, error) {
	mutex.Lock()
	defer mutex.Unlock()
	if err := os.MkdirAll(directory, 0o700); err != nil {
		return nil, fmt.Errorf("failed to make the directory of shared maps: %w", err)
	}
	wanted := spec.Copy()
	wanted.Pinning = ebpf.PinNone
	found, err := find(directory, part, wanted)
	if err != nil || found != nil {
		return found, err
	}
	made, err := ebpf.NewMap(wanted)
	if err != nil {
		return nil, fmt.Errorf("failed to make the shared map %s: %w", spec.Name, err)
	}
	return pin(made, pinOf(directory, part, spec.Name))
}

// find opens the map by whichever pin it has; nil where there is none of this layout.
func find(directory, part string, wanted *ebpf.MapSpec) (*ebpf.Map, error) {
	for _, holder := range []string{part, ByRules, ByRequests} {
		pinned, err := ebpf.LoadPinnedMap(pinOf(directory, holder, wanted.Name), nil)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("failed to open the shared map %s: %w", wanted.Name, err)
		}
		if wanted.Compatible(pinned) != nil {
			if err := pinned.Close(); err != nil {
				return nil, fmt.Errorf("failed to close another agent's shared map %s: %w", wanted.Name, err)
			}
			continue
		}
		if holder == part {
			return pinned, nil
		}
		// A clone, because to pin what has a pin moves it.
		clone, err := pinned.Clone()
		if err := errors.Join(err, pinned.Close()); err != nil {
			return nil, fmt.Errorf("failed to share the map %s: %w", wanted.Name, err)
		}
		return pin(clone, pinOf(directory, part, wanted.Name))
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
		return nil, errors.Join(fmt.Errorf("failed to pin a shared map: %w", err), m.Close())
	}
	return m, nil
}

// Leave removes a part's pins, and with the last one of a map the map.
func Leave(directory, part string) error {
	mutex.Lock()
	defer mutex.Unlock()
	entries, err := os.ReadDir(directory)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	left := len(entries)
	for _, entry := range entries {
		if entry.Name() != part && !strings.HasPrefix(entry.Name(), part+"-") {
			continue
		}
		if err := os.Remove(filepath.Join(directory, entry.Name())); err != nil {
			return fmt.Errorf("failed to remove the pin of a shared map: %w", err)
		}
		left--
	}
	if err == nil && left == 0 {
		err = os.Remove(directory)
	}
	if err != nil {
		return fmt.Errorf("failed to remove the directory of shared maps: %w", err)
	}
	return nil
}
