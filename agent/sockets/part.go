// SPDX-License-Identifier: Apache-2.0

package sockets

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"braid.dev/braid/agent/node"
	"braid.dev/braid/api/v1alpha1"
)

// Upgrader is the node.Part that upgrades the sockets of the pods whose policies ask
// for it. The program is loaded with the first of them, and removed with the last.
type Upgrader struct {
	node.Idle
	directory string
	open      func(directory string) (program, error)

	mu          sync.Mutex
	program     program // nil while it is not loaded
	unsupported error   // why this kernel cannot
}

// program is what is used of Upgrade.
type program interface {
	Enable(inode uint64) error
	Disable(inode uint64) error
	Enabled() ([]uint64, error)
	Close() error
}

// NewUpgrader pins in this directory, once there is something to pin.
func NewUpgrader(directory string) *Upgrader {
	return &Upgrader{directory: directory, open: func(directory string) (program, error) {
		opened, err := Open(directory)
		if err != nil {
			return nil, err
		}
		return opened, nil
	}}
}

// Apply upgrades the sockets of the endpoints that ask for it and were found, and
// says in their statuses if it could. A pod whose sockets stay as they are works
// without, so this is no failure of the endpoint.
func (u *Upgrader) Apply(_ context.Context, model *node.Model) (report node.Report) {
	u.mu.Lock()
	defer u.mu.Unlock()
	var asking []*node.Endpoint
	inodes := map[uint64]bool{}
	for i := range model.Endpoints {
		if endpoint := &model.Endpoints[i]; endpoint.UpgradeSockets && endpoint.Found != nil {
			asking, inodes[endpoint.Found.Inode] = append(asking, endpoint), true
		}
	}
	report.Err = u.disableOthers(inodes)
	for _, endpoint := range asking {
		state, err := u.enable(endpoint.Found.Inode)
		report.Describe(endpoint.UID, func(status *v1alpha1.EndpointStatus) {
			status.SocketUpgrade = state
			if err != nil {
				node.AddMessage(status, err.Error())
			}
		})
	}
	return report
}

// disableOthers ends the upgrade for all namespaces but these, also where an earlier
// agent began it: the kernel gives the numbers of namespaces that are gone to new ones.
func (u *Upgrader) disableOthers(wanted map[uint64]bool) error {
	if len(wanted) == 0 {
		return errors.Join(u.close(), Remove(u.directory))
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
func (u *Upgrader) enable(inode uint64) (v1alpha1.SocketUpgradeState, error) {
	err := u.load()
	if err == nil {
		err = u.program.Enable(inode)
	}
	switch {
	case errors.Is(err, ErrUnsupported):
		return v1alpha1.SocketUpgradeUnsupported, fmt.Errorf("%w; see docs/sockets.md for other ways to MPTCP", err)
	case err != nil:
		return v1alpha1.SocketUpgradeFailed, err
	}
	return v1alpha1.SocketUpgradeActive, nil
}

// load loads the program, or takes over an earlier agent's. A kernel that cannot
// is not asked again.
func (u *Upgrader) load() (err error) {
	if u.program != nil || u.unsupported != nil {
		return u.unsupported
	}
	if u.program, err = u.open(u.directory); errors.Is(err, ErrUnsupported) {
		u.unsupported = err
	}
	return err
}

// Feature is what is known of the kernel; nil as long as no pod has asked.
func (u *Upgrader) Feature() *v1alpha1.KernelFeature {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case u.unsupported != nil:
		return &v1alpha1.KernelFeature{Name: "SocketUpgrade", Message: node.Shorten(node.MessageLimit, u.unsupported.Error())}
	case u.program != nil:
		return &v1alpha1.KernelFeature{Name: "SocketUpgrade", Supported: true}
	}
	return nil
}

// Close lets go of the program; it goes on.
func (u *Upgrader) Close() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.close()
}

func (u *Upgrader) close() error {
	if u.program == nil {
		return nil
	}
	err := u.program.Close()
	u.program = nil
	return err
}

// Remove ends the upgrade for all namespaces.
func (u *Upgrader) Remove(context.Context) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.disableOthers(nil)
}
