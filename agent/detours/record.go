// SPDX-License-Identifier: Apache-2.0

package detours

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"braid.dev/braid/agent/paths"
	"braid.dev/braid/internal/wholefile"
)

// FileName is that of the record in the agent's directory of states.
const FileName = "routes.json"

// record is the file in which an agent leaves what it knows to the next one; with an empty path
// nothing is kept.
type record struct {
	path    string
	written *paths.Handover // nil while that is not known
}

func recordIn(directory string) record {
	if directory == "" {
		return record{}
	}
	return record{path: filepath.Join(directory, FileName)}
}

// read gives nothing where no agent left anything.
func (r *record) read() (left paths.Handover, err error) {
	if r.path == "" {
		return paths.Handover{}, nil
	}
	data, err := os.ReadFile(r.path)
	if errors.Is(err, os.ErrNotExist) {
		return paths.Handover{}, nil
	} else if err != nil {
		return paths.Handover{}, fmt.Errorf("reading the routes: %w", err)
	}
	if left, err = decode(data); err != nil {
		return paths.Handover{}, fmt.Errorf("reading %s: %w", r.path, err)
	}
	return left, nil
}

func decode(data []byte) (left paths.Handover, err error) {
	err = json.Unmarshal(data, &left)
	return left, err
}

// write replaces the file in one step, where it says something else. One that says nothing is
// removed.
func (r *record) write(left paths.Handover) error {
	if r.path == "" || r.written != nil && r.written.Equal(left) {
		return nil
	}
	if len(left.Routes)+len(left.Lost) == 0 {
		if err := r.remove(); err != nil {
			return err
		}
		r.written = &left
		return nil
	}
	data, err := json.Marshal(left)
	if err != nil {
		return fmt.Errorf("encoding the routes: %w", err)
	}
	if err := wholefile.Replace(r.path, data); err != nil {
		return fmt.Errorf("writing the routes: %w", err)
	}
	r.written = &left
	return nil
}

func (r *record) remove() error {
	if r.path == "" {
		return nil
	}
	if err := wholefile.Remove(r.path); err != nil {
		return fmt.Errorf("removing what is known of the routes: %w", err)
	}
	return nil
}
