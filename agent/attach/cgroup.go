// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// ToCgroup puts a program that sees sockets on a cgroup2 tree and pins the link, or gives
// the link of an earlier agent the new program in one step.
func ToCgroup(pin, tree string, program *ebpf.Program) error {
	pinned, err := link.LoadPinnedLink(pin, nil)
	if err == nil {
		defer pinned.Close()
		if err := pinned.Update(program); err != nil {
			return fmt.Errorf("replacing an earlier agent's program: %w", err)
		}
		return nil
	}
	if !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("loading the pinned link %s: %w", pin, err)
	}
	attached, err := link.AttachCgroup(link.CgroupOptions{Path: tree, Attach: ebpf.AttachCGroupSockOps, Program: program})
	if err != nil {
		return fmt.Errorf("attaching to the cgroup2 tree at %s: %w", tree, err)
	}
	defer attached.Close()
	if err := attached.Pin(pin); err != nil {
		return fmt.Errorf("pinning the link to the cgroup2 tree: %w", err)
	}
	return nil
}
