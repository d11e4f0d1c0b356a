// SPDX-License-Identifier: Apache-2.0

package chains

import (
	"errors"
	"fmt"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"

	"braid.dev/braid/api/v1alpha1"
)

// Options of Chains.
type Options struct {
	// PinPath is a directory on a BPF file system, for this node alone.
	PinPath string
	// SubflowEntries is the number of subflows that the node remembers; 0 for the
	// programs' default.
	SubflowEntries uint32
	// Clsact attaches by filters also where the kernel knows TCX.
	Clsact bool
	Log    logr.Logger
}

// State is all that the endpoint half must know.
type State struct {
	// Endpoints that have rules.
	Endpoints []Endpoint
	// Paths are the node's NICs, one for each path.
	Paths []Path
	// Blocks are the slots of the custom blocks that are loaded, Refused why others
	// are not.
	Blocks  map[BlockName]uint32
	Refused map[BlockName]error
}

// Path is this node's NIC on one path.
type Path struct {
	Name string
	// Interface is the NIC's index.
	Interface int
}

// Endpoint is a pod whose packets run through a chain.
type Endpoint struct {
	UID types.UID
	// Name is for people: namespace/name of the pod.
	Name string
	// Interface is the index of the host's end of the pod's interface.
	Interface int
	// Rules of the chain, in their order; at least one.
	Rules []v1alpha1.PlanRule
}

// uidLength is the room for a pod's UID.
const uidLength = 64

// validate catches what the kernel's maps could not hold.
func (s *State) validate() error {
	if len(s.Paths) > v1alpha1.MaxPaths {
		return fmt.Errorf("%d paths: a node can use %d at most", len(s.Paths), v1alpha1.MaxPaths)
	}
	seen := map[types.UID]bool{}
	for _, endpoint := range s.Endpoints {
		if endpoint.UID == "" || len(endpoint.UID) >= uidLength || seen[endpoint.UID] {
			return fmt.Errorf("endpoint %s: the UID %q is empty, too long or not the only one", endpoint.Name, endpoint.UID)
		}
		seen[endpoint.UID] = true
		if endpoint.Interface <= 0 {
			return fmt.Errorf("endpoint %s has no interface", endpoint.Name)
		}
		if len(endpoint.Rules) == 0 {
			return fmt.Errorf("endpoint %s has no rules", endpoint.Name)
		}
	}
	return nil
}

// Failures are the endpoints that could not be given their chain, and why. Their
// packets go on through the chain that they had, or through none.
type Failures map[types.UID]error

func (f Failures) add(uid types.UID, err error) {
	if err != nil {
		f[uid] = errors.Join(f[uid], err)
	}
}
