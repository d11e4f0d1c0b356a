// SPDX-License-Identifier: Apache-2.0

package pathmanager

import (
	"errors"
	"fmt"
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
	n.calls.Lock()
	defer n.calls.Unlock()
	n.changes.Lock()
	defer n.changes.Unlock()
	value, err := n.closeTimeout(timeout)
	if err != nil || value == "" {
		return err
	}
	if err := n.sysctls.set(settingCloseTimeout, value); err != nil {
		return fmt.Errorf("setting net.mptcp.close_timeout: %w", err)
	}
	return nil
}

// closeTimeout is what the setting shall be; empty where it stays as it is. What it is
// before the first change is recorded.
func (n *Namespace) closeTimeout(timeout time.Duration) (value string, err error) {
	before, known := n.record.Sysctls[settingCloseTimeout]
	if timeout == 0 {
		return before, nil
	}
	if !known {
		before, err = n.sysctls.read(settingCloseTimeout)
		if errors.Is(err, os.ErrNotExist) {
			return "", ErrNoCloseTimeout
		}
		if err != nil {
			return "", err
		}
		n.record.Sysctls[settingCloseTimeout] = before
		if err := n.record.write(n.options.StatePath); err != nil {
			return "", err
		}
	}
	return strconv.Itoa(int(timeout.Seconds())), nil
}
