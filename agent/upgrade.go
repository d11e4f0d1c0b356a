// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"sync"

	"braid.dev/braid/agent/sockets"
	"braid.dev/braid/api/v1alpha1"
)

// upgrade is the socket upgrade of the pods that ask for it. It is loaded with
// the first one, and removed with the last.
type upgrade struct {
	directory string
	open      func(directory string) (upgradeProgram, error)

	mu      sync.Mutex
	program upgradeProgram // nil while it is not loaded
	err     error          // why this kernel cannot
}

// upgradeProgram is what is used of sockets.Upgrade.
type upgradeProgram interface {
	Enable(inode uint64) error
	Disable(inode uint64) error
	Enabled() ([]uint64, error)
	Close() error
}

func newUpgrade(directory string) *upgrade {
	return &upgrade{directory: directory, open: func(directory string) (upgradeProgram, error) {
		opened, err := sockets.Open(directory)
		if err != nil {
			return nil, err
		}
		return opened, nil
	}}
}

// keep ends the upgrade for all namespaces but these, also where an earlier agent
// began it: the kernel gives the numbers of namespaces that are gone to new ones.
func (u *upgrade) keep(wanted map[uint64]bool) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(wanted) == 0 {
		return errors.Join(u.closeProgram(), sockets.Remove(u.directory))
	}
	if err := u.load(); err != nil {
		return nil // enable says so for each pod
	}
	enabled, err := u.program.Enabled()
	for _, inode := range enabled {
		if !wanted[inode] {
			err = errors.Join(err, u.program.Disable(inode))
		}
	}
	return err
}

// enable begins the upgrade for a namespace.
func (u *upgrade) enable(inode uint64) (v1alpha1.SocketUpgradeState, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	err := u.load()
	if err == nil {
		err = u.program.Enable(inode)
	}
	switch {
	case errors.Is(err, sockets.ErrUnsupported):
		return v1alpha1.SocketUpgradeUnsupported, fmt.Errorf("%w; see docs/sockets.md for other ways to MPTCP", err)
	case err != nil:
		return v1alpha1.SocketUpgradeFailed, err
	}
	return v1alpha1.SocketUpgradeActive, nil
}

// load loads the program, or takes over an earlier agent's. A kernel that cannot
// is not asked again.
func (u *upgrade) load() (err error) {
	if u.program != nil || u.err != nil {
		return u.err
	}
	if u.program, err = u.open(u.directory); errors.Is(err, sockets.ErrUnsupported) {
		u.err = err
	}
	return err
}

// feature is what is known of the kernel; nil as long as no pod has asked.
func (u *upgrade) feature() *v1alpha1.KernelFeature {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case u.err != nil:
		return &v1alpha1.KernelFeature{Name: "SocketUpgrade", Message: shorten(u.err.Error())}
	case u.program != nil:
		return &v1alpha1.KernelFeature{Name: "SocketUpgrade", Supported: true}
	}
	return nil
}

// close lets go of the program; it goes on.
func (u *upgrade) close() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.closeProgram()
}

func (u *upgrade) closeProgram() error {
	if u.program == nil {
		return nil
	}
	err := u.program.Close()
	u.program = nil
	return err
}
