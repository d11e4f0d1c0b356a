// SPDX-License-Identifier: Apache-2.0

package pathmanager

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"braid.dev/braid/agent/endpoints/namespace"
	"braid.dev/braid/api/v1alpha1"
)

// sysctls reads and writes the network settings of one namespace. The kernel
// shows those of the namespace that the reading thread is in.
type sysctls struct {
	file *os.File
	root string
}

func (s sysctls) path(name string) string { return filepath.Join(s.root, "sys/net", name) }

// read returns os.ErrNotExist for a setting that the kernel does not have.
func (s sysctls) read(name string) (value string, err error) {
	err = namespace.Do(s.file, func() error {
		data, err := os.ReadFile(s.path(name))
		value = strings.TrimSpace(string(data))
		return err
	})
	if err != nil {
		return "", fmt.Errorf("reading setting %s: %w", name, err)
	}
	return value, nil
}

// set writes a setting that has another value.
func (s sysctls) set(name, value string) error {
	if before, err := s.read(name); err != nil || before == value {
		return err
	}
	err := namespace.Do(s.file, func() error { return os.WriteFile(s.path(name), []byte(value), 0o644) })
	if err != nil {
		return fmt.Errorf("setting %s to %q: %w", name, value, err)
	}
	return nil
}

const (
	settingEnabled        = "mptcp/enabled"
	settingPathManager    = "mptcp/path_manager"      // since Linux 6.15
	settingPathManagerID  = "mptcp/pm_type"           // older, and still there
	settingCloseTimeout   = "mptcp/close_timeout"     // not in Linux 6.1
	settingBlackholes     = "mptcp/blackhole_timeout" // since Linux 6.12
	settingLeastMTU       = "ipv4/route/min_pmtu"     // of a namespace since Linux 5.18
	settingReceiveBuffers = "ipv4/tcp_rmem"
	settingDropTimestamp  = "mptcp/add_addr_v6_port_drop_ts"
	settingTimestamps     = "ipv4/tcp_timestamps"
)

// pathManagerSetting is the one that this kernel has for who opens subflows.
func (s sysctls) pathManagerSetting() (name string, values map[v1alpha1.SubflowManager]string, err error) {
	if _, err = s.read(settingPathManager); err == nil {
		return settingPathManager, map[v1alpha1.SubflowManager]string{
			v1alpha1.SubflowManagerKernel: "kernel", v1alpha1.SubflowManagerAgent: "userspace",
		}, nil
	}
	if !errors.Is(err, os.ErrNotExist) {
		return "", nil, err
	}
	return settingPathManagerID, map[v1alpha1.SubflowManager]string{
		v1alpha1.SubflowManagerKernel: "0", v1alpha1.SubflowManagerAgent: "1",
	}, nil
}

// ErrDisabled says that MPTCP is switched off in the namespace.
var ErrDisabled = errors.New("net.mptcp.enabled is 0 in the pod's network namespace: set it to 1")

func (s sysctls) checkEnabled() error {
	value, err := s.read(settingEnabled)
	if err != nil {
		return err
	}
	if value == "0" {
		return ErrDisabled
	}
	return nil
}

// announcesIPv6 says whether an announcement of an IPv6 address with a port can
// be sent: with TCP timestamps it is too long for the options of a segment, and
// only newer kernels leave the timestamps out.
func (s sysctls) announcesIPv6() (bool, error) {
	value, err := s.read(settingDropTimestamp)
	if err == nil && value == "1" {
		return true, nil
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return false, err
	}
	value, err = s.read(settingTimestamps)
	return value == "0", err
}
