// SPDX-License-Identifier: Apache-2.0

package pathmanager

import (
	"errors"
	"os"
	"strconv"
	"time"
)

// ErrNoCloseTimeout says that the kernel does not let anybody choose how long a connection
// without a subflow waits.
var ErrNoCloseTimeout = errors.New("spec.transport.inactivityTimeout is not carried out: " +
	"the node's kernel has no net.mptcp.close_timeout, as Linux 6.1: remove it from the policy, or give the node a newer kernel")

// SetInactivityTimeout says how long connections that have lost their last subflow wait for
// another one, in whole seconds; with 0 they wait as long as before the first Configure,
// which must have succeeded.
func (n *Namespace) SetInactivityTimeout(timeout time.Duration) error {
	if _, err := n.sysctls.read(settingCloseTimeout); timeout > 0 && errors.Is(err, os.ErrNotExist) {
		return ErrNoCloseTimeout
	}
	return n.choose(settingCloseTimeout, timeout > 0, func(string) (string, error) { return strconv.Itoa(int(timeout.Seconds())), nil })
}
