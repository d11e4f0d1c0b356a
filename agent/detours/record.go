// SPDX-License-Identifier: Apache-2.0

package detours

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"

	"braid.dev/braid/agent/paths"
	"braid.dev/braid/internal/wholefile"
)

// FileName is that of the record in the agent's directory of states.
const FileName = "routes.json"

// record is the file in which an agent leaves its memory to the next one; with an empty path
// nothing is kept.
type record struct {
	path    string
	written *paths.Memory // nil while that is not known
}

func recordIn(directory string) record {
	if directory == "" {
		return record{}
	}
	return record{path: filepath.Join(directory, FileName)}
}

// read gives no memory where no agent left one.
func (r *record) read() (memory paths.Memory, err error) {
	if r.path == "" {
		return paths.Memory{}, nil
	}
	data, err := os.ReadFile(r.path)
	if errors.Is(err, os.ErrNotExist) {
		return paths.Memory{}, nil
	} else if err != nil {
		return paths.Memory{}, fmt.Errorf("reading the routes: %w", err)
	}
	if memory, err = decode(data); err != nil {
		return paths.Memory{}, fmt.Errorf("reading %s: %w", r.path, err)
	}
	return memory, nil
}

func decode(data []byte) (memory paths.Memory, err error) {
	if err := json.Unmarshal(data, &memory); err != nil {
		return paths.Memory{}, err
	}
	return memory, nil
}

// write replaces the file in one step, where it says something else.
func (r *record) write(memory paths.Memory) error {
	if r.path == "" || r.written != nil && reflect.DeepEqual(*r.written, memory) {
		return nil
	}
	data, err := json.Marshal(memory)
	if err != nil {
		return fmt.Errorf("encoding the routes: %w", err)
	}
	if err := wholefile.Replace(r.path, data); err != nil {
		return fmt.Errorf("writing the routes: %w", err)
	}
	r.written = &memory
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
