// SPDX-License-Identifier: Apache-2.0

package chains

import (
	"errors"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
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
	// Programs tells the slots of the custom programs that are loaded, and why others are
	// not; nil where there are none.
	Programs func() (slots map[ProgramName]uint32, refused map[ProgramName]error)
	Log      logr.Logger
}

// failures are the endpoints that could not be given their chain, and why. Their
// packets go on through the chain that they had, or through none.
type failures map[types.UID]error

func (f failures) add(uid types.UID, err error) {
	if err != nil {
		f[uid] = errors.Join(f[uid], err)
	}
}
