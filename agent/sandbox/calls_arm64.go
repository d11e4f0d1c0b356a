// SPDX-License-Identifier: Apache-2.0

package sandbox

import "golang.org/x/sys/unix"

const (
	nativeArchitecture = unix.AUDIT_ARCH_AARCH64
	// otherNumbers: there are none.
	otherNumbers = 0xffffffff
)

var refusedHere []uint32
