// SPDX-License-Identifier: Apache-2.0

package sandbox

import "golang.org/x/sys/unix"

const (
	nativeArchitecture = unix.AUDIT_ARCH_X86_64
	// otherNumbers: from here on the numbers are those of x32.
	otherNumbers = 0x40000000
)

var refusedHere = []uint32{unix.SYS_MKNOD, unix.SYS_IOPL, unix.SYS_IOPERM}
