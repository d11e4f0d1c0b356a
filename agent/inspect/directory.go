// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"reflect"
	"strconv"
	"sync"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/bpf/endpoint"
	"braid.dev/braid/internal/wholefile"
)

// DefaultStatePath is the directory of an agent's states, unless it is told another.
const DefaultStatePath = "/run/braid"

// DirectoryName is the file, in the agent's directory of states, of what the
// numbers in the maps stand for.
const DirectoryName = "inspect.json"

// Endpoint is what the number of an endpoint stands for.
type Endpoint struct {
	// Name is namespace/name of the pod.
	Name string `json:"name"`
	// Rules are those of its chain, in their order.
	Rules []RuleName `json:"rules,omitempty"`
}

// RuleName names a rule.
type RuleName struct {
	// Policy is kind, namespace and name, as in MPTCPPolicy/team/web.
	Policy string `json:"policy"`
	Name   string `json:"name"`
}

// RuleNames are the names of these rules.
func RuleNames(rules []v1alpha1.PlanRule) []RuleName {
	names := make([]RuleName, len(rules))
	for i := range rules {
		names[i] = RuleName{rules[i].Policy, rules[i].Name}
	}
	return names
}

// Directory tells what the numbers of endpoints in the programs' maps stand for. It
// is kept in a file, so that the maps can be read where no agent runs. It is safe
// for concurrent use.
type Directory struct {
	path string

	mutex sync.RWMutex
	known map[uint32]Endpoint
}

// OpenDirectory reads what an agent kept in the file at this path; it is empty
// where none did. Without a path it is empty, and nothing is kept.
func OpenDirectory(path string) (*Directory, error) {
	d := &Directory{path: path}
	if path == "" {
		return d, nil
	}
	data, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return d, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &d.known)
	}
	if err != nil {
		return nil, fmt.Errorf("reading the names of endpoints: %w", err)
	}
	return d, nil
}

// Set replaces everything, and writes the file where something changed; without
// endpoints there is none. The names hold also when the file cannot be written.
func (d *Directory) Set(endpoints map[uint32]Endpoint) error {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if reflect.DeepEqual(d.known, endpoints) {
		return nil
	}
	d.known = endpoints
	if d.path == "" {
		return nil
	}
	if err := d.write(); err != nil {
		return fmt.Errorf("keeping the names of endpoints: %w", err)
	}
	return nil
}

func (d *Directory) write() error {
	if len(d.known) == 0 {
		return wholefile.Remove(d.path)
	}
	data, err := json.Marshal(d.known)
	if err != nil {
		return err
	}
	return wholefile.Replace(d.path, data)
}

// Endpoint is namespace/name of the pod with this number, or the number.
func (d *Directory) Endpoint(id uint32) string {
	d.mutex.RLock()
	defer d.mutex.RUnlock()
	if endpoint, ok := d.known[id]; ok {
		return endpoint.Name
	}
	return "#" + strconv.FormatUint(uint64(id), 10)
}

// endpointAt names an endpoint that may not be in the directory by its interface.
func (d *Directory) endpointAt(id, index uint32) string {
	d.mutex.RLock()
	_, known := d.known[id]
	d.mutex.RUnlock()
	if !known {
		if found, err := net.InterfaceByIndex(int(index)); err == nil {
			return found.Name
		}
	}
	return d.Endpoint(id)
}

// Rule names a rule of an endpoint; one that is not known by its place.
func (d *Directory) Rule(id uint32, rule uint8) (policy, name string) {
	if rule == endpoint.NoRule { // one of an earlier chain
		return "", ""
	}
	d.mutex.RLock()
	defer d.mutex.RUnlock()
	if rules := d.known[id].Rules; int(rule) < len(rules) {
		return rules[rule].Policy, rules[rule].Name
	}
	return "", fmt.Sprintf("#%d", rule+1)
}
